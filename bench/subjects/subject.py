"""What is asked of every store. One that does not offer something says so, and its row says it too."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, ClassVar

MODES = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}


class NotOffered(Exception):
    """The store has no such thing; the text says what comes nearest."""


class Subject:
    """A store in a directory. Sessions are named by their callers; messages are those of `bench.content`, by index."""

    how: ClassVar[dict[str, str]] = {}
    """Per kind of work, how it is done here where that is not obvious."""
    scans: ClassVar[dict[str, str]] = {}
    """Per kind of work that reads more than it returns, what it reads."""
    FULL: ClassVar[str] = "its default"
    """How synchronous=FULL came about."""
    BATCHES: ClassVar[bool] = True
    """Whether it can take many messages at once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "store.db"

    async def open(self) -> None:
        """Ready for work, whether or not there is something already."""

    async def close(self) -> None:
        """Lets go of the files; nothing is left in a log."""

    async def settings(self) -> tuple[str, str]:
        """Journal mode and synchronous setting, read from a connection that the store itself uses."""
        raise NotOffered("there is no file")

    async def fill_entries(self, session: str, count: int) -> None:
        """A session of so many messages."""
        await self.new(session)
        for first in range(0, count, 500):
            await self.batch(session, first, min(500, count - first))

    async def fill_sessions(self, count: int) -> None:
        """So many sessions without messages."""
        for index in range(count):
            await self.new(f"session-{index}", index)

    async def new(self, session: str, index: int = 0) -> None:
        raise NotImplementedError

    async def append(self, session: str, index: int) -> None:
        raise NotImplementedError

    async def batch(self, session: str, first: int, count: int) -> None:
        raise NotImplementedError

    async def last(self, session: str, count: int) -> int:
        """Reads the newest messages; returns how many came."""
        raise NotImplementedError

    async def middle(self, session: str, position: int, count: int) -> int:
        raise NotImplementedError

    async def newest(self, count: int) -> int:
        raise NotOffered("no list of sessions")

    async def newest_of_owner(self, count: int) -> int:
        raise NotOffered("no filter by metadata")

    async def newest_working(self, count: int) -> int:
        raise NotOffered("no filter by status")

    async def fork(self, session: str) -> None:
        raise NotImplementedError

    async def start_reply(self, session: str) -> None:
        """Begins the reply that `update_reply` replaces."""
        raise NotImplementedError

    async def update_reply(self, session: str, text: str) -> None:
        raise NotOffered("a stored message cannot be replaced")


def settings_of(connection: sqlite3.Connection) -> tuple[str, str]:
    journal: Any = connection.execute("PRAGMA journal_mode").fetchone()[0]
    synchronous: Any = connection.execute("PRAGMA synchronous").fetchone()[0]
    return str(journal), MODES[synchronous]
