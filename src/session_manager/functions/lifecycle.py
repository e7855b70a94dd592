"""Sessions as such: create, ensure, get, list, set-meta, set-draft, set-status, delete."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from session_manager.door import check_record
from session_manager.errors import InvalidRequest
from session_manager.events import Created, Deleted, MetaUpdated, StatusChanged
from session_manager.model import JsonObject, SessionMeta, Status, Uint, decode, encode
from session_manager.outcome import Outcome, Tools, told
from session_manager.paging import MAX_PAGE_BYTES, list_cursor, list_position
from session_manager.store import EVERYTHING, Change, ListQuery, Order

WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
"""The characters of Unicode's property White_Space. Python's own idea of it is wider (it strips U+001C to U+001F)."""

NewTitle = Annotated[str | None, Meta(description="What people call the session; empty when left out.")]
NewDescription = Annotated[str | None, Meta(description="What the session is about; empty when left out.")]
NewMetadata = Annotated[
    JsonObject | None, Meta(description="The application's own labels, which lists and bindings can filter on.")
]
MetaReply = Annotated[SessionMeta, Meta(description="The session record.")]


class CreateRequest(Struct):
    title: NewTitle = None
    description: NewDescription = None
    metadata: NewMetadata = None


class CreateResponse(Struct):
    session_id: str
    meta: Annotated[SessionMeta, Meta(description="The record of the new session.")]


class EnsureRequest(Struct):
    session_id: Annotated[str, Meta(description="The id to have; any text but the empty one.")]
    title: NewTitle = None
    description: NewDescription = None
    metadata: NewMetadata = None


class EnsureResponse(Struct):
    session_id: str
    meta: Annotated[SessionMeta, Meta(description="The record, new or as it was.")]
    created: Annotated[bool, Meta(description="Whether this call made the session.")]


class GetRequest(Struct):
    session_id: str


class GetResponse(Struct):
    meta: MetaReply


class ListRequest(Struct):
    limit: Annotated[Uint | None, Meta(description="Most records on a page; brought into the configured bounds.")] = (
        None
    )
    cursor: Annotated[str | None, Meta(description="The next_cursor of the page before.")] = None
    status: Annotated[Status | None, Meta(description="Only sessions of this status.")] = None
    metadata: Annotated[
        JsonObject | None, Meta(description="Only sessions whose metadata has all of these keys with equal values.")
    ] = None
    order: Annotated[
        Order | None, Meta(description="By what and in which direction; most recently updated first when left out.")
    ] = None


class ListResponse(Struct, omit_defaults=True):
    sessions: list[SessionMeta]
    next_cursor: Annotated[str | None, Meta(description="Present exactly when more sessions follow.")] = None


class SetMetaRequest(Struct):
    session_id: str
    title: Annotated[str | None, Meta(description="The new title; kept when left out.")] = None
    description: Annotated[str | None, Meta(description="The new description; kept when left out.")] = None
    metadata: Annotated[
        JsonObject | None, Meta(description="New labels, which replace all of the old ones; kept when left out.")
    ] = None


class SetMetaResponse(Struct):
    meta: Annotated[SessionMeta, Meta(description="The record as it is now.")]


class SetDraftRequest(Struct):
    session_id: str
    draft: Annotated[str | None, Meta(description="The text to park; blank or left out clears it.")] = None


class SetDraftResponse(Struct):
    draft: Annotated[str | None, Meta(description="The draft as it is now.")] = None


class SetStatusRequest(Struct):
    session_id: str
    status: Annotated[Status, Meta(description="The status to show.", extra_json_schema={"wrap": "allOf"})]
    reason: Annotated[str | None, Meta(description="Why; dropped when the status is idle.")] = None


class SetStatusResponse(Struct):
    status: Status
    previous_status: Status


class DeleteRequest(Struct):
    session_id: str


class DeleteResponse(Struct):
    deleted: Annotated[bool, Meta(description="Whether there was such a session.")]


def new_session(
    tools: Tools, session_id: str, title: str | None, description: str | None, metadata: JsonObject | None
) -> SessionMeta:
    now = tools.clock.now()
    meta = SessionMeta(
        session_id=session_id,
        title=title or "",
        description=description or "",
        status="idle",
        created_at=now,
        updated_at=now,
        message_count=0,
        metadata=own(metadata),
    )
    check_record(meta)
    return meta


def own(metadata: JsonObject | None) -> JsonObject | None:
    """A copy that no caller holds on to."""
    return None if metadata is None else decode(encode(metadata))


async def create(tools: Tools, request: CreateRequest) -> Outcome:
    meta = new_session(tools, tools.ids.session(), request.title, request.description, request.metadata)
    change = Change(meta.session_id, meta=meta)
    return Outcome(CreateResponse(meta.session_id, meta), change, told(Created.of(meta), meta))


async def ensure(tools: Tools, request: EnsureRequest) -> Outcome:
    if not request.session_id:
        raise InvalidRequest("`session_id` must not be empty")
    meta = (await tools.view.session(request.session_id)).meta
    if meta is not None:
        return Outcome(EnsureResponse(request.session_id, meta, created=False))
    meta = new_session(tools, request.session_id, request.title, request.description, request.metadata)
    change = Change(meta.session_id, meta=meta)
    return Outcome(EnsureResponse(meta.session_id, meta, created=True), change, told(Created.of(meta), meta))


async def get(tools: Tools, request: GetRequest) -> Outcome:
    meta = (await tools.view.session(request.session_id)).meta
    return Outcome(None if meta is None else GetResponse(meta))


async def list_(tools: Tools, request: ListRequest) -> Outcome:
    order = request.order or Order.UPDATED_DESC
    query = ListQuery(
        order=order,
        after=None if request.cursor is None else list_position(order, request.cursor),
        status=request.status,
        metadata=request.metadata,
        limit=tools.limits.of(request.limit),
        max_bytes=MAX_PAGE_BYTES,
    )
    page = await tools.store.sessions(query)
    return Outcome(ListResponse(list(page.metas), list_cursor(order, page.metas[-1]) if page.more else None))


async def set_meta(tools: Tools, request: SetMetaRequest) -> Outcome:
    meta = await tools.record(request.session_id)
    given: JsonObject = {}
    if request.title is not None:
        given["title"] = request.title
    if request.description is not None:
        given["description"] = request.description
    if request.metadata is not None:
        given["metadata"] = own(request.metadata)
    if not given:
        return Outcome(SetMetaResponse(meta))
    now = tools.clock.now()
    meta = msgspec.structs.replace(meta, updated_at=now, **given)
    check_record(meta)
    event = MetaUpdated.of(meta)
    return Outcome(SetMetaResponse(meta), Change(meta.session_id, meta=meta), told(event, meta))


async def set_draft(tools: Tools, request: SetDraftRequest) -> Outcome:
    meta = await tools.record(request.session_id)
    draft = request.draft if request.draft and request.draft.strip(WHITE_SPACE) else None
    meta = msgspec.structs.replace(meta, draft=draft)
    check_record(meta)
    return Outcome(SetDraftResponse(draft), Change(meta.session_id, meta=meta))


async def set_status(tools: Tools, request: SetStatusRequest) -> Outcome:
    meta = await tools.record(request.session_id)
    reason = None if request.status == "idle" else request.reason
    reply = SetStatusResponse(request.status, meta.status)
    if (request.status, reason) == (meta.status, meta.status_reason):
        return Outcome(reply)
    now = tools.clock.now()
    changed = msgspec.structs.replace(meta, status=request.status, status_reason=reason, updated_at=now)
    check_record(changed)
    event = StatusChanged.of(changed, meta.status)
    return Outcome(reply, Change(meta.session_id, meta=changed), told(event, changed))


async def delete(tools: Tools, request: DeleteRequest) -> Outcome:
    meta = (await tools.view.session(request.session_id)).meta
    if meta is None:
        return Outcome(DeleteResponse(deleted=False))
    event = Deleted(session_id=meta.session_id, timestamp=tools.clock.now())
    return Outcome(DeleteResponse(deleted=True), Change(meta.session_id, drops=EVERYTHING), told(event, meta))
