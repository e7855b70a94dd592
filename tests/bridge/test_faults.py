"""Every process of a main instance and its bridges killed in turn, under load, and started again."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.bridge.topology import Side, Topology, topology, until


class Load:
    """One side's work: every change is asked for again until it is acknowledged, as a careful caller does."""

    def __init__(self, side: Side, seed: int) -> None:
        self.side, self.random = side, random.Random(seed)
        self.acknowledged: dict[str, dict[str, str]] = {}
        """Per session: entry ids, and the last content acknowledged."""
        self.deleted: set[str] = set()
        self.count = self.failures = 0

    async def run(self, stop: asyncio.Event) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            session_id = f"{self.side.name}-{number}"
            await self.until_done("ensure", session_id=session_id)
            self.acknowledged[session_id] = {}
            for step in range(12):
                await self._step(session_id, step)
                await asyncio.sleep(0.005)
            if number % 6 == 0:
                await self.until_done("delete", session_id=session_id)
                del self.acknowledged[session_id]
                self.deleted.add(session_id)

    async def _step(self, session_id: str, step: int) -> None:
        entries = self.acknowledged[session_id]
        if step in (5, 9):
            entry_id = self.random.choice(list(entries))
            text = f"changed at {step}"
            content = [{"type": "text", "text": text}]
            await self.until_done("update-message", session_id=session_id, entry_id=entry_id, content=content)
            entries[entry_id] = text
        elif step == 7:
            await self.until_done("set-status", session_id=session_id, status="working", reason=f"step {step}")
        elif step == 10:
            await self.until_done("set-meta", session_id=session_id, title=f"title of {session_id}")
        else:
            entry_id, text = f"{session_id}-{step}", f"said at {step}"
            message = {"role": "user", "content": [{"type": "text", "text": text}], "timestamp": step}
            await self.until_done("append", session_id=session_id, entry_id=entry_id, message=message)
            entries[entry_id] = text

    async def until_done(self, function: str, **payload: Any) -> None:
        while True:
            try:
                await self.side.call(function, seconds=4, **payload)
            except Exception:  # whatever it is: an outage
                self.failures += 1
                await asyncio.sleep(0.05)
            else:
                self.count += 1
                return


@asynccontextmanager
async def loaded(world: Topology) -> AsyncIterator[list[Load]]:
    loads = [Load(side, number) for number, side in enumerate(world.sides)]
    stop = asyncio.Event()
    tasks = [asyncio.create_task(load.run(stop)) for load in loads]
    try:
        yield loads
    finally:
        stop.set()
        async with asyncio.timeout(120):
            await asyncio.gather(*tasks)


async def nothing_is_missing(world: Topology, loads: list[Load]) -> None:
    """Everything acknowledged is on its path wherever one asks, counts are right, and views agree with the store."""
    stored = await world.stored()
    for side in world.sides:
        for load in loads:
            for session_id, entries in load.acknowledged.items():
                meta = (await side.call("get", session_id=session_id))["meta"]
                page = (await side.call("messages", session_id=session_id, limit=500))["messages"]
                texts = {item["entry_id"]: item["message"]["content"][0]["text"] for item in page}
                assert texts == entries, f"{session_id} of {load.side.name}, read at {side.name}"
                assert meta["message_count"] == len(entries), session_id
                assert list(stored[session_id]["entries"]) or not entries
        assert not any(session_id in stored for load in loads for session_id in load.deleted)
    for side in world.sides:
        await until(
            lambda side=side: side.view.state() == stored,  # type: ignore[misc]
            90,
            lambda side=side: f"{side.name} believes otherwise: {difference(side.view.state(), stored)}",  # type: ignore[misc]
        )


def difference(view: dict[str, Any], stored: dict[str, Any]) -> str:
    lines = []
    for session_id in sorted(view.keys() | stored.keys()):
        ours, theirs = view.get(session_id), stored.get(session_id)
        if ours is None or theirs is None:
            lines.append(f"{session_id}: {'not heard of' if ours is None else 'not told that it is gone'}")
        elif ours != theirs:
            parts = [part for part in ("title", "status") if ours[part] != theirs[part]]
            ids = [id_ for id_, entry in theirs["entries"].items() if ours["entries"].get(id_) != entry]
            lines.append(f"{session_id}: {parts} {ids}, too much {ours['entries'].keys() - theirs['entries'].keys()}")
    return json.dumps(lines[:20])


VICTIMS = ["main worker", "main engine", "bridge1 worker", "bridge1 engine", "bridge2 worker", "bridge2 engine"]


async def fell(world: Topology, victim: str, away: float) -> None:
    """Kills a process and starts it again after so many seconds."""
    name, kind = victim.split()
    side = next(side for side in world.sides if side.name == name)
    process = side.worker if kind == "worker" else side.engine
    process.kill()
    await asyncio.sleep(away)
    process.start()
    await side.worker.ready(side.client, 60)


async def each_in_turn(world: Topology, victims: list[str], between: float, away: float) -> None:
    async with loaded(world) as loads:
        await asyncio.sleep(between)
        for victim in victims:
            before = [load.count for load in loads]
            await fell(world, victim, away)
            await until(
                lambda before=before: all(load.count > count for load, count in zip(loads, before, strict=True)),  # type: ignore[misc]
                90,
                lambda victim=victim: f"after {victim} somebody gets nothing done: {[load.count for load in loads]}",  # type: ignore[misc]
            )
            await asyncio.sleep(between)
    print([(load.side.name, load.count, load.failures) for load in loads])
    await nothing_is_missing(world, loads)


@pytest.mark.parametrize("victim", ["main worker", "main engine", "bridge1 worker", "bridge1 engine"])
async def test_after_a_kill_nothing_is_missing_and_every_subscriber_knows_what_is_stored(victim: str) -> None:
    async with topology("loopback", bridges=1) as world:
        await each_in_turn(world, [victim], 1.0, 0.5)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["loopback", pytest.param("real", marks=pytest.mark.engine)])
async def test_every_process_killed_in_turn_and_nothing_is_missing(kind: str) -> None:
    async with topology(kind) as world:
        await each_in_turn(world, [*VICTIMS, *VICTIMS], 2.0, 1.0)
