"""Over an engine: what a call costs beside one that does nothing, and what events cost those who write."""
