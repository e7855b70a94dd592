"""The whole worker without an engine: service, bindings, deliveries and configuration in one process."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from session_manager.bindings import Binding, BindingTable, binding
from session_manager.clock import Clock, Ids, RandomIds, SystemClock
from session_manager.config import Configuration
from session_manager.delivery import Delivery, Pace
from session_manager.dispatch import Runtime, Service
from session_manager.events import Emission, portions
from session_manager.hub import Hub
from session_manager.reload import Configurator, room
from session_manager.store import Store
from session_manager.stores import LOCAL


class InProcess:
    """A Stage (see tests/contract/scenario.py) over a store adapter."""

    def __init__(self, adapter: dict[str, Any], base: Path, clock: Clock | None = None, ids: Ids | None = None) -> None:
        self.base = base
        self.initial: dict[str, Any] = {"adapter": adapter, "default_list_limit": 50, "max_list_limit": 500}
        self.value: Any = copy.deepcopy(self.initial)
        self.clock, self.ids = clock or SystemClock(), ids or RandomIds()
        self.receivers: dict[str, Callable[[Any], None]] = {}
        self._bindings = itertools.count()
        self._memory: Store | None = None
        self.bindings = BindingTable()

    async def __aenter__(self) -> InProcess:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self.delivery = Delivery(self.send, Pace())
        self.hub = Hub(self.bindings, self.delivery.take)
        self.configurator = Configurator(self.fetch, self, self.tell)
        runtime = await self.configurator.start()
        self.service = Service(runtime, self.clock, self.ids, self.configurator)
        self.configurator.service = self.service

    async def stop(self) -> None:
        await self.delivery.drain(5)
        await self.service.runtime.store.close()

    @property
    def store(self) -> Store:
        return self.service.runtime.store

    # --- what the worker's edge provides ---

    async def fetch(self) -> Any:
        return copy.deepcopy(self.value)

    async def build(self, configuration: Configuration, *, replayed: bool) -> Runtime:
        name = configuration.adapter.name
        if name == "memory" and self._memory is not None:
            store = self._memory  # so that a restart finds what was there
        else:
            store = LOCAL[name](configuration.adapter.config, self.base)
            await store.open()
        if name == "memory":
            self._memory = store
        return Runtime(store, self.hub.publish, configuration.limits)

    async def send(self, to: Binding, payload: bytes) -> None:
        receive = self.receivers.get(to.id)
        if receive is not None:
            receive(msgspec.json.decode(payload))

    async def backlog(self) -> int:
        return self.delivery.backlog()

    async def tell(self, emissions: Sequence[Emission]) -> None:
        for portion in portions(emissions):
            self.hub.publish_locally(portion)
            await room(self.backlog)

    # --- Stage ---

    async def call(self, function_id: str, payload: Any) -> Any:
        # Through JSON, as the wire does it: nothing is shared with the caller.
        return json.loads(json.dumps(await self.service.call(function_id, json.loads(json.dumps(payload)))))

    async def bind(self, trigger_type: str, config: Any, receive: Callable[[Any], None]) -> str:
        made = binding(f"b{next(self._bindings)}", trigger_type, "test::receive", config)
        self.bindings.add(made)
        self.receivers[made.id] = receive
        return made.id

    async def unbind(self, binding_id: str) -> None:
        self.bindings.remove(binding_id)
        self.delivery.forget(binding_id)
        del self.receivers[binding_id]

    async def settle(self) -> None:
        assert await self.delivery.drain(30) == 0

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def set_config(self, changes: dict[str, Any]) -> None:
        self.value = {**self.value, **changes}
        await self.call("session::on-config-change", {"id": "session-manager"})

    async def reset(self) -> None:
        self.value = copy.deepcopy(self.initial)
        await self.call("session::on-config-change", {})

    def special(self, value: dict[str, Any], scenario: str) -> Any:
        if "$initial" in value:
            return copy.deepcopy(self.initial[value["$initial"]])
        if "$engine_url" in value:
            return "ws://127.0.0.1:1"
        path = self.base / f"tmp-{abs(hash(scenario))}-{value['$tmp']}"
        path.mkdir(exist_ok=True)
        return str(path)


async def calls(stage: InProcess, *steps: tuple[str, dict[str, Any]]) -> Sequence[Any]:
    return [await stage.call(function_id, payload) for function_id, payload in steps]
