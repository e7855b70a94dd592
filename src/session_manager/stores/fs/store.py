"""The store on a directory: everything is held in memory, and every change is on disk before it is answered.

It takes at most about twice the memory that the lines that count take on disk. The directory belongs to one process at
a time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from session_manager.errors import StorageError
from session_manager.model import Entry, SessionMeta
from session_manager.store import Change, Extent, ListPage, ListQuery, PathPage, PathQuery, Session
from session_manager.stores.directories import prepare_directory
from session_manager.stores.fs import batch
from session_manager.stores.fs.files import LOCK, Directory, Scan, storage_error
from session_manager.stores.holder import Holder
from session_manager.stores.memory import MemoryStore
from session_manager.stores.pending import GroupCommit, Partly, Pipelined
from session_manager.stores.threads import WorkThread

SYNCS = 8
"""Files of one batch that are brought to disk side by side."""


class FsStore(Pipelined):
    """One directory. Opened with `read_only`, it takes no change and leaves every session's file as it is; not `alone`,
    it also leaves the directory to whoever has it, and shows what was there at that moment."""

    def __init__(self, path: Path, *, read_only: bool = False, alone: bool = True) -> None:
        path = path.resolve()  # one lock for one directory, whatever link leads to it
        self._path, self._read_only, self._alone = path, read_only, alone or not read_only
        self._holder = Holder(path / LOCK, "data directory")
        self._thread = WorkThread("session-manager-files")
        self._syncs = ThreadPoolExecutor(SYNCS, "session-manager-syncs")
        self._directory = Directory(path)
        self._durable = MemoryStore()
        self._commits = GroupCommit(self._thread, self._write, self._applied)
        self._number = 0
        self._opened = 0
        """Which directory was read."""
        self._open = False
        self.notices: tuple[str, ...] = ()
        """What the directory holds that could not be taken as it is, each a line for people."""
        self.lost: tuple[str, ...] = ()
        """Those of them that tell of something that is not served."""

    # --- opening and closing ---

    async def open(self) -> None:
        try:
            scan = await self._thread.run(self._acquire)
        except StorageError:
            self._stop()
            raise
        self._durable = MemoryStore(scan.kept)
        self.notices, self.lost = tuple(scan.notices), tuple(scan.lost)
        self._open = True

    def _acquire(self) -> Scan:
        try:
            if self._alone:
                prepare_directory(self._path)
                self._holder.acquire()
            self._opened = self._path.stat().st_ino
            scan = self._directory.scan()
            if not self._read_only:
                self._directory.sweep()
                self._directory.tidy()
        except (OSError, StorageError) as error:
            self._holder.release()
            raise storage_error(error) from error
        self._number = time.time_ns() // 1000  # so that the numbers go on growing from one start to the next
        return scan

    def take_changes(self) -> None:
        """For one opened with `read_only`, and alone: from now on it takes changes. What was there is not tidied."""
        assert self._alone
        self._read_only = False

    async def close(self) -> None:
        if not self._open:
            return
        self._open = False
        await self._commits.drained()
        await self._thread.run(self._holder.release)
        self._stop()

    def _stop(self) -> None:
        self._thread.stop()
        self._syncs.shutdown()

    # --- changes ---

    def _write(self, changes: Sequence[Change]) -> int:
        if self._read_only:
            raise StorageError("the data directory was opened for reading only")
        self._check_there()
        failed = batch.apply(self._directory, changes, self._syncs)
        first = self._number + 1
        self._number += len(changes)
        if failed:
            raise Partly([failed.get(change.session_id, number) for number, change in enumerate(changes, first)])
        return first

    def _check_there(self) -> None:
        """That the directory is still the one that was read: what is written to another is lost when this one is back.
        And that nobody has removed its lock file."""
        try:
            if self._path.stat().st_ino != self._opened:
                raise StorageError("the data directory was replaced")
            if not self._holder.holds():
                self._holder.take_again()
        except OSError as error:
            raise storage_error(error) from error

    def _applied(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._durable.apply(change)
        if self._directory.untidy:
            self._thread.run(self._directory.tidy)

    # --- reads ---

    async def session(self, session_id: str) -> Session:
        self._check(session_id)
        return await self._durable.session(session_id)

    async def entry(self, session_id: str, entry_id: str) -> Entry | None:
        self._check(session_id)
        return await self._durable.entry(session_id, entry_id)

    async def entries(self, session_id: str) -> list[Entry]:
        self._check(session_id)
        return await self._durable.entries(session_id)

    async def path(self, query: PathQuery) -> PathPage:
        self._check(query.session_id)
        return await self._durable.path(query)

    async def metas(self) -> list[SessionMeta]:
        return await self._durable.metas()

    async def extent(self, session_id: str, entry_id: str) -> Extent | None:
        return None

    async def sessions(self, query: ListQuery) -> ListPage:
        return await self._durable.sessions(query)

    async def ids(self) -> list[str]:
        return sorted({*await self._durable.ids(), *self._directory.unreadable}, key=str.encode)

    def _check(self, session_id: str) -> None:
        if session_id in self._directory.unreadable:
            raise StorageError(f"the file of session {session_id!r} cannot be read")
