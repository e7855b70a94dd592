"""Engines, workers and clients for what must hold on the real engine; wherever it can, the loopback one is held to it
as well."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from iii.iii import III
from iii.iii_constants import ReconnectionConfig

from session_manager.dev import EngineThread
from tests.dev.client import eventually, unique
from tests.engines import on_both_engines, real_engine, real_engine_process
from tests.sdk import call, close_client, open_client
from tests.wire import WorkerProcess, worker_process

SQLITE = {"adapter": {"name": "sqlite", "config": {"path": "sessions.db"}}}

QUICK = ReconnectionConfig(initial_delay_ms=50, max_delay_ms=200)
"""For clients that are to find an engine again at once."""


REAL_OR_LONG = [pytest.param("loopback", marks=pytest.mark.long), *on_both_engines()[1:]]
"""For `url`, where a test takes long: the loopback engine has its turn with the long tests."""


@dataclass
class Place:
    """An engine of our own: it can go without a word and come back, and its configuration files can be reached."""

    url: str
    directory: Path
    kill: Callable[[], None]
    start: Callable[[], None]

    def restart(self) -> None:
        self.kill()
        self.start()

    def file(self, entry_id: str) -> Path:
        return self.directory / f"{entry_id}.yaml"


@pytest.fixture(scope="module", params=on_both_engines())
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """An engine of each kind, for the tests of one file, one after the other."""
    if request.param == "real":
        with real_engine() as running:
            yield running
    else:
        with EngineThread() as engine:
            yield engine.url


@pytest.fixture(scope="module", params=on_both_engines(of_its_own=True))
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if request.param == "real":
        with real_engine_process() as real:
            yield Place(real.url, real.config_dir, real.kill, real.start)
        return
    directory = tmp_path_factory.mktemp("config")
    with EngineThread(config_dir=directory) as engine:
        port = engine.port
        yield Place(
            engine.url,
            directory,
            lambda: engine.run(engine.engine.stop()),
            lambda: engine.run(engine.engine.start(port=port)),
        )


Connect = Callable[..., Awaitable[III]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Opens SDK clients that are shut down at the end: `await connect(url, **InitOptions)`."""
    opened: list[III] = []

    async def make(url: str, **options: Any) -> III:
        client = await open_client(url, unique("client-"), reconnection_config=QUICK, **options)
        opened.append(client)
        await eventually(lambda: client.worker_id)
        await call(client, "engine::unregister_trigger", {"id": "none"})
        return client

    yield make
    for client in opened:
        await close_client(client)


Serve = Callable[..., WorkerProcess]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts workers on SQLite that are gone at the end: `serve(url, *arguments, **options of WorkerProcess)`."""
    with contextlib.ExitStack() as stack:

        def make(url: str, *arguments: str, directory: str = "worker", **options: Any) -> WorkerProcess:
            options.setdefault("value", SQLITE)
            return stack.enter_context(worker_process(url, tmp_path / directory, *arguments, **options))

        yield make


class Sink:
    """A function of a client that keeps what it is sent, in order."""

    def __init__(self, client: III, trigger_type: str = "session::message-added") -> None:
        self.client, self.trigger_type = client, trigger_type
        self.function_id = unique("sink::")
        self.events: list[dict[str, Any]] = []
        self.metadata: list[Any] = []
        client.register_function(self.function_id, self._take)

    async def _take(self, event: Any, metadata: Any = None) -> None:
        self.events.append(event)
        self.metadata.append(metadata)

    def entries(self) -> list[str]:
        """The ids of the entries that it was told of, each once: a delivery may be repeated after an outage."""
        return list(dict.fromkeys(event["entry_id"] for event in self.events))

    def bind(self, config: dict[str, Any], **more: Any) -> Any:
        """As an SDK's users bind: owned by the client's connection."""
        return self.client.register_trigger(
            {"type": self.trigger_type, "function_id": self.function_id, "config": config, **more}
        )

    async def bind_by_function(self, config: Any, **more: Any) -> str:
        """Through the engine's function: owned by nobody."""
        asked = {"trigger_type": self.trigger_type, "function_id": self.function_id, "config": config, **more}
        return str((await call(self.client, "engine::register_trigger", asked))["id"])


def user(text: str) -> dict[str, Any]:
    """A user's message."""
    return {"role": "user", "content": [{"type": "text", "text": text}], "timestamp": 1}
