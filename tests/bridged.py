"""A bridge and its main instance in one process: the whole of both, without the engines between them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from session_manager.announce import Announcer, Bounds
from session_manager.bindings import binding
from session_manager.config import Configuration
from session_manager.dispatch import Runtime
from session_manager.errors import SessionManagerError, StorageError
from session_manager.events import STORE_EVENTS, Envelope, open_envelope
from session_manager.model import encode
from session_manager.stores.bridge import BridgeStore, MainError, MainSilent
from tests.stage import InProcess

MAIN: dict[str, Any] = {"name": "memory", "config": {}}
BRIDGE = {"name": "bridge", "config": {"url": "ws://main.invalid"}}


class InProcessMain:
    """The way to a main instance that is a stage in the same process."""

    def __init__(self, main: InProcess, *, hints: bool = True) -> None:
        """Without `hints` it is one that knows of none, as the workers of others are."""
        self.main, self.hints = main, hints
        self.packs = True
        """Whether it knows `packed`, as those that take hints do since later."""
        self.calls: list[str] = []
        self.came = 0
        """Bytes of all replies."""
        self.fault: Callable[[str], str | None] = lambda function_id: None
        """What befalls a call: nothing, "before" (it never arrives) or "after" (it is done, and nobody is told)."""

    async def open(self) -> None:
        pass

    async def call(self, function_id: str, payload: bytes) -> bytes:
        self.calls.append(function_id)
        fault = self.fault(function_id)
        if fault == "before":
            raise MainError("the main instance's engine cannot be reached")
        asked = json.loads(payload)
        if not self.hints:
            asked.pop("hint", None)
        if not (self.hints and self.packs):
            asked.pop("packed", None)
        try:
            reply = await self.main.call(function_id, asked)
        except SessionManagerError as error:
            raise MainError("the main instance could not do it") from error
        if fault == "after":
            raise MainSilent("the main instance did not answer")
        wire = encode(reply)  # as the worker writes it
        self.came += len(wire)
        return wire

    async def close(self) -> None:
        pass


class Bridged(InProcess):
    """A Stage whose storage is another stage's. The store protocol and its feed are the main's business, as they are
    for whoever talks to the two engines."""

    def __init__(self, base: Path, main: InProcess | None = None, *, hints: bool = True, **options: Any) -> None:
        super().__init__(BRIDGE, base, **options)
        self._hints = hints
        self.main = main or InProcess(MAIN, base / "main")
        self._owns_main = main is None
        self.time = 0.0
        """What the store takes for the time, in seconds."""

    async def __aenter__(self) -> Bridged:
        if self._owns_main:
            self.main.base.mkdir(exist_ok=True)
            await self.main.start()
        await super().__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await super().__aexit__(*error)
        if self._owns_main:
            await self.main.stop()

    async def build(self, configuration: Configuration, *, replayed: bool) -> Runtime:
        if configuration.adapter.name != "bridge":
            return await super().build(configuration, replayed=replayed)
        self.way = InProcessMain(self.main, hints=self._hints)
        store = BridgeStore(self.way, monotonic=lambda: self.time)
        await store.open()
        self.announcer = Announcer(self._tell, lambda session_id, entries: None, Bounds())
        relay = binding(f"relay-{id(self)}", STORE_EVENTS, "relay", {})
        self.main.bindings.add(relay)
        self.main.receivers[relay.id] = self._relay
        return Runtime(store, self.announcer.publish, configuration.limits, owns_store=False, announced=self._announced)

    async def _announced(self, session_id: str) -> None:
        await self.announcer.announced(session_id)

    async def _tell(self, payload: bytes) -> None:
        try:
            await self.way.call("session::store::publish-events", payload)
        except MainError as error:
            raise StorageError(str(error)) from error

    def _relay(self, envelope: Any) -> None:
        emission = open_envelope(Envelope(**envelope))
        assert emission is not None
        self.hub.publish_locally([emission])

    # --- Stage ---

    def _side(self, name: str) -> InProcess | None:
        return self.main if name.startswith("session::store::") else None

    async def call(self, function_id: str, payload: Any) -> Any:
        side = self._side(function_id)
        return await (side.call(function_id, payload) if side else super().call(function_id, payload))

    async def bind(self, trigger_type: str, config: Any, receive: Callable[[Any], None]) -> str:
        if trigger_type == STORE_EVENTS:
            return f"main:{await self.main.bind(trigger_type, config, receive)}"
        return await super().bind(trigger_type, config, receive)

    async def unbind(self, binding_id: str) -> None:
        if binding_id.startswith("main:"):
            await self.main.unbind(binding_id.removeprefix("main:"))
        else:
            await super().unbind(binding_id)

    async def settle(self) -> None:
        assert await self.announcer.drain(30) == 0
        await self.main.settle()
        await super().settle()

    async def stop(self) -> None:
        await self.announcer.drain(5)
        await super().stop()
