"""The configuration in force, and how another one takes its place while calls are running."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Protocol

import msgspec
import structlog

from session_manager.config import Configuration, parse
from session_manager.dispatch import Runtime, Service
from session_manager.errors import SessionManagerError
from session_manager.events import Created, Deleted, Emission, entry_event
from session_manager.model import SessionMeta
from session_manager.store import Store
from session_manager.stores import adjusted

log = structlog.get_logger("session_manager.reload")

Fetch = Callable[[], Awaitable[Any]]
"""Reads the configuration value. Raises when it cannot be had."""

Tell = Callable[[Sequence[Emission]], Awaitable[None]]
"""Tells subscribers of one session, and returns when they have room for more: a queue that overflows would lose it."""

Backlog = Callable[[], Awaitable[int]]
"""How many events wait in the longest queue to a subscriber."""

MANY, PAUSE = 2_000, 0.05
"""A replay waits while a subscriber has more than so many events before it; it looks again after the pause."""


class Builder(Protocol):
    async def build(self, configuration: Configuration, *, replayed: bool) -> Runtime:
        """An open runtime. `replayed`: subscribers will be told all that its store holds. Raises when the configuration
        cannot be put into force."""


class Configurator:
    """Holds the configuration in force. `session::on-config-change` and `session::config-status` speak for it."""

    last_outcome: Literal["applied", "rejected"] = "applied"
    last_error: str | None = None
    rejected_reloads = 0

    def __init__(self, fetch: Fetch, builder: Builder, tell: Tell) -> None:
        self._fetch, self._builder, self._tell = fetch, builder, tell
        self._one_at_a_time = asyncio.Lock()
        self.configuration = Configuration()
        self.service: Service | None = None

    async def start(self) -> Runtime:
        """The first runtime. Raises when the configuration cannot be fetched, understood or put into force."""
        self.configuration = parse(await self._fetch())
        return await self._builder.build(self.configuration, replayed=False)

    async def reload(self) -> None:
        """Fetches the configuration and puts it into force. One at a time, and each fetches anew, so that changes that
        overlap end in the newest. Raises when it cannot be fetched or understood: then nothing has changed."""
        async with self._one_at_a_time:
            service = self.service
            assert service is not None
            configuration = parse(await self._fetch())
            try:
                new = await self._other_runtime(service.runtime, configuration)
            except Exception as error:  # whatever it is, the last good configuration stays
                self._reject(error)
                return
            if new is None:
                service.runtime = msgspec.structs.replace(service.runtime, limits=configuration.limits)
                self._apply(configuration)
            else:
                await self._swap(service, new, configuration)

    async def _other_runtime(self, now: Runtime, configuration: Configuration) -> Runtime | None:
        """None where the store in use will do. Raises when the configuration cannot be put into force."""
        if await adjusted(now.store, self.configuration.adapter, configuration.adapter):
            return None
        return await self._builder.build(configuration, replayed=True)

    def _apply(self, configuration: Configuration) -> None:
        if configuration != self.configuration:
            log.info("another configuration is in force", **configuration.value())
        self.configuration = configuration
        self.last_outcome, self.last_error = "applied", None

    def _reject(self, error: Exception) -> None:
        text = str(error) if isinstance(error, SessionManagerError) else f"{type(error).__name__}: {error}"
        self.last_outcome, self.last_error = "rejected", text
        self.rejected_reloads += 1
        log.error("the new configuration cannot be put into force; the old one stays", error=text)

    async def _swap(self, service: Service, new: Runtime, configuration: Configuration) -> None:
        old = service.runtime
        known = await _known(old.store)
        service.runtime = new
        self._apply(configuration)  # now: from here on calls are answered by the new one, whatever comes of the replay
        try:
            await replay(new.store, known, self._tell)
        finally:
            new.replayed()
            await service.finished(old)
            await old.store.close()


async def _known(store: Store) -> list[SessionMeta]:
    """What subscribers may know of; nothing when the old store does not answer any more."""
    try:
        return await store.metas()
    except SessionManagerError:
        return []


async def replay(store: Store, known: Sequence[SessionMeta], tell: Tell) -> None:
    """Tells subscribers what a store holds, as events with the stored times: deleted for the sessions that are gone,
    then each session as created, and its entries as added, or as updated where they were. What the store cannot read
    is left out, and logged: the store is in use by now, and the other sessions are none the worse."""
    try:
        metas = await store.metas()
    except SessionManagerError as error:
        log.error("subscribers are not told what the new store holds", error=str(error))
        return
    there = {meta.session_id for meta in metas}
    for meta in known:
        if meta.session_id not in there:
            await tell([Emission(Deleted(session_id=meta.session_id, timestamp=meta.updated_at), meta.metadata)])
    for meta in metas:
        try:
            if emissions := await _events(store, meta.session_id):
                await tell(emissions)
        except (SessionManagerError, msgspec.MsgspecError) as error:
            log.error("subscribers are not told of a session", session_id=meta.session_id, error=str(error))
        await asyncio.sleep(0)  # a long replay lets other calls through


async def room(backlog: Backlog) -> None:
    """Waits until a replay may go on."""
    while await backlog() > MANY:  # noqa: ASYNC110 # the queues may be another loop's
        await asyncio.sleep(PAUSE)


async def _events(store: Store, session_id: str) -> list[Emission]:
    """Nothing when the session is gone by now. The record is read last: whatever is told of it next has to be newer.
    Raises StorageError and msgspec's errors."""
    entries = await store.entries(session_id)
    meta = (await store.session(session_id)).meta
    if meta is None:
        return []
    events = [Created.of(meta), *(entry_event(meta.session_id, entry) for entry in entries)]
    return [Emission(event, meta.metadata) for event in events]
