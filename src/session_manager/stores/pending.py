"""Group commit: changes that wait at the same time become durable together, and decisions may build on them before.

Used by stores that write to disk. Changes are handed over on the event loop; batches are applied on a thread, one
after another, in the order in which the changes came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import structlog
from msgspec import Struct

from session_manager.errors import StorageError
from session_manager.model import Entry
from session_manager.store import Change, Drop, Session, View

log = structlog.get_logger("session_manager.stores")

Apply = Callable[[Sequence[Change]], Awaitable[int]]
"""Makes a batch durable, all or nothing, and returns the number of its first commit. Raises StorageError."""


class _Queued(Struct, eq=False):
    change: Change
    done: asyncio.Future[int]


class GroupCommit:
    """The changes on their way to disk.

    When a batch fails, everything behind it fails too, because it may have been decided on what is now lost; views
    taken before the failure are worthless from then on (`epoch`).
    """

    def __init__(self, apply: Apply, applied: Callable[[Sequence[Change]], None]) -> None:
        self._apply, self._applied = apply, applied
        self._queue: list[_Queued] = []
        self._by_session: dict[str, list[_Queued]] = {}
        self._running: asyncio.Task[None] | None = None
        self.epoch = 0

    def add(self, epoch: int, change: Change) -> asyncio.Future[int]:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if epoch != self.epoch:
            done.set_exception(lost())
            return done
        queued = _Queued(change, done)
        self._queue.append(queued)
        self._by_session.setdefault(change.session_id, []).append(queued)
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())
        return done

    def of(self, session_id: str) -> list[Change]:
        """The session's changes that are not yet durable, oldest first."""
        return [queued.change for queued in self._by_session.get(session_id, ())]

    async def settled(self, epoch: int, session_id: str) -> None:
        if epoch != self.epoch:
            raise lost()
        waiting = self._by_session.get(session_id)
        if waiting:
            await asyncio.shield(waiting[-1].done)

    async def drained(self) -> None:
        while self._running is not None:
            await asyncio.wait({self._running})

    async def _run(self) -> None:
        try:
            while self._queue:
                batch, self._queue = self._queue, []
                try:
                    number = await self._apply([queued.change for queued in batch])
                except StorageError as error:
                    self._fail(batch, error)
                    continue
                except Exception:
                    log.exception("a batch failed for a reason that no store should have")
                    self._fail(batch, StorageError("the change could not be stored"))
                    continue
                self._applied([queued.change for queued in batch])
                for index, queued in enumerate(batch):
                    self._forget(queued)
                    if not queued.done.done():
                        queued.done.set_result(number + index)
        finally:
            self._running = None

    def _fail(self, batch: list[_Queued], error: StorageError) -> None:
        self.epoch += 1
        failed, self._queue = [*batch, *self._queue], []
        self._by_session.clear()
        for queued in failed:
            if not queued.done.done():
                queued.done.set_exception(error)
                queued.done.exception()  # nobody may be waiting any more, which is no news

    def _forget(self, queued: _Queued) -> None:
        waiting = self._by_session[queued.change.session_id]
        waiting.remove(queued)
        if not waiting:
            del self._by_session[queued.change.session_id]


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
