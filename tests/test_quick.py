"""The shorter way through the SDK is taken, on the SDK that is installed, and what leaves it is whole."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from session_manager.dev import EngineThread
from session_manager.edge import haste
from session_manager.edge.client import Client, InvocationError
from session_manager.edge.outlet import Early
from session_manager.errors import SessionNotFound
from session_manager.model import encode
from tests.contract.scenario import until

PONG = b"\x8a\x00"
"""A frame that may come at any time and asks for nothing."""


class Counting:
    """A pair of connections: one that serves, one that calls."""

    def __init__(self, url: str) -> None:
        self.server = Client(url, "server", "")
        self.caller = Client(url, "caller", "")
        self.seen: list[Any] = []
        for name, handler in (("echo", self.echo), ("fail", self.fail), ("bug", self.bug), ("raw", self.raw)):
            self.server.register_function(f"test::{name}", handler, "", {}, None, None)
        self.caller_wait("test::raw")

    def caller_wait(self, function_id: str) -> None:
        for _ in range(200):
            if function_id in str(self.caller.call_blocking("engine::functions::list", {})):
                return
        raise AssertionError(f"{function_id} was not registered")

    async def echo(self, data: Any) -> Any:
        self.seen.append(data)
        return data

    async def fail(self, data: Any) -> Any:
        raise SessionNotFound("nope")

    async def bug(self, data: Any) -> Any:
        raise KeyError("secret")

    async def raw(self, data: Any) -> Any:
        return {"stored": msgspec.Raw(b'{"as": "it is"}')}


@pytest.fixture
def pair() -> Iterator[Counting]:
    with EngineThread() as engine:
        made = Counting(engine.url)
        yield made
        made.caller.shutdown()
        made.server.shutdown()


def test_frames_take_the_short_way_with_the_installed_sdk(pair: Counting) -> None:
    assert pair.server._iii.is_quick
    assert pair.caller.call_blocking("test::echo", {"é": [1, 1.5, None, True, "\x00"]})["é"] == [
        1,
        1.5,
        None,
        True,
        "\x00",
    ]
    assert len(pair.seen) == 1, "answered once, by the short way and not by the SDK as well"


def test_calls_and_answers_are_taken_ahead_of_the_queues(pair: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    queued: list[str] = []
    for client in (pair.server, pair.caller):

        async def noticed(raw: Any, handle: Any = client._iii._handle_message) -> None:
            queued.append(json.loads(raw)["type"])
            await handle(raw)

        monkeypatch.setattr(client._iii, "_handle_message", noticed)
    pair.caller.run(pair.caller.deliver("test::echo", b"1", "default", None, 20))
    assert pair.seen == [1]
    assert queued == []
    assert pair.caller.call_blocking("test::echo", 2) == 2
    assert queued == ["invocationresult"], "what the SDK has asked for is its own"


def test_small_answers_go_between_big_ones_and_all_come_whole(pair: Counting) -> None:
    big = "ä" * (12 << 20)  # in two frames

    async def all_at_once() -> list[Any]:
        calls: list[Any] = [pair.caller.call("test::echo", big, seconds=60)]
        calls += [pair.caller.call("test::echo", number, seconds=60) for number in range(200)]
        calls.append(pair.caller.call("test::echo", big, seconds=60))
        return await asyncio.gather(*calls)

    assert pair.caller.run(all_at_once()) == [big, *range(200), big]


def test_stored_json_goes_into_a_reply_as_it_is(pair: Counting) -> None:
    assert pair.caller.call_blocking("test::raw", {}) == {"stored": {"as": "it is"}}


def test_an_error_reaches_the_caller_as_its_text_without_a_stack(pair: Counting) -> None:
    with pytest.raises(InvocationError) as caught:
        pair.caller.call_blocking("test::fail", {})
    assert (caught.value.code, caught.value.message) == ("invocation_failed", "session/not_found: no session 'nope'")
    assert not caught.value.stacktrace


def test_a_defect_is_told_without_its_details(pair: Counting, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InvocationError) as caught:
        pair.caller.call_blocking("test::bug", {})
    assert "internal error" in caught.value.message
    assert "secret" not in str(caught.value)
    assert pair.caller.call_blocking("test::echo", 1) == 1, "and the worker goes on"


@pytest.mark.parametrize("asked", [7, "x" * (haste.SMALL + 1)], ids=["short", "long"])
@pytest.mark.parametrize(("load", "took"), [(0.0, 0.0), (100.0, 0.01)], ids=["at once", "in a crowd"])
def test_an_answer_that_the_engine_loses_because_it_came_too_soon_is_sent_again(
    pair: Counting, monkeypatch: pytest.MonkeyPatch, load: float, took: float, asked: int | str
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(haste, "GLANCE", 0.0)
    monkeypatch.setattr(haste, "SOON_IN_A_CROWD" if load else "SOON_ALONE", 5.0)  # the machine may be a slow one

    async def echo(payload: object) -> object:
        await asyncio.sleep(took)
        return payload

    pair.server._iii.answer("test::echo", echo)
    send = pair.server._iii._send_frame
    lost: list[bytes] = []

    async def lossy(frame: bytes) -> bool:
        if not lost:
            lost.append(frame)
            return True
        return await send(frame)

    monkeypatch.setattr(pair.server._iii, "_send_frame", lossy)
    assert pair.caller.call_blocking("test::echo", asked) == asked
    assert lost


def test_a_long_answer_among_others_is_held_back_until_the_engine_has_filed_its_call(
    pair: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    long = "x" * (haste.SMALL + 1)
    monkeypatch.setattr(haste, "SOON", 3600.0)
    pair.server._iii._crowd = haste.Crowd()
    assert pair.caller.call_blocking("test::echo", long) == long, "it was alone"
    monkeypatch.setattr(haste, "SOON", 0.2)
    pair.server._iii._crowd, pair.server._iii._among = haste.Crowd(), float("inf")
    began = time.monotonic()
    assert pair.caller.call_blocking("test::echo", long) == long
    assert time.monotonic() - began >= 0.2


def test_a_delivery_returns_when_the_subscriber_has_answered(pair: Counting) -> None:
    payload = encode({"n": 1})
    pair.caller.run(asyncio.wait_for(pair.caller.deliver("test::echo", payload, "default", None, 20), 5))
    assert pair.seen[0]["n"] == 1


def test_a_delivery_to_nobody_says_so(pair: Counting) -> None:
    with pytest.raises(Exception, match="function_not_found"):
        pair.caller.run(pair.caller.deliver("test::nobody", b"{}", "default", None, 5))


def test_a_subscriber_that_fails_has_been_told_all_the_same(pair: Counting) -> None:
    pair.caller.run(pair.caller.deliver("test::fail", b"{}", "default", None, 5))


@pytest.mark.parametrize("something_arrives", [False, True])
def test_what_is_said_in_one_turn_of_the_event_loop_goes_out_in_one_write(
    pair: Counting, something_arrives: bool
) -> None:
    """An event has as many deliveries as subscribers, and a commit as many answers as changes."""
    transport, written = pair.caller._iii._ws.transport, list[int]()

    class Noting:
        def __getattr__(self, name: str) -> Any:
            return getattr(transport, name)

        def write(self, data: bytes) -> None:
            written.append(1)
            transport.write(data)

        def writelines(self, pieces: list[bytes]) -> None:
            written.append(len(pieces))
            transport.writelines(pieces)

    async def many() -> None:
        pair.caller._iii._ws.transport = Noting()
        deliveries = (pair.caller.deliver("test::echo", b'{"n":%d}' % n, "default", None, 10) for n in range(50))
        answered = asyncio.gather(*deliveries)
        if something_arrives:
            asyncio.get_running_loop().call_soon(pair.caller._iii._ws.data_received, PONG)
        await answered

    pair.caller.run(many())
    assert sum(written) == 50
    assert len(written) <= 2
    assert sorted(data["n"] for data in pair.seen) == list(range(50))


def test_a_delivery_waits_for_a_connection_that_is_down_and_goes_out_then() -> None:
    with EngineThread() as engine:
        pair = Counting(engine.url)
        engine.drop("caller")
        delivery = asyncio.run_coroutine_threadsafe(
            pair.caller.deliver("test::echo", b'{"n":2}', "default", None, 20), pair.caller.loop
        )
        delivery.result(10)
        assert pair.seen[-1]["n"] == 2
        pair.caller.shutdown()
        pair.server.shutdown()


class Writing:
    """A function whose change takes until `known` before the event loop knows of it, and is durable before that."""

    def __init__(self, pair: Counting) -> None:
        self.pair = pair
        self.known = asyncio.Event()
        self.changed = False
        self.breaks = False
        """Whether the handler fails behind its early answer."""
        self.early: list[bool] = []
        pair.server.register_function("test::write", self._alone, "", {}, None, None, self._write)
        pair.server.register_function("test::read", self._read, "", {}, None, None)
        pair.caller_wait("test::read")

    async def _alone(self, data: Any) -> Any:
        self.early.append(False)
        return data

    async def _write(self, data: Any, *, early: Early) -> Any:
        self.early.append(True)
        early.say(data)
        await asyncio.to_thread(early.leave)
        await self.known.wait()
        self.changed = True
        if self.breaks:
            raise KeyError
        return data

    async def _read(self, data: Any) -> Any:
        return self.changed


async def test_an_answer_may_leave_before_the_event_loop_knows(pair: Counting) -> None:
    writing = Writing(pair)
    assert await asyncio.to_thread(pair.caller.call_blocking, "test::write", 1) == 1
    assert not writing.changed
    pair.server.loop.call_soon_threadsafe(writing.known.set)


async def test_whoever_asks_because_of_an_early_answer_sees_what_it_told(pair: Counting) -> None:
    writing = Writing(pair)

    async def write_then_read() -> Any:
        await pair.caller.call("test::write", {})
        asked = asyncio.ensure_future(pair.caller.call("test::read", {}))
        await until(lambda: asked.done() or len(pair.server._iii._answering) == 2)
        assert not asked.done()
        pair.server.loop.call_soon_threadsafe(writing.known.set)
        return await asked

    assert await asyncio.to_thread(pair.caller.run, write_then_read()) is True


async def test_an_early_answer_is_not_sent_by_the_event_loop_as_well(
    pair: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(haste, "SOON_ALONE", 0.0)
    monkeypatch.setattr(haste, "SOON", 0.0)
    writing = Writing(pair)
    sent: list[bytes] = []
    send = pair.server._iii._send_frame

    async def noted(frame: bytes) -> bool:
        sent.append(frame)
        return await send(frame)

    monkeypatch.setattr(pair.server._iii, "_send_frame", noted)
    pair.server.loop.call_soon_threadsafe(writing.known.set)
    assert await asyncio.to_thread(pair.caller.call_blocking, "test::write", 1) == 1
    assert await asyncio.to_thread(pair.caller.call_blocking, "test::read", {}) is True
    assert len(sent) == 1, "of the reading only"


@pytest.mark.parametrize("breaks", [False, True])
async def test_an_early_answer_that_came_too_soon_is_sent_again(
    pair: Counting, monkeypatch: pytest.MonkeyPatch, breaks: bool
) -> None:
    monkeypatch.setattr(haste, "SOON_ALONE", 3600.0)
    writing = Writing(pair)
    writing.breaks = breaks
    monkeypatch.setattr(pair.server._iii._outlet, "aside", lambda frame: True)  # and it is lost
    pair.server.loop.call_soon_threadsafe(writing.known.set)
    assert await asyncio.to_thread(pair.caller.call_blocking, "test::write", 1) == 1


async def test_a_call_among_others_is_answered_by_the_event_loop(pair: Counting) -> None:
    """Then answers go out together, which costs each of them less."""
    writing = Writing(pair)
    writing.known.set()

    async def at_once() -> Any:
        return await asyncio.gather(*(pair.caller.call("test::write", n) for n in range(20)))

    assert await asyncio.to_thread(pair.caller.run, at_once()) == list(range(20))
    assert not all(writing.early)
