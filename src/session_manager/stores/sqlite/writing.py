"""The connection that writes, and the files that it writes to. Everything here runs on the writer's thread."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import structlog

from session_manager.errors import StorageError
from session_manager.store import Change
from session_manager.stores.directories import prepare_directory
from session_manager.stores.holder import Holder
from session_manager.stores.pending import Partly
from session_manager.stores.sqlite import files
from session_manager.stores.sqlite.failures import OF_ONE_CHANGE, UNDONE, storage_error, translated
from session_manager.stores.sqlite.glance import Directory, Identity, glance
from session_manager.stores.sqlite.schema import VERSION
from session_manager.stores.sqlite.writer import Writer

log = structlog.get_logger("session_manager.sqlite")

MOST_LOG_BYTES = 64 << 20
"""When the log has grown beyond this, because readers always held on to some of it, commits wait for them."""

WEIGHED, BATCH_BYTES = 4 << 20, 64 << 10
"""Bytes of changes after which the log's length is looked at once more, and how many a batch counts for at least."""

LOG_PAUSE = 5.0
"""Seconds between two attempts at that."""

Synchronous = Literal["FULL", "NORMAL", "OFF"]


class Writing:
    def __init__(self, path: Path, synchronous: Synchronous, let_readers_go: Callable[[], None]) -> None:
        """`let_readers_go` closes all other connections to the file."""
        self._path, self._synchronous, self._let_readers_go = path, synchronous, let_readers_go
        self._log_path = files.log_of(path)
        self._directory = Directory(path.parent)
        self._mark = files.Mark(path)
        self._holder = Holder(path.with_name(path.name + ".lock"), "database")
        self.connection: sqlite3.Connection | None = None
        self.writer: Writer | None = None
        self._acknowledged = 0
        """The number of the last commit that was told and is not in the mark yet; 0 when there is none."""
        self._opened: tuple[Identity, Identity] | None = None
        """Which files the connection has open."""
        self._unweighed = 0
        """Bytes since the log's length was looked at."""
        self._last_pressed = 0.0

    # --- opening and closing ---

    def open(self) -> None:
        """Takes the database for this process, and brings it up to date. Raises StorageError."""
        translated(self._acquire)

    def _acquire(self) -> None:
        prepare_directory(self._path.parent)
        self._holder.acquire()
        try:
            header = files.prepare(self._path)
            self._connect(VERSION if files.tells_version(header, self._path) else None)
        except BaseException:
            self._disconnect()
            self._holder.release()
            raise

    def _connect(self, version: int | None = None) -> Writer:
        """Opens the file that is there, and brings it up to date. `version` is what its header tells."""
        if version is None:
            version = files.version_of(self._path)
        self.connection = files.connect(self._path, self._synchronous)
        files.migrate(self.connection, version)
        acknowledged = self._mark.read()
        writer = self.writer = Writer(self.connection, acknowledged)
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
        self.lengthen_log()
        return writer

    def _disconnect(self) -> None:
        self.writer = self._opened = None
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def close(self) -> None:
        self._disconnect()
        self.note()
        self._mark.close()
        self._holder.release()

    def set_synchronous(self, synchronous: Synchronous) -> None:
        """From the next change on. Raises StorageError."""
        self._synchronous = synchronous
        if self.connection is not None:
            translated(self.connection.execute, f"PRAGMA synchronous = {synchronous}")

    # --- changes ---

    def write(self, batch: Sequence[Change]) -> int:
        """Makes a batch durable, as group commit asks for it (see `pending.Write`)."""
        return translated(self._write, batch)

    def _write(self, batch: Sequence[Change]) -> int:
        changed = self._directory.has_changed()
        if changed:
            self._check_held()
        writer = self.writer or self._connect_again()
        try:
            if changed:
                self._check_there()
                self._directory.is_in_order()
            self._unweighed += BATCH_BYTES + sum(entry.size for change in batch for entry in change.entries)
            if self._unweighed >= WEIGHED:
                self._weigh_log()
            first = writer.apply(batch)
        except OF_ONE_CHANGE as error:
            return self._write_apart(writer, batch, error)
        except (sqlite3.OperationalError, OSError, StorageError) as error:
            if not _undone(error, writer):
                self._disconnect()
            raise
        except Exception as error:
            return self._write_apart(writer, batch, error)
        self._acknowledged = first + len(batch) - 1
        return first

    def _write_apart(self, writer: Writer, batch: Sequence[Change], error: Exception) -> int:
        """What one session's change or damaged rows did to a batch must not concern the others."""
        log.warning("a batch failed, and is tried session by session", error=f"{type(error).__name__}: {error}")
        by_session: dict[str, list[int]] = {}
        for index, change in enumerate(batch):
            by_session.setdefault(change.session_id, []).append(index)
        outcomes: dict[int, int | StorageError] = {}
        broken: StorageError | None = None
        for indexes in by_session.values():
            failure = broken
            number = 0
            try:
                if broken is None:
                    number = writer.apply([batch[index] for index in indexes])
            except (sqlite3.OperationalError, OSError) as reason:
                if not _undone(reason, writer):
                    self._disconnect()
                failure = broken = storage_error(reason)  # what was applied before stays, and the others need not try
            except sqlite3.Error as reason:
                failure = storage_error(reason)
            except OF_ONE_CHANGE as reason:
                failure = reason
            except Exception as reason:
                log.error("a change could not be stored", error=f"{type(reason).__name__}: {reason}")
                failure = StorageError("the change could not be stored")
            for offset, index in enumerate(indexes):
                outcomes[index] = failure or number + offset
        self._acknowledged = max((outcome for outcome in outcomes.values() if isinstance(outcome, int)), default=0)
        raise Partly([outcomes[index] for index in range(len(batch))])

    def note(self) -> None:
        """Keeps in the mark what was acknowledged. Never raises."""
        if self._acknowledged:
            self._mark.set(self._acknowledged)
            self._acknowledged = 0

    def _check_held(self) -> None:
        """That nobody has removed the lock file."""
        if not self._holder.holds():
            self._let_go()
            self._holder.take_again()

    def _check_there(self) -> None:
        """That the files are still those that are open: what is written to removed ones is lost."""
        try:
            file, log_file = glance(self._path), glance(self._log_path)
        except FileNotFoundError:
            self._let_go()
            raise files.gone() from None
        if self._opened != (file.identity, log_file.identity):
            self._let_go()
            raise files.gone()

    def _let_go(self) -> None:
        """Closes every connection, so that the next ones meet what is there then. What the log still holds is first
        brought into the database file, in case only the log was removed."""
        with contextlib.suppress(sqlite3.Error):
            self.empty_log()
        self._let_readers_go()
        self._disconnect()

    # --- the log ---

    def _weigh_log(self) -> None:
        """Sees that the log does not grow without end."""
        self._unweighed = 0
        if glance(self._log_path).size > MOST_LOG_BYTES and time.monotonic() - self._last_pressed > LOG_PAUSE:
            self._last_pressed = time.monotonic()
            self.empty_log()
            self.lengthen_log()

    def rest(self) -> None:
        """Copies the log into the database file; the next change starts it anew. Raises StorageError."""
        translated(self._rest)

    def _rest(self) -> None:
        if self.connection is None:
            return
        if glance(self._log_path).size > files.LOG_BYTES:
            self.empty_log()
            self.lengthen_log()
        else:
            self.empty_log("RESTART")

    def lengthen_log(self) -> None:
        if self.connection is None or self._opened is None:
            return
        _, identity = self._opened
        try:
            files.lengthen(self.connection, self._log_path, identity)
        except (OSError, sqlite3.Error) as error:
            log.warning("the log could not be made longer beforehand", error=str(error))

    def empty_log(self, how: Literal["TRUNCATE", "RESTART"] = "TRUNCATE") -> None:
        """Waits a moment for those who read from the log, copies it into the database file, and truncates it or has it
        written from its start again."""
        if self.connection is None:
            return
        self.connection.execute("PRAGMA busy_timeout = 200")
        try:
            self.connection.execute(f"PRAGMA wal_checkpoint({how})").fetchone()
        finally:
            self.connection.execute(f"PRAGMA busy_timeout = {files.BUSY_MS}")


def _undone(error: Exception, writer: Writer) -> bool:
    """Whether the connection that met an error has undone what failed, and is to stay. A new one would take what is
    left of it in the log for a commit: it would be there after all, and where a sync has failed what is read of the log
    may never reach the disk. This one writes over it."""
    return getattr(error, "sqlite_errorname", None) in UNDONE and not writer.in_transaction
