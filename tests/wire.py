"""The worker as users run it, a process on an engine, and a client beside it: a Stage over the wire.

Nothing here sleeps to let events arrive. The worker keeps the events of one session in order for each binding, so a
marker that is published behind them (`session::store::publish-events`) has them all before it.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml
from iii.iii import III

from session_manager.bindings import TRIGGER_TYPES
from session_manager.events import STORE_EVENTS
from session_manager.functions import FUNCTIONS
from tests.sdk import call, close_client, open_client

COMMAND = (sys.executable, "-m", "session_manager")
"""`session-manager` of this interpreter."""

MARK = -(1 << 52)
"""Times below this one belong to markers."""

_ROLES: dict[str, dict[str, Any]] = {
    "user": {},
    "assistant": {"stop_reason": "end", "model": "m", "provider": "p"},
    "function_result": {"function_call_id": "c", "function_id": "f"},
    "custom": {"custom_type": "t"},
}


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without what iii reads from it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("III_", "SESSION_MANAGER_"))}
    return {**kept, "NO_PROXY": "127.0.0.1,localhost", **more}


class WorkerProcess:
    """`session-manager serve` in a directory of its own. Its configuration entry has a name of its own as well, so
    that workers of several tests can follow each other on one engine."""

    def __init__(
        self,
        url: str,
        directory: Path,
        *arguments: str,
        value: dict[str, Any] | None = None,
        namespace: str | None = None,
        config_id: str | None = None,
        **environment: str,
    ) -> None:
        self.url, self.directory = url, directory
        self.namespace = namespace or "default"
        self.config_id = config_id or f"sm-{uuid.uuid4().hex[:12]}"
        self.name = environment.get("III_WORKER_NAME", "session-manager")
        self._environment = {"III_CONFIG_NAME": self.config_id, **environment}
        if namespace is not None:
            self._environment["III_NAMESPACE"] = namespace
        self.output = directory / "output.txt"
        self.log_file = directory / "data" / "session-manager" / "session-manager.log"
        seed: tuple[str, ...] = ()
        if value is not None:
            file = directory / "seed.yaml"
            file.write_text(yaml.safe_dump(value), encoding="utf-8")
            seed = ("--config", str(file))
        self._command = (*COMMAND, "serve", "--url", url, *seed, *arguments)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                self._command,
                cwd=self.directory,
                env=clean_environment(**self._environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def said(self) -> str:
        """Everything it has printed so far."""
        return self.output.read_text(encoding="utf-8") if self.output.exists() else ""

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, seconds: float) -> int:
        """Its exit status."""
        assert self.process is not None
        return self.process.wait(seconds)

    def stop(self) -> int:
        """SIGTERM, and its exit status."""
        self.signal(signal.SIGTERM)
        return self.wait(30)

    def kill(self) -> None:
        """SIGKILL."""
        self.signal(signal.SIGKILL)
        self.wait(30)

    def end(self) -> None:
        """Leaves no process behind."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)

    async def ready(self, client: III, seconds: float = 60) -> None:
        """Returns when the engine lists all its functions and trigger types and a call is answered."""
        deadline = time.monotonic() + seconds
        while True:
            assert self.process is not None
            assert self.process.poll() is None, f"the worker stopped:\n{self.said()}"
            assert time.monotonic() < deadline, f"the worker is not ready:\n{self.said()}"
            try:
                info = await call(client, "engine::workers::info", {"name": self.name, "namespace": self.namespace})
                if len(info["functions"]) >= len(FUNCTIONS) and len(info["trigger_types"]) == len(TRIGGER_TYPES):
                    await call(client, "session::config-status", {}, namespace=self.namespace, timeout_ms=2000)
                    return
            except Exception:  # not yet
                await asyncio.sleep(0.02)


@contextmanager
def worker_process(url: str, directory: Path, *arguments: str, **options: Any) -> Iterator[WorkerProcess]:
    """A worker process, started; gone at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    worker = WorkerProcess(url, directory, *arguments, **options)
    worker.start()
    try:
        yield worker
    finally:
        worker.end()


class Bound:
    """One binding of the stage: what it listens to, and which of its markers have come."""

    def __init__(self, trigger_type: str, config: Any, receive: Callable[[Any], None]) -> None:
        self.trigger_type, self.config, self.receive = trigger_type, config or {}, receive
        self.id = ""
        self.unregister: Callable[[], None] = lambda: None
        self.markers: set[int] = set()

    async def take(self, event: Any) -> dict[str, bool]:
        """The handler; runs on the client's event loop."""
        event.pop("_caller_worker_id", None)
        marker = marked(event.get("payload", {}) if self.trigger_type == STORE_EVENTS else event)
        if marker is None:
            self.receive(event)
        else:
            self.markers.add(marker)
        return {"ok": True}

    def sessions(self, known: set[str]) -> set[str]:
        """The sessions whose events it may hear."""
        only = self.config.get("session_id")
        return known if only is None else {only}

    def hears(self) -> bool:
        return bool(self.config.get("roles", True))

    def marker(self, session_id: str, number: int) -> dict[str, Any]:
        """An event that this binding's filters let through."""
        kind = "session::deleted" if self.trigger_type == STORE_EVENTS else self.trigger_type
        at = MARK - number
        role = (self.config.get("roles") or ["user"])[0]
        message = {"role": role, "content": [], "timestamp": 0, **_ROLES[role]}
        entry = {"entry_id": "", "message": message, "timestamp": at}
        payloads: dict[str, dict[str, Any]] = {
            "session::created": {"title": "", "description": "", "status": "idle", "created_at": at},
            "session::message-added": {"parent_id": None, **entry},
            "session::message-updated": {"revision": 1, **entry},
            "session::status-changed": {"status": "idle", "previous_status": "idle", "timestamp": at},
            "session::meta-updated": {"title": "", "description": "", "timestamp": at},
            "session::deleted": {"timestamp": at},
        }
        return {
            "trigger_type": kind,
            "payload": {"session_id": session_id, **payloads[kind]},
            "session_metadata": self.config.get("metadata"),
        }


def marked(event: dict[str, Any]) -> int | None:
    """The number of a marker; None for an event."""
    at = event.get("timestamp", event.get("created_at", 0))
    return MARK - at if at <= MARK else None


class Wire:
    """A Stage: a worker process on an engine, and the Python SDK as its client."""

    def __init__(self, worker: WorkerProcess) -> None:
        self.worker = worker
        self.bound: dict[str, Bound] = {}
        self._sessions: set[str] = set()
        self._numbers = itertools.count()

    async def start(self) -> None:
        self.client = await open_client(self.worker.url, f"stage-{uuid.uuid4().hex[:8]}")
        try:
            await self.worker.ready(self.client)
            got = await call(self.client, "configuration::get", {"id": self.worker.config_id})
        except BaseException:
            await self.stop()  # its thread would keep the test run alive
            raise
        self.initial: Any = got["value"]
        self.value = copy.deepcopy(self.initial)

    async def stop(self) -> None:
        await close_client(self.client)

    # --- Stage ---

    async def call(self, function_id: str, payload: Any) -> Any:
        self._note(payload)
        reply = await call(self.client, function_id, payload, timeout_ms=60_000, namespace=self.worker.namespace)
        self._note(reply)
        return reply

    def _note(self, value: Any) -> None:
        """Remembers the sessions that are spoken of: their events are what a settle waits for."""
        if isinstance(value, dict):
            found = value.get("session_id")
            if isinstance(found, str):
                self._sessions.add(found)
            for inner in value.values():
                self._note(inner)
        elif isinstance(value, list):
            for inner in value:
                self._note(inner)

    async def bind(self, trigger_type: str, config: Any, receive: Callable[[Any], None]) -> str:
        made = Bound(trigger_type, config, receive)
        function_id = f"stage::{uuid.uuid4().hex}"
        made.unregister = self.client.register_function(function_id, made.take).unregister
        asked = {"trigger_type": trigger_type, "function_id": function_id, "config": config}
        try:
            made.id = (await call(self.client, "engine::register_trigger", asked))["id"]
        except BaseException:
            made.unregister()
            raise
        self.bound[made.id] = made
        return made.id

    async def unbind(self, binding_id: str) -> None:
        made = self.bound.pop(binding_id)
        await call(self.client, "engine::unregister_trigger", {"id": binding_id})
        made.unregister()

    async def settle(self) -> None:
        wanted: dict[str, set[int]] = {}
        events = []
        for made in self.bound.values():
            if made.hears():
                numbers = {next(self._numbers): session for session in made.sessions(self._sessions)}
                wanted[made.id] = set(numbers)
                events += [made.marker(session, number) for number, session in numbers.items()]
        await self._publish(events)
        await _until(lambda: all(numbers <= self.bound[id_].markers for id_, numbers in wanted.items()))

    async def _publish(self, events: list[dict[str, Any]]) -> None:
        if events:
            answer = await call(self.client, "session::store::publish-events", {"events": events})
            assert answer == {"published": len(events)}, answer

    async def restart(self) -> None:
        assert self.worker.stop() == 0, self.worker.said()
        self.worker.start()
        await self.worker.ready(self.client)
        await self.replayed()

    async def replayed(self) -> None:
        """Returns when the worker that came back serves the bindings again."""
        for made in self.bound.values():
            if made.hears():
                before = len(made.markers)
                while len(made.markers) == before:
                    number = next(self._numbers)
                    await self._publish([made.marker(min(made.sessions({"replayed"})), number)])
                    await _until(lambda made=made, before=before: len(made.markers) > before, 0.1, must=False)  # type: ignore[misc]

    async def set_config(self, changes: dict[str, Any]) -> None:
        self.value = {**self.value, **changes}
        await call(self.client, "configuration::set", {"id": self.worker.config_id, "value": self.value})
        await self._reloaded()

    async def _reloaded(self) -> None:
        """The engine calls this too, some time soon. Reloads run one at a time and each reads the newest value, so
        once ours is answered the value is in force."""
        await call(self.client, "session::on-config-change", {}, timeout_ms=60_000)

    async def reset(self) -> None:
        self.value = copy.deepcopy(self.initial)
        await call(self.client, "configuration::set", {"id": self.worker.config_id, "value": self.value})
        await self._reloaded()

    def special(self, value: dict[str, Any], scenario: str) -> Any:
        if "$initial" in value:
            return copy.deepcopy(self.initial[value["$initial"]])
        if "$engine_url" in value:
            return self.worker.url
        path = self.worker.directory / f"tmp-{msgspec.json.encode(scenario).hex()[:40]}-{value['$tmp']}"
        path.mkdir(exist_ok=True)
        return str(path)

    def forget(self) -> None:
        """Between scenarios: the sessions of the last one are of no interest to the next."""
        self._sessions.clear()


async def _until(condition: Callable[[], bool], seconds: float = 60.0, *, must: bool = True) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            assert not must, "the markers behind the events did not arrive"
            return
        await asyncio.sleep(0.001)


@contextmanager
def wire(url: str, adapter: dict[str, Any]) -> Iterator[Wire]:
    """A stage on an engine, over a store adapter."""
    with tempfile.TemporaryDirectory(prefix="session-manager-") as directory:
        value = {"adapter": adapter, "default_list_limit": 50, "max_list_limit": 500}
        with worker_process(url, Path(directory), value=value) as worker:
            stage = Wire(worker)
            asyncio.run(stage.start())
            try:
                yield stage
            finally:
                asyncio.run(stage.stop())
                assert worker.stop() == 0, worker.said()
