"""openai-agents: SQLiteSession and AdvancedSQLiteSession."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from typing import Any, ClassVar

from agents.extensions.memory import AdvancedSQLiteSession
from agents.memory import SQLiteSession

from bench import content
from bench.subjects.subject import Subject, settings_of


def _full(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA synchronous = FULL")


class _PlainSession(SQLiteSession):
    @staticmethod
    def _configure_connection(conn: sqlite3.Connection) -> None:
        SQLiteSession._configure_connection(conn)
        _full(conn)


class _AdvancedSession(AdvancedSQLiteSession):
    @staticmethod
    def _configure_connection(conn: sqlite3.Connection) -> None:
        SQLiteSession._configure_connection(conn)
        _full(conn)


class Plain(Subject):
    how: ClassVar[dict[str, str]] = {
        "middle": "get_items of everything, cut to the page",
        "fork": "get_items of everything, add_items to another session",
        "stream": "pop_item and add_items",
    }
    scans: ClassVar[dict[str, str]] = {"middle": "the whole session"}
    FULL = "set where it configures its connections"

    async def open(self) -> None:
        self._sessions: dict[str, Any] = {}
        self._numbers = itertools.count()

    def made(self, session: str) -> Any:
        return _PlainSession(session, self.file)

    def of(self, session: str) -> Any:
        found = self._sessions.get(session)
        if found is None:
            found = self._sessions[session] = self.made(session)
        return found

    async def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    async def settings(self) -> tuple[str, str]:
        session = self.of("big")

        def ask() -> tuple[str, str]:
            with session._locked_connection() as connection:
                return settings_of(connection)

        return await asyncio.to_thread(ask)

    async def new(self, session: str, index: int = 0) -> None:
        self.of(session)

    async def append(self, session: str, index: int) -> None:
        await self.of(session).add_items([content.item(index)])

    async def batch(self, session: str, first: int, count: int) -> None:
        await self.of(session).add_items([content.item(index) for index in range(first, first + count)])

    async def last(self, session: str, count: int) -> int:
        return len(await self.of(session).get_items(limit=count))

    async def middle(self, session: str, position: int, count: int) -> int:
        return len((await self.of(session).get_items())[position : position + count])

    async def fork(self, session: str) -> None:
        items = await self.of(session).get_items()
        copy = self.made(f"{session}-{next(self._numbers)}")
        await copy.add_items(items)
        copy.close()

    async def start_reply(self, session: str) -> None:
        await self.append(session, 1)

    async def update_reply(self, session: str, text: str) -> None:
        await self.of(session).pop_item()
        await self.of(session).add_items([{"role": "assistant", "content": text}])


class Advanced(Plain):
    how = {
        **Plain.how,
        "fork": "create_branch_from_turn at the last turn, and back to the first branch",
    }

    def made(self, session: str) -> Any:
        return _AdvancedSession(session_id=session, db_path=self.file, create_tables=True)

    async def fork(self, session: str) -> None:
        made = self.of(session)
        turn = await asyncio.to_thread(made._get_current_turn_number)
        await made.create_branch_from_turn(turn)
        await made.switch_to_branch("main")
