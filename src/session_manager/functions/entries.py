"""Entries of a session: append, append-many, update-message, messages, get-message."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from session_manager.bulk import body, payload
from session_manager.errors import (
    DetailsNotSupported,
    EmptyBatch,
    EntryNotFound,
    InvalidCursor,
    InvalidEntryKind,
    InvalidRequest,
    ParentNotFound,
    SessionNotFound,
)
from session_manager.events import Emission, MessageAdded, MessageUpdated
from session_manager.model import (
    AssistantMessage,
    ContentBlock,
    CustomMessage,
    CustomPayload,
    Entry,
    FunctionResultMessage,
    Json,
    JsonObject,
    Message,
    Role,
    SessionMeta,
    Uint,
    Uint64,
    Usage,
    WireEntry,
    encode,
    role_of,
    stored,
)
from session_manager.outcome import Outcome, Tools, told
from session_manager.paging import MAX_PAGE_BYTES, bounded, path_cursor, path_position
from session_manager.store import Change, Found, PathQuery, Session, View

Origin = Annotated[
    JsonObject | None, Meta(description="What the caller wants to say of where this comes from; any JSON object.")
]


MANY = 500
"""Messages of a batch that are made into entries in one go."""


class AppendRequest(Struct):
    session_id: str
    message: Annotated[Message | None, Meta(description="A message; either this or `custom`.")] = None
    custom: Annotated[CustomPayload | None, Meta(description="A bookkeeping record; either this or `message`.")] = None
    parent_id: Annotated[str | None, Meta(description="The entry to append to; the active leaf when left out.")] = None
    entry_id: Annotated[str | None, Meta(description="The caller's own id, which makes the call safe to repeat.")] = (
        None
    )
    origin: Origin = None


class AppendResponse(Struct):
    entry_id: str
    timestamp: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1, extra_json_schema={"format": "int64"})]
    parent_id: str | None = None


class AppendManyRequest(Struct):
    session_id: str
    messages: Annotated[list[Message], Meta(description="The messages, oldest first; at least one.")]
    parent_id: Annotated[str | None, Meta(description="The entry to append to; the active leaf when left out.")] = None
    origin: Origin = None


class AppendManyResponse(Struct):
    entry_ids: list[str]
    last_entry_id: str


class UpdateMessageRequest(Struct):
    session_id: str
    entry_id: str
    content: Annotated[list[ContentBlock], Meta(description="The new content, whole.")]
    details: Annotated[Json, Meta(description="New details, whole; kept when left out or null.")] = None
    usage: Annotated[Usage | None, Meta(description="New usage of an assistant message; kept when left out.")] = None
    expected_revision: Annotated[
        Uint64 | None, Meta(description="Update only if the entry is still at this revision.")
    ] = None
    origin: Annotated[
        JsonObject | None, Meta(description="Goes out with the event; what is stored keeps its own origin.")
    ] = None


class UpdateMessageResponse(Struct):
    updated: bool
    """False when the expected revision was not the current one."""
    revision: Annotated[Uint64, Meta(description="The current revision.")]


class MessagesRequest(Struct):
    session_id: str
    limit: Annotated[Uint | None, Meta(description="Most items on a page; brought into the configured bounds.")] = None
    cursor: Annotated[str | None, Meta(description="The next_cursor of the page before.")] = None
    roles: Annotated[
        list[Role] | None, Meta(description="Only messages of these roles; all of them when left out.")
    ] = None
    from_entry_id: Annotated[
        str | None, Meta(description="Read the path that ends in this entry instead of the active one.")
    ] = None
    after_entry_id: Annotated[
        str | None, Meta(description="Start right behind this entry; a cursor has precedence.")
    ] = None
    include_custom: Annotated[
        bool | None, Meta(description="Show bookkeeping records too, unless roles are given.")
    ] = None


class MessageItem(Struct, omit_defaults=True):
    entry_id: str
    message: Message | None = None
    custom: CustomPayload | None = None
    origin: Annotated[JsonObject | None, Meta(description="The stored origin of a message.")] = None


class MessagesResponse(Struct, omit_defaults=True):
    messages: list[MessageItem]
    next_cursor: Annotated[str | None, Meta(description="Present exactly when more items follow.")] = None


class GetMessageRequest(Struct):
    session_id: str
    entry_id: str


class GetMessageResponse(Struct):
    entry: WireEntry


async def append(tools: Tools, request: AppendRequest) -> Outcome:
    session = await tools.view.session(request.session_id)
    meta = session.meta
    if meta is None:
        raise SessionNotFound(request.session_id)
    if (request.message is None) == (request.custom is None):
        raise InvalidRequest("exactly one of `message` and `custom` must be given")
    if request.entry_id is not None:
        known = await tools.view.entry(request.session_id, request.entry_id)
        if known is not None:
            return Outcome(AppendResponse(known.id, known.timestamp, known.parent_id))
    parent_id = await parent(tools.view, session, request.session_id, request.parent_id)
    now = tools.clock.now()
    entry_id = tools.ids.entry() if request.entry_id is None else request.entry_id
    origin = None if request.origin is None else encode(request.origin)
    if request.message is not None:
        entry = Entry(entry_id, parent_id, now, role_of(request.message), await body(request.message), 0, origin)
    else:
        entry = Entry(entry_id, parent_id, now, None, encode(request.custom), 0, origin)
    meta = msgspec.structs.replace(meta, updated_at=now, message_count=counted(meta, int(request.message is not None)))
    event = MessageAdded(
        session_id=request.session_id,
        entry_id=entry_id,
        parent_id=parent_id,
        message=request.message,
        custom=request.custom,
        origin=request.origin,
        timestamp=now,
    )
    change = Change(request.session_id, meta=meta, leaf=entry_id, entries=(entry,), fresh=request.entry_id is None)
    told_ = told(event, meta, await payload(event, entry.body))
    return Outcome(AppendResponse(entry_id, now, parent_id), change, told_)


async def append_many(tools: Tools, request: AppendManyRequest) -> Outcome:
    session = await tools.view.session(request.session_id)
    meta = session.meta
    if meta is None:
        raise SessionNotFound(request.session_id)
    if not request.messages:
        raise EmptyBatch(request.session_id)
    parent_id = await parent(tools.view, session, request.session_id, request.parent_id)
    now = tools.clock.now()
    origin = None if request.origin is None else encode(request.origin)
    meta = msgspec.structs.replace(meta, updated_at=now, message_count=counted(meta, len(request.messages)))
    ids = tools.ids.entries(len(request.messages))
    entries: list[Entry] = []
    emissions: list[Emission] = []
    for count, (id_, message) in enumerate(zip(ids, request.messages, strict=True), 1):
        if count % MANY == 0:
            await asyncio.sleep(0)  # a long batch lets other calls through
        content = encode(message) if type(message.content) is list else await body(message)
        entries.append(Entry(id_, parent_id, now, role_of(message), content, 0, origin))
        event = MessageAdded(request.session_id, id_, now, parent_id, message, origin=request.origin)
        emissions.append(Emission(event, meta.metadata))
        parent_id = id_
    reply = AppendManyResponse(ids, ids[-1])
    change = Change(request.session_id, meta=meta, leaf=ids[-1], entries=tuple(entries), fresh=True)
    return Outcome(reply, change, tuple(emissions))


def counted(meta: SessionMeta, more: int) -> int:
    """The new count of messages; a raw write may have left one that has no room above it."""
    return min(meta.message_count + more, 2**64 - 1)


async def parent(view: View, session: Session, session_id: str, asked: str | None) -> str | None:
    """Where an append hangs: the entry asked for, else the active leaf. Raises ParentNotFound."""
    if asked is None:
        return session.leaf
    if await view.entry(session_id, asked) is None:
        raise ParentNotFound(session_id, asked)
    return asked


async def update_message(tools: Tools, request: UpdateMessageRequest) -> Outcome:
    meta = await tools.record(request.session_id)
    entry = await tools.view.entry(request.session_id, request.entry_id)
    if entry is None:
        raise EntryNotFound(request.session_id, request.entry_id)
    if entry.role is None:
        raise InvalidEntryKind(request.session_id, request.entry_id, "is a bookkeeping record, not a message")
    if request.expected_revision is not None and request.expected_revision != entry.revision:
        return Outcome(UpdateMessageResponse(updated=False, revision=entry.revision))
    message = edited(entry, request)
    now = tools.clock.now()
    if entry.revision == 2**64 - 1:
        raise InvalidEntryKind(request.session_id, request.entry_id, "has the greatest revision that there is")
    entry = msgspec.structs.replace(entry, body=await body(message), revision=entry.revision + 1)
    meta = msgspec.structs.replace(meta, updated_at=now)
    event = MessageUpdated(
        session_id=request.session_id,
        entry_id=entry.id,
        message=message,
        revision=entry.revision,
        origin=request.origin,
        timestamp=now,
    )
    change = Change(request.session_id, meta=meta, entries=(entry,))
    return Outcome(
        UpdateMessageResponse(updated=True, revision=entry.revision),
        change,
        told(event, meta, await payload(event, entry.body)),
    )


def edited(entry: Entry, request: UpdateMessageRequest) -> Message:
    """The stored message with what the request replaces. Raises InvalidEntryKind or DetailsNotSupported."""
    message = entry.outline()
    new: dict[str, Any] = {"content": request.content}
    if request.usage is not None:
        if not isinstance(message, AssistantMessage):
            raise InvalidEntryKind(request.session_id, entry.id, f"is of role {entry.role!r}, which has no usage")
        new["usage"] = request.usage
    if request.details is not None:
        if not isinstance(message, FunctionResultMessage | CustomMessage):
            raise DetailsNotSupported(request.session_id, entry.id, role_of(message))
        new["details"] = request.details
    return msgspec.structs.replace(message, **new)


async def messages(tools: Tools, request: MessagesRequest) -> Outcome:
    after = request.after_entry_id
    bad_cursor: InvalidCursor | None = None
    if request.cursor is not None:
        try:
            after = path_position(request.cursor)
        except InvalidCursor as error:
            after, bad_cursor = None, error
    query = PathQuery(
        session_id=request.session_id,
        leaf=request.from_entry_id,
        roles=None if request.roles is None else frozenset(request.roles),
        include_custom=bool(request.include_custom) and request.roles is None,
        after=after,
        limit=tools.limits.of(request.limit),
        max_bytes=MAX_PAGE_BYTES,
    )
    page = bounded(await tools.store.path(query), MAX_PAGE_BYTES)
    if page.found is Found.NO_SESSION:
        raise SessionNotFound(request.session_id)
    if page.found is Found.NO_ENTRY:
        raise EntryNotFound(request.session_id, request.from_entry_id or "")
    if page.found is Found.NO_LEAF:
        return Outcome({"messages": []})
    if bad_cursor is not None:
        raise bad_cursor
    if page.found is Found.NOT_SHOWN:
        raise InvalidCursor(f"entry {after!r} is not on the path as filtered")
    reply: JsonObject = {"messages": [item(entry) for entry in page.entries]}
    if page.more:
        reply["next_cursor"] = path_cursor(page.entries[-1].id)
    return Outcome(reply)


def item(entry: Entry) -> JsonObject:
    """An entry as a page shows it: a MessageItem, with the stored JSON as it is."""
    if entry.role is None:
        return {"entry_id": entry.id, "custom": stored(entry.body)}
    shown: JsonObject = {"entry_id": entry.id, "message": stored(entry.body)}
    if entry.origin is not None:
        shown["origin"] = stored(entry.origin)
    return shown


async def get_message(tools: Tools, request: GetMessageRequest) -> Outcome:
    entry = await tools.view.entry(request.session_id, request.entry_id)
    return Outcome(None if entry is None else {"entry": entry.wire()})
