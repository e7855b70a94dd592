"""The sessions of a mirror: those that move are in memory, and written back to the store as they change. A session that
cannot be kept, or that the store has trouble with, is left out, and the others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import MsgspecError

from session_manager.clock import Clock
from session_manager.errors import SessionManagerError
from session_manager.interop.opencode.client import Server
from session_manager.interop.opencode.exports import stored_records
from session_manager.interop.opencode.imports import MIRROR, Existing, Plan, plan_mapped
from session_manager.interop.opencode.live import LiveSession
from session_manager.interop.opencode.progress import MirrorProgress
from session_manager.interop.opencode.records import obj, whole
from session_manager.interop.opencode.replay import Replay
from session_manager.interop.opencode.sessions import Refused
from session_manager.interop.opencode.sidecar import KEY
from session_manager.interop.opencode.targets import Target
from session_manager.model import JsonObject
from session_manager.store import check_answers

FLUSH_S = 0.1
"""Changes of this long are written together: a stream of words is not a stream of commits."""

STORE_PAUSE_S = 1.0
"""After the store could not be written."""

OPEN_SESSIONS = 64
"""Sessions kept in memory; the one that was quiet for longest is let go, and read again when it moves."""


class Cache:
    """Every method that touches the store raises StorageError when it cannot be read or written at all."""

    def __init__(
        self,
        server: Server,
        target: Target,
        progress: MirrorProgress,
        tell: Callable[[], None],
        *,
        added: JsonObject | None,
        clock: Clock,
        only: set[str] | None,
    ) -> None:
        self._server, self._target = server, target
        self._progress, self._tell = progress, tell
        self._added, self._clock, self._only = added, clock, only
        self._sessions: dict[str, LiveSession] = {}
        """The newest is last."""
        self._known: dict[str, int] = {}
        """How far each session has come that is not in memory."""
        self._left_working: set[str] = set()
        """Sessions not in memory that were working when they were last seen."""
        self._refused: set[str] = set()
        """Sessions that cannot be kept, whatever the store does."""
        self._aside: dict[str, None] = {}
        """Sessions that the store could not read or write; those tried last come last."""
        self._dirty = asyncio.Event()

    # --- what there is ---

    async def recall(self) -> None:
        """Reads how far each stored session has come."""
        for meta in await self._target.store.metas():
            seq = whole(_book(meta.metadata), "seq")
            if seq is not None and meta.session_id not in self._sessions:
                self._known[meta.session_id] = seq
                if meta.status == "working":
                    self._left_working.add(meta.session_id)

    def wants(self, session_id: str) -> bool:
        left_out = session_id in self._refused or session_id in self._aside
        return not left_out and (self._only is None or session_id in self._only)

    def has(self, session_id: str) -> bool:
        return session_id in self._sessions or session_id in self._known

    def seq(self, session_id: str) -> int | None:
        """How far a session has come."""
        session = self._sessions.get(session_id)
        return session.replay.seq if session is not None else self._known.get(session_id)

    def seqs(self) -> dict[str, int]:
        """How far every session has come."""
        live = {id_: s.replay.seq for id_, s in self._sessions.items() if s.replay.seq is not None}
        return {**self._known, **live}

    # --- into memory and out of it ---

    def in_memory(self, session_id: str) -> LiveSession | None:
        return self._sessions.get(session_id)

    async def session(self, session_id: str) -> LiveSession | None:
        """The session in memory: as it was, else from the store, else empty. None when it cannot be read, and is set
        aside."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            try:
                session = await self._stored(session_id)
            except (SessionManagerError, MsgspecError) as error:
                await check_answers(self._target.store)
                self.set_aside(session_id, error)
                return None
        self._sessions[session_id] = session
        while len(self._sessions) > OPEN_SESSIONS:
            await self._let_go(next(iter(self._sessions.values())))
        return session

    def put(self, session: LiveSession) -> None:
        """Takes the place of what was known of the session."""
        self._sessions[session.id] = session
        self.changed()

    async def _let_go(self, session: LiveSession) -> None:
        """Forgets a session, once it is written."""
        if session.dirty:
            try:
                await self.write(session)
            except SessionManagerError as error:
                await check_answers(self._target.store)
                self.set_aside(session.id, error)
                return
        if session.replay.seq is not None:
            self._known[session.id] = session.replay.seq
        if session.status == "working":
            self._left_working.add(session.id)
        self._sessions.pop(session.id, None)

    async def _stored(self, session_id: str) -> LiveSession:
        meta = (await self._target.store.session(session_id)).meta
        book = {} if meta is None else _book(meta.metadata)
        seq = whole(book, "seq")
        if meta is None or seq is None:
            return LiveSession(Replay(session_id))
        info = obj(obj(meta.metadata or {}, KEY), "session")
        records = await stored_records(self._target.store, session_id)
        replay = Replay(session_id, info, records, seq, obj(book, "pending"))
        return LiveSession(replay, meta.status if meta.status == "working" else None)

    async def stand(self, working: set[str]) -> None:
        """Takes which sessions the server works on at this moment."""
        working = {session_id for session_id in working if self.wants(session_id)}
        for session_id, session in self._sessions.items():
            session.stands(working=session_id in working)
        # Also those that were left working when the mirror, or the server, went away.
        for session_id in (self._left_working | working) - self._sessions.keys():
            self._left_working.discard(session_id)
            if self.seq(session_id) is not None and self.wants(session_id):
                stored = await self.session(session_id)
                if stored is not None:
                    stored.stands(working=session_id in working)
        self.changed()

    # --- into the store ---

    def changed(self) -> None:
        """Something is to be written soon."""
        self._dirty.set()

    async def flush_often(self) -> None:
        """For ever, whatever trouble the store has: what is not written stays to be written."""
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self.flush()
            except SessionManagerError as error:
                self._progress.last = str(error)
                self._tell()
                self._dirty.set()
                await asyncio.sleep(STORE_PAUSE_S)
            await asyncio.sleep(FLUSH_S)

    async def flush(self) -> None:
        """Writes what changed: all that can be written, whatever keeps one session from it."""
        failed: SessionManagerError | None = None
        for session in list(self._sessions.values()):
            if session.dirty:
                try:
                    await self.write(session)
                except SessionManagerError as error:
                    failed = error
        self._tell()
        if failed is not None:
            raise failed

    async def write(self, session: LiveSession) -> None:
        session.dirty = False
        if session.is_blank():
            return
        try:
            source = session.source(self._server)
            mapped = session.mapped(source)
        except Refused as refused:
            self.refuse(session.id, refused)
            return
        session.replay.touched.clear()
        book = session.book()

        def decide(stored: Existing) -> Plan:
            return plan_mapped(source, mapped, stored, now=self._clock.now(), added=self._added, mirror=book)

        try:
            plan = await self._target.write(session.id, decide)
        except Refused as refused:
            self.refuse(session.id, refused)
            return
        except BaseException as error:
            session.dirty = True
            if self._sessions.get(session.id) is not session:  # it was let go meanwhile, as if that had worked
                self.set_aside(session.id, error)
            raise
        if plan.created:
            self._progress.sessions += 1
        self._progress.commits += plan.change is not None

    # --- what is left out ---

    def refuse(self, session_id: str, refused: Refused) -> None:
        """A session that cannot be kept is left out, and said so, rather than followed half."""
        self._refused.add(session_id)
        self._leave_out(session_id, str(refused))

    def set_aside(self, session_id: str, error: BaseException) -> None:
        """A session that the store cannot read or write is left out until it can."""
        self._aside[session_id] = None
        self._leave_out(session_id, f"session {session_id!r} cannot be read or written in the store: {error}")

    def aside(self) -> list[str]:
        """What was set aside, in the order in which it is to be tried again."""
        return list(self._aside)

    def try_again(self, session_id: str) -> None:
        """A session is none of those set aside any more; `count_left_out`, when that proves true, says so."""
        self._aside.pop(session_id)

    def _leave_out(self, session_id: str, why: str) -> None:
        self._sessions.pop(session_id, None)
        self._progress.last = why
        self.count_left_out()

    def count_left_out(self) -> None:
        self._progress.left_out = len(self._refused) + len(self._aside)
        self._tell()


def _book(metadata: JsonObject | None) -> JsonObject:
    """How far a mirror has come, as the metadata of a session keep it (see `LiveSession.book`)."""
    return obj(obj(metadata or {}, KEY), MIRROR)
