"""Where imports go: a store of one's own, or a worker that serves one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from session_manager.dispatch import Service
from session_manager.functions import Function, Kind
from session_manager.interop.opencode.imports import Existing, Plan, existing
from session_manager.outcome import Outcome, Tools
from session_manager.store import Store

Decide = Callable[[Existing], Plan]
"""Decides on what is stored what is to change; may raise Refused, and then nothing changes."""


class Target(Protocol):
    @property
    def store(self) -> Store:
        """For reads."""

    async def write(self, session_id: str, decide: Decide) -> Plan:
        """Makes the change that `decide` plans, alone with the session, and tells its events."""


class StoreTarget:
    """A store that nobody else writes to meanwhile; its events are told to nobody."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def store(self) -> Store:
        return self._store

    async def write(self, session_id: str, decide: Decide) -> Plan:
        view = self._store.ahead()
        plan = decide(await existing(self._store, session_id))
        if plan.change is not None:
            await self._store.commit(view, plan.change)
        return plan


class DryRun(StoreTarget):
    """Decides, and changes nothing."""

    async def write(self, session_id: str, decide: Decide) -> Plan:
        return decide(await existing(self._store, session_id))


class _Request(Struct):
    session_id: str


class ServiceTarget:
    """A running service: an import waits its turn at the session's lock, and its events go out like any other."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def store(self) -> Store:
        return self._service.runtime.store

    async def write(self, session_id: str, decide: Decide) -> Plan:
        plans: list[Plan] = []

        async def rule(tools: Tools, request: _Request) -> Outcome:
            # The whole session is read as it is durable, so what is on its way has to arrive first.
            await tools.store.settled(tools.view, session_id)
            plan = decide(await existing(tools.store, session_id))
            plans.append(plan)
            return Outcome(None, plan.change, tuple(plan.emissions()))

        write = Function("opencode::write", Kind.WRITE, _Request, None, rule, "Writes one imported session.", {})
        await self._service.answer(write, {"session_id": session_id})
        return plans[0]
