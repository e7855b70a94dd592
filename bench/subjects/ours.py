"""session-manager in process: the whole road of a call, from a decoded payload to a reply as plain values."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any, ClassVar

from bench import content
from bench.subjects.subject import NotOffered, Subject, settings_of
from session_manager import dispatch
from session_manager.bindings import Binding, BindingTable, binding
from session_manager.clock import RandomIds, SystemClock
from session_manager.delivery import Delivery
from session_manager.dispatch import Runtime, Service
from session_manager.functions import FUNCTIONS
from session_manager.hub import Hub
from session_manager.model import decode, encode
from session_manager.paging import Limits
from session_manager.store import Store
from session_manager.stores.memory import MemoryStore
from session_manager.stores.sqlite import SqliteStore, paths

_BY_ID = {function.id: function for function in FUNCTIONS}


class Ours(Subject):
    how: ClassVar[dict[str, str]] = {
        "last": "the page after an entry that the reader knows, as one that follows a session does",
        "middle": "the page after an entry in the middle",
        "batch": "one append-many",
        "stream": "update-message",
        "list": "session::list",
    }
    FULL = "its default"

    def make(self) -> Store:
        raise NotImplementedError

    async def open(self) -> None:
        self.store = self.make()
        await self.store.open()
        self.bindings = BindingTable()
        self.delivery = Delivery(self._send)
        self.hub = Hub(self.bindings, self.delivery.take)
        runtime = Runtime(self.store, self.hub.publish, Limits())
        self.service = Service(runtime, SystemClock(), RandomIds(), reloader=None)  # type: ignore[arg-type] # nobody asks for a reload
        self.received = 0

    async def _send(self, to: Binding, payload: bytes) -> None:
        self.received += 1

    async def close(self) -> None:
        await self.delivery.drain(30)
        await self.store.close()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.tails: dict[str, list[str]] = {}
        """Per session, the ids of its entries."""
        self.reply: dict[str, str] = {}

    async def call(self, name: str, **payload: Any) -> Any:
        return await self.service.call(f"session::{name}", payload)

    async def new(self, session: str, index: int = 0) -> None:
        metadata = {"owner": content.owner(index), "app": "bench"}
        await self.call("ensure", session_id=session, title=f"Session {index}", metadata=metadata)
        status = content.status(index)
        if status != "idle":
            await self.call("set-status", session_id=session, status=status)

    async def fill_sessions(self, count: int) -> None:
        for first in range(0, count, 256):
            await asyncio.gather(*(self.new(f"session-{i}", i) for i in range(first, min(count, first + 256))))

    async def fill_grown(self, sessions: int) -> int:
        """Sessions of nine or ten messages, and a long one of a twentieth of all entries. Returns how long it is."""
        long = sessions * 10 // 20
        await self.fill_entries("big", long)

        async def one(index: int) -> None:
            await self.new(f"session-{index}", index)
            messages = [content.message(n) for n in range(9 + index % 2)]
            await self.call("append-many", session_id=f"session-{index}", messages=messages)

        for first in range(0, sessions - 1, 128):
            await asyncio.gather(*(one(i) for i in range(first, min(sessions - 1, first + 128))))
        return long

    async def append(self, session: str, index: int) -> None:
        reply = await self.call("append", session_id=session, message=content.message(index))
        self.tails.setdefault(session, []).append(reply["entry_id"])

    async def batch(self, session: str, first: int, count: int) -> None:
        messages = [content.message(index) for index in range(first, first + count)]
        reply = await self.call("append-many", session_id=session, messages=messages)
        self.tails.setdefault(session, []).extend(reply["entry_ids"])

    async def last(self, session: str, count: int) -> int:
        return await self._page(session, self.tails[session][-count - 1], count)

    async def middle(self, session: str, position: int, count: int) -> int:
        return await self._page(session, self.tails[session][position - 1], count)

    async def _page(self, session: str, after: str, count: int) -> int:
        page = await self.call("messages", session_id=session, after_entry_id=after, limit=count)
        return len(page["messages"])

    async def newest(self, count: int) -> int:
        return len((await self.call("list", limit=count))["sessions"])

    async def newest_of_owner(self, count: int) -> int:
        return len((await self.call("list", limit=count, metadata={"owner": content.OWNER}))["sessions"])

    async def newest_working(self, count: int) -> int:
        return len((await self.call("list", limit=count, status="working"))["sessions"])

    async def fork(self, session: str) -> None:
        await self.call("fork", session_id=session, entry_id=self.tails[session][-1])

    async def start_reply(self, session: str) -> None:
        await self.append(session, 1)
        self.reply[session] = self.tails[session][-1]

    async def update_reply(self, session: str, text: str) -> None:
        blocks = [{"type": "text", "text": text}]
        await self.call("update-message", session_id=session, entry_id=self.reply[session], content=blocks)

    # --- what only this store is asked ---

    async def cold(self, index: int) -> int:
        """The record and the messages of a session that nobody asked for lately."""
        await self.call("get", session_id=f"session-{index}")
        return len((await self.call("messages", session_id=f"session-{index}"))["messages"])

    async def fork_short(self, index: int) -> None:
        page = await self.call("messages", session_id=f"session-{index}")
        last = page["messages"][-1]["entry_id"]
        await self.call("fork", session_id=f"session-{index}", entry_id=last)

    async def append_cold(self, index: int) -> None:
        await self.call("append", session_id=f"session-{index}", message=content.message(index))

    def bind(self, count: int, session: Callable[[int], str]) -> None:
        for number in range(count):
            config = {"session_id": session(number)}
            self.bindings.add(binding(f"b{number}", "session::message-added", "f", config))

    def unbind(self) -> None:
        for number in itertools.count():
            if self.bindings.remove(f"b{number}") is None:
                return
            self.delivery.forget(f"b{number}")

    async def codec(self, length: int, repetitions: int) -> dict[str, float]:
        """Microseconds that decoding, validating and encoding of one append take: the medians of many."""
        function = _BY_ID["session::append"]
        payload = encode({"session_id": "s", "message": content.message(0, length), "entry_id": "e"})
        reply = encode({"entry_id": "e_" + "0" * 32, "parent_id": "e_" + "1" * 32, "timestamp": 1_700_000_000_000})
        answer = decode(reply)
        times: dict[str, list[float]] = {"decode": [], "validate": [], "encode entry": [], "encode reply": []}
        for _ in range(repetitions):
            start = time.perf_counter_ns()
            values = decode(payload)
            decoded = time.perf_counter_ns()
            request: Any = await dispatch.read(function.request, values)
            validated = time.perf_counter_ns()
            encode(request.message)
            stored = time.perf_counter_ns()
            encode(answer)
            end = time.perf_counter_ns()
            for name, spent in zip(
                times, (decoded - start, validated - decoded, stored - validated, end - stored), strict=True
            ):
                times[name].append(spent / 1e3)
        return {name: sorted(values)[len(values) // 2] for name, values in times.items()}


class Sqlite(Ours):
    def make(self) -> Store:
        return SqliteStore(self.file)

    async def settings(self) -> tuple[str, str]:
        connection = self.store._writing.connection  # type: ignore[attr-defined] # what it says of itself is what counts
        if connection is None:
            raise NotOffered("no connection is open")
        return settings_of(connection)


class Disk(Sqlite):
    """The same without the paths that it holds in memory: what a read costs that comes for the first time."""

    def make(self) -> Store:
        paths.PATIENCE = 10**9  # this process has one subject
        return super().make()


class Memory(Ours):
    scans = {
        "last": "walks the whole path: it is the shortest store, not the fastest",
        "middle": "walks the whole path",
        "list": "sorts all sessions",
    }
    FULL = "no file"

    _kept: MemoryStore | None = None

    def make(self) -> Store:
        self._kept = self._kept or MemoryStore()  # what a restart would lose
        return self._kept
