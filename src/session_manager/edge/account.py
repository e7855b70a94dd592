"""The account of what subscribers were told: kept while events leave, read after a kill.

Everything here runs on the event loop of the worker's calls, but for what touches files, which is done on a thread. An
event of a session that is not listed in the file yet waits for that, and those behind it too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path

import msgspec
import structlog

from session_manager.catchup import SKEW, Told
from session_manager.errors import SessionManagerError
from session_manager.events import Deleted, Emission, portions
from session_manager.hub import Hub
from session_manager.ledger import Ledger, Past
from session_manager.model import SessionMeta
from session_manager.reload import room
from session_manager.store import ListQuery, Store
from session_manager.stores.threads import WorkThread

log = structlog.get_logger("session_manager.worker")

SAVE = 1.0
"""Seconds between two looks at what of the account can be saved, which is what subscribers have answered."""

FAR_BACK = 5_000
"""Most sessions that are compared after a kill."""

PATIENCE = 1.0
"""Seconds that events wait for the file; then they leave without, for a disk must not stop them."""


class Account:
    """Notes what goes out."""

    past: Past | None = None
    """What the worker before left, once this is open; None when there was none."""

    def __init__(
        self,
        hub: Hub,
        path: Path,
        backlog: Callable[[], Awaitable[int]],
        under_way: Callable[[], Awaitable[Collection[str]]],
    ) -> None:
        """`backlog`: the longest queue of deliveries. `under_way`: sessions of which something is not delivered yet.
        Both count what was published so far."""
        self._hub, self._backlog, self._under_way = hub, backlog, under_way
        self.told = Told()
        self.owed: set[str] = set()
        """Sessions that have to be compared with the store before anybody can say what subscribers were told of
        them."""
        self.unsure: set[Callable[[], Collection[str]]] = set()
        """Each names sessions that were heard of, and of which it is not known yet whether something was missed."""
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
        if self.past is not None:
            self.owed |= self.past.doubtful

    async def begin(self, store: Store | None) -> None:
        """Before the first change. What a store of the worker's own holds by now counts as told when nothing else is
        known. Otherwise it is noted what differs, for the next change of a session may hide that."""
        with contextlib.suppress(SessionManagerError, msgspec.MsgspecError):  # it is not what a start depends on
            if self.past is None and store is not None:
                page = await store.sessions(ListQuery(limit=1))
                self.told.floor = max([self.told.floor, *(meta.updated_at for meta in page.metas)])
            elif self.past is not None and not self.past.clean and store is not None:
                metas = await self._latest(store)
                self.owed |= {meta.session_id for meta in metas if self.told.differs(meta)}
        await self._files.run(self._ledger.begin, self.told)
        await self._save()

    def expect(self, emissions: Sequence[Emission]) -> None:
        """To be told of events that are to go out once their change is durable: what the file needs is written
        meanwhile."""
        if self._must_list(emissions):
            self._list(emissions)

    def concern(self, emissions: Sequence[Emission]) -> bool:
        """Whether anybody is to be told of these, as far as that is known."""
        return not self._ready.is_set() or self._hub.is_heard(emissions)

    def _must_list(self, emissions: Sequence[Emission]) -> bool:
        """Whether the file lacks what somebody is to be told of: what nobody listens to cannot be missed, but who that
        is is known once the bindings are there."""
        return self._ledger.lacks(emissions) and self.concern(emissions)

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
        emissions = self.told.ended(emissions)
        self.told.note(emissions)  # what is held goes out in the order in which it came
        if not self._ready.is_set() or self._held or self._must_list(emissions) or self._is_listing():
            self._held.append((tell, emissions))
            self._let_out()
        else:
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
                    try:
                        tell(emissions)
                    except Exception:
                        log.exception("events could not be told")  # they must not keep those behind them
                    self._held.popleft()  # last, so that nothing overtakes
        finally:
            self._letting_out = None

    async def told_all(self, _: str = "") -> None:
        """Waits until what was published so far has gone out, unless it waits for the bindings."""
        if self._letting_out is not None:
            reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._held.append((lambda _: None if reached.done() else reached.set_result(None), ()))
            await reached

    def ready(self) -> None:
        """The bindings are there: lets go of what happened before."""
        self._ready.set()
        if self._held:
            self._let_out()

    async def room(self) -> None:
        """Waits until the bindings are there and a replay may go on."""
        await self._ready.wait()
        await room(self._backlog)

    async def tell(self, emissions: Sequence[Emission]) -> None:
        """Tells everybody of one session, any number of events, no faster than subscribers take them."""
        await self._tell(self.publish, emissions)

    async def tell_locally(self, emissions: Sequence[Emission]) -> None:
        """The same for local subscribers only."""
        await self._tell(self.publish_locally, emissions)

    async def _tell(self, publish: Callable[[Sequence[Emission]], None], emissions: Sequence[Emission]) -> None:
        """What is told while this waits may be newer than all but the first portion. That harms only where the session
        is deleted, for of entries the highest revision counts, and there are no others behind the first portion."""
        first, *others = portions(emissions)
        publish(first)
        with self.told.noting(first[0].event.session_id) as noted:
            for portion in others:
                await room(self._backlog)
                if Deleted in noted.kinds:
                    return
                publish(portion)
        await room(self._backlog)

    async def keep(self, own: Callable[[], Store | None]) -> None:
        """Tells what a worker that was killed may not have told any more of a store of its own, which `own` gives;
        then saves the account, for ever."""
        store = own()
        if self.past is None or self.past.clean or store is None:
            self._kept = True
        else:
            try:
                await self._tell_again(store)
                self._kept = True
            except SessionManagerError as error:
                log.warning("what was not told before the worker ended cannot be told", error=str(error))
        while True:
            await asyncio.sleep(SAVE)
            await self.save_answered()

    async def save_answered(self) -> None:
        """Saves what subscribers have answered by now."""
        until = self.told.count_of_changes  # what is published while the deliveries are asked may be under way
        await self._save(until, await self._under_way())

    async def _save(self, until: int | None = None, under_way: Collection[str] = ()) -> None:
        held = {emission.event.session_id for _, emissions in self._held for emission in emissions}
        unsettled = held.union(under_way, *(sessions() for sessions in self.unsure))
        saving = self._ledger.saving(self.told, self.owed, unsettled, until)
        if saving is not None:
            await self._files.run(self._ledger.save, saving)

    async def _tell_again(self, store: Store) -> None:
        """Compares what was told last with the store, newest changes first, as far back as it matters."""
        await self.room()
        metas = await self._latest(store)
        there = {meta.session_id for meta in metas}
        events = 0
        for session_id in dict.fromkeys([*self.told.changed(metas), *self.owed]):
            try:
                if session_id not in there and session_id not in self.owed:
                    meta = (await store.session(session_id)).meta
                    if meta is not None and not self.told.differs(meta):
                        continue
                emissions = await self.told.difference(store, session_id)
            except (SessionManagerError, msgspec.MsgspecError) as error:
                log.warning("what was not told of a session cannot be told", session_id=session_id, error=str(error))
                continue  # it is damaged, say; the others are none the worse
            if emissions:
                await self.tell(emissions)
                events += len(emissions)
        self.owed.clear()
        log.info("told what a worker that was killed may not have told", events=events)

    async def _latest(self, store: Store) -> list[SessionMeta]:
        """The records of the sessions that were changed last, back to where everything was told."""
        newest = max([self.told.floor, *(known.updated_at for known in self.told.sessions.values())])
        metas: list[SessionMeta] = []
        query = ListQuery(limit=500)
        while True:
            page = await store.sessions(query)
            metas += page.metas
            if not page.more or page.metas[-1].updated_at < newest - SKEW or len(metas) >= FAR_BACK:
                return metas
            query = msgspec.structs.replace(query, after=(page.metas[-1].updated_at, page.metas[-1].session_id))

    async def close(self, *, clean: bool) -> None:
        """`clean`: everything that was published has been delivered. Otherwise the files stay as a kill would leave
        them, and the next worker tells what may not have been told."""
        if clean and self._kept and not self._held and not self.owed:
            await self._files.run(self._ledger.close, self._ledger.saving(self.told, clean=True))
        else:
            await self._files.run(self._ledger.abandon)
        self._files.stop()
