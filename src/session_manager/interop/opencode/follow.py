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
from functools import partial

from session_manager.clock import Clock, SystemClock
from session_manager.errors import SessionManagerError
from session_manager.interop.opencode.cache import Cache
from session_manager.interop.opencode.client import NotThere, Server, ServerFailed
from session_manager.interop.opencode.events import Event, read_event
from session_manager.interop.opencode.live import LiveSession
from session_manager.interop.opencode.progress import MirrorProgress
from session_manager.interop.opencode.records import obj, text
from session_manager.interop.opencode.replay import Gap, Replay
from session_manager.interop.opencode.servers import read_session
from session_manager.interop.opencode.sessions import Refused
from session_manager.interop.opencode.targets import Target
from session_manager.model import JsonObject

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
"""Between attempts to reach the server."""

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


class Mirror:
    """Follows one server into one target until stopped."""

    def __init__(
        self,
        server: Server,
        target: Target,
        *,
        added: JsonObject | None = None,
        clock: Clock | None = None,
        tell: Callable[[MirrorProgress], None] = lambda progress: None,
        only: set[str] | None = None,
    ) -> None:
        self._server = server
        self.progress = MirrorProgress()
        self._tell = partial(tell, self.progress)
        self._cache = Cache(
            server, target, self.progress, self._tell, added=added, clock=clock or SystemClock(), only=only
        )
        self._turn = asyncio.Lock()
        """One thing at a time is taken from the server."""

    async def run(self) -> None:
        """Follows for ever; ends only by cancellation. A server that is not there is waited for, and so is a store that
        cannot be read or written."""
        recalled = False
        pause = FIRST_PAUSE_S
        beside = [asyncio.create_task(self._cache.flush_often()), asyncio.create_task(self._take_back_often())]
        try:
            while True:
                try:
                    if not recalled:
                        await self._cache.recall()
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
                self._tell()
                # Many mirrors of one server must not come back at the same moment.
                await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311 # no secret
                pause = min(pause * 2, LONGEST_PAUSE_S)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await self._cache.flush()

    async def catch_up(self) -> None:
        """Brings all sessions to where the server is now, and writes them."""
        await self._cache.recall()
        await self._server.open()
        await self._catch_up_all()
        await self._cache.flush()

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
                    self._tell()
                async with self._turn:
                    await self._take(_unwrapped(raw))

    async def _take(self, raw: JsonObject) -> None:
        event = read_event(raw)
        if event is None or not self._cache.wants(event.session_id):
            return
        if event.seq is None and not (event.name in LIVE and self._cache.has(event.session_id)):
            return
        session = await self._cache.session(event.session_id)
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
            self._cache.changed()

    # --- the log ---

    async def _catch_up_all(self) -> None:
        if self._server.is_1x:
            await self._catch_up_1x()
        else:
            for session_id in await self._server.session_ids():
                if self._cache.wants(session_id):
                    await self._catch_up(session_id)
        await self._cache.stand(await self._server.working())

    async def _catch_up_1x(self) -> None:
        """One question for all sessions. Those without a log (older than it) come from their message list."""
        by_session: dict[str, list[Event]] = {}
        for raw in await self._server.history_1x(self._cache.seqs()):
            event = read_event(raw)
            if event is not None and self._cache.wants(event.session_id):
                by_session.setdefault(event.session_id, []).append(event)
        for session_id, events in by_session.items():
            await self._apply(session_id, events)
        for session_id in await self._server.session_ids():
            if self._cache.wants(session_id) and self._cache.seq(session_id) is None:
                await self._from_list(session_id)

    async def _catch_up(self, session_id: str) -> None:
        if self._server.is_1x:
            # The log of 1.x can only be asked for everything that is not known yet.
            await self._catch_up_1x()
            return
        seq = self._cache.seq(session_id)
        try:
            raws = await self._server.log(session_id, seq)
        except NotThere:
            return
        events = [event for raw in raws if (event := read_event(raw)) is not None and event.session_id == session_id]
        if events or seq is None:
            await self._apply(session_id, events)

    async def _apply(self, session_id: str, events: list[Event]) -> None:
        session = await self._cache.session(session_id)
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
            await self._cache.write(session)

    async def _from_list(self, session_id: str) -> None:
        """The session from its message list, at a moment when its log stands still."""
        for _ in range(CONSISTENT_TRIES):
            before = await self._last_seq(session_id)
            try:
                source = await read_session(self._server, session_id)
            except NotThere:
                return
            except Refused as refused:
                self._cache.refuse(session_id, refused)
                return
            if await self._last_seq(session_id) == before:
                break
        self._cache.put(LiveSession(Replay(session_id, source.info, source.records(), before), dirty=True))

    async def _last_seq(self, session_id: str) -> int | None:
        if self._server.is_1x:
            others = {id_: seq for id_, seq in self._cache.seqs().items() if id_ != session_id}
            raws = await self._server.history_1x(others)
        else:
            raws = await self._server.log(session_id, None)
        seqs = [e.seq for raw in raws if (e := read_event(raw)) is not None and e.session_id == session_id]
        return max((seq for seq in seqs if seq is not None), default=None)

    # --- what was set aside ---

    async def _take_back_often(self) -> None:
        """Tries what was set aside, until one fails: what keeps that one may keep the others, and the stream waits
        while one is tried."""
        while True:
            await asyncio.sleep(AGAIN_S)
            for session_id in self._cache.aside():
                async with self._turn:
                    if not self.progress.connected or not await self._take_back(session_id):
                        break

    async def _take_back(self, session_id: str) -> bool:
        """Tries a session that was set aside: whether it is where the server is now, and written."""
        self._cache.try_again(session_id)
        try:
            if await self._cache.session(session_id) is None:
                return False
            await self._catch_up(session_id)
            working = session_id in await self._server.working()
            session = self._cache.in_memory(session_id)
            if session is not None:
                session.stands(working=working)
                if session.dirty:
                    await self._cache.write(session)
        except (ServerFailed, SessionManagerError) as failed:
            self._cache.set_aside(session_id, failed)
            return False
        self._cache.count_left_out()
        return True


def _unwrapped(raw: JsonObject) -> JsonObject:
    """The event inside of what the stream of all directories of 1.x says; durable ones come as `sync`."""
    payload = obj(raw, "payload") if "payload" in raw else raw
    return obj(payload, "syncEvent") if text(payload, "type") == "sync" else payload
