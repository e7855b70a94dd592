"""The account of what subscribers were told: kept while events leave, read after a kill.

Everything here runs on the event loop of the worker's calls, but for what touches files, which is done on a thread. An
event of a session that is not listed in the file yet waits for that, and those behind it too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path

import msgspec
import structlog

from session_manager.catchup import SKEW, Told
from session_manager.errors import SessionManagerError
from session_manager.events import Emission
from session_manager.hub import Hub
from session_manager.ledger import Ledger, Past
from session_manager.model import SessionMeta
from session_manager.reload import room
from session_manager.store import ListQuery, Store
from session_manager.stores.threads import WorkThread

log = structlog.get_logger("session_manager.worker")

SAVE, UNSAVED = 1.0, 60
"""Seconds between two looks at whether the account can be saved, which is when nothing waits to be delivered; and how
many looks may pass without."""

FAR_BACK = 5_000
"""Most sessions that are compared after a kill."""

PATIENCE = 1.0
"""Seconds that events wait for the file; then they leave without, for a disk must not stop them."""


class Account:
    """Notes what goes out."""

    past: Past | None = None
    """What the worker before left, once this is open; None when there was none."""

    def __init__(self, hub: Hub, path: Path, backlog: Callable[[], Awaitable[int]]) -> None:
        self._hub, self._backlog = hub, backlog
        self.told = Told()
        self._ledger = Ledger(path)
        self._files = WorkThread("account")
        self._held: deque[tuple[Callable[[Sequence[Emission]], None], Sequence[Emission]]] = deque()
        """What waits to go out: for the bindings of subscribers at first, for the file later."""
        self._letting_out: asyncio.Task[None] | None = None
        self._listing: asyncio.Future[None] | None = None
        """The last write to the file, until somebody has waited for it."""
        self._ready = asyncio.Event()
        self._kept = False
        """Whether all has been told that the worker before did not tell."""

    async def open(self) -> None:
        self.past = await self._files.run(self._ledger.open, self.told)

    def expect(self, emissions: Sequence[Emission]) -> None:
        """To be told of events that are to go out once their change is durable: what the file needs is written
        meanwhile."""
        if self._ready.is_set() and self._must_list(emissions):
            self._list(emissions)

    def _must_list(self, emissions: Sequence[Emission]) -> bool:
        """Whether the file lacks what somebody is to be told of: what nobody listens to cannot be missed."""
        return self._ledger.lacks(emissions) and self._hub.is_heard(emissions)

    def _list(self, emissions: Sequence[Emission]) -> None:
        lines = self._ledger.lines(emissions)
        if lines:
            self._listing = self._files.run(self._ledger.write, lines)

    def _is_listing(self) -> bool:
        return self._listing is not None and not self._listing.done()

    def publish(self, emissions: Sequence[Emission]) -> None:
        """Tells local subscribers and all bridges."""
        self._out(self._hub.publish, emissions)

    def publish_locally(self, emissions: Sequence[Emission]) -> None:
        """Tells local subscribers only."""
        self._out(self._hub.publish_locally, emissions)

    def _out(self, tell: Callable[[Sequence[Emission]], None], emissions: Sequence[Emission]) -> None:
        if not self._ready.is_set() or self._held or self._must_list(emissions) or self._is_listing():
            self._held.append((tell, emissions))
            self._let_out()
        else:
            self.told.note(emissions)
            tell(emissions)

    def _let_out(self) -> None:
        if self._letting_out is None and self._ready.is_set():
            self._letting_out = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._held:
                count = len(self._held)
                self._list([emission for _, emissions in self._held for emission in emissions])
                listing = self._listing
                if listing is not None:
                    await asyncio.wait({listing}, timeout=PATIENCE)
                    if self._listing is listing:
                        self._listing = None  # written, or not waited for a second time
                for _ in range(count):
                    tell, emissions = self._held[0]
                    self.told.note(emissions)
                    tell(emissions)
                    self._held.popleft()  # last, so that nothing overtakes
        finally:
            self._letting_out = None

    async def told_all(self, _: str = "") -> None:
        """Waits until what was published so far has gone out, unless it waits for the bindings."""
        if self._letting_out is not None:
            reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._held.append((lambda _: None if reached.done() else reached.set_result(None), ()))
            await reached

    async def settled(self) -> bool:
        """Like `told_all`; returns whether nothing waits now."""
        await self.told_all()
        return not self._held

    def ready(self) -> None:
        """The bindings are there: lets go of what happened before."""
        self._ready.set()
        if self._held:
            self._let_out()

    async def room(self) -> None:
        """Waits until the bindings are there and a replay may go on."""
        await self._ready.wait()
        await room(self._backlog)

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
        self._kept = True
        looks = 0
        while True:
            await asyncio.sleep(SAVE)
            looks += 1
            if (looks >= UNSAVED or not await self._backlog()) and not self._held:  # what waits may be listed already
                looks = 0
                await self._files.run(self._ledger.save, self._ledger.saving(self.told))

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
            try:
                emissions = await self.told.difference(store, session_id, settled=self.settled)
            except (SessionManagerError, msgspec.MsgspecError) as error:
                log.warning("what was not told of a session cannot be told", session_id=session_id, error=str(error))
                continue  # it is damaged, say; the others are none the worse
            if emissions:
                self.publish(emissions)
                events += len(emissions)
                await self.room()
        log.info("told what a worker that was killed may not have told", events=events)

    async def close(self, *, clean: bool) -> None:
        """`clean`: everything that was published has been delivered. Otherwise the files stay as a kill would leave
        them, and the next worker tells what may not have been told."""
        if clean and self._kept and not self._held:
            await self._files.run(self._ledger.close, self._ledger.saving(self.told, clean=True))
        else:
            await self._files.run(self._ledger.abandon)
        self._files.stop()
