"""session-manager: the conversation database of an agent system, a worker on the iii engine."""

__version__: str


def __getattr__(name: str) -> str:
    """The version is looked up when it is asked for: until the command line has begun, Ctrl+C would show where in these
    imports it was."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version("session-manager")
