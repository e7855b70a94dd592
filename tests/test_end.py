"""The end of the worker: every step has its time and its turn, whatever befalls those before it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from session_manager.catchup import Told
from session_manager.dev import EngineThread
from session_manager.edge import client as client_module
from session_manager.edge import worker as worker_module
from session_manager.edge.client import Client
from session_manager.edge.configuration import ConfigurationEntry
from session_manager.edge.failures import EngineError, GivenUp, Undelivered
from session_manager.edge.frames import FAREWELL, FRAME_BYTES
from session_manager.edge.line import Line
from session_manager.edge.worker import Worker
from session_manager.events import Created, Emission
from session_manager.ledger import Ledger, Past
from session_manager.model import SessionMeta, encode
from tests.engines import loopback_process

SOON, LONG = 10.0, 60.0
"""Seconds that are far more than what is bounded here needs, and as long as what hangs takes."""


async def never(*_: Any, **__: Any) -> None:
    await asyncio.Event().wait()


async def broken(*_: Any, **__: Any) -> None:
    raise OSError("broken")


@pytest.fixture
def url() -> Iterator[str]:
    with EngineThread() as engine:
        yield engine.url


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("III_COMPOSE_DIR", str(tmp_path))
    return tmp_path / "data" / "session-manager"


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    for number, step in enumerate(("CALLS", "STORE", "DELIVERIES", "ACCOUNT"), 1):
        monkeypatch.setattr(worker_module, step, number / 5)


def started(url: str, pause: Callable[[float], bool] | None = None) -> Worker:
    worker = Worker(url, "session-manager", None, *(() if pause is None else (None, pause)))
    worker.start()
    deadline = time.monotonic() + LONG
    while not worker._account._kept:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return worker


def left_in(home: Path) -> Past:
    """What the next worker finds."""
    ledger = Ledger(home / "told-session-manager.db")
    past = ledger.open(Told())
    ledger.abandon()
    assert past is not None
    return past


def threads() -> set[threading.Thread]:
    return set(threading.enumerate())


def nothing_is_left_running(before: set[threading.Thread]) -> None:
    """A thread has told that it is done a moment before it is gone, and those of earlier tests may go meanwhile."""
    deadline = time.monotonic() + SOON
    while not threads() <= before:
        assert time.monotonic() < deadline, threads() - before
        time.sleep(0.001)


def test_all_steps_together_take_less_than_the_ten_seconds_that_are_promised() -> None:
    steps = (worker_module.CALLS, worker_module.STORE, worker_module.DELIVERIES, worker_module.ACCOUNT)
    assert list(steps) == sorted(steps)
    assert steps[-1] + FAREWELL <= 9.5


def test_an_orderly_end_is_noted_as_clean_and_leaves_nothing(url: str, home: Path) -> None:
    before = threads()
    worker = started(url)
    worker.stop()
    assert left_in(home).clean
    nothing_is_left_running(before)


@pytest.mark.usefixtures("hurried")
def test_when_everything_hangs_each_step_is_given_up_in_time(url: str, home: Path) -> None:
    worker = started(url)
    service, go = worker._service, threading.Event()
    close, close_ledger = service.runtime.store.close, worker._account._ledger.abandon
    service.finished = service.runtime.store.close = worker._account.told_all = never  # type: ignore[method-assign]
    worker._account._ledger.abandon = lambda: (go.wait(LONG), close_ledger())[1]  # type: ignore[method-assign]
    began = time.monotonic()
    worker.stop()
    assert time.monotonic() - began < SOON
    go.set()
    asyncio.run(close())


def noting(taken: list[str], step: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def take(*args: Any, **options: Any) -> Any:
        taken.append(step)
        return method(*args, **options)

    return take


@pytest.mark.parametrize("what", ["calls", "store", "deliveries"])
@pytest.mark.parametrize("how", [never, broken])
@pytest.mark.usefixtures("hurried")
def test_the_steps_behind_one_that_goes_wrong_are_taken_and_the_end_is_not_noted_as_clean(
    url: str, home: Path, monkeypatch: pytest.MonkeyPatch, what: str, how: Any
) -> None:
    worker = started(url)
    store = worker._service.runtime.store
    taken: list[str] = []
    close = store.close
    places = {
        "calls": (worker._service, "finished"),
        "store": (store, "close"),
        "deliveries": (worker._delivery, "drain"),
    }
    steps = {
        "store": (store, "close"),
        "deliveries": (worker._delivery, "drain"),
        "account": (worker._account, "close"),
    }
    for step, (owner, name) in steps.items():
        monkeypatch.setattr(owner, name, noting(taken, step, getattr(owner, name)))
    monkeypatch.setattr(*places[what], how)
    began = time.monotonic()
    worker.stop()
    assert time.monotonic() - began < SOON
    assert taken == [step for step in steps if step != what]
    assert not left_in(home).clean
    asyncio.run(close())


class Subscriber:
    """Is told of sessions that are created, and of what else only it is to be told."""

    def __init__(self, url: str) -> None:
        self.client = Client(url, "client", "")
        self.heard: list[str] = []
        self.answers = asyncio.Event()
        self.client.register_function("it::hears", self._hear, "", {}, None, None)
        asked = {"trigger_type": "session::created", "function_id": "it::hears", "config": {}}
        self.client.call_blocking("engine::register_trigger", asked)

    async def _hear(self, event: Any) -> None:
        self.heard.append(event["session_id"])
        await self.answers.wait()

    def create(self) -> str:
        return str(self.client.call_blocking("session::create", {})["session_id"])

    def answer(self) -> None:
        self.client.loop.call_soon_threadsafe(self.answers.set)


@pytest.fixture
def subscriber(url: str) -> Iterator[Subscriber]:
    made = Subscriber(url)
    yield made
    made.answer()
    made.client.shutdown()


@pytest.fixture
def worker(url: str) -> Worker:
    return started(url)


def test_what_was_not_delivered_is_in_doubt_for_the_next_worker(
    worker: Worker, subscriber: Subscriber, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "ANSWERS", 0.1)
    saves, deadline = worker._account._ledger._save, time.monotonic() + LONG
    made = subscriber.create()
    while worker._account._ledger._save == saves:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    worker.stop()
    assert left_in(home) == Past(clean=False, doubtful=frozenset({made}))


def test_what_happened_in_a_start_that_went_no_further_is_in_doubt_for_the_next_worker(
    url: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(url).stop()
    assert left_in(home).clean
    made: list[str] = []

    async def cut_off(worker: Worker) -> None:
        made.append((await worker._service.call("session::create", {}))["session_id"])
        raise EngineError("cut off")

    monkeypatch.setattr(Worker, "_bindings_back", cut_off)
    with pytest.raises(EngineError):
        Worker(url, "session-manager", None).start()
    assert left_in(home) == Past(clean=False, doubtful=frozenset(made))


def test_what_a_store_tells_while_it_is_closed_is_delivered_before_the_end(
    worker: Worker, subscriber: Subscriber, home: Path
) -> None:
    store, meta = worker._service.runtime.store, SessionMeta("late", "", "", "idle", 1, 1, 0)
    close = store.close

    async def closed() -> None:
        await asyncio.sleep(0.1)
        worker._account.publish([Emission(Created.of(meta), None)])
        await close()

    store.close = closed  # type: ignore[method-assign]
    subscriber.answer()
    made = subscriber.create()
    worker.stop()
    assert subscriber.heard == [made, "late"]
    assert left_in(home).clean


def test_an_end_before_all_is_told_again_leaves_the_doubt(
    url: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = started(url)
    worker.stop()
    ledger = Ledger(home / "told-session-manager.db")
    ledger.open(Told())
    ledger.begin(Told())
    ledger.write(b'["s",null]\n')
    ledger.abandon()  # as a kill leaves it
    monkeypatch.setattr("session_manager.edge.account.Account._tell_again", never)
    again = Worker(url, "session-manager", None)
    again.start()
    again.stop()
    assert left_in(home) == Past(clean=False, doubtful=frozenset({"s"}))


# --- told while it starts ---


@pytest.fixture
def hanging() -> Iterator[str]:
    """The URL of what takes connections and does nothing more, as an engine that hangs."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"ws://127.0.0.1:{server.getsockname()[1]}"


def test_who_connects_to_an_engine_that_hangs_hears_a_signal(hanging: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "ANSWER", LONG)
    before, began = threads(), time.monotonic()
    with pytest.raises(GivenUp):
        started(hanging, lambda _: time.monotonic() > began + 0.3)
    assert time.monotonic() - began < SOON
    nothing_is_left_running(before)


def test_an_engine_that_hangs_is_told_of_in_time(hanging: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "ANSWER", 0.5)
    began = time.monotonic()
    with pytest.raises(EngineError, match="does not answer"):
        Client(hanging, "client", "")
    assert time.monotonic() - began < SOON


MOMENTS = {
    "the store opens": (ConfigurationEntry, "fetch"),
    "the configuration is registered": (ConfigurationEntry, "register"),
    "the configuration is read again": (Worker, "_catch_up"),
    "the bindings come": (Worker, "_bindings_back"),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_who_waits_for_an_answer_while_it_starts_hears_a_signal(
    url: str, home: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    reached, cleaned = threading.Event(), threading.Event()

    async def hang(*_: Any, **__: Any) -> None:
        reached.set()
        try:
            await never()
        finally:
            await asyncio.sleep(0.1)
            cleaned.set()

    before, began = threads(), time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(*MOMENTS[moment], hang)
        with pytest.raises(GivenUp):
            started(url, lambda seconds: reached.wait(seconds))
    assert time.monotonic() - began < SOON
    assert cleaned.is_set(), "what had been begun was not cleaned up"
    nothing_is_left_running(before)
    started(url).stop()  # nothing is held any more


# --- an engine that takes nothing more ---


FAR_TOO_MUCH = encode("x" * (FRAME_BYTES - 1000))
"""There is no room for it on the way to an engine that takes nothing."""


def test_a_connection_ends_that_has_more_to_send_than_an_engine_takes(tmp_path: Path) -> None:
    with loopback_process(tmp_path / "engine") as engine:
        client = Client(engine.url, "client", "")
        engine.hang()
        given_up = client.deliver("nobody", FAR_TOO_MUCH, "default", None, 0.2)
        with pytest.raises(Undelivered):
            client.run(given_up)
        began = time.monotonic()
        client.shutdown()
        assert time.monotonic() - began < SOON


async def test_a_line_ends_that_has_more_to_send_than_an_engine_takes(tmp_path: Path) -> None:
    with loopback_process(tmp_path / "engine") as engine:
        line = Line(engine.url, "line", "")
        await line.open(5)
        engine.hang()
        line._say(FAR_TOO_MUCH)
        async with asyncio.timeout(SOON):
            await line.close()
