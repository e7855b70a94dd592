"""Start without an engine, an orderly end, and what callers and the log are told of mistakes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from iii.errors import InvocationError

from session_manager.stores.holder import Holder
from tests.dev.client import eventually
from tests.engine.conftest import SQLITE, Connect, Place, Serve, Sink, user
from tests.engines import free_port, loopback_process
from tests.sdk import call, sdk_client
from tests.wire import worker_process

SECRET = "correct-horse-battery-staple"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ws://127.0.0.1:{port}", "session-manager: no engine at ws://127.0.0.1:{port}: "),
        ("http://127.0.0.1:{port}", "session-manager: 'http://127.0.0.1:{port}' is no WebSocket URL"),
    ],
)
def test_without_an_engine_it_says_so_in_one_line_and_exits(serve: Serve, url: str, why: str) -> None:
    port = free_port()
    worker = serve(url.format(port=port), "--patience", "0.5")
    assert worker.wait(10) == 1
    (line,) = worker.said().splitlines()  # half a second is not worth a line of its own
    assert line.startswith(why.format(port=port))


async def test_an_engine_that_comes_later_is_waited_for(place: Place, serve: Serve, connect: Connect) -> None:
    place.kill()
    try:
        worker = serve(place.url)
        await eventually(lambda: f"reason='no engine at {place.url}: " in worker.said())
    finally:
        place.start()
    client = await connect(place.url)
    await worker.ready(client)


async def test_an_engine_that_hangs_does_not_keep_the_worker_from_ending(tmp_path: Path) -> None:
    with loopback_process(tmp_path / "engine") as engine, worker_process(engine.url, tmp_path / "worker") as worker:
        async with sdk_client(engine.url, "client") as client:
            await worker.ready(client)
            sink = Sink(client, "session::created")
            await sink.bind_by_function({})
            await call(client, "session::create", {})
            await eventually(lambda: sink.events, 20)  # events leave once the start is over
        engine.hang()
        worker.signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait, 10) == 0, worker.said()
        assert "stopped" in worker.said()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_who_waits_for_an_engine_can_be_told_to_end(tmp_path: Path, number: signal.Signals) -> None:
    with worker_process(f"ws://127.0.0.1:{free_port()}", tmp_path / "worker", "--patience", "3600") as worker:
        await eventually(lambda: "waiting" in worker.said())
        worker.signal(number)
        assert await asyncio.to_thread(worker.wait, 60) == 0, worker.said()
        assert "stopped while it waited" in worker.said()
        assert "Traceback" not in worker.said()


async def test_who_waits_for_something_that_never_answers_can_be_told_to_end(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"ws://127.0.0.1:{silent.getsockname()[1]}"
        with worker_process(url, tmp_path / "worker", "--patience", "3600") as worker:
            while not (connection := silent.accept()[0]).recv(4096):
                connection.close()  # it only looked whether anything listens
            with connection:
                worker.signal(signal.SIGTERM)
                assert await asyncio.to_thread(worker.wait, 9) == 0, worker.said()  # the answer may take ten
        assert f"reason='the engine at {url} does not answer'" in worker.said()
        assert "Traceback" not in worker.said()


async def test_a_proxy_that_the_environment_names_does_not_come_between_processes_of_one_machine(
    url: str, serve: Serve, connect: Connect
) -> None:
    worker = serve(url, NO_PROXY="elsewhere.example", http_proxy=f"http://127.0.0.1:{free_port()}")
    await worker.ready(await connect(url))


async def test_who_waits_for_a_database_can_be_told_to_end(url: str, tmp_path: Path) -> None:
    directory = tmp_path / "worker"
    holder = Holder(directory / "sessions.db.lock", "database")
    directory.mkdir()
    holder.acquire()
    try:
        with worker_process(url, directory, "--patience", "3600", value=SQLITE) as worker:
            await eventually(lambda: "waiting" in worker.said(), 20)
            worker.signal(signal.SIGTERM)
            assert await asyncio.to_thread(worker.wait, 60) == 0, worker.said()
            assert "stopped while it waited" in worker.said()
    finally:
        holder.release()


NEWER = "PRAGMA user_version = 99; PRAGMA application_id = 0x53455353; CREATE TABLE t (a)"

INCURABLE: dict[str, tuple[Any, str]] = {
    "a database of a newer program": (SQLITE, "the database has schema version 99"),
    "a file that is no database": (
        SQLITE,
        "session/storage: the database failed (SQLITE_NOTADB): the file is no SQLite database",
    ),
    "a directory instead of a file": (SQLITE, "session/storage: the database failed"),
    "a file instead of a directory": (
        {"adapter": {"name": "fs", "config": {"data_dir": "sessions.db/data"}}},
        "session/storage: the data directory failed (Not a directory)",
    ),
    "a bridge to no URL": (
        {"adapter": {"name": "bridge", "config": {"url": "over there"}}},
        "adapter.config.url: 'over there' is no WebSocket URL",
    ),
}


@pytest.mark.parametrize("name", INCURABLE)
def test_what_waiting_does_not_cure_is_not_waited_for(name: str, url: str, serve: Serve, tmp_path: Path) -> None:
    value, why = INCURABLE[name]
    database = tmp_path / "worker" / "sessions.db"
    database.parent.mkdir()
    if "newer" in name:
        with contextlib.closing(sqlite3.connect(database)) as db:
            db.executescript(NEWER)
    elif "a directory instead" in name:
        database.mkdir()
    else:
        database.write_bytes(b"no database " * 100)
    before = None if database.is_dir() else database.read_bytes()
    worker = serve(url, "--patience", "60", value=value)
    assert worker.wait(20) == 1
    assert worker.said().splitlines()[-1].startswith("session-manager: ")
    assert why in worker.said().splitlines()[-1]
    assert "Traceback" not in worker.said()
    assert database.is_dir() or database.read_bytes() == before


async def test_a_database_that_another_process_has_is_waited_for(
    url: str, serve: Serve, connect: Connect, tmp_path: Path
) -> None:
    (tmp_path / "worker").mkdir()
    holder = Holder(tmp_path / "worker" / "sessions.db.lock", "database")
    holder.acquire()
    started = time.monotonic()
    worker = serve(url)
    await eventually(lambda: "waiting" in worker.said())
    assert f"in use by another process (pid {os.getpid()})" in worker.said()
    assert time.monotonic() - started < 15, "it is told at once, not when its patience ends"
    holder.release()
    await worker.ready(await connect(url))


async def test_who_sees_the_workers_name_can_call_its_functions(url: str, serve: Serve, connect: Connect) -> None:
    client = await connect(url)
    worker = serve(url)
    async with asyncio.timeout(20):
        while True:
            listed = (await call(client, "engine::workers::list", {"search": "session-manager"}))["workers"]
            if "session-manager" in [one["name"] for one in listed]:
                break
    seen = time.monotonic()
    while True:
        try:
            assert await call(client, "session::get", {"session_id": "nobody"}, timeout_ms=15_000) is None
            break
        except InvocationError as error:  # the engine names a worker a moment before it has filed its functions
            if error.code != "function_not_found" or time.monotonic() - seen > 0.2:
                raise
    assert worker.stop() == 0
    assert ["serving" in worker.said(), "stopped" in worker.said()] == [True, True]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_running_calls_finish_and_a_second_one_changes_nothing(
    url: str, serve: Serve, connect: Connect, number: signal.Signals
) -> None:
    worker, client = serve(url), await connect(url)
    await worker.ready(client)
    await call(client, "session::ensure", {"session_id": "s"})
    sink = Sink(client)
    await sink.bind_by_function({})
    acknowledged: set[str] = set()
    refused: list[str] = []

    async def append_on(lane: int) -> None:
        for turn in itertools.count():
            if time.monotonic() > began + 60:
                raise AssertionError("a minute after the signal it still takes calls")
            asked = {"session_id": "s", "message": user("x" * 2000), "entry_id": f"{lane}-{turn}"}
            try:
                acknowledged.add((await call(client, "session::append", asked))["entry_id"])
            except InvocationError as error:
                refused.append(str(error))
                return

    began = time.monotonic()
    lanes = [asyncio.ensure_future(append_on(lane)) for lane in range(16)]
    while len(acknowledged) < 50:
        await asyncio.sleep(0.01)
    began = time.monotonic()
    worker.signal(number)
    worker.signal(number)
    await asyncio.gather(*lanes)
    status = await asyncio.to_thread(worker.wait, 15)
    assert (status, time.monotonic() - began < 10) == (0, True), worker.said()
    assert "Traceback" not in worker.said()
    known = ("the worker is shutting down", "invocation_stopped", "function_not_found")
    assert all(any(word in text for word in known) for text in refused), refused
    heard = set(sink.entries())
    worker.start()
    await worker.ready(client)
    stored = {
        entry["id"] for entry in (await call(client, "session::store::list-entries", {"session_id": "s"}))["entries"]
    }
    assert acknowledged <= stored
    assert acknowledged <= heard, "an acknowledged append was never told"


async def refusals(client: Any) -> list[InvocationError]:
    """What callers are told of their own mistakes."""
    asked: list[tuple[str, Any]] = [
        ("session::append", {"session_id": "nobody", "message": user(SECRET)}),
        ("session::append", {"session_id": "s", "message": {"role": "user", "content": SECRET, "timestamp": 1}}),
        ("session::append", {"session_id": "s", "message": user(SECRET), "parent_id": SECRET}),
        ("session::messages", {"session_id": "s", "cursor": SECRET}),
        ("session::set-meta", [SECRET]),
        ("session::update-message", {"session_id": "s", "entry_id": SECRET, "content": []}),
        ("session::create", {"title": SECRET, "metadata": _nested(SECRET)}),
    ]
    told = []
    for function_id, payload in asked:
        with pytest.raises(InvocationError) as refused:
            await call(client, function_id, payload)
        told.append(refused.value)
    return told


def _nested(value: Any) -> Any:
    for _ in range(100):
        value = {"a": value}
    return value


async def test_mistakes_are_told_to_the_caller_without_traces_and_conversations_stay_out_of_the_log(
    url: str, serve: Serve, connect: Connect, tmp_path: Path
) -> None:
    worker, client = serve(url), await connect(url)
    await worker.ready(client)
    await call(client, "session::ensure", {"session_id": "s", "title": SECRET, "metadata": {"mark": SECRET}})
    sink, failing = Sink(client), Sink(client)
    await sink.bind_by_function({"metadata": {"mark": SECRET}}, metadata={"key": SECRET})
    await failing.bind_by_function({})
    await call(client, "engine::register_trigger", _to_nowhere())
    entry = (await call(client, "session::append", {"session_id": "s", "message": user(SECRET)}))["entry_id"]
    revised = {"session_id": "s", "entry_id": entry, "content": [{"type": "text", "text": SECRET * 2}]}
    await call(client, "session::update-message", revised)
    await call(client, "session::set-draft", {"session_id": "s", "draft": SECRET})
    await call(client, "session::set-status", {"session_id": "s", "status": "error", "reason": SECRET})
    while not sink.events:
        await asyncio.sleep(0.01)
    for error in await refusals(client):
        assert error.code == "invocation_failed"
        assert error.stacktrace is None
        assert "Traceback" not in error.message
        assert str(tmp_path) not in error.message
        assert ".py" not in error.message
    assert worker.stop() == 0
    log = worker.log_file.read_text() + worker.said()
    assert "delivery failed" in log, "the delivery to nowhere is not told"
    assert SECRET not in log
    assert "Traceback" not in log


def _to_nowhere() -> dict[str, Any]:
    return {"trigger_type": "session::message-added", "function_id": "nobody::home", "config": {}}
