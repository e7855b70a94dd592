"""What the loopback engine has of its own: seeds, more unkindness, faults on demand, and its way of running."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

from session_manager.dev import Engine, EngineThread, Unkindness
from session_manager.dev.entries import Entry, Files
from tests.dev.client import PATIENCE_S, Failed, Peer, eventually, peer, unique
from tests.engines import free_port, wait_for_port


async def burst(engine: Engine, count: int = 200) -> list[int]:
    """The order in which a burst of void calls arrives."""
    async with peer(engine.url) as worker:
        await worker.claim("worker")
        await eventually(engine.workers)
        await worker.register("f")
        await worker.settled()
        await worker.send_at_once(
            [
                b'{"type":"invokefunction","function_id":"f","data":%d,"action":{"type":"void"}}' % n
                for n in range(count)
            ]
        )
        return [frame["data"] for frame in await worker.several(count, "invokefunction")]


async def test_a_seed_makes_disorder_reproducible() -> None:
    orders = []
    for seed in (7, 7, 8):
        async with Engine(seed=seed, unkindness=Unkindness(held=0.0)) as engine:
            orders.append(await burst(engine))
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != sorted(orders[0])


async def test_an_engine_without_unkindness_keeps_order() -> None:
    async with Engine(unkindness=Unkindness.none()) as engine:
        assert await burst(engine) == list(range(200))


async def test_a_cruel_engine_shuffles_what_is_far_apart() -> None:
    async with Engine(unkindness=Unkindness.cruel()) as engine, peer(engine.url) as worker:
        await worker.introduce("worker")
        await worker.register("f")
        await worker.settled()
        for n in range(50):
            await worker.send("invokefunction", function_id="f", data=n, action={"type": "void"})
            await worker.ping()
        arrived = [frame["data"] for frame in await worker.several(50, "invokefunction")]
        assert sorted(arrived) == list(range(50)) != arrived


async def test_answers_get_lost_on_request() -> None:
    async with Engine(unkindness=Unkindness(lost_replies=1.0)) as engine, peer(engine.url) as worker:
        await worker.introduce("worker")
        await worker.register("f")
        await worker.settled()
        invocation = await worker.start("f", {})
        await worker.answer(await worker.frame("invokefunction"), result="done")
        await worker.settled()
        with pytest.raises(TimeoutError):
            await worker.result(invocation, 0.2)


async def test_slow_files_undo_for_a_while_what_was_set_meanwhile(tmp_path: Path) -> None:
    unkindness = Unkindness(slow_files=0.3)
    async with Engine(config_dir=tmp_path, unkindness=unkindness) as engine, peer(engine.url) as worker:
        await worker.register("sink", lambda event: None)
        await worker.introduce("worker")
        await worker.bind("configuration", "sink", {})
        given = {"name": "N", "description": "D", "schema": {"type": "integer"}, "initial_value": 0}
        await worker.call("configuration::register", {"id": "first", **given})

        async def value() -> Any:
            return (await worker.call("configuration::get", {"id": "first"}))["value"]

        def events(kind: str, new_value: Any) -> bool:
            told = [frame["data"] for frame in worker.seen("invokefunction", function_id="sink")]
            return any(
                data["event_type"] == f"configuration:{kind}" and data["new_value"] == new_value for data in told
            )

        new = 0
        while await value() == new or not events("deleted", None):
            new += 1
            await worker.call("configuration::set", {"id": "first", "value": new})
            await worker.call("configuration::register", {"id": f"late-{new}", **given})
            await asyncio.sleep(0.01)
        await eventually(lambda: events("updated", new))

        async def healed() -> bool:
            return bool(await value() == new)

        await eventually(healed)
        rows = (await worker.call("configuration::list", {}))["configurations"]
        assert None in [row["schema"] for row in rows]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.invalid", ""])
async def test_only_loopback_addresses_are_listened_on(host: str) -> None:
    engine = Engine()
    with pytest.raises(ValueError, match="loopback addresses only"):
        await engine.start(host)


@pytest.mark.parametrize("origin", ["https://example.com", "null", "http://127.0.0.1.example.com", "file://"])
async def test_pages_of_other_machines_are_not_served(origin: str) -> None:
    async with Engine() as engine:
        with pytest.raises(InvalidStatus) as refused:
            await connect(engine.url, origin=Origin(origin), proxy=None)
        assert refused.value.response.status_code == 403


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1:8080", "http://[::1]:8080"])
async def test_pages_of_this_machine_are_served(origin: str) -> None:
    async with Engine() as engine, connect(engine.url, origin=Origin(origin), proxy=None) as ws:
        assert "workerregistered" in str(await ws.recv())


async def test_other_addresses_take_an_explicit_flag() -> None:
    engine = Engine(allow_remote=True)
    await engine.start("0.0.0.0")
    try:
        async with peer(f"ws://127.0.0.1:{engine.port}") as client:
            await client.settled()
    finally:
        await engine.stop()


async def test_a_worker_can_be_dropped_without_a_word() -> None:
    async with Engine() as engine, peer(engine.url) as worker, peer(engine.url) as client:
        await worker.introduce("worker")
        assert engine.workers() == ["worker"]
        await worker.register("f")
        await worker.settled()
        call = await client.start("f", {})
        await worker.frame("invokefunction")
        assert engine.drop("worker") == 1
        assert (await client.result(call))["error"]["code"] == "invocation_stopped"
        await asyncio.wait_for(worker.closed.wait(), PATIENCE_S)
        assert worker.close_code == 1006
        assert engine.drop("worker") == 0


async def test_a_muted_worker_keeps_its_name_and_its_calls_hang() -> None:
    async with Engine() as engine, peer(engine.url) as worker, peer(engine.url) as client:
        await worker.introduce("worker")
        await worker.register("f", lambda data: "done")
        await worker.settled()
        assert engine.mute("worker") == 1
        with pytest.raises(TimeoutError):
            await client.call("f", {}, 0.2)
        await client.claim("worker")
        assert (await client.frame("registrationrejected"))["code"] == "WORKER_NAMESPACE_CONFLICT"


async def test_with_nagle_the_engine_still_answers() -> None:
    async with Engine(nagle=True) as engine, peer(engine.url) as client:
        await client.settled()


async def test_an_unknown_path_is_no_endpoint() -> None:
    async with Engine() as engine:
        reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
        writer.write(b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"404" in await asyncio.wait_for(reader.readline(), PATIENCE_S)
        writer.close()
        await writer.wait_closed()


async def test_a_peer_that_speaks_no_http_is_dropped() -> None:
    async with Engine() as engine:
        reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
        writer.write(b"\x00\x01nonsense\r\n\r\n")
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) is not None
        writer.close()
        async with peer(engine.url) as client:
            await client.settled()


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n", b"GET /otel HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_an_engine_that_stops_drops_also_whoever_is_no_worker(said: bytes) -> None:
    engine = Engine()
    await engine.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    writer.write(said)
    await engine.stop()
    with contextlib.suppress(ConnectionResetError):
        await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()


async def test_entries_are_not_gone_while_their_directory_is_away(tmp_path: Path) -> None:
    files = Files(tmp_path / "engine")
    files.write(Entry("kept", "N", "D", None, 1))
    (tmp_path / "engine").rename(tmp_path / "elsewhere")
    assert files.load() is None
    (tmp_path / "elsewhere").rename(tmp_path / "engine")
    assert list(files.load() or ()) == ["kept"]
    (tmp_path / "engine" / "kept.yaml").unlink()
    assert files.load() == {}


def test_in_a_thread_it_serves_others_and_comes_back_on_the_same_port(tmp_path: Path) -> None:
    with EngineThread(config_dir=tmp_path) as engine:
        url = engine.url

        async def register(one: Peer) -> None:
            given = {"id": "kept", "name": "N", "description": "D", "schema": {}, "initial_value": 1}
            await one.call("configuration::register", given)

        async def visit() -> list[str]:
            async with peer(url) as one:
                await one.introduce("visitor")
                await register(one)
                return engine.workers()

        assert asyncio.run(visit()) == ["visitor"]
        engine.restart()
        assert engine.url == url
        assert engine.workers() == []

        async def read() -> object:
            async with peer(url) as one:
                return (await one.call("configuration::get", {"id": "kept"}))["value"]

        assert asyncio.run(read()) == 1


def test_a_taken_port_is_an_error() -> None:
    with EngineThread() as engine, pytest.raises(OSError, match="in use"), EngineThread(port=engine.port):
        pass


async def test_without_a_directory_configuration_ends_with_the_engine() -> None:
    engine = Engine()
    for _ in range(2):
        await engine.start()
        async with peer(engine.url) as client:
            with pytest.raises(Failed, match="not found"):
                await client.call("configuration::get", {"id": "x"})
            given = {"id": "x", "name": "N", "description": "D", "schema": {}, "initial_value": 1}
            await client.call("configuration::register", given)
        await engine.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_as_a_process_it_runs_until_it_is_told_to_stop(number: signal.Signals, tmp_path: Path) -> None:
    port = free_port()
    code = f"from session_manager.dev import run; run({port}, {str(tmp_path)!r})"
    process = subprocess.Popen([sys.executable, "-W", "error", "-c", code], env=os.environ, stdout=subprocess.DEVNULL)
    try:
        wait_for_port(port, process)

        async def visit() -> None:
            async with peer(f"ws://127.0.0.1:{port}") as client:
                await client.introduce(unique("w"))
                process.send_signal(number)
                await asyncio.wait_for(client.closed.wait(), PATIENCE_S)

        asyncio.run(visit())
        assert process.wait(5) == 0
    finally:
        process.kill()
        process.wait()
