"""The bindings of subscribers as the engine brings them: at the start, one by one, and after a connection was lost.

The engine replays all bindings to a worker that connects, and never tells which are gone. Everything here runs on the
event loop of the worker's calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from session_manager.bindings import TRIGGER_TYPES, Binding, BindingTable, binding
from session_manager.edge.absence import HOPE, Absence
from session_manager.edge.client import Client, InvocationError, TriggerHandler

log = structlog.get_logger("session_manager.worker")

REPLAY = 1.0
"""Seconds within which the engine brings the bindings of subscribers that were there before the connection."""


class Subscriptions:
    """Keeps the table of bindings as the engine has it. `forget` ends the deliveries of a binding, and is called on the
    deliveries' event loop, like `absence`."""

    def __init__(
        self, table: BindingTable, calls: Client, deliveries: Client, absence: Absence, forget: Callable[[str], None]
    ) -> None:
        self._table, self._calls, self._deliveries = table, calls, deliveries
        self._absence, self._end_deliveries = absence, forget
        self._missing: set[str] = set()
        """Bindings from before a reconnect that the engine has not brought again."""
        self._engine_since: int | None = None

    # --- one by one ---

    async def in_turn(self) -> None:
        """Waits until whoever binds now cannot be told of a change whose answer has left."""
        await self._calls.alone()

    def bound(self, made: Binding) -> None:
        """Raises InvalidRequest when there are too many."""
        self._table.add(made)
        self._missing.discard(made.id)
        self._deliveries.loop.call_soon_threadsafe(self._absence.back, made.id)
        log.info("bound", binding=made.id, trigger_type=made.trigger_type, function_id=made.function_id)

    def unbound(self, binding_id: str) -> None:
        self._table.remove(binding_id)
        self._deliveries.loop.call_soon_threadsafe(self._end_deliveries, binding_id)
        log.info("unbound", binding=binding_id)

    def owner_of(self, trigger_type: str) -> TriggerHandler[Any]:
        """What the engine tells about the bindings of one type."""
        return _Owner(self, trigger_type)

    # --- all of them ---

    async def back(self) -> None:
        """Waits until the engine has brought the bindings that it knew before this worker came, but not for long, for
        it also knows some that were refused."""
        self._engine_since = await self._engine_started()
        try:
            known: set[str] = set()
            for trigger_type in TRIGGER_TYPES:
                asked = {"trigger_type": trigger_type.id, "include_internal": True}
                told = await self._calls.call("engine::registered-triggers::list", asked, seconds=5)
                known |= {trigger["id"] for trigger in told["registered_triggers"]}
            await self._brought(known)
        except (InvocationError, KeyError, TypeError) as error:
            log.warning("the engine does not list the bindings", error=str(error))

    async def _brought(self, known: set[str]) -> None:
        """Waits until bindings are there, for as long as more and more of them are."""
        loop = asyncio.get_running_loop()
        count, deadline = len(self._table), loop.time() + REPLAY
        while (loop.time() < deadline or len(self._table) > count) and known - self._table.ids():
            if len(self._table) > count:
                count, deadline = len(self._table), loop.time() + REPLAY
            await asyncio.sleep(0.005)

    def replayed(self) -> None:
        """The engine begins to bring the bindings again."""
        self._missing = self._table.ids()

    async def reconnected(self) -> None:
        """Bindings that the engine does not bring again are gone; unless it has restarted, for then it brings each when
        its owner is back. Returns when that is known of all."""
        missing = self._missing
        since = await self._engine_started()
        if since is None or since != self._engine_since:
            self._engine_since = since
            self._deliveries.loop.call_soon_threadsafe(self._absence.expect, list(missing))
            await self._give_up(missing, HOPE)
        else:
            await self._give_up(missing, REPLAY)

    async def _give_up(self, missing: set[str], seconds: float) -> None:
        """Forgets what is still missing after so many seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while missing and missing is self._missing and loop.time() < deadline:  # noqa: ASYNC110 # with a deadline
            await asyncio.sleep(min(seconds / 20, 1.0))
        if missing is not self._missing:
            return  # the connection has gone and come since, and what is missing now is waited for anew
        for id_ in list(missing):
            missing.discard(id_)
            self.unbound(id_)
            self._deliveries.loop.call_soon_threadsafe(self._absence.back, id_)

    async def _engine_started(self) -> int | None:
        """When the engine started, by its own clock; None when it does not tell."""
        try:
            told = await self._calls.call("engine::workers::list", {"runtime": "engine"}, seconds=5)
            return min((worker["connected_at_ms"] for worker in told["workers"]), default=None)
        except (InvocationError, KeyError, TypeError):
            return None


class _Owner(TriggerHandler[Any]):
    def __init__(self, subscriptions: Subscriptions, trigger_type: str) -> None:
        self._subscriptions, self._type = subscriptions, trigger_type

    async def register_trigger(self, config: Any) -> None:
        """Raising refuses the registration, with the text as the reason."""
        await self._subscriptions.in_turn()
        self._subscriptions.bound(
            binding(
                config.id,
                self._type,
                config.function_id,
                config.config,
                config.namespace or "default",
                config.metadata,
            )
        )

    async def unregister_trigger(self, config: Any) -> None:
        await self._subscriptions.in_turn()
        self._subscriptions.unbound(config.id)
