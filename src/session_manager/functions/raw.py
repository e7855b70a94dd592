"""The store protocol: raw access below all rules, for instances that share this store."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from session_manager.events import Envelope, open_envelope
from session_manager.model import Json, JsonObject, SessionMeta, Uint, WireEntry, entry_from_wire
from session_manager.outcome import Outcome, Tools
from session_manager.store import Change, Drop


class SessionIdRequest(Struct):
    session_id: str


class EntryIdRequest(Struct):
    session_id: str
    entry_id: str


class OkResponse(Struct):
    ok: bool


class PutMetaRequest(Struct):
    meta: Annotated[SessionMeta, Meta(description="The record, whole.")]


class ListMetasRequest(Struct):
    pass


class ListMetasResponse(Struct):
    metas: list[SessionMeta]


class PutEntryRequest(Struct):
    session_id: str
    entry: Annotated[WireEntry, Meta(description="The entry, whole; it replaces one of the same id.")]


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


async def get_meta(tools: Tools, request: SessionIdRequest) -> Outcome:
    return Outcome((await tools.view.session(request.session_id)).meta)


async def put_meta(tools: Tools, request: PutMetaRequest) -> Outcome:
    return Outcome(OK, Change(request.meta.session_id, meta=request.meta))


async def delete_meta(tools: Tools, request: SessionIdRequest) -> Outcome:
    return Outcome(OK, Change(request.session_id, drops=frozenset({Drop.META})))


async def list_metas(tools: Tools, request: ListMetasRequest) -> Outcome:
    return Outcome(ListMetasResponse(await tools.store.metas()))


async def get_entry(tools: Tools, request: EntryIdRequest) -> Outcome:
    entry = await tools.view.entry(request.session_id, request.entry_id)
    return Outcome(None if entry is None else entry.wire())


async def put_entry(tools: Tools, request: PutEntryRequest) -> Outcome:
    return Outcome(OK, Change(request.session_id, entries=(entry_from_wire(request.entry),)))


async def list_entries(tools: Tools, request: SessionIdRequest) -> Outcome:
    return Outcome({"entries": [entry.wire() for entry in await tools.store.entries(request.session_id)]})


async def delete_entries(tools: Tools, request: SessionIdRequest) -> Outcome:
    return Outcome(OK, Change(request.session_id, drops=frozenset({Drop.ENTRIES})))


async def get_active_leaf(tools: Tools, request: SessionIdRequest) -> Outcome:
    return Outcome(ActiveLeafResponse((await tools.view.session(request.session_id)).leaf))


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
