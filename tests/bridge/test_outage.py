"""The network between a bridge and the main instance: gone, silent, and back."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.bridge.topology import Topology, topology, until
from tests.engines import free_port, loopback_engine
from tests.sdk import call
from tests.wire import worker_process


class Network:
    """A way to a port that can be cut, so that connections break, or silenced, so that nothing arrives any more."""

    def __init__(self, url: str) -> None:
        self._target = ("127.0.0.1", urlsplit(url).port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"ws://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: set[socket.socket] = set()
        self._open = threading.Event()
        self._open.set()
        self._flowing = threading.Event()
        self._flowing.set()
        self.holding = threading.Event()
        """Whether something is held back: then nobody at the other end learns of a break."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with suppress(OSError):  # whoever only looked whether somebody listens
                self._connect(near)

    def _connect(self, near: socket.socket) -> None:
        if not self._open.is_set():
            near.close()
            return
        far = socket.create_connection(self._target)
        for one, other in ((near, far), (far, near)):
            self._sockets.add(one)
            threading.Thread(target=self._pump, args=(one, other), daemon=True).start()
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not self._flowing.is_set():
                    self.holding.set()
                    self._flowing.wait()
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def cut(self) -> None:
        self._open.clear()
        sockets, self._sockets = self._sockets, set()
        for end in sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._open.set()

    def silence(self) -> None:
        self._flowing.clear()

    def speak(self) -> None:
        self._flowing.set()

    def close(self) -> None:
        self.speak()
        self.cut()
        self._listener.close()


@contextmanager
def networks() -> Iterator[list[Network]]:
    made: list[Network] = []
    try:
        yield made
    finally:
        for network in made:
            network.close()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}], "timestamp": 1}


async def views_agree(world: Topology) -> None:
    stored = await world.stored()
    for side in world.sides:
        await until(lambda side=side: side.view.state() == stored, 60, lambda side=side: side.name)  # type: ignore[misc]


async def test_after_a_cut_the_bridge_attaches_again_and_its_subscribers_learn_what_they_missed() -> None:
    with networks() as ways:

        def route(url: str) -> str:
            ways.append(Network(url))
            return ways[0].url

        async with topology("loopback", bridges=1, route=route) as world:
            main, [bridge] = world.main, world.bridges
            for session_id in ("kept", "gone"):
                await bridge.call("ensure", session_id=session_id)
                await bridge.call("append", session_id=session_id, entry_id="a", message=user("before"))
            ways[0].cut()
            await main.call("append", session_id="kept", entry_id="b", message=user("meanwhile"))
            await main.call("update-message", session_id="kept", entry_id="a", content=[])
            await main.call("set-meta", session_id="kept", title="new")
            await main.call("set-status", session_id="kept", status="working", reason="r")
            await main.call("delete", session_id="gone")
            await main.call("ensure", session_id="born")
            with pytest.raises(Exception, match="session/storage"):
                await bridge.call("append", session_id="kept", entry_id="c", message=user("in vain"))
            ways[0].mend()
            await views_agree(world)
            await until(lambda: _works(world), 60, lambda: "the bridge does not come back")
            await main.call("append", session_id="born", message=user("after"))
            await views_agree(world)


async def _works(world: Topology) -> bool:
    try:
        await world.bridges[0].call("append", session_id="kept", entry_id="c", message=user("again"))
    except Exception:
        return False
    return True


async def test_while_nothing_arrives_changes_fail_within_the_timeout_and_do_not_pile_up() -> None:
    with networks() as ways:

        def route(url: str) -> str:
            ways.append(Network(url))
            return ways[0].url

        async with topology("loopback", bridges=1, route=route, timeout_ms=1000) as world:
            bridge = world.bridges[0]
            await bridge.call("ensure", session_id="s")
            ways[0].silence()
            began = time.monotonic()
            calls = [bridge.call("append", session_id="s", entry_id=f"{n}", message=user("x")) for n in range(20)]
            replies = await asyncio.gather(*calls, return_exceptions=True)
            took = time.monotonic() - began
            assert all("session/storage" in str(reply) for reply in replies), replies
            assert took < 10, f"20 changes of one session took {took:.1f} s to fail"
            ways[0].speak()
            await until(lambda: _appended(world), 60, lambda: "the bridge does not come back")
            page = await bridge.call("messages", session_id="s")
            ids = [item["entry_id"] for item in page["messages"]]
            meta = (await world.main.call("get", session_id="s"))["meta"]
            assert sorted(ids, key=int) == [f"{n}" for n in range(20)]
            assert meta["message_count"] == 20
            await views_agree(world)


async def _appended(world: Topology) -> bool:
    try:
        for number in range(20):
            await world.bridges[0].call("append", session_id="s", entry_id=f"{number}", message=user("x"))
    except Exception:
        return False
    return True


# --- configuration ---


async def test_a_bridge_to_its_own_engine_is_refused_at_the_start(tmp_path: Any) -> None:
    with loopback_engine() as url:
        adapter = {"name": "bridge", "config": {"url": url}}
        with worker_process(url, tmp_path / "w", "--patience", "1", value={"adapter": adapter}) as worker:
            assert worker.wait(60) == 1
            assert "cannot lead to the engine that it is on" in worker.said()


async def test_a_bridge_to_nowhere_is_refused_at_the_start_and_says_why(tmp_path: Any) -> None:
    with loopback_engine() as url:
        adapter = {"name": "bridge", "config": {"url": f"ws://127.0.0.1:{free_port()}"}}
        with worker_process(url, tmp_path / "w", "--patience", "1", value={"adapter": adapter}) as worker:
            assert worker.wait(60) == 1
            assert "session/storage: the main instance's engine: no engine at" in worker.said().splitlines()[-1]


async def test_a_bridge_that_cannot_be_built_leaves_the_store_before_in_force() -> None:
    async with topology("loopback", bridges=0) as world:
        main = world.main
        await main.call("ensure", session_id="s")
        for target in (main.engine.url, f"ws://127.0.0.1:{free_port()}"):
            value = {"adapter": {"name": "bridge", "config": {"url": target}}}
            await call(main.client, "configuration::set", {"id": main.worker.config_id, "value": value})
            await main.call("on-config-change", seconds=30)
            status = await main.call("config-status")
            assert status["last_outcome"] == "rejected"
            assert status["last_error"]
            assert (await main.call("get", session_id="s"))["meta"]["session_id"] == "s"


async def test_a_bridge_put_into_force_while_running_serves_the_main_instances_sessions() -> None:
    async with topology("loopback", bridges=1) as world:
        main, [bridge] = world.main, world.bridges
        await main.call("ensure", session_id="s")
        local = {"adapter": {"name": "memory", "config": {}}}
        over = {"adapter": {"name": "bridge", "config": {"url": main.engine.url}}}
        for value, known in ((local, False), (over, True)):
            await call(bridge.client, "configuration::set", {"id": bridge.worker.config_id, "value": value})
            await bridge.call("on-config-change", seconds=30)
            assert (await bridge.call("get", session_id="s") is not None) is known
            if known:
                with pytest.raises(Exception, match="only by the instance that owns the store"):
                    await bridge.call("store::list-metas")
            else:
                assert await bridge.call("store::list-metas") == {"metas": []}
        entry_id = (await main.call("append", session_id="s", message=user("x")))["entry_id"]
        heard = ("session::message-added", "s", entry_id)
        await until(
            lambda: heard in [(kind, event["session_id"], event.get("entry_id")) for kind, event in bridge.heard],
            60,
            lambda: "the relay is not attached",
        )
