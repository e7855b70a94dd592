"""The store on one SQLite file: WAL, group commit, one thread that writes and two that read.

The file belongs to one process at a time, so what this process remembers of it is true.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Concatenate, Literal, ParamSpec, TypeVar

import structlog

from session_manager.errors import StorageError
from session_manager.model import Entry, SessionMeta
from session_manager.store import Change, Drop, ListPage, ListQuery, PathPage, PathQuery, Session, View
from session_manager.stores.holder import Holder
from session_manager.stores.pending import Ahead, GroupCommit
from session_manager.stores.sqlite import files
from session_manager.stores.sqlite.reader import Reader
from session_manager.stores.sqlite.writer import Writer
from session_manager.stores.threads import WorkThread

log = structlog.get_logger("session_manager.sqlite")

P = ParamSpec("P")
T = TypeVar("T")

REMEMBERED = 4096
"""Session records and leaves kept at hand."""

WHOLE = 1000
"""A path query without a limit, or with a longer one, goes to the thread for long reads."""

Synchronous = Literal["FULL", "NORMAL", "OFF"]


class SqliteStore:
    """One SQLite file. `synchronous` is SQLite's: FULL (an acknowledged change survives power loss) unless told."""

    pipelines = True

    def __init__(self, path: Path, synchronous: Synchronous = "FULL") -> None:
        self._path, self._synchronous = path, synchronous
        self._holder = Holder(path.with_name(path.name + ".lock"), "database")
        self._writes = WorkThread("session-manager-writes")
        self._short_reads = _Reads(path, synchronous, "session-manager-reads")
        self._long_reads = _Reads(path, synchronous, "session-manager-long-reads")
        self._writer: Writer | None = None
        self._writing: sqlite3.Connection | None = None
        self._commits = GroupCommit(self._apply, self._applied)
        self._remembered: OrderedDict[str, Session] = OrderedDict()
        self._evicted = 0
        self._open = False

    # --- opening and closing ---

    async def open(self) -> None:
        await self._writes.run(_translated, self._acquire)
        self._open = True

    def _acquire(self) -> None:
        files.prepare(self._path)
        self._holder.acquire()
        try:
            version = files.version_of(self._path)
            self._connect()
            assert self._writing is not None
            files.migrate(self._writing, version)
            self._writer = Writer(self._writing)
        except BaseException:
            self._disconnect()
            self._holder.release()
            raise

    def _connect(self) -> None:
        self._writing = files.connect(self._path, self._synchronous)

    def _disconnect(self) -> None:
        self._writer = None
        if self._writing is not None:
            self._writing.close()
            self._writing = None

    async def close(self) -> None:
        if not self._open:
            return
        self._open = False
        await self._commits.drained()
        await self._short_reads.close()
        await self._long_reads.close()
        await self._writes.run(self._disconnect)
        self._holder.release()
        self._writes.stop()

    # --- changes ---

    def ahead(self) -> View:
        return Ahead(self, self._commits)

    def commit(self, view: View, change: Change) -> Awaitable[int]:
        assert isinstance(view, Ahead)
        return self._commits.add(view.epoch, change)

    def settled(self, view: View, session_id: str) -> Awaitable[None]:
        assert isinstance(view, Ahead)
        return self._commits.settled(view.epoch, session_id)

    async def _apply(self, batch: Sequence[Change]) -> int:
        return await self._writes.run(_translated, self._write, batch)

    def _write(self, batch: Sequence[Change]) -> int:
        if self._writer is None:
            self._connect()
            assert self._writing is not None
            self._writer = Writer(self._writing)
        try:
            return self._writer.apply(batch)
        except (sqlite3.Error, OSError):
            self._disconnect()  # a connection that met a failing disk is not trusted again
            raise

    def _applied(self, batch: Sequence[Change]) -> None:
        for change in batch:
            before = self._remembered.get(change.session_id)
            meta = change.meta
            leaf = change.leaf
            if meta is None and Drop.META not in change.drops:
                meta = before.meta if before else None
            if leaf is None and Drop.LEAF not in change.drops:
                leaf = before.leaf if before else None
            whole = before is not None or (
                (change.meta is not None or Drop.META in change.drops)
                and (change.leaf is not None or Drop.LEAF in change.drops)
            )
            if whole:
                self._remember(change.session_id, Session(meta, leaf))

    def _remember(self, session_id: str, session: Session) -> None:
        self._remembered[session_id] = session
        self._remembered.move_to_end(session_id)
        if len(self._remembered) > REMEMBERED:
            self._remembered.popitem(last=False)
            self._evicted += 1

    # --- reads ---

    async def session(self, session_id: str) -> Session:
        session = self._remembered.get(session_id)
        if session is not None:
            self._remembered.move_to_end(session_id)
            return session
        evicted = self._evicted
        session = await self._short_reads.run(Reader.session, session_id)
        # What a commit remembered meanwhile is newer, unless it was forgotten again.
        if session.meta is not None and evicted == self._evicted and session_id not in self._remembered:
            self._remember(session_id, session)
        return session

    async def entry(self, session_id: str, entry_id: str) -> Entry | None:
        return await self._short_reads.run(Reader.entry, session_id, entry_id)

    async def entries(self, session_id: str) -> list[Entry]:
        return await self._long_reads.run(Reader.entries, session_id)

    async def metas(self) -> list[SessionMeta]:
        return await self._long_reads.run(Reader.metas)

    async def path(self, query: PathQuery) -> PathPage:
        long = query.limit is None or query.limit > WHOLE
        return await (self._long_reads if long else self._short_reads).run(Reader.path, query)

    async def sessions(self, query: ListQuery) -> ListPage:
        return await (self._long_reads if query.metadata else self._short_reads).run(Reader.sessions, query)


class _Reads:
    """A thread with a connection of its own, opened when first needed and again after a failure."""

    def __init__(self, path: Path, synchronous: str, name: str) -> None:
        self._path, self._synchronous = path, synchronous
        self._thread = WorkThread(name)
        self._connection: sqlite3.Connection | None = None
        self._reader: Reader | None = None

    def run(self, read: Callable[Concatenate[Reader, P], T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        return self._thread.run(lambda: _translated(self._read, lambda reader: read(reader, *args, **kwargs)))

    def _read(self, read: Callable[[Reader], T]) -> T:
        if self._reader is None:
            self._connection = files.connect(self._path, self._synchronous)
            self._reader = Reader(self._connection)
        try:
            return read(self._reader)
        except (sqlite3.Error, OSError):
            self._close()
            raise

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._reader = None

    async def close(self) -> None:
        await self._thread.run(self._close)
        self._thread.stop()


def _translated(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The one place where what SQLite and the file system raise becomes a StorageError; the cause goes to the log."""
    try:
        return function(*args, **kwargs)
    except (sqlite3.Error, OSError) as error:
        kind = getattr(error, "sqlite_errorname", None) or getattr(error, "strerror", None) or type(error).__name__
        log.warning("the database failed", kind=kind, error=str(error))
        raise StorageError(f"the database failed ({kind})") from error
