"""Who hears what when a main instance and two bridges share a store, each on an engine of its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.bridge.topology import Side, Topology, topology, until

Key = tuple[Any, ...]


def key(kind: str, event: dict[str, Any]) -> Key:
    """What makes an event one of its kind."""
    kind = kind.removeprefix("session::")
    return kind, event["session_id"], *(event[name] for name in _PARTS[kind])


_PARTS: dict[str, tuple[str, ...]] = {
    "created": (),
    "message-added": ("entry_id",),
    "message-updated": ("entry_id", "revision"),
    "status-changed": ("status_reason",),
    "meta-updated": ("title",),
    "deleted": (),
}


def user(text: str, role: str = "user") -> dict[str, Any]:
    more = {"stop_reason": "end", "model": "m", "provider": "p"} if role == "assistant" else {}
    return {"role": role, "content": [{"type": "text", "text": text}], "timestamp": 1, **more}


class Mutations:
    """What one side does, and the events that follow from it: with their role, for filters."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.events: Counter[Key] = Counter()
        self.roles: dict[Key, str | None] = {}

    def _expect(self, role: str | None, *parts: Any) -> None:
        self.events[parts] += 1
        self.roles[parts] = role

    async def session(self, session_id: str, count: int) -> None:
        """`count` mutations of one session, one after another."""
        side, last, revision = self.side, "", 0
        await side.call("ensure", session_id=session_id, metadata={"side": side.name})
        self._expect(None, "created", session_id)
        for number in range(1, count):
            match number % 10:
                case 3 | 6 if last:
                    await side.call("update-message", session_id=session_id, entry_id=last, content=[])
                    revision += 1
                    self._expect(
                        self.roles["message-added", session_id, last], "message-updated", session_id, last, revision
                    )
                case 8:
                    reason = f"r{number}"
                    await side.call("set-status", session_id=session_id, status="working", reason=reason)
                    self._expect(None, "status-changed", session_id, reason)
                case 9:
                    await side.call("set-meta", session_id=session_id, title=f"t{number}")
                    self._expect(None, "meta-updated", session_id, f"t{number}")
                case _:
                    role = ("user", "assistant")[number % 2]
                    reply = await side.call("append", session_id=session_id, message=user(f"{number}", role))
                    last, revision = reply["entry_id"], 0
                    self._expect(role, "message-added", session_id, last)

    async def short(self, session_id: str) -> None:
        await self.side.call("ensure", session_id=session_id, metadata={"side": self.side.name})
        await self.side.call("delete", session_id=session_id)
        self._expect(None, "created", session_id)
        self._expect(None, "deleted", session_id)


FILTERS: dict[str, tuple[str, dict[str, Any], Callable[[Key, str | None], bool]]] = {
    "one session": ("session::message-added", {"session_id": "bridge1-0"}, lambda key, role: key[1] == "bridge1-0"),
    "one role": ("session::message-added", {"roles": ["assistant"]}, lambda key, role: role == "assistant"),
    "updates of a role": ("session::message-updated", {"roles": ["user"]}, lambda key, role: role == "user"),
    "the main's sessions": (
        "session::message-added",
        {"metadata": {"side": "main"}},
        lambda key, role: key[1].startswith("main-"),
    ),
    "deletions of a bridge's sessions": (
        "session::deleted",
        {"metadata": {"side": "bridge2"}},
        lambda key, role: key[1].startswith("bridge2-"),
    ),
    "nobody": ("session::meta-updated", {"metadata": {"side": "nowhere"}}, lambda key, role: False),
}


async def everybody_hears_everything_once(world: Topology, each: int, sessions: int) -> None:
    filtered: dict[tuple[str, str], list[Key]] = {}
    for side in world.sides:
        for name, (kind, config, _) in FILTERS.items():
            keys = filtered[side.name, name] = []
            await side.bind(kind, config, lambda event, kind=kind, keys=keys: keys.append(key(kind, event)))  # type: ignore[misc]
    work = [Mutations(side) for side in world.sides]
    await asyncio.gather(
        *(made.session(f"{made.side.name}-{number}", each // sessions) for made in work for number in range(sessions)),
        *(made.short(f"{made.side.name}-short-{number}") for made in work for number in range(3)),
    )
    expected: Counter[Key] = sum((made.events for made in work), Counter())
    roles = {key: role for made in work for key, role in made.roles.items()}

    def all_heard() -> bool:
        return all(len(side.heard) >= expected.total() for side in world.sides)

    await until(all_heard, 60, lambda: f"{expected.total()} expected: {[len(side.heard) for side in world.sides]}")
    for side in world.sides:
        heard = Counter(key(kind, event) for kind, event in side.heard)
        assert heard == expected, f"{side.name}: missing {expected - heard}, too much {heard - expected}"
        for name, (kind, _, wants) in FILTERS.items():
            short = kind.removeprefix("session::")
            wanted = Counter({key: n for key, n in expected.items() if key[0] == short and wants(key, roles[key])})
            await until(
                lambda side=side, name=name, wanted=wanted: len(filtered[side.name, name]) >= wanted.total(),  # type: ignore[misc]
                60,
                lambda side=side, name=name: f"{side.name}, {name}: {len(filtered[side.name, name])}",  # type: ignore[misc]
            )
            assert Counter(filtered[side.name, name]) == wanted, f"{side.name}: {name}"
    await all_read_the_same(world)


async def all_read_the_same(world: Topology) -> None:
    states = []
    for side in world.sides:
        listed = (await side.call("list", limit=500))["sessions"]
        paths = [await side.call("messages", session_id=meta["session_id"], limit=500) for meta in listed]
        states.append((listed, paths))
    assert states[1:] == states[:-1]
    stored = await world.stored()
    for side in world.sides:
        assert side.view.state() == stored, side.name


async def test_a_mutation_anywhere_is_heard_everywhere_exactly_once() -> None:
    async with topology("loopback") as world:
        await everybody_hears_everything_once(world, 60, 3)


@pytest.mark.long
async def test_a_thousand_mutations_from_each_side_are_heard_everywhere_exactly_once() -> None:
    async with topology("loopback") as world:
        await everybody_hears_everything_once(world, 1000, 10)


@pytest.mark.long
@pytest.mark.engine
async def test_a_thousand_mutations_from_each_side_are_heard_everywhere_exactly_once_on_real_engines() -> None:
    async with topology("real") as world:
        await everybody_hears_everything_once(world, 1000, 10)
