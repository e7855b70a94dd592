"""A live mirror of a server's sessions.

Durable events are taken in the order of their log, each once: every commit says in the session's metadata how far it
has come (`opencode.mirror.seq`), in the same change as the entries, so that whatever stops, the mirror goes on from
there. Deltas, which no log keeps, become updates of the assistant entry while it is written; what is missed of them
the next durable event makes good.

When the stream breaks, or shows a gap, the log is asked for what was missed. When a log does not go back far enough,
the message list takes its place.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing

from msgspec import MsgspecError, Struct

from session_manager.clock import Clock, SystemClock
from session_manager.errors import SessionManagerError
from session_manager.interop.opencode import v1
from session_manager.interop.opencode.client import NotThere, Server, ServerFailed
from session_manager.interop.opencode.events import Event, read_event
from session_manager.interop.opencode.exports import stored_records
from session_manager.interop.opencode.imports import (
    MIRROR,
    Existing,
    Plan,
    plan_mapped,
)
from session_manager.interop.opencode.records import (
    Generation,
    Record,
    is_assistant,
    is_open,
    is_v1,
    obj,
    record_id,
    text,
    whole,
)
from session_manager.interop.opencode.replay import Gap, Replay
from session_manager.interop.opencode.servers import read_session
from session_manager.interop.opencode.sessions import (
    Group,
    Mapped,
    Refused,
    SourceSession,
    map_record,
    shown_groups,
    status_of,
)
from session_manager.interop.opencode.sidecar import KEY
from session_manager.interop.opencode.sources import from_replay
from session_manager.interop.opencode.targets import Target
from session_manager.model import JsonObject, Status
from session_manager.store import check_answers

FLUSH_S = 0.1
"""Changes of this long are written together: a stream of words is not a stream of commits."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
"""Between attempts to reach the server."""

STORE_PAUSE_S = 1.0
"""After the store could not be written."""

AGAIN_S = 10.0
"""Between attempts at the sessions that the store could not read or write."""

CONSISTENT_TRIES = 5
"""How often a message list is read until its log did not move meanwhile."""

LIVE = frozenset(
    {
        "message.part.delta",
        "session.text.delta",
        "session.reasoning.delta",
        "session.tool.input.delta",
        "session.tool.progress",
        "session.compaction.delta",
        "session.status",
    }
)
"""Events outside of the log that count. Whatever else has no place in the log is a second telling of what has one."""

OPEN_SESSIONS = 64
"""Sessions kept in memory; the one that was quiet for longest is let go, and read again when it moves."""


class Progress(Struct):
    """What a mirror has done so far, for whoever watches it."""

    sessions: int = 0
    commits: int = 0
    events: int = 0
    reconnects: int = 0
    left_out: int = 0
    """Sessions at present."""
    connected: bool = False
    last: str = ""


class Session:
    """One session on its way from log to store."""

    def __init__(self, replay: Replay, generation: Generation | None) -> None:
        self.replay = replay
        self.generation = generation
        self.status: Status | None = None
        self.dirty = False
        self._groups: dict[str, tuple[tuple[bool, bool], Group]] = {}

    def take(self, event: Event) -> None:
        """Raises Gap."""
        before = self.replay.status
        if self.replay.apply(event):
            self.dirty = True
            if self.replay.status != before or event.name == "session.status":
                self.status = self.replay.status

    def stands(self, *, working: bool) -> None:
        """Takes what the server says of its work at this moment."""
        if (self.status == "working") != working:
            self.status, self.dirty = "working" if working else None, True

    def source(self, server: Server) -> SourceSession:
        source = from_replay(self.replay, server.url, None)
        source.server_version = server.version
        source.status = self.status
        self.generation = source.generation = (
            source.generation if source.generation != "2.1" or not server.is_1x else "v2"
        )
        return source

    def mapped(self, source: SourceSession) -> Mapped:
        """The session in canonical form; only records that changed are mapped anew."""
        records = self.replay.list()
        lossy: list[str] = []
        groups: list[Group] = []
        later_assistant = False
        following: Record | None = None
        for record in reversed(records):
            overflowed = following is not None and is_v1(following) and v1.overflowed_before(following)
            flags = (later_assistant and is_open(record), overflowed and is_assistant(record))
            id_ = record_id(record)
            cached = self._groups.get(id_)
            if cached is None or cached[0] != flags or id_ in self.replay.touched:
                settled, overflowed = flags
                drafts = map_record(
                    record, source.generation, settled=settled or overflowed, overflowed=overflowed, lossy=lossy
                )
                cached = (flags, Group(id_, drafts))
                self._groups[id_] = cached
            groups.append(cached[1])
            later_assistant = later_assistant or is_assistant(record)
            following = record
        groups.reverse()
        last = next((g.drafts[0] for g in reversed(groups) if g.drafts[0].role == "assistant"), None)
        status, reason = status_of(source, last)
        shown = shown_groups(source.info, [group.record_id for group in groups], source.generation, lossy)
        return Mapped(groups, status, reason, shown, lossy)

    def book(self) -> JsonObject:
        """How far the mirror has come, as the metadata keep it."""
        book: JsonObject = {"seq": self.replay.seq}
        if self.replay.pending:
            book["pending"] = self.replay.pending
        if self.replay.deleted:
            book["deleted"] = True
        return book


class Mirror:
    """Follows one server into one target until stopped."""

    def __init__(
        self,
        server: Server,
        target: Target,
        *,
        added: JsonObject | None = None,
        clock: Clock | None = None,
        tell: Callable[[Progress], None] = lambda progress: None,
        only: set[str] | None = None,
    ) -> None:
        self._server = server
        self._target = target
        self._added = added
        self._clock = clock or SystemClock()
        self._tell = tell
        self._only = only
        self._sessions: dict[str, Session] = {}
        self._known: dict[str, int] = {}
        """How far each session has come that is not in memory."""
        self._left_working: set[str] = set()
        """Sessions not in memory that were working when they were last seen."""
        self._refused: set[str] = set()
        """Sessions that cannot be kept, whatever the store does."""
        self._aside: dict[str, None] = {}
        """Sessions that the store could not read or write; those tried last come last."""
        self._turn = asyncio.Lock()
        """One thing at a time is taken from the server."""
        self._dirty = asyncio.Event()
        self.progress = Progress()

    async def run(self) -> None:
        """Follows for ever; ends only by cancellation. A server that is not there is waited for, and so is a store that
        cannot be read or written."""
        recalled = False
        pause = FIRST_PAUSE_S
        beside = [asyncio.create_task(self._flush_often()), asyncio.create_task(self._take_back_often())]
        try:
            while True:
                try:
                    if not recalled:
                        await self._recall()
                        recalled = True
                    await self._server.open()
                    await self._follow()
                    pause = FIRST_PAUSE_S
                except (ServerFailed, SessionManagerError) as failed:
                    self.progress.last = str(failed)
                if self.progress.connected:
                    pause = FIRST_PAUSE_S
                self.progress.connected = False
                self.progress.reconnects += 1
                self._tell(self.progress)
                # Many mirrors of one server must not come back at the same moment.
                await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311 # no secret
                pause = min(pause * 2, LONGEST_PAUSE_S)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await self.flush()

    async def catch_up(self) -> None:
        """Brings all sessions to where the server is now, and writes them."""
        await self._recall()
        await self._server.open()
        await self._catch_up_all()
        await self.flush()

    # --- where we are ---

    async def _recall(self) -> None:
        """Reads how far each stored session has come."""
        for meta in await self._target.store.metas():
            book = obj(obj(meta.metadata or {}, KEY), MIRROR)
            seq = whole(book, "seq")
            if seq is not None and meta.session_id not in self._sessions:
                self._known[meta.session_id] = seq
                if meta.status == "working":
                    self._left_working.add(meta.session_id)

    async def _session(self, session_id: str) -> Session | None:
        """The session in memory: as it was, else from the store, else empty. None when it cannot be read, and is set
        aside. Raises StorageError when no session can."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            try:
                session = await self._stored(session_id)
            except (SessionManagerError, MsgspecError) as error:
                await check_answers(self._target.store)
                self._set_aside(session_id, error)
                return None
        self._sessions[session_id] = session  # the newest is last
        while len(self._sessions) > OPEN_SESSIONS:
            await self._let_go(*next(iter(self._sessions.items())))
        return session

    async def _let_go(self, session_id: str, session: Session) -> None:
        """Forgets a session, once it is written. Raises StorageError when none can be."""
        if session.dirty:
            try:
                await self._write(session_id, session)
            except SessionManagerError as error:
                await check_answers(self._target.store)
                self._set_aside(session_id, error)
                return
        if session.replay.seq is not None:
            self._known[session_id] = session.replay.seq
        if session.status == "working":
            self._left_working.add(session_id)
        self._sessions.pop(session_id, None)

    async def _stored(self, session_id: str) -> Session:
        meta = (await self._target.store.session(session_id)).meta
        book = obj(obj(meta.metadata or {}, KEY), MIRROR) if meta is not None else {}
        seq = whole(book, "seq")
        if meta is None or seq is None:
            return Session(Replay(session_id), None)
        kept = obj(meta.metadata or {}, KEY)
        records = await stored_records(self._target.store, session_id)
        replay = Replay(session_id, obj(kept, "session"), records, seq, obj(book, "pending"))
        session = Session(replay, kept.get("generation"))
        session.status = meta.status if meta.status == "working" else None
        return session

    def _seq(self, session_id: str) -> int | None:
        session = self._sessions.get(session_id)
        return session.replay.seq if session is not None else self._known.get(session_id)

    def _wanted(self, session_id: str) -> bool:
        left_out = session_id in self._refused or session_id in self._aside
        return not left_out and (self._only is None or session_id in self._only)

    # --- the stream ---

    async def _follow(self) -> None:
        async with aclosing(self._server.events()) as stream:
            opened = False
            async for raw in stream:
                if not opened:
                    # The stream is open, so nothing falls between what the log says now and what comes next.
                    opened = True
                    async with self._turn:
                        await self._catch_up_all()
                    self.progress.connected = True
                    self._tell(self.progress)
                async with self._turn:
                    await self._take(_unwrapped(raw))

    async def _take(self, raw: JsonObject) -> None:
        event = read_event(raw)
        if event is None or not self._wanted(event.session_id):
            return
        if event.seq is None and event.name not in LIVE:
            return
        if event.seq is None and event.session_id not in self._sessions and self._seq(event.session_id) is None:
            return
        session = await self._session(event.session_id)
        if session is None:
            return
        self.progress.events += 1
        try:
            session.take(event)
        except Gap:
            await self._catch_up(event.session_id)
        if event.name == "session.forked":
            # What it was forked with is in no log of its own.
            await self._from_list(event.session_id)
        if session.dirty:
            self._dirty.set()

    # --- the log ---

    async def _catch_up_all(self) -> None:
        if self._server.is_1x:
            await self._catch_up_1x()
        else:
            for session_id in await self._server.session_ids():
                if self._wanted(session_id):
                    await self._catch_up(session_id)
        working = {session_id for session_id in await self._server.working() if self._wanted(session_id)}
        for session_id, session in self._sessions.items():
            session.stands(working=session_id in working)
        # Also those that were left working when the mirror, or the server, went away.
        for session_id in (self._left_working | working) - self._sessions.keys():
            self._left_working.discard(session_id)
            if self._seq(session_id) is not None and self._wanted(session_id):
                stored = await self._session(session_id)
                if stored is not None:
                    stored.stands(working=session_id in working)
        self._dirty.set()

    async def _catch_up_1x(self) -> None:
        """One question for all sessions. Those without a log (older than it) come from their message list."""
        by_session: dict[str, list[Event]] = {}
        for raw in await self._server.history_1x(self._places()):
            event = read_event(raw)
            if event is not None and self._wanted(event.session_id):
                by_session.setdefault(event.session_id, []).append(event)
        for session_id, events in by_session.items():
            await self._apply(session_id, events)
        for session_id in await self._server.session_ids():
            if self._wanted(session_id) and self._seq(session_id) is None:
                await self._from_list(session_id)

    def _places(self, without: str | None = None) -> dict[str, int]:
        """How far every session has come."""
        live = {id_: s.replay.seq for id_, s in self._sessions.items() if s.replay.seq is not None}
        return {id_: seq for id_, seq in {**self._known, **live}.items() if id_ != without}

    async def _catch_up(self, session_id: str) -> None:
        if self._server.is_1x:
            # The log of 1.x can only be asked for everything that is not known yet.
            await self._catch_up_1x()
            return
        seq = self._seq(session_id)
        try:
            raws = await self._server.log(session_id, seq)
        except NotThere:
            return
        events = [event for raw in raws if (event := read_event(raw)) is not None and event.session_id == session_id]
        if events or seq is None:
            await self._apply(session_id, events)

    async def _apply(self, session_id: str, events: list[Event]) -> None:
        session = await self._session(session_id)
        if session is None:
            return
        begun = session.replay.seq is None
        try:
            for event in events:
                session.take(event)
        except Gap:
            await self._from_list(session_id)
            return
        if session.replay.forked and begun:
            await self._from_list(session_id)
        if len(events) > 1000:
            await self._write(session_id, session)

    async def _from_list(self, session_id: str) -> None:
        """The session from its message list, at a moment when its log stands still."""
        for _ in range(CONSISTENT_TRIES):
            before = await self._last_seq(session_id)
            try:
                source = await read_session(self._server, session_id)
            except NotThere:
                return
            except Refused as refused:
                self._refuse(session_id, refused)
                return
            if await self._last_seq(session_id) == before:
                break
        replay = Replay(session_id, source.info, source.records(), before)
        session = Session(replay, source.generation)
        session.dirty = True
        self._sessions[session_id] = session

    async def _last_seq(self, session_id: str) -> int | None:
        if self._server.is_1x:
            raws = await self._server.history_1x(self._places(without=session_id))
        else:
            raws = await self._server.log(session_id, None)
        seqs = [e.seq for raw in raws if (e := read_event(raw)) is not None and e.session_id == session_id]
        return max((seq for seq in seqs if seq is not None), default=None)

    # --- the store ---

    async def _flush_often(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self.flush()
            except SessionManagerError as error:
                # The store has trouble of its own; what is not written stays to be written.
                self.progress.last = str(error)
                self._tell(self.progress)
                self._dirty.set()
                await asyncio.sleep(STORE_PAUSE_S)
            await asyncio.sleep(FLUSH_S)

    async def flush(self) -> None:
        """Writes what changed: all that can be written, whatever keeps one session from it. Raises StorageError."""
        failed: SessionManagerError | None = None
        for session_id, session in list(self._sessions.items()):
            if session.dirty:
                try:
                    await self._write(session_id, session)
                except SessionManagerError as error:
                    failed = error
        self._tell(self.progress)
        if failed is not None:
            raise failed

    async def _write(self, session_id: str, session: Session) -> None:
        session.dirty = False
        if session.replay.seq is None and not session.replay.records and len(session.replay.info) == 1:
            return
        try:
            source = session.source(self._server)
            mapped = session.mapped(source)
        except Refused as refused:
            self._refuse(session_id, refused)
            return
        session.replay.touched.clear()
        book = session.book()

        def decide(stored: Existing) -> Plan:
            return plan_mapped(source, mapped, stored, now=self._clock.now(), added=self._added, mirror=book)

        try:
            plan = await self._target.write(session_id, decide)
        except Refused as refused:
            self._refuse(session_id, refused)
            return
        except BaseException as error:
            session.dirty = True
            if self._sessions.get(session_id) is not session:  # it was let go meanwhile, as if that had worked
                self._set_aside(session_id, error)
            raise
        if plan.created:
            self.progress.sessions += 1
        self.progress.commits += plan.change is not None

    # --- what is left out ---

    def _refuse(self, session_id: str, refused: Refused) -> None:
        """A session that cannot be kept is left out, and said so, rather than followed half."""
        self._refused.add(session_id)
        self._leave_out(session_id, str(refused))

    def _set_aside(self, session_id: str, error: BaseException) -> None:
        """A session that the store cannot read or write is left out until it can."""
        self._aside[session_id] = None
        self._leave_out(session_id, f"session {session_id!r} cannot be read or written in the store: {error}")

    def _leave_out(self, session_id: str, why: str) -> None:
        self._sessions.pop(session_id, None)
        self.progress.last = why
        self._count_left_out()

    def _count_left_out(self) -> None:
        self.progress.left_out = len(self._refused) + len(self._aside)
        self._tell(self.progress)

    async def _take_back_often(self) -> None:
        """Tries what was set aside, until one fails: what keeps that one may keep the others, and the stream waits
        while one is tried."""
        while True:
            await asyncio.sleep(AGAIN_S)
            for session_id in list(self._aside):
                async with self._turn:
                    if not self.progress.connected or not await self._take_back(session_id):
                        break

    async def _take_back(self, session_id: str) -> bool:
        """Tries a session that was set aside: whether it is where the server is now, and written."""
        self._aside.pop(session_id)
        try:
            if await self._session(session_id) is None:
                return False
            await self._catch_up(session_id)
            working = session_id in await self._server.working()
            session = self._sessions.get(session_id)
            if session is not None:
                session.stands(working=working)
                if session.dirty:
                    await self._write(session_id, session)
        except (ServerFailed, SessionManagerError) as failed:
            self._set_aside(session_id, failed)
            return False
        self._count_left_out()
        return True


def _unwrapped(raw: JsonObject) -> JsonObject:
    """The event inside of what the stream of all directories of 1.x says; durable ones come as `sync`."""
    payload = obj(raw, "payload") if "payload" in raw else raw
    return obj(payload, "syncEvent") if text(payload, "type") == "sync" else payload
