"""The store protocol: raw access below all rules, for instances that share this store.

Some functions take a hint beside what their schemas say, and then do more, or answer with less (see `hints`).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from session_manager import door, hints
from session_manager.errors import BrokenPath
from session_manager.events import Envelope, open_envelope
from session_manager.model import Json, JsonObject, SessionMeta, Uint, WireEntry, entry_from_wire
from session_manager.outcome import Outcome, Tools
from session_manager.paging import bounded
from session_manager.store import Change, Drop, Found


class SessionIdRequest(Struct):
    session_id: str


class SessionIdHinted(SessionIdRequest):
    hint: Json = None
    packed: Json = None


class EntryIdRequest(Struct):
    session_id: str
    entry_id: str


class OkResponse(Struct):
    ok: bool


class PutMetaRequest(Struct):
    meta: Annotated[SessionMeta, Meta(description="The record, whole.")]


class ListMetasRequest(Struct):
    pass


class ListMetasHinted(ListMetasRequest):
    hint: Json = None
    packed: Json = None


class ListMetasResponse(Struct):
    metas: list[SessionMeta]


class PutEntryRequest(Struct):
    session_id: str
    entry: Annotated[WireEntry, Meta(description="The entry, whole; it replaces one of the same id.")]


class PutEntryHinted(PutEntryRequest):
    hint: Json = None


class ListEntriesResponse(Struct):
    entries: list[WireEntry]


class ActiveLeafResponse(Struct):
    entry_id: Annotated[str | None, Meta(description="The active leaf; null when there is none.")] = None


class EventEnvelope(Struct):
    trigger_type: Annotated[str, Meta(description="The type of the event, such as session::created.")]
    payload: Annotated[Json, Meta(description="The event as subscribers receive it.")]
    session_metadata: Annotated[
        JsonObject | None, Meta(description="The session's metadata at that moment, for the bindings' filters.")
    ] = None


class PublishEventsRequest(Struct):
    events: Annotated[list[EventEnvelope], Meta(description="The events of one change, in order.")]


class PublishEventsResponse(Struct):
    published: Annotated[Uint, Meta(description="How many of them were events; the others were skipped.")]


OK = OkResponse(ok=True)

HINTED_BYTES = 32 << 20
"""A page for a bridge ends before so many bytes, origins included, wherever it is asked to end: the engine carries
messages of 64 MiB, and a text that holds JSON is longer than that."""


async def get_meta(tools: Tools, request: SessionIdRequest) -> Outcome:
    return Outcome((await tools.view.session(request.session_id)).meta)


async def put_meta(tools: Tools, request: PutMetaRequest) -> Outcome:
    door.check_record(request.meta)
    return Outcome(OK, Change(request.meta.session_id, meta=request.meta))


async def delete_meta(tools: Tools, request: SessionIdRequest) -> Outcome:
    return Outcome(OK, Change(request.session_id, drops=frozenset({Drop.META})))


async def list_metas(tools: Tools, request: ListMetasHinted) -> Outcome:
    hint = hints.read(hints.ListHint, request.hint)
    if hint is not None:
        page = await tools.store.sessions(hint.query())
        packed = hints.packed_metas(page.metas) if request.packed is True else None
        metas = page.metas if packed is None else ()
        return Outcome({"metas": metas, "hinted": hints.ListShown(page.more, packed)})
    return Outcome(ListMetasResponse(await tools.store.metas()))


async def get_entry(tools: Tools, request: EntryIdRequest) -> Outcome:
    entry = await tools.view.entry(request.session_id, request.entry_id)
    return Outcome(None if entry is None else entry.wire())


async def put_entry(tools: Tools, request: PutEntryHinted) -> Outcome:
    entry = entry_from_wire(request.entry)
    hint = hints.read(hints.ChangeHint, request.hint)
    if hint is None or (hint.meta is not None and hint.meta.session_id != request.session_id):
        return Outcome(OK, Change(request.session_id, entries=(entry,)))
    for part in ({"meta": request.hint.get("meta")}, *({"entry": one} for one in request.hint.get("entries", ()))):
        door.check_sizes(part, tuple(door.PARTS))
    if hint.meta is not None:
        door.check_record(hint.meta)
    entries = (entry, *map(entry_from_wire, hint.entries))
    change = Change(request.session_id, meta=hint.meta, leaf=hint.leaf, entries=entries)
    return Outcome({"ok": True, "hinted": hints.ChangeMade()}, change)


async def list_entries(tools: Tools, request: SessionIdHinted) -> Outcome:
    hint = hints.read(hints.PathHint, request.hint)
    if hint is None:
        return Outcome({"entries": [entry.wire() for entry in await tools.store.entries(request.session_id)]})
    try:
        page = await tools.store.path(hint.query(request.session_id))
        if hint.max_bytes is not None:
            page = bounded(page, max(hint.max_bytes, HINTED_BYTES))
    except BrokenPath as error:
        return Outcome({"entries": [], "hinted": hints.PathShown(Found.PATH, broken=(error.entry_id, error.how))})
    packed = hints.packed_entries(page.entries) if request.packed is True else None
    shown = hints.PathShown(page.found, page.meta, page.more, packed=packed)
    return Outcome({"entries": [] if packed else [entry.wire() for entry in page.entries], "hinted": shown})


async def delete_entries(tools: Tools, request: SessionIdRequest) -> Outcome:
    return Outcome(OK, Change(request.session_id, drops=frozenset({Drop.ENTRIES})))


async def get_active_leaf(tools: Tools, request: SessionIdHinted) -> Outcome:
    session = await tools.view.session(request.session_id)
    if hints.read(hints.SessionHint, request.hint) is None:
        return Outcome(ActiveLeafResponse(session.leaf))
    return Outcome({"entry_id": session.leaf, "hinted": hints.SessionShown(session.meta)})


async def set_active_leaf(tools: Tools, request: EntryIdRequest) -> Outcome:
    return Outcome(OK, Change(request.session_id, leaf=request.entry_id))


async def delete_active_leaf(tools: Tools, request: SessionIdRequest) -> Outcome:
    return Outcome(OK, Change(request.session_id, drops=frozenset({Drop.LEAF})))


async def publish_events(tools: Tools, request: PublishEventsRequest) -> Outcome:
    opened = [
        open_envelope(Envelope(event.trigger_type, event.payload, event.session_metadata)) for event in request.events
    ]
    emissions = tuple(emission for emission in opened if emission is not None)
    return Outcome(PublishEventsResponse(len(emissions)), emissions=emissions)
