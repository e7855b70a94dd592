"""Measures session-manager beside bare SQLite and the stores that people would use instead. `python -m bench --help`.

Nothing here is needed to run or to test the worker. docs/performance/README.md says what is measured and how.
"""
