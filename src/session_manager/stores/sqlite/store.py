"""The store on one SQLite file: WAL, group commit, one thread that writes and two that read.

The file belongs to one process at a time, so what this process remembers of it is true.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Concatenate, Literal, ParamSpec, TypeVar

import structlog

from session_manager.errors import StorageError, Unready
from session_manager.model import Entry, SessionMeta
from session_manager.store import Change, Drop, ListPage, ListQuery, PathPage, PathQuery, Session
from session_manager.stores.directories import prepare_directory
from session_manager.stores.holder import Holder
from session_manager.stores.pending import GroupCommit, Partly, Pipelined
from session_manager.stores.sqlite import files
from session_manager.stores.sqlite.glance import Identity, glance
from session_manager.stores.sqlite.paths import Paths
from session_manager.stores.sqlite.reader import Reader
from session_manager.stores.sqlite.schema import VERSION
from session_manager.stores.sqlite.writer import Writer
from session_manager.stores.threads import WorkThread

log = structlog.get_logger("session_manager.sqlite")

P = ParamSpec("P")
T = TypeVar("T")

REMEMBERED = 4096
"""Session records and leaves kept at hand."""

WHOLE = 1000
"""A path query without a limit, or with a longer one, goes to the thread for long reads."""

MOST_LOG_BYTES = 64 << 20
"""When the log has grown beyond this, because readers always held on to some of it, commits wait for them."""

LOG_PAUSE = 5.0
"""Seconds between two attempts at that."""

IDLE = 2.0
"""Seconds without a change after which the log is copied into the database file, and brought to its usual length."""

Synchronous = Literal["FULL", "NORMAL", "OFF"]


class SqliteStore(Pipelined):
    """One SQLite file. `synchronous` is SQLite's: FULL (an acknowledged change survives power loss) unless told."""

    notices: tuple[str, ...] = ()

    def __init__(self, path: Path, synchronous: Synchronous = "FULL") -> None:
        path = path.resolve()  # one lock for one file, whatever link leads to it
        self._path, self._synchronous = path, synchronous
        self._log_path = files.log_of(path)
        self._mark = files.Mark(path)
        self._opened: tuple[Identity, Identity] | None = None
        """Which files the writing connection has open."""
        self._last_change = self._last_pressed = 0.0
        self._idle_check: asyncio.TimerHandle | None = None
        self._holder = Holder(path.with_name(path.name + ".lock"), "database")
        self._writes = WorkThread("session-manager-writes")
        self._short_reads = _Reads(path, synchronous, "session-manager-reads")
        self._long_reads = _Reads(path, synchronous, "session-manager-long-reads")
        self._writer: Writer | None = None
        self._writing: sqlite3.Connection | None = None
        self._commits = GroupCommit(self._writes, self._write, self._applied, self._failed)
        self._remembered: OrderedDict[str, Session] = OrderedDict()
        self._evicted = 0
        self._paths = Paths(lambda query: self._long_reads.run(Reader.path, query))
        self._open = False

    # --- opening and closing ---

    async def open(self) -> None:
        await self._writes.run(_translated, self._acquire)
        self._writes.do(self._lengthen_log, lambda _, error: None)  # the first change waits for it, and no read does
        self._open = True

    async def set_synchronous(self, synchronous: Synchronous) -> None:
        """From the next change on."""
        await self._writes.run(_translated, self._set_synchronous, synchronous)

    def _set_synchronous(self, synchronous: Synchronous) -> None:
        self._synchronous = synchronous
        if self._writing is not None:
            self._writing.execute(f"PRAGMA synchronous = {synchronous}")

    def _acquire(self) -> None:
        prepare_directory(self._path.parent)
        self._holder.acquire()
        try:
            files.prepare(self._path)
            self._connect()
        except BaseException:
            self._disconnect()
            self._holder.release()
            raise

    def _connect(self) -> Writer:
        """Opens the file that is there, and brings it up to date."""
        version = files.version_of(self._path)
        self._writing = files.connect(self._path, self._synchronous)
        files.migrate(self._writing, version)
        acknowledged = self._mark.read()
        writer = self._writer = Writer(self._writing, acknowledged)
        self._opened = glance(self._path).identity, glance(self._log_path).identity
        if writer.stored < acknowledged:
            log.error(
                "the database is behind what was acknowledged: its log was cut, or an older copy was put in its place",
                acknowledged=acknowledged,
                stored=writer.stored,
            )
        return writer

    def _connect_again(self) -> Writer:
        writer = self._connect()
        self._lengthen_log()
        return writer

    def _disconnect(self) -> None:
        self._writer = self._opened = None
        if self._writing is not None:
            self._writing.close()
            self._writing = None

    async def close(self) -> None:
        if not self._open:
            return
        self._open = False
        await self._commits.drained()
        if self._idle_check is not None:
            self._idle_check.cancel()
        await self._short_reads.close()
        await self._long_reads.close()
        await self._writes.run(self._disconnect)
        self._mark.close()
        self._holder.release()
        self._writes.stop()

    # --- changes ---

    def _failed(self) -> None:
        """Whether a commit that failed is on the disk is found out by whoever reads next."""
        self._paths.clear()
        self._remembered.clear()
        self._evicted += 1

    def _write(self, batch: Sequence[Change]) -> int:
        return _translated(self._write_batch, batch)

    def _write_batch(self, batch: Sequence[Change]) -> int:
        self._check_held()
        writer = self._writer or self._connect_again()
        try:
            self._check_there()
            first = writer.apply(batch)
        except (sqlite3.OperationalError, OSError, StorageError) as error:
            if not _undone(error, writer):
                self._disconnect()
            raise
        except Exception as error:
            return self._write_apart(writer, batch, error)
        self._mark.set(first + len(batch) - 1)
        return first

    def _write_apart(self, writer: Writer, batch: Sequence[Change], error: Exception) -> int:
        """What one session's change or damaged rows did to a batch must not concern the others."""
        log.warning("a batch failed, and is tried session by session", error=f"{type(error).__name__}: {error}")
        by_session: dict[str, list[int]] = {}
        for index, change in enumerate(batch):
            by_session.setdefault(change.session_id, []).append(index)
        outcomes: dict[int, int | StorageError] = {}
        for indexes in by_session.values():
            failure: StorageError | None = None
            number = 0
            try:
                number = writer.apply([batch[index] for index in indexes])
            except (sqlite3.OperationalError, OSError) as reason:
                if not _undone(reason, writer):
                    self._disconnect()
                raise
            except sqlite3.Error as reason:
                failure = _storage_error(reason)
            except Exception as reason:
                log.error("a change could not be stored", error=f"{type(reason).__name__}: {reason}")
                failure = StorageError("the change could not be stored")
            for offset, index in enumerate(indexes):
                outcomes[index] = failure or number + offset
        self._mark.set(max((outcome for outcome in outcomes.values() if isinstance(outcome, int)), default=0))
        raise Partly([outcomes[index] for index in range(len(batch))])

    def _check_held(self) -> None:
        """That nobody has removed the lock file."""
        if not self._holder.holds():
            self._let_go()
            self._holder.take_again()

    def _check_there(self) -> None:
        """That the files are still those that are open: what is written to removed ones is lost. And that the log does
        not grow without end."""
        try:
            file, log_file = glance(self._path), glance(self._log_path)
        except FileNotFoundError:
            self._let_go()
            raise files.gone() from None
        if self._opened != (file.identity, log_file.identity):
            self._let_go()
            raise files.gone()
        if log_file.size > MOST_LOG_BYTES and time.monotonic() - self._last_pressed > LOG_PAUSE:
            self._last_pressed = time.monotonic()
            self._empty_log()
            self._lengthen_log()

    def _let_go(self) -> None:
        """Closes every connection, so that the next ones meet what is there then. What the log still holds is first
        brought into the database file, in case only the log was removed."""
        with contextlib.suppress(sqlite3.Error):
            self._empty_log()
        self._short_reads.let_go()
        self._long_reads.let_go()
        self._disconnect()

    def _rest(self) -> None:
        """Copies the log into the database file; the next change starts it anew."""
        if self._writing is None:
            return
        if glance(self._log_path).size > files.LOG_BYTES:
            self._empty_log()
            self._lengthen_log()
        else:
            self._empty_log("RESTART")

    def _lengthen_log(self) -> None:
        try:
            files.lengthen(self._log_path)
        except OSError as error:
            log.warning("the log could not be made longer beforehand", error=error.strerror)

    def _empty_log(self, how: Literal["TRUNCATE", "RESTART"] = "TRUNCATE") -> None:
        """Waits a moment for those who read from the log, copies it into the database file, and truncates it or has it
        written from its start again."""
        if self._writing is None:
            return
        self._writing.execute("PRAGMA busy_timeout = 200")
        try:
            self._writing.execute(f"PRAGMA wal_checkpoint({how})").fetchone()
        finally:
            self._writing.execute(f"PRAGMA busy_timeout = {files.BUSY_MS}")

    def _tidy_when_idle(self) -> None:
        self._idle_check = None
        loop = asyncio.get_running_loop()
        rest = self._last_change + IDLE - loop.time()
        if rest > 0:
            self._idle_check = loop.call_later(rest, self._tidy_when_idle)
        elif self._open:
            emptied = self._writes.run(_translated, self._rest)
            emptied.add_done_callback(lambda done: done.exception())  # a failure is in the log, and met again by writes

    def _applied(self, batch: Sequence[Change]) -> None:
        loop = asyncio.get_running_loop()
        self._last_change = loop.time()
        if self._idle_check is None:
            self._idle_check = loop.call_later(IDLE, self._tidy_when_idle)
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
            else:
                self._evicted += 1  # a read that began before the change must not be remembered
        self._paths.apply(batch)

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
        entry = self._paths.entry(session_id, entry_id)
        if entry is None:
            entry = await self._short_reads.run(Reader.entry, session_id, entry_id)
            session = self._remembered.get(session_id)
            if entry is not None and session is not None and session.meta is not None:
                self._paths.was_read(session_id, session.meta.message_count)
        return entry

    async def entries(self, session_id: str) -> list[Entry]:
        return await self._long_reads.run(Reader.entries, session_id)

    async def metas(self) -> list[SessionMeta]:
        return await self._long_reads.run(Reader.metas)

    async def ids(self) -> list[str]:
        return await self._long_reads.run(Reader.ids)

    async def path(self, query: PathQuery) -> PathPage:
        if query.session_id in self._paths:
            await self.session(query.session_id)
            session = self._remembered.get(query.session_id)  # as it is now, like the path
            page = None if session is None else self._paths.page(session, query)
            if page is not None:
                return page
        long = query.limit is None or query.limit > WHOLE
        page = await (self._long_reads if long else self._short_reads).run(Reader.path, query)
        if page.meta is not None:
            self._paths.was_read(query.session_id, page.meta.message_count)
        return page

    async def sessions(self, query: ListQuery) -> ListPage:
        return await (self._long_reads if query.metadata else self._short_reads).run(Reader.sessions, query)


class _Reads:
    """A thread with a connection of its own, opened when first needed and again after a failure."""

    def __init__(self, path: Path, synchronous: str, name: str) -> None:
        self._path, self._synchronous = path, synchronous
        self._thread = WorkThread(name)
        self._connection: sqlite3.Connection | None = None
        self._reader: Reader | None = None
        self._identity: Identity | None = None
        self._reading = threading.Lock()

    def run(self, read: Callable[Concatenate[Reader, P], T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        return self._thread.run(lambda: _translated(self._read, lambda reader: read(reader, *args, **kwargs)))

    def _read(self, read: Callable[[Reader], T]) -> T:
        with self._reading:
            try:
                if self._reader is not None and glance(self._path).identity != self._identity:
                    self._close()
                    raise files.gone()
                return read(self._reader or self._connect())
            except (sqlite3.Error, OSError):
                self._close()
                raise

    def let_go(self) -> None:
        """Closes the connection once the read that is running is done. From any thread."""
        with self._reading:
            self._close()

    def _connect(self) -> Reader:
        if files.version_of(self._path) != VERSION:
            raise files.gone()
        self._connection = files.connect(self._path, self._synchronous)
        self._identity = glance(self._path).identity
        self._reader = Reader(self._connection)
        return self._reader

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._reader = None

    async def close(self) -> None:
        await self._thread.run(self.let_go)
        self._thread.stop()


UNDONE = frozenset({"SQLITE_IOERR_FSYNC", "SQLITE_IOERR_WRITE", "SQLITE_FULL"})


def _undone(error: Exception, writer: Writer) -> bool:
    """Whether the connection that met an error has undone what failed, and is to stay. A new one would take what is
    left of it in the log for a commit: it would be there after all, and where a sync has failed what is read of the log
    may never reach the disk. This one writes over it."""
    return getattr(error, "sqlite_errorname", None) in UNDONE and not writer.in_transaction


def _translated(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The one place where what SQLite and the file system raise becomes a StorageError; the cause goes to the log."""
    try:
        return function(*args, **kwargs)
    except (sqlite3.Error, OSError) as error:
        raise _storage_error(error) from error


def _storage_error(error: sqlite3.Error | OSError) -> StorageError:
    kind = getattr(error, "sqlite_errorname", None) or getattr(error, "strerror", None) or type(error).__name__
    log.warning("the database failed", kind=kind, error=str(error))
    failed = Unready if kind.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")) else StorageError
    return failed(f"the database failed ({kind})")
