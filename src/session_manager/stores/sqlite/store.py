"""The store on one SQLite file: WAL, group commit, one thread that writes and two that read.

The file belongs to one process at a time, so what this process remembers of it is true.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from session_manager.model import Entry, SessionMeta
from session_manager.store import Change, Extent, ListPage, ListQuery, PathPage, PathQuery, Session
from session_manager.stores.pending import GroupCommit, Pipelined
from session_manager.stores.sqlite.paths import Paths
from session_manager.stores.sqlite.reader import Reader
from session_manager.stores.sqlite.reads import Reads
from session_manager.stores.sqlite.records import Records
from session_manager.stores.sqlite.writing import Synchronous, Writing
from session_manager.stores.threads import WorkThread

WHOLE = 1000
"""A path query without a limit, or with a longer one, goes to the thread for long reads."""

SOON = 0.05
"""Seconds after opening that the log is brought to its length. What is asked first does not wait for it."""

NOTING = 0.05
"""Seconds by which the note of what was acknowledged may be behind: one for every change would cost each a tenth."""

IDLE = 2.0
"""Seconds without a change after which the log is copied into the database file, and brought to its usual length."""


class SqliteStore(Pipelined):
    """One SQLite file. `synchronous` is SQLite's: FULL (an acknowledged change survives power loss) unless told."""

    notices: tuple[str, ...] = ()

    def __init__(self, path: Path, synchronous: Synchronous = "FULL") -> None:
        path = path.resolve()  # one lock for one file, whatever link leads to it
        self._writes = WorkThread("session-manager-writes")
        self._short_reads = Reads(path, "session-manager-reads")
        self._long_reads = Reads(path, "session-manager-long-reads")
        self._writing = Writing(path, synchronous, self._let_readers_go)
        self._commits = GroupCommit(self._writes, self._writing.write, self._applied, self._failed)
        self._records = Records()
        self._paths = Paths(lambda query: self._long_reads.run(Reader.path, query))
        self._last_change = 0.0
        self._idle_check: asyncio.TimerHandle | None = None
        self._noting: asyncio.TimerHandle | None = None
        self._lengthening: asyncio.TimerHandle | None = None
        self._open = False

    # --- opening and closing ---

    async def open(self) -> None:
        try:
            opened = self._writes.run(self._writing.open)
            self._short_reads.start()
            await opened
        except BaseException:
            await self._stop()
            raise
        self._lengthening = asyncio.get_running_loop().call_later(
            SOON, self._writes.do, self._writing.lengthen_log, lambda _, error: None
        )
        self._open = True

    async def set_synchronous(self, synchronous: Synchronous) -> None:
        """From the next change on."""
        await self._writes.run(self._writing.set_synchronous, synchronous)

    async def close(self) -> None:
        if not self._open:
            return
        self._open = False
        await self._commits.drained()
        for timer in (self._idle_check, self._noting, self._lengthening):
            if timer is not None:
                timer.cancel()
        await self._stop()

    async def _stop(self) -> None:
        await self._short_reads.close()
        await self._long_reads.close()
        await self._writes.run(self._writing.close)
        self._writes.stop()

    def _let_readers_go(self) -> None:
        self._short_reads.let_go()
        self._long_reads.let_go()

    # --- changes ---

    def _applied(self, batch: Sequence[Change]) -> None:
        loop = asyncio.get_running_loop()
        self._last_change = loop.time()
        if self._idle_check is None:
            self._idle_check = loop.call_later(IDLE, self._tidy_when_idle)
        if self._noting is None:
            self._noting = loop.call_later(NOTING, self._note)
        self._records.apply(batch)
        self._paths.apply(batch)

    def _failed(self) -> None:
        """Whether a commit that failed is on the disk is found out by whoever reads next."""
        self._records.clear()
        self._paths.clear()

    def _note(self) -> None:
        self._noting = None
        if self._open:
            self._writes.do(self._writing.note, lambda _, error: None)

    def _tidy_when_idle(self) -> None:
        self._idle_check = None
        loop = asyncio.get_running_loop()
        rest = self._last_change + IDLE - loop.time()
        if rest > 0:
            self._idle_check = loop.call_later(rest, self._tidy_when_idle)
        elif self._open:
            emptied = self._writes.run(self._writing.rest)
            emptied.add_done_callback(lambda done: done.exception())  # a failure is in the log, and met again by writes

    # --- reads ---

    async def session(self, session_id: str) -> Session:
        session = self._records.get(session_id)
        if session is None:
            forgotten = self._records.forgotten
            session = await self._short_reads.run(Reader.session, session_id)
            self._records.was_read(session_id, session, forgotten)
        return session

    async def entry(self, session_id: str, entry_id: str) -> Entry | None:
        entry = self._paths.entry(session_id, entry_id)
        if entry is None:
            entry = await self._short_reads.run(Reader.entry, session_id, entry_id)
            session = self._records.get(session_id)
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
            session = self._records.get(query.session_id)  # as it is now, like the path
            page = None if session is None else self._paths.page(session, query)
            if page is not None:
                return page
        long = query.limit is None or query.limit > WHOLE
        page = await (self._long_reads if long else self._short_reads).run(Reader.path, query)
        if page.meta is not None:
            self._paths.was_read(query.session_id, page.meta.message_count)
        return page

    async def extent(self, session_id: str, entry_id: str) -> Extent | None:
        return await self._long_reads.run(Reader.extent, session_id, entry_id)

    async def sessions(self, query: ListQuery) -> ListPage:
        return await (self._long_reads if query.metadata else self._short_reads).run(Reader.sessions, query)
