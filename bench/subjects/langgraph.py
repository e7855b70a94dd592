"""langgraph: SqliteSaver. A conversation is the list in a checkpoint's `messages` channel, as graphs keep it."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from typing import Any, ClassVar

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.sqlite import SqliteSaver

from bench import content
from bench.subjects.subject import Subject, settings_of


def _message(index: int, text: str | None = None) -> BaseMessage:
    whole = content.text(index) if text is None else text
    return AIMessage(whole, id=str(index)) if index % 2 else HumanMessage(whole, id=str(index))


class Saver(Subject):
    how: ClassVar[dict[str, str]] = {
        "append": "get_tuple and put: every checkpoint holds the whole conversation",
        "writers": "in threads: the saver is synchronous",
        "batch": "one put",
        "last": "get_tuple, cut to the page",
        "middle": "get_tuple, cut to the page",
        "fork": "get_tuple and put to another thread id",
        "stream": "a checkpoint per update",
        "list": "the newest checkpoints of all threads, one per thread here",
        "fill": "100 MB would not be rare: one checkpoint with all messages",
    }
    scans: ClassVar[dict[str, str]] = {
        "append": "the whole conversation, and writes it again",
        "last": "the whole conversation",
        "middle": "the whole conversation",
        "stream": "the whole conversation, and writes it again",
        "list": "all checkpoints",
        "resume": "the whole conversation",
    }
    FULL = "set on the connection given to it"

    async def open(self) -> None:
        self._db = sqlite3.connect(self.file, check_same_thread=False)
        self._db.execute("PRAGMA synchronous = FULL")
        self._saver = SqliteSaver(self._db)
        self._saver.setup()
        self._numbers = itertools.count()

    async def close(self) -> None:
        self._db.close()

    async def settings(self) -> tuple[str, str]:
        return settings_of(self._saver.conn)

    def _messages(self, session: str) -> tuple[dict[str, Any], list[BaseMessage]]:
        config: dict[str, Any] = {"configurable": {"thread_id": session, "checkpoint_ns": ""}}
        found = self._saver.get_tuple(config)  # type: ignore[arg-type]
        if found is None:
            return config, []
        return found.config, found.checkpoint["channel_values"]["messages"]  # type: ignore[return-value]

    def _put(self, config: dict[str, Any], messages: list[BaseMessage], owner: str = "u0") -> None:
        checkpoint = empty_checkpoint()
        checkpoint["id"] = str(uuid6())
        checkpoint["channel_values"] = {"messages": messages}
        checkpoint["channel_versions"] = {"messages": len(messages)}
        self._saver.put(config, checkpoint, {"source": "loop", "step": 1, "owner": owner}, {})  # type: ignore[arg-type,typeddict-unknown-key]

    def _add(self, session: str, new: list[BaseMessage]) -> None:
        config, messages = self._messages(session)
        self._put(config, [*messages, *new])

    async def new(self, session: str, index: int = 0) -> None:
        config: dict[str, Any] = {"configurable": {"thread_id": session, "checkpoint_ns": ""}}
        self._put(config, [], content.owner(index))

    async def fill_sessions(self, count: int) -> None:
        self._db.execute("PRAGMA synchronous = OFF")
        await super().fill_sessions(count)
        self._db.execute("PRAGMA synchronous = FULL")

    async def fill_entries(self, session: str, count: int) -> None:
        await self.batch(session, 0, count)

    async def append(self, session: str, index: int) -> None:
        if session.startswith("writer"):
            await asyncio.to_thread(self._add, session, [_message(index)])
        else:
            self._add(session, [_message(index)])

    async def batch(self, session: str, first: int, count: int) -> None:
        self._add(session, [_message(index) for index in range(first, first + count)])

    async def last(self, session: str, count: int) -> int:
        return len(self._messages(session)[1][-count:])

    async def middle(self, session: str, position: int, count: int) -> int:
        return len(self._messages(session)[1][position : position + count])

    async def newest(self, count: int) -> int:
        return len(list(self._saver.list(None, limit=count)))

    async def newest_of_owner(self, count: int) -> int:
        return len(list(self._saver.list(None, filter={"owner": content.OWNER}, limit=count)))

    async def fork(self, session: str) -> None:
        _, messages = self._messages(session)
        copy = {"configurable": {"thread_id": f"{session}-{next(self._numbers)}", "checkpoint_ns": ""}}
        self._put(copy, messages)

    async def start_reply(self, session: str) -> None:
        self._add(session, [_message(1)])

    async def update_reply(self, session: str, text: str) -> None:
        config, messages = self._messages(session)
        self._put(config, [*messages[:-1], _message(1, text)])
