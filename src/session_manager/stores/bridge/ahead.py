"""The view of one decision: what the main instance holds, less what a failed change may have left there."""

from __future__ import annotations

from typing import Protocol

import msgspec

from session_manager.errors import BrokenPath
from session_manager.model import Entry, SessionMeta
from session_manager.store import Change, Drop, Session, View
from session_manager.stores.bridge.failures import Failures
from session_manager.tree import MISSING, chain


class Held(View, Protocol):
    """What the main instance holds."""

    @property
    def whole(self) -> bool:
        """Whether the main instance makes an append as a whole: then no writer can die in the middle of one."""

    async def entries(self, session_id: str) -> list[Entry]: ...

    async def completed(self, meta: SessionMeta, entry_id: str) -> None:
        """Writes the record of a session whose writer died behind an entry."""


class Ahead(View):
    def __init__(self, held: Held, failures: Failures) -> None:
        self._held, self._failures = held, failures
        self.sessions: dict[str, Session] = {}
        self.entries: dict[str, Entry | None] = {}
        """What was shown."""
        self._read: dict[str, Session] = {}
        self._uncounted = 0

    async def session(self, session_id: str) -> Session:
        read = await self._held.session(session_id)
        self._read[session_id] = read
        self.sessions[session_id] = shown = self._failures.subtracted(session_id, read)
        return shown

    async def entry(self, session_id: str, entry_id: str) -> Entry | None:
        entry = await self._held.entry(session_id, entry_id)
        if entry is not None:
            entry = await self._subtracted(session_id, entry)
        self.entries[entry_id] = entry
        return entry

    async def _subtracted(self, session_id: str, entry: Entry) -> Entry | None:
        session = self.sessions.get(session_id)
        written = self._failures.written(session_id, entry)
        if written is not None:
            if written.same and not await self._built_on(session_id, entry, session):
                return written.before
            self._failures.forget(session_id, entry.id)
        elif session is not None and session.meta is not None and _unknown_to(session.meta, entry):
            return entry if self._held.whole else await self._left_behind(session_id, session, session.meta, entry)
        return entry

    async def _left_behind(self, session_id: str, session: Session, meta: SessionMeta, entry: Entry) -> Entry | None:
        """What becomes of an entry whose writer seems to have died behind it."""
        entries = await self._held.entries(session_id)
        if entry.role is not None and sum(one.role is not None for one in entries) <= meta.message_count:
            return entry  # it was counted: only the record's time is odd
        if any(one.parent_id == entry.id for one in entries):
            return entry  # it was built on
        if session.leaf == entry.parent_id:
            return None  # as if it had never been
        if session.leaf == entry.id:
            await self._count(meta, entry)
        return entry

    async def _built_on(self, session_id: str, entry: Entry, session: Session | None) -> bool:
        """Whether somebody else has meanwhile continued behind an entry whose append failed here."""
        if session is None or session.leaf is None or session.leaf == entry.parent_id or entry.revision > 0:
            return False
        parents = {one.id: one.parent_id for one in await self._held.entries(session_id)}
        try:
            return entry.id in chain(session_id, session.leaf, lambda id_: parents.get(id_, MISSING))
        except BrokenPath:
            return False

    async def _count(self, meta: SessionMeta, entry: Entry) -> None:
        """The writer died between leaf and record: the append counts, so the record is brought up to it."""
        self._uncounted = int(entry.role is not None)
        count = meta.message_count + self._uncounted
        meta = msgspec.structs.replace(meta, updated_at=entry.timestamp, message_count=count)
        await self._held.completed(meta, entry.id)

    def mended(self, change: Change) -> Change:
        """The change, with a leaf that was shown differently than it is put right, and a record counted up."""
        shown, read = self.sessions.get(change.session_id), self._read.get(change.session_id)
        differs = shown is not None and read is not None and shown.leaf != read.leaf
        if shown is not None and differs and change.leaf is None and Drop.LEAF not in change.drops:
            drops = change.drops | {Drop.LEAF} if shown.leaf is None else change.drops
            change = msgspec.structs.replace(change, leaf=shown.leaf, drops=drops)
        if change.meta is not None and self._uncounted:
            count = change.meta.message_count + self._uncounted
            change = msgspec.structs.replace(change, meta=msgspec.structs.replace(change.meta, message_count=count))
        return change


def _unknown_to(meta: SessionMeta, entry: Entry) -> bool:
    """Whether an entry is newer than its session's record, which a finished append stamps with the entry's time."""
    return entry.revision == 0 and meta.updated_at < entry.timestamp
