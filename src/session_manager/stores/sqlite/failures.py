"""What SQLite and the file system raise, as the port's errors; the cause goes to the log."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import structlog

from session_manager.errors import Outdated, StorageError, Unready

log = structlog.get_logger("session_manager.sqlite")

P = ParamSpec("P")
T = TypeVar("T")

UNDONE = frozenset({"SQLITE_IOERR_FSYNC", "SQLITE_IOERR_WRITE", "SQLITE_FULL"})
"""Failures that a connection undoes by itself, if it is in no transaction afterwards."""

_MEANINGS = {
    "SQLITE_NOTADB": "the file is no SQLite database",
    "SQLITE_CORRUPT": "the file is damaged",
    "SQLITE_FULL": "the disk is full",
    "SQLITE_READONLY": "the file or its directory may not be written",
    "SQLITE_CANTOPEN": "the file cannot be opened",
    "SQLITE_IOERR": "the disk does not do what it is asked",
}
"""What people make of SQLite's own names; each stands for those that go on behind it too."""


class OfOneSession(StorageError):
    """What is wrong with one session, or with what is to be done to it, and is no reason to doubt the database."""


OF_ONE_CHANGE = (OfOneSession, Outdated)
"""Failures that are no other change's."""


def translated(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls the function. Raises StorageError in place of what comes from below."""
    try:
        return function(*args, **kwargs)
    except (sqlite3.Error, OSError) as error:
        raise storage_error(error) from error


def storage_error(error: sqlite3.Error | OSError) -> StorageError:
    kind = getattr(error, "sqlite_errorname", None) or getattr(error, "strerror", None) or type(error).__name__
    log.warning("the database failed", kind=kind, error=str(error))
    failed = Unready if kind.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")) else StorageError
    meaning = next((f": {meaning}" for name, meaning in _MEANINGS.items() if kind.startswith(name)), "")
    return failed(f"the database failed ({kind}){meaning}")
