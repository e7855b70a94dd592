"""Replies that may leave as soon as their change is durable: which, and with what."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

import pytest

from session_manager.clock import RandomIds, SystemClock
from session_manager.dispatch import Runtime, Service
from session_manager.errors import Outdated, StorageError
from session_manager.functions import FUNCTIONS, Function
from session_manager.model import JsonObject, decode, encode
from session_manager.paging import Limits
from session_manager.store import Change, Store, Tell, View
from session_manager.stores.memory import MemoryStore
from tests.faults.load import NoReloader, user

BY_ID: dict[str, Function] = {function.id: function for function in FUNCTIONS}


class Early:
    """What was said, and how often it left."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.left: list[Any] = []

    def say(self, reply: Any) -> None:
        self.said.append(decode(encode(reply)))

    def leave(self) -> None:
        self.left.append(self.said[-1])


class EarlyStore(MemoryStore):
    """Tells early, and fails as often as it is told to, in the way it is told."""

    failures: Sequence[Exception] = ()

    def commit(self, view: View, change: Change, durable: Tell = None, early: Tell = None) -> Awaitable[int]:
        if self.failures:
            failure, *self.failures = self.failures
            return _failed(failure)
        if early is not None:
            early()
        return super().commit(view, change, durable)


async def _failed(failure: Exception) -> int:
    raise failure


class Events:
    """Where events go, and whether there is anybody."""

    def __init__(self, *, heard: bool = False) -> None:
        self.log: list[str] = []
        self.heard = heard

    async def announced(self, session_id: str) -> None:
        self.log.append("announced")

    def runtime(self, store: Store) -> Runtime:
        return Runtime(
            store,
            lambda _: self.log.append("published"),
            Limits(),
            announced=self.announced,
            concern=lambda _: self.heard,
        )


class Calls:
    def __init__(self, events: Events | None = None) -> None:
        self.store, self.early, self.events = EarlyStore(), Early(), events or Events()
        self.service = Service(self.events.runtime(self.store), SystemClock(), RandomIds(), NoReloader())

    async def call(self, function_id: str, payload: JsonObject) -> Any:
        return decode(encode(await self.service.answer(BY_ID[function_id], payload, self.early)))


@pytest.mark.parametrize(
    ("function_id", "payload"),
    [
        ("session::create", {"title": "t"}),
        ("session::ensure", {"session_id": "s"}),
        ("session::append", {"session_id": "there", "message": user("hello")}),
        ("session::set-draft", {"session_id": "there", "draft": "d"}),
        ("session::delete", {"session_id": "there"}),
        ("session::store::set-active-leaf", {"session_id": "there", "entry_id": "e"}),
    ],
)
async def test_what_leaves_early_is_the_reply(function_id: str, payload: JsonObject) -> None:
    calls = Calls()
    await calls.service.call("session::ensure", {"session_id": "there"})
    reply = await calls.call(function_id, payload)
    assert calls.early.left == [reply]


async def test_a_call_that_changes_nothing_says_nothing_early() -> None:
    calls = Calls()
    assert await calls.call("session::delete", {"session_id": "nobody"}) == {"deleted": False}
    assert await calls.call("session::list", {}) == {"sessions": []}
    assert calls.early.said == []


async def test_what_is_decided_anew_is_said_anew() -> None:
    calls = Calls()
    calls.store.failures = [Outdated("raced"), Outdated("raced")]
    reply = await calls.call("session::create", {"title": "t"})
    assert len(calls.early.said) == 3
    assert calls.early.left == [reply]


async def test_a_change_that_fails_says_nothing() -> None:
    calls = Calls()
    await calls.service.call("session::ensure", {"session_id": "s"})
    calls.store.failures = [StorageError("the disk is full")]
    with pytest.raises(StorageError):
        await calls.call("session::append", {"session_id": "s", "message": user("hello")})
    assert calls.early.left == []


async def test_a_reply_of_whose_events_somebody_is_told_waits_for_them() -> None:
    calls = Calls(Events(heard=True))
    await calls.call("session::create", {"title": "t"})
    assert calls.early.said == []
    assert calls.events.log == ["published", "announced"]
    await calls.service.call("session::ensure", {"session_id": "s"})
    reply = await calls.call("session::set-draft", {"session_id": "s", "draft": "d"})
    assert calls.early.left == [reply], "a draft makes no event"
