"""The least that a durable store on SQLite must do: one transaction per change, one statement per row, no checks."""

from __future__ import annotations

import json
import sqlite3
import time
from typing import Any

from bench import content
from bench.subjects.subject import Subject, settings_of

SCHEMA = """
CREATE TABLE IF NOT EXISTS session (id TEXT PRIMARY KEY, title TEXT, owner TEXT, status TEXT, updated INTEGER);
CREATE INDEX IF NOT EXISTS session_updated ON session (updated);
CREATE INDEX IF NOT EXISTS session_owner ON session (owner, updated);
CREATE INDEX IF NOT EXISTS session_status ON session (status, updated);
CREATE TABLE IF NOT EXISTS entry (session TEXT, pos INTEGER, body TEXT, PRIMARY KEY (session, pos)) WITHOUT ROWID;
"""


class Floor(Subject):
    how = {
        "append": "insert of the entry and update of its session's record, one commit",
        "batch": "one executemany and the update of the record, one commit",
        "fork": "insert … select",
        "writers": "one after another: one connection, one commit each",
    }
    FULL = "set on the connection"

    async def open(self) -> None:
        self._db = sqlite3.connect(self.file, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.executescript(SCHEMA)
        self._ends: dict[str, int] = {}
        self._forks = 0

    async def close(self) -> None:
        self._db.close()

    async def settings(self) -> tuple[str, str]:
        return settings_of(self._db)

    async def new(self, session: str, index: int = 0) -> None:
        row = (session, f"Session {index}", content.owner(index), content.status(index), time.time_ns())
        self._db.execute("INSERT INTO session VALUES (?, ?, ?, ?, ?)", row)

    async def fill_sessions(self, count: int) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        await super().fill_sessions(count)
        self._db.execute("COMMIT")

    async def append(self, session: str, index: int) -> None:
        self._add(session, [index])

    async def append_alone(self, session: str, index: int) -> None:
        """Nothing but one insert in one commit."""
        pos = self._end(session)
        self._db.execute("INSERT INTO entry VALUES (?, ?, ?)", (session, pos, json.dumps(content.message(index))))
        self._ends[session] = pos + 1

    async def batch(self, session: str, first: int, count: int) -> None:
        self._add(session, range(first, first + count))

    def _end(self, session: str) -> int:
        end = self._ends.get(session)
        if end is None:
            found = self._db.execute("SELECT max(pos) + 1 FROM entry WHERE session = ?", (session,)).fetchone()
            end = self._ends[session] = found[0] or 0
        return end

    def _add(self, session: str, indexes: Any) -> None:
        pos = self._end(session)
        rows = [(session, pos + n, json.dumps(content.message(index))) for n, index in enumerate(indexes)]
        self._db.execute("BEGIN IMMEDIATE")
        if len(rows) == 1:
            self._db.execute("INSERT INTO entry VALUES (?, ?, ?)", rows[0])
        else:
            self._db.executemany("INSERT INTO entry VALUES (?, ?, ?)", rows)
        self._db.execute("UPDATE session SET updated = ? WHERE id = ?", (time.time_ns(), session))
        self._db.execute("COMMIT")
        self._ends[session] = pos + len(rows)

    async def last(self, session: str, count: int) -> int:
        found = self._db.execute("SELECT body FROM entry WHERE session = ? ORDER BY pos DESC LIMIT ?", (session, count))
        return len([json.loads(body) for (body,) in found.fetchall()])

    async def middle(self, session: str, position: int, count: int) -> int:
        found = self._db.execute(
            "SELECT body FROM entry WHERE session = ? AND pos >= ? ORDER BY pos LIMIT ?", (session, position, count)
        )
        return len([json.loads(body) for (body,) in found.fetchall()])

    async def newest(self, count: int) -> int:
        return self._list("", (count,))

    async def newest_of_owner(self, count: int) -> int:
        return self._list("WHERE owner = ?", (content.OWNER, count))

    async def newest_working(self, count: int) -> int:
        return self._list("WHERE status = ?", ("working", count))

    def _list(self, where: str, parameters: tuple[Any, ...]) -> int:
        return len(
            self._db.execute(f"SELECT * FROM session {where} ORDER BY updated DESC LIMIT ?", parameters).fetchall()
        )

    async def fork(self, session: str) -> None:
        self._forks += 1
        copy = f"{session}-{time.time_ns()}-{self._forks}"
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute("INSERT INTO entry SELECT ?, pos, body FROM entry WHERE session = ?", (copy, session))
        await self.new(copy)
        self._db.execute("COMMIT")

    async def start_reply(self, session: str) -> None:
        await self.append(session, 1)

    async def update_reply(self, session: str, text: str) -> None:
        message = {**content.message(1), "content": [{"type": "text", "text": text}]}
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute(
            "UPDATE entry SET body = ? WHERE session = ? AND pos = ?",
            (json.dumps(message), session, self._ends[session] - 1),
        )
        self._db.execute("UPDATE session SET updated = ? WHERE id = ?", (time.time_ns(), session))
        self._db.execute("COMMIT")
