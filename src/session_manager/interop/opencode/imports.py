"""What an import of one session would change, as a value: nothing is written here.

`plan_import` compares a session of OpenCode with what is stored under its id, and answers with one `Change` (so that a
session comes in whole or not at all) and the events that the change means. Entries that are there already stay as they
are, so that importing twice changes nothing. What a person edited here since the last import is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Struct, field

from session_manager.events import Created, Emission, MetaUpdated, StatusChanged, entry_event
from session_manager.interop.opencode.events import wire_of
from session_manager.interop.opencode.placement import Placement
from session_manager.interop.opencode.records import obj, text, whole
from session_manager.interop.opencode.sessions import (
    ORIGIN_BYTES,
    Added,
    Mapped,
    Refused,
    SourceSession,
    kept_of,
    map_session,
    metadata_of,
    session_meta,
)
from session_manager.interop.opencode.sidecar import KEY
from session_manager.model import (
    Entry,
    JsonObject,
    SessionMeta,
    decode,
    encode,
)
from session_manager.store import Change, Drop, Session, Store

LOG = "opencode.log"
"""Type of the bookkeeping entries that hold an imported event log, outside of any path."""

MIRROR = "mirror"
"""Where the metadata's book says how far a live mirror has come: `{seq, pending?}`."""

LOG_CHUNK = 200
"""Events per entry of a kept log."""


class Existing(Struct):
    """What a store holds under the session's id."""

    session: Session = field(default_factory=Session)
    entries: Mapping[str, Entry] = field(default_factory=dict)


class Plan(Struct, kw_only=True):
    """What an import would do."""

    session_id: str
    change: Change | None
    """None when all of it is there already."""
    added: list[Entry] = field(default_factory=list)
    updated: list[Entry] = field(default_factory=list)
    before: SessionMeta | None = None
    """The session record until now; None when the session is new."""
    messages: int = 0
    """Messages of the source's list."""
    unchanged: int = 0
    """Entries that were there already."""
    skipped: list[str] = field(default_factory=list)
    """What was left as it is, and why."""
    lossy: list[str] = field(default_factory=list)
    """What entries cannot show or the source had lost."""
    warnings: list[str] = field(default_factory=list)

    @property
    def created(self) -> bool:
        return self.change is not None and self.before is None

    def emissions(self) -> Iterator[Emission]:
        """The events of the change in order, to be told once it is durable."""
        if self.change is None or self.change.meta is None:
            return
        meta = self.change.meta
        shown = meta.metadata
        if self.before is None:
            yield Emission(Created.of(meta), shown)
        for entry in self.added:
            if not _is_log(entry):
                yield Emission(entry_event(meta.session_id, entry), shown)
        for entry in self.updated:
            if entry.role is not None:
                updated = entry_event(meta.session_id, entry)
                yield Emission(msgspec.structs.replace(updated, timestamp=meta.updated_at), shown)
        if self.before is not None:
            yield from _meta_events(self.before, meta)


def _is_log(entry: Entry) -> bool:
    return entry.role is None and decode(entry.body).get("custom_type") == LOG


def _meta_events(before: SessionMeta, meta: SessionMeta) -> Iterator[Emission]:
    if (before.status, before.status_reason) != (meta.status, meta.status_reason):
        changed = StatusChanged.of(meta, before.status)
        yield Emission(changed, meta.metadata)
    if (before.title, _plain(before.metadata)) != (meta.title, _plain(meta.metadata)):
        updated = MetaUpdated.of(meta)
        yield Emission(updated, meta.metadata)


def _plain(metadata: JsonObject | None) -> JsonObject:
    """Metadata without the book that is kept about the source: how far a mirror has come is no news."""
    return {key: value for key, value in (metadata or {}).items() if key != KEY}


async def existing(store: Store, session_id: str) -> Existing:
    """What a store holds of a session, all branches."""
    session = await store.session(session_id)
    if session.meta is None and session.leaf is None:
        return Existing(session)
    return Existing(session, {entry.id: entry for entry in await store.entries(session_id)})


def plan_import(source: SourceSession, stored: Existing, *, now: int, added: Added | None = None) -> Plan:
    """What bringing `source` into a store that holds `stored` would change.

    `added` is metadata for the session besides its own, such as an owner; `now` (epoch milliseconds) is only used
    where the source has no time. Raises Refused when the session cannot be kept whole.
    """
    known = obj(obj((stored.session.meta.metadata if stored.session.meta else None) or {}, KEY), "session")
    if len(source.info) == 1 and text(known, "id") == source.id:
        # A list or a log without a session record says nothing against the one that is here.
        source = msgspec.structs.replace(source, info=known)
    return plan_mapped(source, map_session(source), stored, now=now, added=added)


def plan_mapped(
    source: SourceSession,
    mapped: Mapped,
    stored: Existing,
    *,
    now: int,
    added: Added | None = None,
    mirror: JsonObject | None = None,
) -> Plan:
    """The same for a session that is mapped already. `mirror` is how far a live mirror has come; None for an import,
    after which a mirror has to begin anew if anything changed."""
    before = stored.session.meta
    kept = obj((before.metadata if before else None) or {}, KEY)
    if (before is not None or stored.entries) and not obj(kept, "session"):
        raise Refused(f"session {source.id} is here already and did not come from OpenCode")
    plan = Plan(
        session_id=source.id,
        change=None,
        before=before,
        messages=len(mapped.groups),
        lossy=mapped.lossy,
        warnings=list(source.warnings),
    )
    if mirror is None and _older(source.info, obj(kept, "session")):
        plan.unchanged = len(stored.entries)
        plan.skipped.append("the source is older than what is here")
        return plan
    place = Placement(stored.entries)
    ends: list[str | None] = [None]
    for group in mapped.groups:
        ends.append(place.put(group, ends[-1]))
    leaf, end = ends[mapped.shown], ends[-1]
    for entry in log_entries(source):
        place.put_alone(entry)
    if mirror is None and not place.news() and _is_behind(end, kept, stored.entries):
        plan.unchanged = len(stored.entries)
        plan.skipped.append("messages that are here are not in the source, and nothing in it is new")
        return plan
    plan.added, plan.updated, plan.unchanged, plan.skipped = place.added, place.updated, place.unchanged, place.skipped
    if before is None:
        meta = session_meta(source, mapped, leaf=leaf, end=end, added=added, now=now)
        if mirror is not None:
            meta = _with_mirror(meta, mirror)
    else:
        meta = _merged(before, source, mapped, place, leaf=leaf, end=end, added=added, live=mirror is not None)
        if mirror is not None or place.news():
            meta = _with_mirror(meta, mirror)
    moves = _moves_leaf(stored.session, leaf, plan)
    entries = (*place.added, *place.updated, *place.moved)
    if entries or meta != before or moves:
        drops = frozenset({Drop.LEAF} if moves and leaf is None else ())
        plan.change = Change(source.id, meta=meta, leaf=leaf if moves else None, entries=entries, drops=drops)
    return plan


def log_entries(source: SourceSession) -> Iterator[Entry]:
    """The event log of a source that was one, in bookkeeping entries that no path leads to: the list of messages does
    not hold all that a log does (what was taken back, and when things happened)."""
    log = source.log or []
    wire = wire_of(log[0]) if log else ""
    for start in range(0, len(log), LOG_CHUNK):
        body = encode({"custom_type": LOG, "data": {"events": log[start : start + LOG_CHUNK]}})
        yield Entry(f"{source.id}/log/{wire}/{start}", None, 0, None, body, 0, ORIGIN_BYTES)


def _merged(
    meta: SessionMeta,
    source: SourceSession,
    mapped: Mapped,
    place: Placement,
    *,
    leaf: str | None,
    end: str | None,
    added: Added | None,
    live: bool,
) -> SessionMeta:
    """The stored record with what is new in the source. A field that was changed here since the last import stays."""
    kept = obj(meta.metadata or {}, KEY)
    was: JsonObject = obj(kept, "session")
    extra = added if added is not None else obj(kept, "added")
    value = {**kept, **kept_of(source, leaf=leaf, end=end, added=extra)}
    if end == leaf:
        value.pop("end", None)
    plain = _plain(meta.metadata)
    if not was or plain == metadata_of(was, obj(kept, "added")):
        plain = metadata_of(source.info, extra)
    status, reason = meta.status, meta.status_reason
    if live or source.status is not None or source.info != was or place.added or place.updated:
        status, reason = mapped.status, mapped.status_reason if mapped.status != "idle" else None
    updated = whole(obj(source.info, "time"), "updated")
    new = sum(entry.role is not None for entry in place.added)
    return msgspec.structs.replace(
        meta,
        title=text(source.info, "title") if meta.title == text(was, "title") else meta.title,
        status=status,
        status_reason=reason,
        message_count=meta.message_count + new,
        updated_at=max(meta.updated_at, updated or 0),
        metadata={**plain, KEY: value},
        forked_from=meta.forked_from or text(obj(source.info, "fork"), "sessionID") or None,
    )


def _with_mirror(meta: SessionMeta, mirror: JsonObject | None) -> SessionMeta:
    book = {key: value for key, value in obj(meta.metadata or {}, KEY).items() if key != MIRROR}
    if mirror is not None:
        book[MIRROR] = mirror
    return msgspec.structs.replace(meta, metadata={**(meta.metadata or {}), KEY: book})


def _older(info: JsonObject, stored: JsonObject) -> bool:
    """Whether a session record was written before the one that is stored."""
    there, here = (whole(obj(record, "time"), "updated") for record in (info, stored))
    return there is not None and here is not None and there < here


def _is_behind(end: str | None, kept: JsonObject, stored: Mapping[str, Entry]) -> bool:
    """Whether `end` is an earlier entry of the chain that is stored."""
    at = kept.get("end", kept.get("leaf"))
    if end == at:
        return False
    if end is None:
        return at is not None
    while isinstance(at, str) and at in stored:
        if at == end:
            return True
        at = stored[at].parent_id
    return False


def _moves_leaf(session: Session, leaf: str | None, plan: Plan) -> bool:
    """Whether the active leaf goes to `leaf`, or nowhere where all was taken back. One that a person moved since the
    last import is theirs."""
    if leaf == session.leaf:
        return False
    if session.leaf is not None and session.meta is not None:
        ours = obj(session.meta.metadata or {}, KEY).get("leaf")
        if ours != session.leaf:
            plan.skipped.append(f"the active leaf was moved here to {session.leaf} and stays")
            return False
    return True
