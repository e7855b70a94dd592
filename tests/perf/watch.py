"""A worker on SQLite whose every statement is seen."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from session_manager.stores.sqlite import files, paths
from tests.stage import InProcess


def user(text: str = "hello") -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}], "timestamp": 1}


ALONE = ("INSERT INTO appended", "INSERT INTO replaced")
"""How the changes begin that are made in one statement, by a trigger."""


class Watched(InProcess):
    """A stage on SQLite, which holds no paths in memory unless told. Connections are made in one place, which is where
    they are fitted with a trace."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__({"name": "sqlite", "config": {"path": "sessions.db", "synchronous": "OFF"}}, base)
        self.file = base / "sessions.db"
        self._seen: list[str] = []
        self._connections: list[sqlite3.Connection] = []
        real = files.connect

        def connect(*args: Any, **kwargs: Any) -> sqlite3.Connection:
            connection = real(*args, **kwargs)
            connection.set_trace_callback(self._seen.append)
            self._connections.append(connection)
            return connection

        monkeypatch.setattr(files, "connect", connect)
        monkeypatch.setattr(paths, "PATIENCE", 10**9)

    @contextmanager
    def statements(self) -> Iterator[list[str]]:
        """What is executed meanwhile, parameters filled in. PRAGMAs are left out."""
        found: list[str] = []
        before = len(self._seen)
        yield found
        for seen in self._seen[before:]:
            # Python is told a statement again for each one of the triggers that it fires.
            again = found and seen == found[-1] and seen.startswith(ALONE)
            if not again and not seen.startswith(("PRAGMA", "--")):
                found.append(seen)

    @contextmanager
    def steps(self) -> Iterator[list[int]]:
        """How many steps SQLite's machine takes meanwhile, over all connections."""
        found: list[int] = []
        count = 0

        def step() -> int:
            nonlocal count
            count += 1
            return 0

        for connection in self._connections:
            connection.set_progress_handler(step, 1)
        try:
            yield found
        finally:
            for connection in self._connections:
                connection.set_progress_handler(None, 1)
            found.append(count)

    async def session(self, entries: int = 0, **payload: Any) -> tuple[str, list[str]]:
        """A session and the ids of its entries."""
        session_id: str = (await self.call("session::create", payload))["session_id"]
        ids: list[str] = []
        for first in range(0, entries, 5_000):
            messages = [user(str(index)) for index in range(first, min(entries, first + 5_000))]
            reply = await self.service.call("session::append-many", {"session_id": session_id, "messages": messages})
            ids += reply["entry_ids"]
        return session_id, ids


def verbs(statements: list[str]) -> list[str]:
    return [statement.split(None, 1)[0].upper() for statement in statements]
