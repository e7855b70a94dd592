"""What the worker does for a call, counted: statements, rows read, encodings. No clock is looked at, so these hold on
any machine; how long it all takes is for `python -m bench`."""
