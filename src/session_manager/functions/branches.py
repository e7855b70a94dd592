"""Branches of a session: fork, set-active-leaf."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from session_manager.door import check_record
from session_manager.errors import EntryNotFound, SessionNotFound
from session_manager.events import Created
from session_manager.model import Entry, SessionMeta
from session_manager.outcome import Outcome, Tools, told
from session_manager.store import Change, Copied, Extent, Found, PathQuery, Store

MANY = 2000
"""Entries that are copied in one go."""


class ForkRequest(Struct):
    session_id: Annotated[str, Meta(description="The session to copy from.")]
    entry_id: Annotated[str, Meta(description="The last entry to copy; it becomes the leaf of the copy.")]
    title: Annotated[str | None, Meta(description="The title of the copy; the source's when left out.")] = None


class ForkResponse(Struct):
    session_id: Annotated[str, Meta(description="The id of the new session.")]
    meta: Annotated[SessionMeta, Meta(description="The record of the new session.")]


class SetActiveLeafRequest(Struct):
    session_id: str
    entry_id: Annotated[str, Meta(description="The entry where the active path shall end.")]


class SetActiveLeafResponse(Struct):
    active_leaf: str


async def fork(tools: Tools, request: ForkRequest) -> Outcome:
    prefix = tools.ids.prefix()
    extent = await tools.store.extent(request.session_id, request.entry_id)
    entries: tuple[Entry, ...] = ()
    if extent is None:
        entries, extent = await _copies(tools.store, request, prefix)
    now = tools.clock.now()
    meta = msgspec.structs.replace(
        extent.meta,
        session_id=tools.ids.session(),
        title=extent.meta.title if request.title is None else request.title,
        status="idle",
        status_reason=None,
        draft=None,
        forked_from=request.session_id,
        message_count=extent.messages,
        created_at=now,
        updated_at=now,
    )
    check_record(meta)
    leaf = Copied.id_at(prefix, extent.entries - 1)
    copied = None if entries else Copied(request.session_id, request.entry_id, prefix, extent.entries)
    change = Change(meta.session_id, meta=meta, leaf=leaf, entries=entries, fresh=True, copied=copied)
    return Outcome(ForkResponse(meta.session_id, meta), change, told(Created.of(meta), meta))


async def _copies(store: Store, request: ForkRequest, prefix: str) -> tuple[tuple[Entry, ...], Extent]:
    """What a store has to write that cannot copy by itself."""
    page = await store.path(PathQuery(request.session_id, leaf=request.entry_id))
    if page.found is Found.NO_SESSION or page.meta is None:
        raise SessionNotFound(request.session_id)
    if page.found is Found.NO_ENTRY:
        raise EntryNotFound(request.session_id, request.entry_id)
    copies: list[Entry] = []
    parent_id = None
    for position, entry in enumerate(page.entries):
        if position % MANY == MANY - 1:
            await asyncio.sleep(0)  # a long path lets other calls through
        id_ = Copied.id_at(prefix, position)
        copies.append(Entry(id_, parent_id, entry.timestamp, entry.role, entry.body, 0, entry.origin))
        parent_id = id_
    return tuple(copies), Extent(page.meta, len(copies), sum(copy.role is not None for copy in copies))


async def set_active_leaf(tools: Tools, request: SetActiveLeafRequest) -> Outcome:
    await tools.record(request.session_id)
    if await tools.view.entry(request.session_id, request.entry_id) is None:
        raise EntryNotFound(request.session_id, request.entry_id)
    change = Change(request.session_id, leaf=request.entry_id)
    return Outcome(SetActiveLeafResponse(request.entry_id), change)
