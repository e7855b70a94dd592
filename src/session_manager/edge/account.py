"""The account of what subscribers were told: kept while events leave, read after a kill.

Everything here runs on the event loop of the worker's calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path

import msgspec
import structlog

from session_manager.catchup import SKEW, Told
from session_manager.errors import SessionManagerError
from session_manager.events import Emission
from session_manager.hub import Hub
from session_manager.ledger import Ledger
from session_manager.model import SessionMeta
from session_manager.store import ListQuery, Store

log = structlog.get_logger("session_manager.worker")

SAVE, UNSAVED = 1.0, 60
"""Seconds between two looks at whether the account can be saved, which is when nothing waits to be delivered; and how
many looks may pass without."""

FAR_BACK = 5_000
"""Most sessions that are compared after a kill."""

BACKLOG, PAUSE = 2_000, 0.05
"""A replay waits while a subscriber has more than so many deliveries before it; it looks again after the pause."""


class Account:
    """Notes what goes out. `past` is what the worker before left; None when there was none."""

    def __init__(self, hub: Hub, path: Path, backlog: Callable[[], Awaitable[int]]) -> None:
        self._hub, self._backlog = hub, backlog
        self.told = Told()
        self._ledger = Ledger(path)
        self.past = self._ledger.open(self.told)
        self._held: list[tuple[Callable[[Sequence[Emission]], None], Sequence[Emission]]] | None = []
        """What happened before the bindings of subscribers were there; None once they are."""
        self._ready = asyncio.Event()

    def publish(self, emissions: Sequence[Emission]) -> None:
        """Tells local subscribers and all bridges."""
        self._out(self._hub.publish, emissions)

    def publish_locally(self, emissions: Sequence[Emission]) -> None:
        """Tells local subscribers only."""
        self._out(self._hub.publish_locally, emissions)

    def _out(self, tell: Callable[[Sequence[Emission]], None], emissions: Sequence[Emission]) -> None:
        if self._held is not None:
            self._held.append((tell, emissions))
            return
        self._ledger.note(emissions)
        self.told.note(emissions)
        tell(emissions)

    def ready(self) -> None:
        """The bindings are there: lets go of what happened before."""
        held, self._held = self._held or [], None
        for tell, emissions in held:
            self._out(tell, emissions)
        self._ready.set()

    async def room(self) -> None:
        """Waits until a replay may go on."""
        await self._ready.wait()
        while await self._backlog() > BACKLOG:  # noqa: ASYNC110 # the queues are another loop's
            await asyncio.sleep(PAUSE)

    async def keep(self, own: Callable[[], Store | None]) -> None:
        """Tells what a worker that was killed may not have told any more of a store of its own, which `own` gives;
        then saves the account, for ever."""
        self._ledger.begin(self.told)
        past = self.past
        if past is not None and not past.clean:
            store = own()
            if store is not None:
                try:
                    await self._tell_again(store, past.doubtful)
                except SessionManagerError as error:
                    log.warning("what was not told before the worker ended cannot be told", error=str(error))
        looks = 0
        while True:
            await asyncio.sleep(SAVE)
            looks += 1
            if looks >= UNSAVED or not await self._backlog():
                looks = 0
                self._ledger.save(self.told)

    async def _tell_again(self, store: Store, doubtful: Collection[str]) -> None:
        """Compares what was told last with the store, newest changes first, as far back as it matters."""
        await self.room()
        newest = max((known.updated_at for known in self.told.sessions.values()), default=None)
        metas: list[SessionMeta] = []
        query = ListQuery(limit=500)
        while newest is not None:
            page = await store.sessions(query)
            metas += page.metas
            if not page.more or page.metas[-1].updated_at < newest - SKEW or len(metas) >= FAR_BACK:
                break
            query = msgspec.structs.replace(query, after=(page.metas[-1].updated_at, page.metas[-1].session_id))
        events = 0
        for session_id in dict.fromkeys([*self.told.changed(metas), *doubtful]):
            emissions = await self.told.difference(store, session_id)
            if emissions:
                self.publish(emissions)
                events += len(emissions)
                await self.room()
        log.info("told what a worker that was killed may not have told", events=events)

    def abandon(self) -> None:
        """For a worker that could not start."""
        self._ledger.abandon()

    def close(self, *, clean: bool) -> None:
        """`clean`: everything that was published has been delivered."""
        self._ledger.close(self.told, clean=clean)
