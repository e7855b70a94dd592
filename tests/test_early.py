"""In a whole worker, the answer to a lone change leaves from the thread that made it durable, unless somebody is to be
told of it first."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from session_manager.bindings import BindingTable
from session_manager.dev import EngineThread
from session_manager.edge.client import Client
from session_manager.edge.outlet import Outlet
from session_manager.edge.worker import Worker
from session_manager.stores import pending
from tests.faults.load import user

ADAPTERS = {
    "sqlite": {"name": "sqlite", "config": {"path": "sessions.db"}},
    "fs": {"name": "fs", "config": {"data_dir": "sessions"}},
}


@pytest.fixture
def url() -> Iterator[str]:
    with EngineThread() as engine:
        yield engine.url


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What left early."""
    frames: list[bytes] = []
    aside = Outlet.aside

    def noted(outlet: Outlet, frame: bytes) -> bool:
        went = aside(outlet, frame)
        if went:
            frames.append(frame)
        return went

    monkeypatch.setattr(Outlet, "aside", noted)
    return frames


@pytest.fixture(params=ADAPTERS)
def caller(
    request: pytest.FixtureRequest, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Client]:
    monkeypatch.setenv("III_COMPOSE_DIR", str(tmp_path))
    worker = Worker(url, "session-manager", {"adapter": ADAPTERS[request.param]})
    worker.start()
    client = Client(url, "caller", "")
    yield client
    client.shutdown()
    worker.stop()


def append(caller: Client, number: int) -> None:
    """And read what is there by then."""
    caller.call_blocking("session::append", {"session_id": "s", "message": user(str(number))})
    page = caller.call_blocking("session::messages", {"session_id": "s", "limit": 500})
    assert len(page["messages"]) == number
    assert caller.call_blocking("session::get", {"session_id": "s"})["meta"]["message_count"] == number


def test_answers_leave_early_and_what_they_told_is_there(caller: Client, left: list[bytes]) -> None:
    caller.call_blocking("session::ensure", {"session_id": "s"})
    for number in range(1, 51):
        append(caller, number)
    assert len(left) > 25, "but for those that met another call, such as the news of a configuration"


def test_an_answer_waits_where_somebody_is_to_be_told(caller: Client, left: list[bytes]) -> None:
    caller.call_blocking("session::ensure", {"session_id": "s"})
    left.clear()

    async def take(event: Any) -> None:
        pass

    caller.register_function("test::take", take, "", {}, None, None)
    caller.bind("session::message-added", "test::take", {"session_id": "other"})
    number = 0
    while not left:
        append(caller, number := number + 1)
    caller.bind("session::message-added", "test::take", {"session_id": "s"})
    bound: list[Any] = []
    while not bound:
        asked = {"trigger_type": "session::message-added", "search": "test::take"}
        found = caller.call_blocking("engine::registered-triggers::list", asked)["registered_triggers"]
        bound = [one for one in found if one["config"]["session_id"] == "s"]
    caller.call_blocking("session::config-status", {})  # which comes behind the binding
    left.clear()
    append(caller, number + 1)
    assert left == []


def test_who_binds_while_a_change_is_at_the_disk_is_told_before_the_answer_leaves(
    caller: Client, left: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, bound, told = threading.Event(), threading.Event(), threading.Event()
    written = pending._write_early

    def held(*arguments: Any) -> int:
        reached.set()
        bound.wait(20)
        return written(*arguments)

    async def take(event: Any) -> None:
        told.set()

    add = BindingTable.add

    def added(table: BindingTable, binding: Any) -> None:
        add(table, binding)
        bound.set()

    caller.register_function("test::take", take, "", {}, None, None)
    caller.call_blocking("session::ensure", {"session_id": "s"})
    monkeypatch.setattr(pending, "_write_early", held)
    monkeypatch.setattr(BindingTable, "add", added)
    left.clear()
    appended = asyncio.run_coroutine_threadsafe(
        caller.call("session::append", {"session_id": "s", "message": user("1")}), caller.loop
    )
    assert reached.wait(20)
    caller.bind("session::message-added", "test::take", {"session_id": "s"})
    appended.result(20)
    assert bound.is_set()
    assert left == []
    assert told.wait(20)
