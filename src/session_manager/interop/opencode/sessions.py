"""A whole session of OpenCode, to a session record and a chain of entries. Pure.

The order of the message list is the order of the chain. A record's first entry has the record's own id, so that the
same session always becomes the same entries, wherever it was read from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from msgspec import Struct, field

from session_manager.door import check
from session_manager.errors import MalformedRequest
from session_manager.interop.opencode import v1, v2
from session_manager.interop.opencode.records import (
    Generation,
    Record,
    created,
    is_assistant,
    is_open,
    is_v1,
    obj,
    record_id,
    text,
    whole,
)
from session_manager.interop.opencode.sidecar import KEY, Draft
from session_manager.model import (
    AssistantMessage,
    Entry,
    Json,
    JsonObject,
    SessionMeta,
    Status,
    decode,
    decode_message,
    encode,
)

ORIGIN = {"source": "opencode"}
"""What every imported entry carries as its origin, so that a harness can tell it from its own."""

ORIGIN_BYTES = encode(ORIGIN)


class Refused(Exception):
    """A source that cannot be imported. The text says why; nothing of the source is kept."""


class SourceSession(Struct, kw_only=True):
    """One session as a source holds it."""

    info: JsonObject
    """The session record, raw; `{"id": …}` when the source has none."""
    records: Callable[[], Iterator[Record]]
    """The message list in order, read anew at each call, so that no more than one record needs to be in memory."""
    label: str = ""
    """The source's name, for messages to people."""
    generation: Generation = "v1"
    server_version: str | None = None
    status: Status | None = None
    """What a running server says the session is doing."""
    log: list[JsonObject] | None = None
    """The durable events, when the source was a log."""
    warnings: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        return text(self.info, "id")


class Group(Struct):
    """One record and its entries."""

    record_id: str
    drafts: list[Draft]


class Mapped(Struct):
    """A session in canonical form, without a place in a store."""

    groups: list[Group]
    status: Status
    status_reason: str | None
    shown: int
    """How many of the groups are on the active path; the others are kept behind it (a staged revert)."""
    lossy: list[str]


def map_record(
    record: Record, generation: Generation, *, settled: bool, overflowed: bool, lossy: list[str]
) -> list[Draft]:
    """The entries of one record of a session of that generation. Raises Refused when the record has no id or holds
    what cannot be kept."""
    if not record_id(record):
        raise Refused("a message has no id")
    try:
        # Two levels are what the record is wrapped in when it is kept.
        check({"data": {KEY: {"record": record}}})
    except MalformedRequest as refused:
        raise Refused(f"message {record_id(record)}: {refused}") from None
    if is_v1(record):
        return v1.to_entries(record, settled=settled, overflowed=overflowed, lossy=lossy)
    return v2.to_entries(record, "2.1" if generation == "2.1" else "v2", settled=settled, lossy=lossy)


def map_session(source: SourceSession) -> Mapped:
    """All records of a session. Raises Refused, naming the record, when one cannot be kept or ids clash."""
    check_info(source.info)
    lossy: list[str] = []
    groups: list[Group] = []
    may_go_on: list[tuple[int, Record]] = []
    last_assistant: Draft | None = None
    before: Record | None = None
    taken: set[str] = set()
    for record in source.records():
        if is_assistant(record):
            for index, waiting in may_go_on:
                groups[index].drafts = map_record(waiting, source.generation, settled=True, overflowed=False, lossy=[])
            may_go_on.clear()
        if before is not None and is_v1(record) and v1.overflowed_before(record) and is_assistant(before):
            groups[-1].drafts = map_record(before, source.generation, settled=True, overflowed=True, lossy=[])
        drafts = map_record(record, source.generation, settled=False, overflowed=False, lossy=lossy)
        groups.append(Group(record_id(record), drafts))
        if is_open(record):
            may_go_on.append((len(groups) - 1, record))
        if drafts[0].role == "assistant":
            last_assistant = drafts[0]
        before = record
    for group in groups:
        for draft in group.drafts:
            if draft.id in taken:
                raise Refused(f"two entries would have the id {draft.id!r}")
            taken.add(draft.id)
    if last_assistant is not None:
        # Its final form: what came after it may have changed what it was taken for.
        last_assistant = next(g.drafts[0] for g in reversed(groups) if g.drafts[0].id == last_assistant.id)
    status, reason = status_of(source, last_assistant)
    shown = shown_groups(source.info, [group.record_id for group in groups], source.generation, lossy)
    return Mapped(groups, status, reason, shown, lossy)


def check_info(info: JsonObject) -> None:
    if not text(info, "id"):
        raise Refused("the session has no id")
    try:
        check({"metadata": {KEY: {"session": info}}})
    except MalformedRequest as refused:
        raise Refused(f"session {text(info, 'id')}: {refused}") from None


def shown_groups(info: JsonObject, ids: list[str], generation: Generation, lossy: list[str]) -> int:
    """How many records are before a staged revert. The first generation hides from the message named; the second
    keeps it and hides what follows."""
    revert = obj(info, "revert")
    target = text(revert, "messageID")
    if not target or target not in ids:
        return len(ids)
    if text(revert, "partID"):
        lossy.append(f"the revert begins inside message {target}; the whole message is taken off the active path")
    return ids.index(target) + (0 if generation == "v1" else 1)


def status_of(source: SourceSession, last_assistant: Draft | None) -> tuple[Status, str | None]:
    """What the session is doing: as its server says, else by its recorded outcome, else by its last assistant."""
    if source.status is not None:
        return source.status, None
    outcome = source.info.get("outcome")
    if outcome is not None:
        named: dict[Json, Status] = {"succeeded": "done", "failed": "error", "interrupted": "idle"}
        return (named.get(outcome, "idle") if isinstance(outcome, str) else "idle"), None
    if last_assistant is None:
        return "idle", None
    message = decode_message(last_assistant.body)
    assert isinstance(message, AssistantMessage)
    if message.stop_reason == "error":
        return "error", message.error_message
    return ("done" if message.stop_reason in ("end", "length") else "idle"), None


# --- the session record ---

Added: TypeAlias = JsonObject


def metadata_of(info: JsonObject, added: Added | None) -> JsonObject:
    """The session's own metadata at the top level, then what the importing person adds. The key `opencode` is ours;
    metadata of that name stays inside the raw record."""
    own = {key: value for key, value in obj(info, "metadata").items() if key != KEY}
    return {**own, **{key: value for key, value in (added or {}).items() if key != KEY}}


def session_meta(
    source: SourceSession, mapped: Mapped, *, leaf: str | None, end: str | None, added: Added | None, now: int
) -> SessionMeta:
    """The session record for a session that is not stored yet."""
    info = source.info
    time = obj(info, "time")
    at = whole(time, "created")
    if at is None:
        at = next((t for record in source.records() if (t := created(record)) is not None), now)
    updated = whole(time, "updated")
    count = sum(draft.role is not None for group in mapped.groups for draft in group.drafts)
    fork = obj(info, "fork")
    return SessionMeta(
        session_id=source.id,
        title=text(info, "title"),
        description="",
        status=mapped.status,
        status_reason=mapped.status_reason if mapped.status != "idle" else None,
        created_at=at,
        updated_at=at if updated is None else updated,
        message_count=count,
        metadata={**metadata_of(info, added), KEY: kept_of(source, leaf=leaf, end=end, added=added)},
        forked_from=text(fork, "sessionID") or None,
    )


def kept_of(source: SourceSession, *, leaf: str | None, end: str | None, added: Added | None) -> JsonObject:
    """What is kept of the session under the key `opencode` of its metadata.

    `session` is the raw record; `leaf` is where the import left the active leaf, so that a person's own choice is
    told from it; `end`, when different, is the last entry of the list (behind a staged revert); `added` are the
    metadata that do not come from OpenCode.
    """
    value: JsonObject = {"generation": source.generation, "session": source.info, "leaf": leaf}
    if end != leaf:
        value["end"] = end
    if source.server_version or text(source.info, "version"):
        value["server_version"] = source.server_version or text(source.info, "version")
    if text(source.info, "parentID"):
        value["parent_id"] = text(source.info, "parentID")
    boundary = obj(source.info, "fork").get("boundary")
    if boundary is not None:
        value["fork_boundary"] = boundary
    if added:
        value["added"] = added
    return value


class Left(Struct, frozen=True):
    """How the last import left a session: see `kept_of`."""

    leaf: str | None
    end: str | None


def left_by_import(metadata: JsonObject | None) -> Left | None:
    """None for a session that was never imported."""
    kept = obj(metadata or {}, KEY)
    leaf, end = kept.get("leaf"), kept.get("end", kept.get("leaf"))
    if not obj(kept, "session") or not all(id_ is None or isinstance(id_, str) for id_ in (leaf, end)):
        return None
    return Left(leaf, end)


def is_imported(entry: Entry) -> bool:
    """Whether an entry came from OpenCode, edited here since or not."""
    return entry.origin is not None and decode(entry.origin) == ORIGIN
