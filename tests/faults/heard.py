"""Kills the worker of an engine again and again while subscribers listen: python -m tests.faults.heard ENGINE DIRECTORY
KILLS SEED, where ENGINE is `loopback` or `real`.

The engine, the worker, each subscriber and the callers, which are here, are processes of their own. After every kill
the worker is started again, at times killed once more while it starts, and each subscriber must come to believe what
the store holds, from events alone. Prints what was seen as one JSON object.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from iii.errors import InvocationError
from iii.iii import III

from session_manager.events import EVENTS, STORE_EVENTS
from tests.contract.scenario import until
from tests.faults.served import CONFIGURATION, engine
from tests.sdk import call, close_client, open_client
from tests.wire import WorkerProcess, worker_process

SESSIONS, LANES, LEAST = 12, 16, 20
"""`LEAST`: so many events everybody hears before the first kill, however slow the machine is."""
TEAMS = ("red", "blue")
AGAIN = "again"
"""How the ids of sessions begin that are made again after they were deleted."""


class View:
    """What a subscriber believes. Where all events come in one row, as over the internal feed, the last word wins and
    an id may come again after a deletion; bindings of several types are several rows, among which times decide."""

    def __init__(self, one_row: bool) -> None:
        self._one_row = one_row
        self.sessions: dict[str, dict[str, Any]] = {}
        self._gone: set[str] = set()
        self.heard = 0

    def take(self, kind: str, event: dict[str, Any]) -> None:
        self.heard += 1
        if kind == STORE_EVENTS:
            kind, event = event["trigger_type"], event["payload"]
        session_id = event["session_id"]
        if kind == "session::deleted":
            self.sessions.pop(session_id, None)
            self._gone.add(session_id)
        elif self._one_row or session_id not in self._gone:
            self._learn(self.sessions.setdefault(session_id, {"entries": {}, "at": {}}), kind, event)

    def _learn(self, session: dict[str, Any], kind: str, event: dict[str, Any]) -> None:
        if kind == "session::created":
            session["created_at"] = at = event["created_at"]
            for key in ("title", "status"):
                self._newer(session, key, event[key], at - 1)  # whatever else was told of this millisecond came later
        elif kind == "session::status-changed":
            self._newer(session, "status", event["status"], event["timestamp"])
        elif kind == "session::meta-updated":
            self._newer(session, "title", event["title"], event["timestamp"])
        else:
            entries, revision = session["entries"], event.get("revision", 0)
            entries[event["entry_id"]] = max(revision, entries.get(event["entry_id"], 0))

    def _newer(self, session: dict[str, Any], key: str, value: Any, at: int) -> None:
        if self._one_row or session["at"].get(key, at) <= at:
            session[key], session["at"][key] = value, at

    def problems(self, stored: dict[str, dict[str, Any]], what: Iterable[str]) -> list[str]:
        mine = [id_ for id_ in self.sessions if self._one_row or not id_.startswith(AGAIN)]
        found = [f"{id_}: it was not told of the deletion" for id_ in mine if id_ not in stored]
        for id_, there in stored.items():
            believed = self.sessions.get(id_, {})
            found += [
                f"{id_}: {key} is {there[key]!r}, not {believed.get(key)!r}"
                for key in what
                if there[key] != believed.get(key) and (self._one_row or not id_.startswith(AGAIN))
            ]
        return found


class Subscriber:
    """A process that listens, and what it believes. `team`: it wants to hear of these sessions only."""

    def __init__(self, process: asyncio.subprocess.Process, kinds: Iterable[str], team: str | None) -> None:
        self._process, self._kinds, self.team = process, list(kinds), team
        self._answers: asyncio.Queue[None] = asyncio.Queue()
        self.view = View(one_row=STORE_EVENTS in self._kinds)
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            what = json.loads(line)
            if what:
                self.view.take(*what)
            else:
                self._answers.put_nowait(None)

    async def _command(self, what: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        async with asyncio.timeout(60):
            await self._answers.get()

    async def bind(self) -> None:
        config = {} if self.team is None else {"metadata": {"team": self.team}}
        await self._command([[kind, config] for kind in self._kinds])

    async def unbind(self) -> None:
        await self._command(None)

    async def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._reading

    def problems(self, stored: dict[str, dict[str, Any]]) -> list[str]:
        mine = {id_: there for id_, there in stored.items() if self.team in (None, there["team"])}
        everything = len(self._kinds) == len(EVENTS) or STORE_EVENTS in self._kinds
        what = ("created_at", "entries", "title", "status") if everything else ("created_at",)
        return [f"{len(self._kinds)} types, team {self.team}: {found}" for found in self.view.problems(mine, what)]


@asynccontextmanager
async def subscriber(
    url: str, name: str, kinds: Iterable[str] = EVENTS, team: str | None = None, seconds: float = 0.0
) -> AsyncIterator[Subscriber]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults.listener", url, name, str(seconds)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )
    made = Subscriber(process, kinds, team)
    try:
        yield made
    finally:
        await made.end()


class Changes:
    """Any change of any of a few sessions."""

    def __init__(self, moments: random.Random) -> None:
        self._moments, self._number = moments, itertools.count()
        self._made: set[str] = set()
        self._ids = {f"{team}{n}": team for team in TEAMS for n in range(SESSIONS)}
        self._ids |= {f"{AGAIN}-{team}{n}": team for team in TEAMS for n in range(SESSIONS // 4)}

    def next(self) -> tuple[str, dict[str, Any]]:
        moments = self._moments
        session_id = moments.choice(list(self._ids))
        team = self._ids[session_id]
        message = {"role": "user", "content": [{"type": "text", "text": "x"}], "timestamp": 1}
        changes: list[tuple[int, str, dict[str, Any]]] = [
            (0 if session_id in self._made else 100, "ensure", {"title": "", "metadata": {"team": team}}),
            (10, "append", {"entry_id": f"e{moments.randrange(40)}", "message": message}),
            (4, "append-many", {"messages": [message, message]}),
            (8, "update-message", {"entry_id": f"e{moments.randrange(40)}", "content": message["content"]}),
            (10, "set-status", {"status": moments.choice(("idle", "working", "done"))}),
            (4, "set-meta", {"title": f"{moments.randrange(3)}"}),
            (3, "delete", {}),
        ]
        _, name, payload = moments.choices(changes, [weight for weight, *_ in changes])[0]
        if session_id.startswith(AGAIN):
            return f"session::{name}", {"session_id": session_id, **payload}
        if name == "delete":
            del self._ids[session_id]
            self._ids[f"{team}-{next(self._number)}"] = team
        elif name == "ensure":
            self._made.add(session_id)
        return f"session::{name}", {"session_id": session_id, **payload}


async def load(client: III, changes: Changes, over: asyncio.Event) -> int:
    """Changes sessions until it is over; how many changes were acknowledged."""
    acknowledged = 0

    async def lane() -> None:
        nonlocal acknowledged
        while not over.is_set():
            try:
                await call(client, *changes.next(), timeout_ms=3000)
                acknowledged += 1
            except InvocationError:
                await asyncio.sleep(0.005)  # there is no such session, or no worker

    await asyncio.gather(*(lane() for _ in range(LANES)))
    return acknowledged


async def stored(client: III) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for meta in (await call(client, "session::store::list-metas", {}))["metas"]:
        entries = (await call(client, "session::store::list-entries", {"session_id": meta["session_id"]}))["entries"]
        found[meta["session_id"]] = {
            **{key: meta[key] for key in ("title", "status", "created_at")},
            "team": meta["metadata"]["team"],
            "entries": {entry["id"]: entry["revision"] for entry in entries},
        }
    return found


async def agree(client: III, subscribers: Iterable[Subscriber]) -> list[str]:
    """What subscribers still believe wrongly when they have heard nothing new for a while."""
    there, deadline = await stored(client), time.monotonic() + 60
    while True:
        wrong = [problem for one in subscribers for problem in one.problems(there)]
        if not wrong or time.monotonic() > deadline:
            return wrong
        await asyncio.sleep(0.05)


async def main(kind: str, directory: Path, kills: int, seed: int) -> None:
    moments = random.Random(seed)
    async with AsyncExitStack() as stack:
        running = stack.enter_context(engine(kind, directory / "engine"))
        worker = stack.enter_context(worker_process(running.url, directory / "worker", value=CONFIGURATION))
        client = await open_client(running.url, "callers")
        stack.push_async_callback(close_client, client)
        await worker.ready(client)
        subscribers = [
            await stack.enter_async_context(subscriber(running.url, "feed", [STORE_EVENTS])),
            await stack.enter_async_context(subscriber(running.url, "all")),
            await stack.enter_async_context(subscriber(running.url, "slow", seconds=0.02)),
            await stack.enter_async_context(subscriber(running.url, "red", team="red")),
            await stack.enter_async_context(
                subscriber(running.url, "ids", ("session::created", "session::deleted"), team="blue")
            ),
        ]
        for one in subscribers:
            await one.bind()
        coming = await stack.enter_async_context(subscriber(running.url, "coming and going"))
        print(json.dumps(await kill_again_and_again(worker, client, subscribers, coming, kills, moments)))


async def kill_again_and_again(
    worker: WorkerProcess,
    client: III,
    subscribers: list[Subscriber],
    coming: Subscriber,
    kills: int,
    moments: random.Random,
) -> dict[str, Any]:
    changes = Changes(moments)
    done = early = acknowledged = 0
    wrong: list[str] = []
    while done < kills and not wrong:
        over = asyncio.Event()
        loading = asyncio.create_task(load(client, changes, over))
        await asyncio.sleep(moments.uniform(0.0, 0.5))
        await coming.bind()
        await asyncio.sleep(moments.uniform(0.2, 1.5))
        if done == 0:
            await until(lambda: min(one.view.heard for one in (*subscribers, coming)) > LEAST, 60)
        worker.kill()
        worker.start()
        done += 1
        if moments.random() < 0.5 and done < kills:  # and once more, while it starts and is called already
            await asyncio.sleep(moments.uniform(0.3, 2.0))
            worker.kill()
            worker.start()
            done, early = done + 1, early + 1
        if moments.random() < 0.5:
            await worker.ready(client)
        over.set()
        acknowledged += await loading
        await worker.ready(client)
        wrong += await agree(client, subscribers)
        await coming.unbind()
        if moments.random() < 0.3 and not wrong:
            assert worker.stop() == 0, worker.said()
            worker.start()
            await worker.ready(client)
    return {
        "kills": done,
        "early": early,
        "acknowledged": acknowledged,
        "heard": [one.view.heard for one in [*subscribers, coming]],
        "problems": wrong[:8],
    }


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
