"""The store on a directory: everything is held in memory, and every change is on disk before it is answered.

What memory it takes is about what the live lines take on disk. The directory belongs to one process at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

import structlog

from session_manager.errors import StorageError
from session_manager.model import Entry, SessionMeta
from session_manager.store import Change, ListPage, ListQuery, PathPage, PathQuery, Session, View
from session_manager.stores.fs import batch
from session_manager.stores.fs.files import LOCK, Directory, Scan
from session_manager.stores.fs.names import LONGEST, file_name
from session_manager.stores.holder import Holder
from session_manager.stores.memory import MemoryStore
from session_manager.stores.pending import Ahead, GroupCommit
from session_manager.stores.threads import WorkThread

log = structlog.get_logger("session_manager.fs")

P = ParamSpec("P")
T = TypeVar("T")

SYNCS = 8
"""Files of one batch that are brought to disk side by side."""


class FsStore:
    """One directory. With `read_only`, opening it changes no session's file, whatever there is to tidy."""

    pipelines = True

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._path, self._read_only = path, read_only
        self._holder = Holder(path / LOCK, "data directory")
        self._thread = WorkThread("session-manager-files")
        self._syncs = ThreadPoolExecutor(SYNCS, "session-manager-syncs")
        self._directory = Directory(path)
        self._shown = MemoryStore()
        """What is durable."""
        self._commits = GroupCommit(self._apply, self._applied)
        self._number = 0
        self._unreadable: frozenset[str] = frozenset()
        self._folded: dict[str, str] | None = None
        """On a disk that folds case: the session that last took a file name, by that name in lower case."""
        self._open = False
        self.notices: tuple[str, ...] = ()
        """What the directory holds that could not be taken as it is, each a line for people."""

    # --- opening and closing ---

    async def open(self) -> None:
        scan = await self._thread.run(_translated, self._acquire)
        self._shown = MemoryStore(scan.kept)
        self._unreadable = frozenset(scan.unreadable)
        self.notices = tuple(scan.notices)
        if scan.folds_case:
            self._folded = {file.name.lower(): id_ for id_, file in self._directory.files.items()}
        self._open = True

    def _acquire(self) -> Scan:
        if not self._path.is_dir():
            self._path.mkdir(parents=True, mode=0o700, exist_ok=True)
        self._holder.acquire()
        try:
            scan = self._directory.scan()
            if not self._read_only:
                self._directory.sweep()
                self._directory.tidy()
        except BaseException:
            self._holder.release()
            raise
        self._number = time.time_ns() // 1000  # so that numbers grow from one start to the next
        return scan

    async def close(self) -> None:
        if not self._open:
            return
        self._open = False
        await self._commits.drained()
        await self._thread.run(self._holder.release)
        self._thread.stop()
        self._syncs.shutdown()

    # --- changes ---

    def ahead(self) -> View:
        return Ahead(self, self._commits)

    def commit(self, view: View, change: Change) -> Awaitable[int]:
        assert isinstance(view, Ahead)
        refusal = self._refusal(change.session_id)
        if refusal is None:
            return self._commits.add(view.epoch, change)
        refused: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        refused.set_exception(refusal)
        return refused

    def _refusal(self, id_: str) -> StorageError | None:
        """Why no change of this session can be taken; it is found out here so that no other change fails with it."""
        if id_ in self._unreadable:
            return _cannot_be_read(id_)
        name = file_name(id_)
        if len(name) > LONGEST:
            return StorageError(f"the session id is too long for a file name: {len(name)} bytes, of {LONGEST}")
        if self._folded is not None:
            holder = self._folded.setdefault(name.lower(), id_)
            if holder != id_:
                if holder in self._shown or self._commits.of(holder):
                    return StorageError(
                        f"session ids {id_!r} and {holder!r} differ only by case, which the disk ignores"
                    )
                self._folded[name.lower()] = id_
        return None

    def settled(self, view: View, session_id: str) -> Awaitable[None]:
        assert isinstance(view, Ahead)
        return self._commits.settled(view.epoch, session_id)

    async def _apply(self, changes: Sequence[Change]) -> int:
        await self._thread.run(_translated, batch.apply, self._directory, changes, self._syncs)
        self._number += len(changes)
        return self._number - len(changes) + 1

    def _applied(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._shown.apply(change)
        if self._directory.untidy:
            self._thread.run(self._directory.tidy)

    # --- reads ---

    async def session(self, session_id: str) -> Session:
        self._check(session_id)
        return await self._shown.session(session_id)

    async def entry(self, session_id: str, entry_id: str) -> Entry | None:
        self._check(session_id)
        return await self._shown.entry(session_id, entry_id)

    async def entries(self, session_id: str) -> list[Entry]:
        self._check(session_id)
        return await self._shown.entries(session_id)

    async def path(self, query: PathQuery) -> PathPage:
        self._check(query.session_id)
        return await self._shown.path(query)

    async def metas(self) -> list[SessionMeta]:
        return await self._shown.metas()

    async def sessions(self, query: ListQuery) -> ListPage:
        return await self._shown.sessions(query)

    async def ids(self) -> list[str]:
        return sorted({*await self._shown.ids(), *self._unreadable}, key=str.encode)

    def _check(self, id_: str) -> None:
        if id_ in self._unreadable:
            raise _cannot_be_read(id_)


def _cannot_be_read(id_: str) -> StorageError:
    return StorageError(f"the file of session {id_!r} cannot be read")


def _translated(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The one place where what the file system raises becomes a StorageError; the cause goes to the log."""
    try:
        return function(*args, **kwargs)
    except (OSError, UnicodeDecodeError) as error:
        kind = getattr(error, "strerror", None) or type(error).__name__
        log.warning("the data directory failed", kind=kind, error=str(error))
        raise StorageError(f"the data directory failed ({kind})") from error
