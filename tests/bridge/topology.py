"""Three engines in processes of their own: one with the main instance, two with a bridge to it; and who listens."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
from iii.iii import III
from iii.iii_constants import ReconnectionConfig

from session_manager.events import EVENTS
from tests.engines import NoEngine, loopback_process, real_engine_process
from tests.sdk import call, close_client, open_client
from tests.wire import WorkerProcess, worker_process

BACK_SOON = ReconnectionConfig(initial_delay_ms=100, max_delay_ms=500)


class Engine(Protocol):
    url: str

    def start(self) -> None: ...

    def kill(self) -> None: ...


class View:
    """What a subscriber to everything believes, from events alone: the highest revision of an entry and the newest
    word on a session win."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, tuple[int, Any]]] = {}
        self.status: dict[str, tuple[int, tuple[str, str | None]]] = {}
        self.titles: dict[str, tuple[int, str]] = {}
        self.deleted: set[str] = set()

    def take(self, kind: str, event: dict[str, Any]) -> None:
        session_id = event["session_id"]
        at = event.get("timestamp", event.get("created_at"))
        assert isinstance(at, int)
        if kind == "session::deleted":
            self.deleted.add(session_id)
        elif kind == "session::created":
            self.entries.setdefault(session_id, {})
            self._newest(self.status, session_id, at, (event["status"], None))
            self._newest(self.titles, session_id, at, event["title"])
        elif kind == "session::status-changed":
            self._newest(self.status, session_id, at, (event["status"], event.get("status_reason")))
        elif kind == "session::meta-updated":
            self._newest(self.titles, session_id, at, event["title"])
        else:
            entries = self.entries.setdefault(session_id, {})
            revision, body = event.get("revision", 0), event.get("message", event.get("custom"))
            known = entries.get(event["entry_id"])
            if known is None or known[0] < revision:
                entries[event["entry_id"]] = revision, body

    @staticmethod
    def _newest(of: dict[str, tuple[int, Any]], session_id: str, at: int, value: Any) -> None:
        known = of.get(session_id)
        if known is None or known[0] <= at:
            of[session_id] = at, value

    def state(self) -> dict[str, Any]:
        return {
            session_id: {
                "title": self.titles[session_id][1] if session_id in self.titles else None,
                "status": self.status[session_id][1] if session_id in self.status else None,
                "entries": entries,
            }
            for session_id, entries in self.entries.items()
            if session_id not in self.deleted
        }


class Side:
    """An engine, the worker on it, a caller and a subscriber to everything."""

    def __init__(self, name: str, engine: Engine, worker: WorkerProcess) -> None:
        self.name, self.engine, self.worker = name, engine, worker
        self.clients: list[III] = []
        self.view = View()
        self.heard: list[tuple[str, dict[str, Any]]] = []

    async def start(self) -> None:
        for role in ("caller", "subscriber"):
            name = f"{self.name}-{role}"
            self.clients.append(await open_client(self.engine.url, name, reconnection_config=BACK_SOON))
        self.client, self.subscriber = self.clients
        await self.worker.ready(self.client)
        for kind in EVENTS:
            await self.bind(kind, {}, lambda event, kind=kind: self._take(kind, event))  # type: ignore[misc]

    async def bind(self, kind: str, config: dict[str, Any], take: Callable[[dict[str, Any]], None]) -> None:
        """Binds as a program with the SDK does, and returns once the engine lists the binding."""
        function_id = f"{self.name}::{kind.split('::')[-1]}::{os.urandom(6).hex()}"

        async def handle(event: dict[str, Any]) -> dict[str, bool]:
            event.pop("_caller_worker_id", None)
            take(event)
            return {"ok": True}

        self.subscriber.register_function(function_id, handle)
        self.subscriber.register_trigger({"type": kind, "function_id": function_id, "config": config})
        async with asyncio.timeout(60):
            while True:
                asked = {"function_id": function_id}
                listed = await call(self.client, "engine::registered-triggers::list", asked)
                if listed["registered_triggers"]:
                    return
                await asyncio.sleep(0.02)

    def _take(self, kind: str, event: dict[str, Any]) -> None:
        self.heard.append((kind, event))
        self.view.take(kind, event)

    async def call(self, function: str, seconds: float = 30.0, **payload: Any) -> Any:
        return await call(self.client, f"session::{function}", payload, timeout_ms=int(seconds * 1000))

    async def stop(self) -> None:
        for client in self.clients:
            await close_client(client)


class Topology:
    def __init__(self, main: Side, bridges: list[Side]) -> None:
        self.main, self.bridges = main, bridges
        self.sides = [main, *bridges]

    async def stored(self) -> dict[str, Any]:
        """What the store holds, in the form of `View.state`."""
        state: dict[str, Any] = {}
        for meta in (await call(self.main.client, "session::store::list-metas", {}))["metas"]:
            asked = {"session_id": meta["session_id"]}
            entries = (await call(self.main.client, "session::store::list-entries", asked))["entries"]
            state[meta["session_id"]] = {
                "title": meta["title"],
                "status": (meta["status"], meta.get("status_reason")),
                "entries": {
                    entry["id"]: (entry["revision"], entry.get("message") or _custom(entry)) for entry in entries
                },
            }
        return state


def _custom(entry: dict[str, Any]) -> dict[str, Any]:
    return {"custom_type": entry["custom_type"], "data": entry["data"]}


@contextmanager
def engine_of(kind: str, directory: Path) -> Iterator[Engine]:
    if kind == "loopback":
        with loopback_process(directory) as loopback:
            yield loopback
        return
    with ExitStack() as stack:
        try:
            real = stack.enter_context(real_engine_process())
        except NoEngine as error:
            pytest.skip(str(error))
        yield real


@asynccontextmanager
async def topology(
    kind: str, bridges: int = 2, route: Callable[[str], str] = lambda url: url, **config: Any
) -> AsyncIterator[Topology]:
    """`kind` of the engines: "loopback" or "real". `route` turns the main engine's URL into the one that bridges use;
    `config` goes into their configuration."""
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="bridge-", ignore_cleanup_errors=True) as made:
        directory = Path(made)
        sides: list[Side] = []
        try:
            for number in range(1 + bridges):
                name = f"bridge{number}" if number else "main"
                engine = stack.enter_context(engine_of(kind, directory / f"{name}-engine"))
                adapter: dict[str, Any] = {"name": "sqlite", "config": {"path": "sessions.db"}}
                if number:
                    adapter = {"name": "bridge", "config": {"url": route(sides[0].engine.url), **config}}
                worker = stack.enter_context(worker_process(engine.url, directory / name, value={"adapter": adapter}))
                sides.append(Side(name, engine, worker))
                await sides[-1].start()
            yield Topology(sides[0], sides[1:])
        finally:
            for side in sides:
                await side.stop()


async def until(condition: Callable[[], Any], seconds: float, what: Callable[[], str]) -> None:
    """Waits for an awaitable condition to hold; fails with what `what` says then."""
    deadline = time.monotonic() + seconds
    while True:
        held = condition()
        if asyncio.iscoroutine(held):
            held = await held
        if held:
            return
        assert time.monotonic() < deadline, what()
        await asyncio.sleep(0.1)
