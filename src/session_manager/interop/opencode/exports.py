"""A stored session, as a document that OpenCode imports.

Records that came from OpenCode and were not touched go out as they came. Everything else is rendered from the entries,
and the notes say so.

Formats: `1.18` is the document of `opencode export` and `opencode import` of 1.x; `2.1` is the transfer document of the
second engine; `original` is whichever of the two the session came in (1.18 for sessions that never came from
OpenCode), with its records in the very form they had.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec
from msgspec import Struct, field

from session_manager.errors import SessionNotFound
from session_manager.interop.opencode import render_v1, render_v2
from session_manager.interop.opencode.imports import LOG
from session_manager.interop.opencode.records import Generation, Record, is_v1, obj, text
from session_manager.interop.opencode.render_info import Form, exported_info, opencode_id
from session_manager.interop.opencode.sessions import ORIGIN_BYTES
from session_manager.interop.opencode.sidecar import KEY, SIDECAR, kept_in, original, remains
from session_manager.interop.opencode.v2 import user_record
from session_manager.model import (
    AssistantMessage,
    CustomMessage,
    Entry,
    FunctionResultMessage,
    JsonObject,
    SessionMeta,
    UserMessage,
    decode,
    decode_message,
)
from session_manager.store import Found, PathQuery, Store

Format = Literal["original", "1.18", "2.1"]


class Export(Struct):
    document: JsonObject
    format: Format
    verbatim: int = 0
    """Messages that went out as they came."""
    rendered: int = 0
    """Messages that were rendered from entries."""
    notes: list[str] = field(default_factory=list)
    """What is not as it was, for the person who exports."""


class Unit(Struct):
    """The entries of one message of OpenCode."""

    entries: list[Entry]
    record: Record | None = None
    """The original, when the entries are as they were imported."""
    hint: Record | None = None
    """What is left of the original of an edited message."""
    edited: bool = False


async def export_session(store: Store, session_id: str, form: Format = "original") -> Export:
    """The document of a stored session: its active path, and what a staged revert hides behind it.

    Raises SessionNotFound when there is no such session, StorageError when its path is broken.
    """
    session = await store.session(session_id)
    if session.meta is None:
        raise SessionNotFound(session_id)
    kept = obj(session.meta.metadata or {}, KEY)
    leaf = session.leaf
    if session.leaf == kept.get("leaf") and isinstance(kept.get("end"), str):
        leaf = kept["end"]
    entries: tuple[Entry, ...] = ()
    if leaf is not None:
        page = await store.path(PathQuery(session_id, leaf=leaf))
        entries = page.entries if page.found is Found.PATH else ()
    return render(session.meta, entries, form, whole_list=leaf == kept.get("end", kept.get("leaf")))


async def stored_records(store: Store, session_id: str) -> list[Record]:
    """The message list that a session was imported or mirrored from, without what was appended here since. Records
    that were edited here are as they can be rendered."""
    meta = (await store.session(session_id)).meta
    kept = obj((meta.metadata if meta else None) or {}, KEY)
    leaf = kept.get("end", kept.get("leaf"))
    if meta is None or not isinstance(leaf, str):
        return []
    page = await store.path(PathQuery(session_id, leaf=leaf))
    export = Export({}, "original")
    records: list[Record] = []
    writer = _writer_v1(meta, obj(kept, "session"), [])
    for unit in _units(page.entries, export, imported=True):
        if unit.record is not None:
            records.append(unit.record)
        elif kept.get("generation") == "v1":
            records += _rendered(unit, writer, export)
        else:
            records += _rendered(unit, render_v2.Writer(meta.session_id), export)
    return records


async def export_log(store: Store, session_id: str) -> list[JsonObject]:
    """The event log that a session was imported from, as it was; empty when it was not imported from one. Of logs
    that came over several wires, the one with the most events."""
    logs: dict[str, list[tuple[int, list[JsonObject]]]] = {}
    for entry in await store.entries(session_id):
        body = decode(entry.body) if entry.role is None else {}
        if body.get("custom_type") == LOG:
            wire, start = entry.id.split("/")[-2:]
            logs.setdefault(wire, []).append((int(start), body["data"]["events"]))
    whole = [[event for _, part in sorted(parts, key=lambda p: p[0]) for event in part] for parts in logs.values()]
    return max(whole, key=len, default=[])


def render(meta: SessionMeta, entries: Iterable[Entry], form: Format, *, whole_list: bool = True) -> Export:
    """The document of a session record and a path. `whole_list`: whether the path is all that was imported."""
    kept = obj(meta.metadata or {}, KEY)
    info = obj(kept, "session")
    generation: Generation | None = kept.get("generation") if kept else None
    if info and text(info, "id") != meta.session_id:
        info, generation = {}, None  # a copy made here: its messages are its own
    target: Form = "1.18" if form == "original" and generation in (None, "v1") else "2.1"
    if form != "original":
        target = form
    export = Export({}, form)
    units = list(_units(entries, export, imported=generation is not None))
    if target == "1.18":
        messages = _as_v1(meta, info, units, export)
    else:
        messages = _as_v2(meta, units, export, upgrade=form != "original")
    document_info = exported_info(meta, info, generation, target, messages, export.notes, upgrade=form != "original")
    if "revert" in document_info and not whole_list:
        document_info = {key: value for key, value in document_info.items() if key != "revert"}
        export.notes.append("the conversation went on here, so the revert that was staged in OpenCode is gone")
    if generation is None:
        export.notes.append("the session did not come from OpenCode: everything is rendered from the entries")
    elif export.rendered:
        export.notes.append(f"{export.rendered} messages are rendered from the entries, not as OpenCode wrote them")
    export.document = {"info": document_info, "messages": messages}
    return export


# --- grouping ---


def _units(entries: Iterable[Entry], export: Export, *, imported: bool) -> Iterator[Unit]:
    path = list(entries)
    by_id = {entry.id: entry for entry in path}
    owner: dict[str, JsonObject] = {}
    for entry in path:
        value = kept_in(entry)
        if value is not None and isinstance(value.get("entry_ids"), list) and _is_sidecar(entry):
            for id_ in value["entry_ids"]:
                owner[id_] = value
    done: set[str] = set()
    at = 0
    while at < len(path):
        entry = path[at]
        at += 1
        if entry.id in done or _is_sidecar(entry):
            continue
        value = owner.get(entry.id)
        if value is not None:
            members = [by_id[id_] for id_ in value["entry_ids"] if id_ in by_id]
            done.update(member.id for member in members)
            record = original(value, list(members))
            yield Unit(members, record, None if record else remains(value, list(members)), edited=record is None)
        elif (value := kept_in(entry)) is not None:
            record = original(value, [entry])
            yield Unit([entry], record, edited=record is None)
        elif imported and entry.origin == ORIGIN_BYTES and (record := user_record(entry)) is not None:
            yield Unit([entry], record, edited=entry.revision > 0)
        elif entry.role is None:
            export.notes.append(f"bookkeeping entry {entry.id} has no place in OpenCode")
        else:
            members = [entry]
            while entry.role == "assistant" and at < len(path):
                if path[at].role == "function_result":
                    members.append(path[at])
                elif not _is_sidecar(path[at]):
                    break
                at += 1
            yield Unit(members)


def _is_sidecar(entry: Entry) -> bool:
    return entry.role is None and decode(entry.body).get("custom_type") == SIDECAR


# --- messages ---


def _as_v1(meta: SessionMeta, info: JsonObject, units: list[Unit], export: Export) -> list[Record]:
    writer = _writer_v1(meta, info, units)
    messages = []
    for unit in units:
        if unit.record is not None and is_v1(unit.record) and not unit.edited:
            writer.saw(unit.record)
            messages.append(unit.record)
            export.verbatim += 1
        else:
            messages += _rendered(unit, writer, export)
    export.notes += writer.notes
    return messages


def _writer_v1(meta: SessionMeta, info: JsonObject, units: list[Unit]) -> render_v1.Writer:
    directory = text(info, "directory") or text(obj(info, "location"), "directory") or "/"
    writer = render_v1.Writer(meta.session_id, opencode_id(meta, info), directory, text(info, "agent", "build"))
    writer.model = _model_of_first_assistant(units)
    return writer


def _as_v2(meta: SessionMeta, units: list[Unit], export: Export, *, upgrade: bool) -> list[Record]:
    writer = render_v2.Writer(meta.session_id)
    messages = []
    for unit in units:
        if unit.record is not None and not is_v1(unit.record) and unit.record.get("type") != "usage":
            if not unit.edited:
                record = render_v2.upgraded(unit.record) if upgrade else unit.record
                if upgrade:
                    export.notes += render_v2.unavailable(record)
                export.verbatim += record == unit.record
                export.rendered += record != unit.record
            else:
                record = unit.record
                export.rendered += 1
            writer.saw(record)
            messages.append(record)
        elif unit.record is None or is_v1(unit.record):
            messages += _rendered(unit, writer, export)
    export.notes += writer.notes
    return messages


def _rendered(unit: Unit, writer: render_v1.Writer | render_v2.Writer, export: Export) -> list[Record]:
    first = unit.entries[0]
    if first.role is None:
        export.notes.append(f"bookkeeping entry {first.id} has no place in this form")
        return []
    export.rendered += 1
    hint = unit.hint if unit.hint is not None else unit.record
    messages = [(entry, decode_message(entry.body)) for entry in unit.entries if entry.role is not None]
    results = {m.function_call_id: m for _, m in messages if isinstance(m, FunctionResultMessage)}
    records: list[Record] = []
    for entry, message in messages:
        if isinstance(message, UserMessage):
            records.append(writer.user(entry, message, hint))
        elif isinstance(message, AssistantMessage):
            records.append(writer.assistant(entry, message, results, hint))
        elif isinstance(message, CustomMessage):
            records.append(writer.custom(entry, message))
        elif not isinstance(messages[0][1], AssistantMessage):
            export.notes.append(f"entry {entry.id} answers a call that is not there")
            told = CustomMessage("function_result", message.content, message.timestamp, details=message.details)
            records.append(writer.custom(entry, told))
    return records


def _model_of_first_assistant(units: list[Unit]) -> tuple[str, str]:
    for unit in units:
        if unit.entries[0].role == "assistant":
            message = decode_message(unit.entries[0].body)
            assert isinstance(message, AssistantMessage)
            return message.provider, message.model
    return "unknown", "unknown"


def as_json(document: JsonObject | list[JsonObject]) -> bytes:
    """The document as OpenCode writes files: indented by two, UTF-8."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
