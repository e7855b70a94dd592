"""Telling the main instance of changes: in order, again after a failure, within bounds."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from session_manager.announce import Announcer, Bounds
from session_manager.errors import StorageError
from session_manager.events import PORTION, Deleted, Emission, MessageAdded
from session_manager.model import UserMessage
from tests.contract.scenario import until

SOON = Bounds(pause=0.001, longest_pause=0.004)

SHORT = Bounds(pause=0.001, longest_pause=0.004, patience=0.05)


def added(session_id: str, entry_id: str) -> list[Emission]:
    event = MessageAdded(
        session_id=session_id,
        entry_id=entry_id,
        timestamp=1,
        parent_id=None,
        message=UserMessage(content=[], timestamp=1),
    )
    return [Emission(event, {"m": 1})]


class Main:
    """Takes announcements, or refuses them for a while."""

    def __init__(self) -> None:
        self.told: list[list[Any]] = []
        self.refusals: dict[str, int] = {}
        self.given_up: list[tuple[str, frozenset[str]]] = []
        self.done: list[str] = []

    async def tell(self, payload: bytes) -> None:
        await asyncio.sleep(0)
        events = json.loads(payload)["events"]
        session_id = events[0]["payload"]["session_id"]
        if self.refusals.get(session_id, 0):
            self.refusals[session_id] -= 1
            raise StorageError("not now")
        self.told.append(events)

    def announcer(self, bounds: Bounds = SOON) -> Announcer:
        return Announcer(self.tell, lambda *what: self.given_up.append(what), bounds, self.done.append)

    def order(self, session_id: str) -> list[str]:
        return [
            event["payload"]["entry_id"]
            for events in self.told
            for event in events
            if event["payload"]["session_id"] == session_id
        ]


async def test_a_change_is_one_call_with_all_its_events_and_the_metadata() -> None:
    main = Main()
    announcer = main.announcer()
    announcer.publish([*added("s", "a"), *added("s", "b")])
    assert await announcer.drain(30) == 0
    [[first, second]] = main.told
    assert (first["trigger_type"], first["session_metadata"]) == ("session::message-added", {"m": 1})
    assert second["payload"]["entry_id"] == "b"
    assert main.done == ["s"]


async def test_a_change_with_very_many_events_is_a_few_calls_in_order() -> None:
    main = Main()
    announcer = main.announcer()
    announcer.publish([emission for number in range(2 * PORTION + 1) for emission in added("s", f"{number}")])
    assert await announcer.drain(30) == 0
    assert [len(events) for events in main.told] == [PORTION, PORTION, 1]
    assert main.order("s") == [f"{number}" for number in range(2 * PORTION + 1)]


async def test_a_call_that_failed_is_made_again_before_later_ones_of_its_session() -> None:
    main = Main()
    main.refusals["s"] = 3
    announcer = main.announcer()
    for number in range(5):
        announcer.publish(added("s", f"{number}"))
        announcer.publish(added("t", f"{number}"))
    assert await announcer.drain(30) == 0
    assert main.order("s") == main.order("t") == ["0", "1", "2", "3", "4"]
    assert main.told[0][0]["payload"]["session_id"] == "t", "a session waited for another's failure"
    assert main.given_up == []


async def test_what_cannot_be_told_in_time_is_given_up_and_handed_on_and_later_changes_are_told() -> None:
    main = Main()
    main.refusals["s"] = 10**6
    announcer = main.announcer(SHORT)
    announcer.publish(added("s", "a"))
    await until(lambda: bool(main.given_up))
    main.refusals.clear()
    announcer.publish(added("s", "b"))
    assert await announcer.drain(30) == 0
    assert main.given_up == [("s", frozenset({"a"}))]
    assert main.order("s") == ["b"]
    assert announcer.lost == 1


async def test_more_than_the_bound_does_not_wait() -> None:
    main = Main()
    main.refusals["s"] = 10**6
    announcer = main.announcer(Bounds(waiting=3))
    for number in range(5):
        announcer.publish(added("s", f"{number}"))
    assert [entries for _, entries in main.given_up] == [frozenset({"3"}), frozenset({"4"})]
    await announcer.drain(0)


async def test_a_caller_waits_for_the_first_attempt_and_no_longer() -> None:
    main = Main()
    main.refusals["s"] = 10**6
    announcer = main.announcer(Bounds(pause=300, patience=600))
    announcer.publish(added("s", "a"))
    async with asyncio.timeout(30):
        await announcer.announced("s")
        await announcer.announced("nobody")
    announcer.publish([Emission(Deleted(session_id="t", timestamp=1), None)])
    await announcer.announced("t")
    assert main.done == ["t"]
    assert await announcer.drain(0) == 1
