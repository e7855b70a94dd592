"""The contract's scenarios through a bridge over the wire: the bridge on one engine, the main instance on another."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.contract.scenario import Play, all_scenarios
from tests.engines import NoEngine, loopback_engine, real_engine_process
from tests.sdk import call, close_client, open_client
from tests.wire import Wire, WorkerProcess, worker_process


class BridgedWire(Wire):
    """A stage on a bridge. The store protocol and its feed are the main's business, so those steps go there."""

    def __init__(self, bridge: WorkerProcess, main: WorkerProcess) -> None:
        super().__init__(bridge)
        self._main = Wire(main)

    async def start(self) -> None:
        await self._main.start()
        await super().start()
        self._behind = self.bound.pop(await super().bind("session::message-added", {}, lambda event: None))

    async def stop(self) -> None:
        await super().stop()
        await self._main.stop()

    async def call(self, function_id: str, payload: Any) -> Any:
        if function_id.startswith("session::store::"):
            self._note(payload)
            return await self._main.call(function_id, payload)
        return await super().call(function_id, payload)

    async def bind(self, trigger_type: str, config: Any, receive: Callable[[Any], None]) -> str:
        if trigger_type.startswith("session::store::"):
            binding_id = await self._main.bind(trigger_type, config, receive)
            self.bound[binding_id] = self._main.bound[binding_id]
            return binding_id
        await self._caught_up()
        return await super().bind(trigger_type, config, receive)

    async def _caught_up(self) -> None:
        """A reply waits for its events to come back from the main instance, but not for ever: whoever is bound behind
        it must not hear them on a slow machine."""
        behind = self._behind
        while self.value["adapter"]["name"] == "bridge":
            wanted = {next(self._numbers): session for session in self._sessions}
            await self._publish([behind.marker(session, number) for number, session in wanted.items()])
            with suppress(TimeoutError):  # the binding may not be back after a restart
                async with asyncio.timeout(1):
                    while not wanted.keys() <= behind.markers:
                        await asyncio.sleep(0.001)
                    return

    async def unbind(self, binding_id: str) -> None:
        if binding_id in self._main.bound:
            del self.bound[binding_id]
            await self._main.unbind(binding_id)
        else:
            await super().unbind(binding_id)

    async def _publish(self, events: list[dict[str, Any]]) -> None:
        if self.value["adapter"]["name"] != "bridge":
            await super()._publish(events)
        elif events:
            answer = await call(self._main.client, "session::store::publish-events", {"events": events})
            assert answer == {"published": len(events)}, answer


@pytest.fixture(scope="module", params=["loopback", pytest.param("real", marks=[pytest.mark.engine, pytest.mark.long])])
def stage(request: pytest.FixtureRequest) -> Iterator[BridgedWire]:
    def engine() -> AbstractContextManager[str]:
        return loopback_engine() if request.param == "loopback" else real_url()

    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="bridge-") as directory:
        try:
            here, there = stack.enter_context(engine()), stack.enter_context(engine())
        except NoEngine as error:
            pytest.skip(str(error))
        store = {"adapter": {"name": "sqlite", "config": {"path": "sessions.db"}}}
        main = stack.enter_context(worker_process(there, Path(directory) / "main", value=store))
        over = {"adapter": {"name": "bridge", "config": {"url": there}}}
        asyncio.run(_ready(main))
        bridge = stack.enter_context(worker_process(here, Path(directory) / "bridge", value=over))
        made = BridgedWire(bridge, main)
        asyncio.run(made.start())
        try:
            yield made
        finally:
            asyncio.run(made.stop())
            assert bridge.stop() == 0, bridge.said()
            assert main.stop() == 0, main.said()


@contextmanager
def real_url() -> Iterator[str]:
    with real_engine_process() as running:
        yield running.url


async def _ready(worker: WorkerProcess) -> None:
    client = await open_client(worker.url, "ready")
    try:
        await worker.ready(client)
    finally:
        await close_client(client)


@pytest.mark.parametrize("scenario", [pytest.param(s, id=f"{area}: {s['name']}") for area, s in all_scenarios()])
async def test_a_scenario_holds_through_a_bridge(scenario: dict[str, Any], stage: BridgedWire) -> None:
    stage.forget()
    await Play(stage, scenario).run()
