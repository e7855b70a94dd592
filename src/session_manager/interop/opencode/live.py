"""A session that is followed: what came of its log, and what a store is to keep of it. Pure."""

from __future__ import annotations

from session_manager.interop.opencode import v1
from session_manager.interop.opencode.client import Server
from session_manager.interop.opencode.events import Event
from session_manager.interop.opencode.records import Record, is_assistant, is_open, is_v1, record_id
from session_manager.interop.opencode.replay import Replay
from session_manager.interop.opencode.sessions import (
    Group,
    Mapped,
    SourceSession,
    map_record,
    shown_groups,
    status_of,
)
from session_manager.interop.opencode.sources import from_replay
from session_manager.model import JsonObject, Status


class LiveSession:
    """One session on its way from log to store."""

    def __init__(self, replay: Replay, status: Status | None = None, *, dirty: bool = False) -> None:
        self.replay, self.status, self.dirty = replay, status, dirty
        self._groups: dict[str, tuple[tuple[bool, bool], Group]] = {}
        """What each record was mapped to, and under which circumstances."""

    @property
    def id(self) -> str:
        return self.replay.session_id

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
        if server.is_1x and source.generation == "2.1":
            source.generation = "v2"
        return source

    def mapped(self, source: SourceSession) -> Mapped:
        """The session in canonical form; only records that changed are mapped anew. Raises Refused."""
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

    def is_blank(self) -> bool:
        """Whether nothing is known of it, so that there is nothing to write."""
        return self.replay.seq is None and not self.replay.records and len(self.replay.info) == 1

    def book(self) -> JsonObject:
        """How far the mirror has come, as the metadata keep it."""
        book: JsonObject = {"seq": self.replay.seq}
        if self.replay.pending:
            book["pending"] = self.replay.pending
        if self.replay.deleted:
            book["deleted"] = True
        return book
