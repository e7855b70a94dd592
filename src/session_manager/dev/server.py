"""The engine as a whole: a listening socket, and everything behind it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import structlog

from session_manager.dev import frames
from session_manager.dev.bindings import Bindings
from session_manager.dev.catalog import Catalog
from session_manager.dev.configuration import WORKER as CONFIGURATION
from session_manager.dev.configuration import Configuration
from session_manager.dev.engine_worker import WORKER as ENGINE
from session_manager.dev.engine_worker import EngineWorker
from session_manager.dev.registry import Connection, Registry
from session_manager.dev.router import Router
from session_manager.dev.unkind import Disorder, Unkindness
from session_manager.dev.websocket import Socket, is_loopback

log = structlog.get_logger(__name__)

T = TypeVar("T")

DEFAULT_PORT = 49134

_GRACE_MS = 5000


class Engine:
    """A loopback engine for development and tests.

    It speaks the wire protocol of the iii engine and is as unkind as that one: see `Unkindness`, and `seed` for the
    same disorder every time. `config_dir` keeps configuration entries, one YAML file each; without it they end with
    the engine. `environment` is what placeholders in configuration values see (default: the process's). With `nagle`
    small frames wait for acknowledgements, as they do on the real engine. Anything but a loopback address is refused
    unless `allow_remote` is set, for there is no authentication of any kind.

    `stop()` and `start()` again on the same port are a restart: workers, bindings and schemas are forgotten.
    """

    def __init__(
        self,
        *,
        config_dir: str | Path | None = None,
        seed: int | None = None,
        unkindness: Unkindness | None = None,
        nagle: bool = False,
        allow_remote: bool = False,
        environment: Mapping[str, str] | None = None,
        grace_s: float | None = None,
    ) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self._config_dir = None if config_dir is None else Path(config_dir)
        self._seed = seed
        self._unkindness = unkindness or Unkindness()
        self._nagle = nagle
        self._allow_remote = allow_remote
        self._environment = environment
        self._grace_s = _grace_s() if grace_s is None else grace_s
        self._sockets: dict[Socket, Connection] = {}
        self._connected: set[Socket] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Where workers and clients connect."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"ws://{host}:{self.port}"

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 takes a free one. Raises ValueError for an address beyond this machine."""
        if not self._allow_remote and not is_loopback(host):
            raise ValueError(
                f"the loopback engine authenticates nobody and listens on loopback addresses only, not on {host!r}, "
                "unless it is told to allow others (--allow-remote)"
            )
        disorder = Disorder(self._unkindness, random.Random(self._seed))  # noqa: S311 - disorder, no secrets
        registry, bindings = Registry(), Bindings(disorder)
        self._router = Router(registry, bindings, disorder)
        self._configuration = Configuration(self._router, self._config_dir, self._environment)
        self._worker = EngineWorker(self._router, Catalog(registry, bindings, [ENGINE, CONFIGURATION]))
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._socket, host, port, reuse_address=True)
        self.host, self.port = host, self._server.sockets[0].getsockname()[1]
        self._configuration.start()
        self._worker.start()

    async def stop(self) -> None:
        """Stop listening and drop every connection without a close frame."""
        server, self._server = self._server, None
        if server is None:
            return
        for listening in server.sockets:
            asyncio.get_running_loop().remove_reader(listening)
        for _ in range(2):  # the turns that it takes until somebody who was let in is connected
            await asyncio.sleep(0)
        server.close()
        self._worker.stop()
        self._configuration.stop()
        for socket in list(self._connected):
            socket.abort()
            self._ended(socket)
        await asyncio.sleep(0)
        await server.wait_closed()
        self._router.stop()

    async def __aenter__(self) -> Engine:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # --- for tests ---

    def workers(self) -> list[str]:
        """The names of the connected workers, sorted."""
        return sorted(connection.name for connection in self._sockets.values() if connection.name is not None)

    def drop(self, worker_name: str) -> int:
        """Cut a worker's connections without a word; returns how many there were."""
        return self._each(worker_name, Socket.abort)

    def mute(self, worker_name: str) -> int:
        """Stop reading from a worker and writing to it, its connections left open; returns how many there were."""
        return self._each(worker_name, Socket.mute)

    def _each(self, worker_name: str, act: Any) -> int:
        found = [socket for socket, connection in self._sockets.items() if connection.name == worker_name]
        for socket in found:
            act(socket)
        return len(found)

    # --- sockets ---

    def _socket(self) -> Socket:
        return Socket(self._opened, self._ended, self._connected, nagle=self._nagle)

    def _opened(self, socket: Socket, path: str) -> None:
        if path != "/":
            return  # telemetry, discarded
        connection = Connection(socket, socket.ip_address)
        self._sockets[socket] = connection
        socket.on_message = lambda message: self._received(connection, message)
        self._router.connect(connection, self._grace_s)

    def _ended(self, socket: Socket) -> None:
        connection = self._sockets.pop(socket, None)
        if connection is not None:
            self._router.disconnect(connection)

    def _received(self, connection: Connection, message: bytes) -> None:
        if not connection.alive or message[:4] in (b"OTLP", b"MTRC", b"LOGS") or not message.strip():
            return
        try:
            frame = frames.decode(message)
        except frames.Undecodable as error:
            log.warning("a frame nobody can read is dropped", worker=connection.name, error=str(error)[:200])
            return
        self._router.receive(connection, frame)


class EngineThread:
    """An engine with an event loop in a thread of its own, for tests and tools that are not asynchronous.

    Takes what `Engine` takes. A context manager; `start()` and `stop()` do the same.
    """

    def __init__(self, *, port: int = 0, **options: Any) -> None:
        self.engine = Engine(**options)
        self._port = port

    @property
    def url(self) -> str:
        return self.engine.url

    @property
    def port(self) -> int:
        return self.engine.port

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loopback-engine", daemon=True)
        self._thread.start()
        try:
            self.run(self.engine.start(port=self._port))
        except BaseException:
            self._end_thread()
            raise

    def stop(self) -> None:
        self.run(self.engine.stop())
        self._end_thread()

    def restart(self) -> None:
        """Stop and start again on the same port."""
        self.run(self.engine.stop())
        self.run(self.engine.start(port=self.engine.port))

    def workers(self) -> list[str]:
        """See Engine.workers."""
        return self.run(_value(self.engine.workers))

    def drop(self, worker_name: str) -> int:
        """See Engine.drop."""
        return self.run(_value(self.engine.drop, worker_name))

    def mute(self, worker_name: str) -> int:
        """See Engine.mute."""
        return self.run(_value(self.engine.mute, worker_name))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the engine's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> EngineThread:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


async def serve(
    port: int = DEFAULT_PORT,
    config_dir: str | Path | None = None,
    *,
    host: str = "127.0.0.1",
    **options: Any,
) -> None:
    """Run an engine until SIGTERM or SIGINT. Takes what `Engine` takes beside."""
    engine = Engine(config_dir=config_dir, **options)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stopped.set)
    await engine.start(host, port)
    log.info("listening", url=engine.url)
    try:
        await stopped.wait()
    finally:
        await engine.stop()


def run(port: int = DEFAULT_PORT, config_dir: str | Path | None = None, **options: Any) -> None:
    """`serve` as a whole process, on the fastest event loop there is."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve(port, config_dir, **options))


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def _value(get: Callable[..., T], *args: Any) -> T:
    return get(*args)


def _grace_s() -> float:
    return float(os.environ.get("III_NAMESPACE_GRACE_MS", _GRACE_MS)) / 1000
