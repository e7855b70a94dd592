"""Two engines with a bridge between them: what happens at either side is heard at both, once, whichever engine goes."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from iii.errors import InvocationError

from tests.bridge.topology import Side, Topology, topology, until
from tests.engine.conftest import user
from tests.engines import on_both_engines

KINDS = on_both_engines(of_its_own=True)


async def append(side: Side, session_id: str, count: int) -> list[str]:
    """Entries that one side adds, one after another."""
    made = [await side.call("append", session_id=session_id, message=user(f"{side.name}")) for _ in range(count)]
    return [reply["entry_id"] for reply in made]


def heard(side: Side, session_id: str) -> Counter[str]:
    """How often a side was told of each entry of a session."""
    return Counter(
        event["entry_id"]
        for kind, event in side.heard
        if kind == "session::message-added" and event["session_id"] == session_id
    )


async def heard_once_at_both(world: Topology, session_id: str, entries: list[str]) -> None:
    wanted = Counter(entries)
    await until(
        lambda: all(heard(side, session_id) >= wanted for side in world.sides),
        10,
        lambda: f"{session_id}: missing {[(side.name, wanted - heard(side, session_id)) for side in world.sides]}",
    )
    for side in world.sides:
        assert heard(side, session_id) == wanted, side.name


async def works_at_both(world: Topology, session_id: str) -> None:
    """Each side begins a session and both write into it."""
    written: dict[str, list[str]] = {}
    for first in world.sides:
        id_ = f"{session_id}-{first.name}"
        await first.call("ensure", session_id=id_, title=id_)
        entries: list[str] = []
        for side in world.sides:
            entries += await append(side, id_, 5)
        written[id_] = entries
        await heard_once_at_both(world, id_, entries)
        pages = [await side.call("messages", session_id=id_) for side in world.sides]
        assert [item["entry_id"] for item in pages[0]["messages"]] == entries
        assert pages[1:] == pages[:-1]
    for id_, entries in written.items():  # what came twice would have come by now
        await heard_once_at_both(world, id_, entries)


async def served_again(world: Topology) -> None:
    """Waits until each side answers, and a change at either side is heard at both."""
    marks = iter(range(10_000))

    async def noticed(origin: Side) -> bool:
        try:
            id_ = f"back-{origin.name}-{next(marks)}"
            await origin.call("ensure", seconds=3, session_id=id_)
        except InvocationError:
            return False
        await asyncio.sleep(0.2)
        return all(
            any(kind == "session::created" and event["session_id"] == id_ for kind, event in side.heard)
            for side in world.sides
        )

    for side in world.sides:
        await until(lambda side=side: noticed(side), 30, lambda side=side: f"a change at {side.name} is not heard")  # type: ignore[misc]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_change_at_either_side_is_heard_at_both_once_before_and_after_either_engine_restarts(
    kind: str,
) -> None:
    async with topology(kind, bridges=1) as world:
        await works_at_both(world, "first")
        for side in world.sides:
            side.engine.kill()
            side.engine.start()
            await served_again(world)
            await works_at_both(world, f"after-{side.name}")
        stored: Any = await world.stored()
        for side in world.sides:
            await until(lambda side=side: side.view.state() == stored, 10, lambda side=side: f"{side.name} differs")  # type: ignore[misc]
