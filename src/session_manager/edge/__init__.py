"""The edge: the only place that knows iii."""
