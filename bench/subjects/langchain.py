"""langchain-community: SQLChatMessageHistory, one engine for all sessions."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, ClassVar

from langchain_community.chat_message_histories import SQLChatMessageHistory
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from sqlalchemy import create_engine, event, text

from bench import content
from bench.subjects.subject import MODES, Subject


def _message(index: int) -> BaseMessage:
    return AIMessage(content.text(index)) if index % 2 else HumanMessage(content.text(index))


class History(Subject):
    how: ClassVar[dict[str, str]] = {
        "writers": "in threads: the history is synchronous",
        "last": "all messages, cut to the page",
        "middle": "all messages, cut to the page",
        "fork": "all messages, add_messages to another session",
    }
    scans: ClassVar[dict[str, str]] = {
        "last": "the whole table",
        "middle": "the whole table",
        "resume": "the whole table",
    }
    FULL = "set when it connects"

    async def open(self) -> None:
        self._engine = create_engine(f"sqlite:///{self.file}")

        @event.listens_for(self._engine, "connect")  # type: ignore[untyped-decorator]
        def full(connection: Any, _: Any) -> None:
            connection.execute("PRAGMA synchronous = FULL")

        self._histories: dict[str, SQLChatMessageHistory] = {}
        self._numbers = itertools.count()

    def of(self, session: str) -> SQLChatMessageHistory:
        found = self._histories.get(session)
        if found is None:
            found = self._histories[session] = SQLChatMessageHistory(session, connection=self._engine)
        return found

    async def close(self) -> None:
        self._engine.dispose()

    async def settings(self) -> tuple[str, str]:
        with self._engine.connect() as connection:
            journal = connection.execute(text("PRAGMA journal_mode")).scalar()
            synchronous: Any = connection.execute(text("PRAGMA synchronous")).scalar()
        return str(journal), MODES[synchronous]

    async def new(self, session: str, index: int = 0) -> None:
        self.of(session)

    async def append(self, session: str, index: int) -> None:
        if session.startswith("writer"):
            await asyncio.to_thread(self.of(session).add_message, _message(index))
        else:
            self.of(session).add_message(_message(index))

    async def batch(self, session: str, first: int, count: int) -> None:
        self.of(session).add_messages([_message(index) for index in range(first, first + count)])

    async def last(self, session: str, count: int) -> int:
        return len(self.of(session).messages[-count:])

    async def middle(self, session: str, position: int, count: int) -> int:
        return len(self.of(session).messages[position : position + count])

    async def fork(self, session: str) -> None:
        messages = self.of(session).messages
        SQLChatMessageHistory(f"{session}-{next(self._numbers)}", connection=self._engine).add_messages(messages)

    async def start_reply(self, session: str) -> None:
        await self.append(session, 1)
