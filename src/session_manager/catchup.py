"""What subscribers have been told, and telling them the difference when something may have been missed.

An instance that hears of changes from another one remembers, per session, what its subscribers must believe by now.
After a gap it compares that with the store and tells what differs, as events with the stored times. A subscriber that
keeps the highest revision of each entry ends up with what is stored; it may hear something twice, and never misses a
state. What is remembered is bounded: sessions and entries that were told of longest ago are forgotten first, and what
is forgotten counts as never told.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct

from session_manager.events import (
    Created,
    Deleted,
    Emission,
    Event,
    MessageAdded,
    MessageUpdated,
    MetaUpdated,
    StatusChanged,
    entry_event,
)
from session_manager.model import Entry, JsonObject, SessionMeta, Status, encode
from session_manager.store import Store

SESSIONS, ENTRIES = 10_000, 50_000
"""How many sessions and entries are remembered."""

SKEW = 600_000
"""Milliseconds by which the clocks of two instances may differ: an entry that is so much older than what was told for
sure counts as told."""

ATTEMPTS = 5
"""How often a session is read that is told of while it is read; then whatever may be outdated is left out."""

GROWING = frozenset({Created, MessageAdded, MessageUpdated})
"""Events that are not outdated by another of their kind, for the highest revision counts."""

Labels = tuple[str, str, JsonObject | None]


class Known(Struct, omit_defaults=True):
    """What subscribers believe of a session; None where nobody told them."""

    status: tuple[Status, str | None] | None = None
    labels: Labels | None = None
    created_at: int | None = None
    updated_at: int = -(2**63)
    sure: int = -(2**63)
    """Until when they are sure to have been told everything; something of later may be missing."""
    metadata: JsonObject | None = None
    perhaps_created_at: int | None = None
    """Of which session of this id they may have been told that it came into being."""


class Noted(Struct, eq=False):
    """Which kinds of events of a session there were."""

    session_id: str
    kinds: set[type[Event]]


class Told:
    """Keeps account of events, in the order in which subscribers get them."""

    def __init__(self, sessions: int = SESSIONS, entries: int = ENTRIES) -> None:
        self._most_sessions, self._most_entries = sessions, entries
        self.sessions: OrderedDict[str, Known] = OrderedDict()
        self._entries: OrderedDict[str, dict[str, int]] = OrderedDict()
        """Revisions of entries, by session; the session told of last is the last."""
        self._count = 0
        self.floor = -(2**63)
        """Sessions that are not remembered and were last changed before this may have been told and forgotten."""
        self.changes: dict[str, int] = {}
        """Sessions noted since somebody took them out of this, with the count of changes at the last one of each."""
        self.count_of_changes = 0
        self._noting: list[Noted] = []

    def learn(self, metas: Collection[SessionMeta]) -> None:
        """Takes the records of a store as told: for a start, when nobody has been told anything else."""
        for meta in sorted(metas, key=lambda meta: meta.updated_at):
            self.put(meta.session_id, _known(meta))

    def note(self, emissions: Sequence[Emission]) -> None:
        """Notes events that go out to subscribers."""
        for emission in emissions:
            event = emission.event
            for noted in self._noting:
                if noted.session_id == event.session_id:
                    noted.kinds.add(type(event))
            if isinstance(event, Deleted):
                self.sessions.pop(event.session_id, None)
                self._forget_entries(event.session_id)
                self._changed(event.session_id)
                continue
            known = self.sessions.get(event.session_id)
            if known is None:
                known = Known(sure=self.floor)
            known.metadata = emission.metadata
            self._note(known, event, emission.metadata)
            self.put(event.session_id, known)

    def _note(self, known: Known, event: Event, metadata: JsonObject | None) -> None:
        at = known.updated_at
        if isinstance(event, Created):
            known.status, known.labels = (event.status, None), (event.title, event.description, metadata)
            known.created_at = at = event.created_at
        elif isinstance(event, StatusChanged):
            known.status, at = (event.status, event.status_reason), event.timestamp
        elif isinstance(event, MetaUpdated):
            known.labels, at = (event.title, event.description, event.metadata), event.timestamp
        elif isinstance(event, MessageAdded):
            self._put_entry(event.session_id, event.entry_id, 0)
            at = event.timestamp
        elif isinstance(event, MessageUpdated):
            self._put_entry(event.session_id, event.entry_id, event.revision)
            at = event.timestamp
        known.updated_at = max(known.updated_at, at)

    def ended(self, emissions: Sequence[Emission]) -> Sequence[Emission]:
        """The same events of a session; and before one that comes into being, the end of another of its id, if that is
        still believed to be there."""
        for position, emission in enumerate(emissions):
            event = emission.event
            if isinstance(event, Deleted):
                break
            if isinstance(event, Created):
                known = self.sessions.get(event.session_id)
                if known is not None and _other(known, event.created_at):
                    gone = Deleted(session_id=event.session_id, timestamp=event.created_at)
                    return [*emissions[:position], Emission(gone, known.metadata), *emissions[position:]]
        return emissions

    def _changed(self, session_id: str) -> None:
        self.count_of_changes += 1
        self.changes[session_id] = self.count_of_changes

    def put(self, session_id: str, known: Known) -> None:
        self._changed(session_id)
        self.sessions[session_id] = known
        self.sessions.move_to_end(session_id)
        if len(self.sessions) > self._most_sessions:
            forgotten_id, forgotten = self.sessions.popitem(last=False)
            self._changed(forgotten_id)
            self.floor = max(self.floor, forgotten.updated_at)

    def settle(self, unsettled: Collection[str], until: int | None = None) -> list[str]:
        """Takes sessions out of `changes` that were noted until a count of changes, but for those that are `unsettled`,
        and returns them: what was noted of them has arrived, and nothing was missed before it."""
        settled = [
            session_id
            for session_id, count in self.changes.items()
            if (until is None or count <= until) and session_id not in unsettled
        ]
        for session_id in settled:
            del self.changes[session_id]
            known = self.sessions.get(session_id)
            if known is not None:
                known.sure = known.updated_at
        return settled

    def _put_entry(self, session_id: str, entry_id: str, revision: int) -> None:
        entries = self._entries.setdefault(session_id, {})
        self._entries.move_to_end(session_id)
        if entry_id not in entries:
            self._count += 1
        entries[entry_id] = max(revision, entries.get(entry_id, 0))
        while self._count > self._most_entries:
            oldest_id = next(iter(self._entries))
            if oldest_id != session_id:
                self._forget_entries(oldest_id)
            else:  # it is alone: its older half goes
                self._entries[session_id] = dict(itertools.islice(entries.items(), len(entries) // 2, None))
                self._count = len(self._entries[session_id])

    def _forget_entries(self, session_id: str) -> None:
        self._count -= len(self._entries.pop(session_id, ()))

    def knows(self, session_id: str, entry: Entry) -> bool:
        return self._entries.get(session_id, {}).get(entry.id, -1) >= entry.revision

    # --- differences ---

    def changed(self, metas: Collection[SessionMeta]) -> list[str]:
        """The sessions that are not as told, oldest change first, by their records alone: those that are gone, too."""
        differing = [meta.session_id for meta in sorted(metas, key=lambda meta: meta.updated_at) if self.differs(meta)]
        there = {meta.session_id for meta in metas}
        return differing + [session_id for session_id in self.sessions if session_id not in there]

    def differs(self, meta: SessionMeta) -> bool:
        """Whether a session is not as told, by its record alone."""
        known = self.sessions.get(meta.session_id)
        if known is None:
            return meta.updated_at > self.floor
        return _other(known, meta.created_at) or (known.status, known.labels, known.updated_at) != (
            _status(meta),
            _labels(meta),
            meta.updated_at,
        )

    async def difference(
        self, store: Store, session_id: str, entry_ids: Collection[str] | None = None
    ) -> tuple[Emission, ...]:
        """What subscribers have to be told of a session: of all its entries, or of some. Raises StorageError."""
        for _ in range(ATTEMPTS):
            with self.noting(session_id) as noted:
                meta = (await store.session(session_id)).meta
                entries: list[Entry] = []
                if meta is not None and entry_ids is None:
                    entries = await store.entries(session_id)
                elif meta is not None:
                    read = [await store.entry(session_id, entry_id) for entry_id in entry_ids or ()]
                    entries = [entry for entry in read if entry is not None]
            stale = bool(noted.kinds - GROWING)
            if not stale:
                break
        emissions = self._events(session_id, meta, entries, everything=entry_ids is None)
        if not stale:
            return tuple(emissions)
        if Deleted in noted.kinds or any(isinstance(emission.event, Deleted) for emission in emissions):
            return ()
        return tuple(emission for emission in emissions if type(emission.event) in GROWING)

    @contextlib.contextmanager
    def noting(self, session_id: str) -> Iterator[Noted]:
        """What is noted of a session from now on."""
        noted = Noted(session_id, set())
        self._noting.append(noted)
        try:
            yield noted
        finally:
            self._noting.remove(noted)

    def _events(
        self, session_id: str, meta: SessionMeta | None, entries: list[Entry], *, everything: bool
    ) -> list[Emission]:
        known = self.sessions.get(session_id)
        if meta is None:
            if known is None:
                return []
            return [Emission(Deleted(session_id=session_id, timestamp=known.updated_at), known.metadata)]
        emissions: list[Emission] = []
        gone = known is not None and _other(known, meta.created_at)
        if known is not None and gone:
            emissions.append(Emission(Deleted(session_id=session_id, timestamp=meta.created_at), known.metadata))
            known = None
        events: list[Event] = []
        unborn = known is None or (
            known.created_at is None and (known.perhaps_created_at is not None or meta.created_at > self.floor)
        )
        if unborn:  # as far as subscribers are sure to know
            events.append(Created.of(meta))
        if known is None:
            known = Known((meta.status, None), _labels(meta))
        if known.labels != _labels(meta):
            events.append(MetaUpdated.of(meta))
        if known.status != _status(meta):
            events.append(StatusChanged.of(meta, known.status[0] if known.status else meta.status))
        since = -(2**63) if unborn else known.sure - SKEW
        for entry in sorted(entries, key=lambda entry: entry.timestamp):
            recent = not everything or entry.timestamp >= since or entry.revision > 0
            if recent and (gone or not self.knows(session_id, entry)):
                events.append(entry_event(session_id, entry))
        if everything and not events:
            known.updated_at = known.sure = max(known.updated_at, meta.updated_at)
        return [*emissions, *(Emission(event, meta.metadata) for event in events)]


def gist(event: Event) -> tuple[object, ...]:
    """What an event tells, but for when: two of the same gist make subscribers believe the same."""
    if isinstance(event, Created):
        return Created, event.created_at
    if isinstance(event, MessageAdded):
        return MessageAdded, event.entry_id
    if isinstance(event, MessageUpdated):
        return MessageUpdated, event.entry_id, event.revision
    if isinstance(event, StatusChanged):
        return StatusChanged, event.status, event.status_reason
    if isinstance(event, MetaUpdated):
        return MetaUpdated, event.title, event.description, encode(event.metadata)
    return (Deleted,)


def _other(known: Known, created_at: int) -> bool:
    """Whether the session was deleted and there is another of its id now."""
    believed = known.perhaps_created_at if known.created_at is None else known.created_at
    return believed is not None and believed != created_at


def _known(meta: SessionMeta) -> Known:
    return Known(_status(meta), _labels(meta), meta.created_at, meta.updated_at, meta.updated_at, meta.metadata)


def _status(meta: SessionMeta) -> tuple[Status, str | None]:
    return meta.status, meta.status_reason


def _labels(meta: SessionMeta) -> Labels:
    return meta.title, meta.description, meta.metadata
