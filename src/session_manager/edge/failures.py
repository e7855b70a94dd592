"""What goes wrong between this process and an engine, and how it is said."""

from __future__ import annotations

import structlog

from session_manager.errors import SessionManagerError

log = structlog.get_logger("session_manager.edge")


class EngineError(Exception):
    """No working connection to the engine; the text says why."""


class NameTaken(EngineError):
    """The engine refused the connection because another one has the name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"another worker is connected under the name {name!r}")


class GivenUp(Exception):
    """It was told to end while it waited; the text says for what."""


DISCONNECTED = "disconnected"
"""The code for a call that found no connection, or lost it."""


class Undelivered(Exception):
    """The target could not be called, or its answer did not come; `code` says which."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def no_engine(url: str, error: Exception) -> EngineError:
    """What is said where nobody takes a connection."""
    return EngineError(f"no engine at {url}: {getattr(error, 'strerror', None) or error}")


def no_answer(url: str) -> EngineError:
    """What is said where somebody takes a connection who does not behave as an engine in time."""
    return EngineError(f"the engine at {url} does not answer")


def explained(error: Exception, function_id: str | None) -> tuple[str, str]:
    """Code and message for the caller of a function that raised. What is not meant for callers is only in the log."""
    if isinstance(error, SessionManagerError):
        return "invocation_failed", str(error)
    log.error("a call failed in a way that it should not", function_id=function_id, exc_info=error)
    return "invocation_failed", "internal error; the worker's log tells more"
