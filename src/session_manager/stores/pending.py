"""Group commit: changes that wait at the same time become durable together, and decisions may build on them before.

Used by stores that write to disk. Changes are handed over on the event loop; batches are applied on a thread, one
after another, in the order in which the changes came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

import structlog
from msgspec import Struct

from session_manager.errors import Outdated, StorageError
from session_manager.model import Entry
from session_manager.store import Change, Drop, Session, Tell, View
from session_manager.stores.threads import WorkThread

log = structlog.get_logger("session_manager.stores")

WAITING, WAITING_BYTES = 20_000, 512 << 20
"""Most changes, and bytes of content, that may wait for the disk; callers of further ones are told to try again."""

REMEMBERED_FAILURES = 1000
"""Sessions whose failures are remembered one by one."""

Write = Callable[[Sequence[Change]], int]
"""Makes a batch durable, all or nothing, and returns the number of its first commit; runs on a thread. Raises
StorageError when all of it failed, and Partly when it is known which changes did."""


class Partly(Exception):
    """A batch of which some changes became durable: per change, the number of its commit or why it failed. Of one
    session, those behind a failed one have failed too."""

    def __init__(self, outcomes: Sequence[int | StorageError]) -> None:
        super().__init__("some changes of a batch failed")
        self.outcomes = outcomes


class _Queued(Struct, eq=False):
    change: Change
    size: int
    durable: Tell
    early: Tell
    waiters: list[asyncio.Future[int]]
    """Who handed the change over comes first."""


class GroupCommit:
    """The changes on their way to disk.

    When a batch fails, everything behind it fails too, because it may have been decided on what is now lost; views
    taken before the failure are worthless from then on (`epoch`). A failure that concerns one session only does the
    same to that session alone.
    """

    def __init__(
        self,
        thread: WorkThread,
        write: Write,
        applied: Callable[[Sequence[Change]], None],
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """`applied` is told, on the event loop, what has become durable before anybody else is; `failed`, that a batch
        or a part of it has not."""
        self._thread, self._write, self._applied, self._failed_batch = thread, write, applied, failed
        self._queue: list[_Queued] = []
        self._bytes = 0
        self._by_session: dict[str, list[_Queued]] = {}
        self._busy = False
        self._crowded = False
        """Whether more changes came before the last ones that found nobody at work were through."""
        self._idle = asyncio.Event()
        self._idle.set()
        self.epoch = 0
        """Grows with every failure."""
        self._all_failed = 0
        """The epoch of the last failure that concerned everything."""
        self._failed: dict[str, int] = {}
        """The epoch of the last failure that concerned one session."""

    def add(self, epoch: int, change: Change, durable: Tell = None, early: Tell = None) -> asyncio.Future[int]:
        """See `Store.commit`. `early` is called if the change goes to the disk alone."""
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        size = _size(change)
        if self._is_lost(epoch, change.session_id):
            done.set_exception(lost())
            return done
        if len(self._queue) >= WAITING or (self._queue and self._bytes + size > WAITING_BYTES):
            done.set_exception(StorageError("too many changes wait for the disk; try again"))
            return done
        queued = _Queued(change, size, durable, early, [done])
        self._queue.append(queued)
        self._bytes += size
        self._by_session.setdefault(change.session_id, []).append(queued)
        if self._busy:
            self._crowded = True
        else:
            self._busy = True
            self._idle.clear()
            if self._crowded:
                asyncio.get_running_loop().call_soon(self._start)  # whoever else has a change in this turn comes along
            else:
                self._start()
            self._crowded = False
        return done

    def of(self, session_id: str) -> list[Change]:
        """The session's changes that are not yet durable, oldest first."""
        return [queued.change for queued in self._by_session.get(session_id, ())]

    async def settled(self, epoch: int, session_id: str) -> None:
        if self._is_lost(epoch, session_id):
            raise lost()
        waiting = self._by_session.get(session_id)
        if waiting:
            done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            waiting[-1].waiters.append(done)
            await done

    async def drained(self) -> None:
        while self._busy:
            await self._idle.wait()

    def _is_lost(self, epoch: int, session_id: str) -> bool:
        return epoch < self._all_failed or epoch < self._failed.get(session_id, 0)

    def _start(self) -> None:
        batch, self._queue, self._bytes = self._queue, [], 0
        changes = [queued.change for queued in batch]
        early = batch[0].early if len(batch) == 1 else None
        job = partial(self._write, changes) if early is None else partial(_write_early, self._write, changes, early)
        self._thread.do(job, partial(self._written, batch, changes))

    def _written(self, batch: list[_Queued], changes: list[Change], number: int, error: BaseException | None) -> None:
        if error is None:
            self._applied(changes)
            for index, queued in enumerate(batch, number):
                self._done(queued, index)
        else:
            self._failed_batch()
            if isinstance(error, Partly):
                self._settle(batch, error.outcomes)
            elif isinstance(error, StorageError):
                self._fail(batch, error)
            else:
                log.error("a batch failed for a reason that no store should have", exc_info=error)
                self._fail(batch, StorageError("the change could not be stored"))
        if self._queue:
            self._start()
        else:
            self._busy = False
            self._idle.set()

    def _done(self, queued: _Queued, number: int) -> None:
        waiting = self._by_session[queued.change.session_id]
        waiting.remove(queued)
        if not waiting:
            del self._by_session[queued.change.session_id]
        if queued.durable is not None:
            queued.durable()
        for waiter in queued.waiters:
            if not waiter.done():
                waiter.set_result(number)

    def _settle(self, batch: list[_Queued], outcomes: Sequence[int | StorageError]) -> None:
        failed: dict[str, StorageError] = {}
        kept: list[tuple[_Queued, int]] = []
        for queued, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, StorageError):
                failed.setdefault(queued.change.session_id, outcome)
                _refuse(queued, outcome)
            else:
                kept.append((queued, outcome))
        self._applied([queued.change for queued, _ in kept])
        for queued, number in kept:
            self._done(queued, number)
        for session_id, error in failed.items():
            self._fail_session(session_id, error)

    def _fail_session(self, session_id: str, error: StorageError) -> None:
        self.epoch += 1
        if len(self._failed) >= REMEMBERED_FAILURES:
            self._failed.clear()
            self._all_failed = self.epoch
        self._failed[session_id] = self.epoch
        for queued in self._by_session.pop(session_id, ()):
            _refuse(queued, error)
        self._queue = [queued for queued in self._queue if queued.change.session_id != session_id]
        self._bytes = sum(queued.size for queued in self._queue)

    def _fail(self, batch: list[_Queued], error: StorageError) -> None:
        self.epoch += 1
        self._all_failed = self.epoch
        self._failed.clear()
        failed, self._queue, self._bytes = [*batch, *self._queue], [], 0
        self._by_session.clear()
        for queued in failed:
            _refuse(queued, error)


def _write_early(write: Write, changes: Sequence[Change], early: Callable[[], None]) -> int:
    number = write(changes)
    try:
        early()
    except Exception:
        log.exception("what was to be called early has failed")
    return number


def _size(change: Change) -> int:
    """Of content. What a record holds beside its texts it shares with the record before it."""
    meta = change.meta
    texts = 0 if meta is None else len(meta.title) + len(meta.description) + len(meta.draft or "")
    return texts + sum(change.sizes())


def _refuse(queued: _Queued, error: StorageError) -> None:
    for waiter in queued.waiters:
        if not waiter.done():
            # An error of its own for each: they travel through different callers, which add to its traceback.
            waiter.set_exception((Outdated if isinstance(error, Outdated) else StorageError)(error.why))
            waiter.exception()  # nobody may be waiting any more, which is no news


def lost() -> StorageError:
    return StorageError("an earlier change that this one builds on could not be stored; try again")


class Durable(Protocol):
    async def session(self, session_id: str) -> Session: ...

    async def entry(self, session_id: str, entry_id: str) -> Entry | None: ...


class Ahead(View):
    """What is durable, with what is on its way laid over it.

    The changes on their way are looked up before the durable state is read. One that becomes durable in between is
    applied twice, which changes nothing.
    """

    def __init__(self, durable: Durable, commits: GroupCommit) -> None:
        self._durable, self._commits = durable, commits
        self.epoch = commits.epoch

    async def session(self, session_id: str) -> Session:
        changes = self._commits.of(session_id)
        session = await self._durable.session(session_id)
        meta, leaf = session.meta, session.leaf
        for change in changes:
            if Drop.META in change.drops:
                meta = None
            if Drop.LEAF in change.drops:
                leaf = None
            meta = change.meta or meta
            leaf = leaf if change.leaf is None else change.leaf
        return Session(meta, leaf) if changes else session

    async def entry(self, session_id: str, entry_id: str) -> Entry | None:
        for change in reversed(self._commits.of(session_id)):
            for entry in reversed(change.entries):
                if entry.id == entry_id:
                    return entry
            if Drop.ENTRIES in change.drops:
                return None
        return await self._durable.entry(session_id, entry_id)


class Pipelined(Durable, Protocol):
    """The part of a store with group commit that takes changes."""

    pipelines: bool = True
    _commits: GroupCommit

    def ahead(self) -> View:
        return Ahead(self, self._commits)

    def commit(self, view: View, change: Change, durable: Tell = None, early: Tell = None) -> Awaitable[int]:
        assert isinstance(view, Ahead)
        return self._commits.add(view.epoch, change, durable, early)

    def settled(self, view: View, session_id: str) -> Awaitable[None]:
        assert isinstance(view, Ahead)
        return self._commits.settled(view.epoch, session_id)
