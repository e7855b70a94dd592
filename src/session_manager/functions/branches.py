"""Branches of a session: fork, set-active-leaf."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from session_manager.door import check_record
from session_manager.errors import EntryNotFound, SessionNotFound
from session_manager.events import Created
from session_manager.functions.lifecycle import record
from session_manager.model import Entry, SessionMeta
from session_manager.outcome import Outcome, Tools, told
from session_manager.store import Change, Found, PathQuery

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
    page = await tools.store.path(PathQuery(request.session_id, leaf=request.entry_id))
    if page.found is Found.NO_SESSION or page.meta is None:
        raise SessionNotFound(request.session_id)
    if page.found is Found.NO_ENTRY:
        raise EntryNotFound(request.session_id, request.entry_id)
    copies: list[Entry] = []
    parent_id = None
    for count, entry in enumerate(page.entries, 1):
        if count % MANY == 0:
            await asyncio.sleep(0)  # a long path lets other calls through
        copies.append(Entry(tools.ids.entry(), parent_id, entry.timestamp, entry.role, entry.body, 0, entry.origin))
        parent_id = copies[-1].id
    now = tools.clock.now()
    meta = msgspec.structs.replace(
        page.meta,
        session_id=tools.ids.session(),
        title=page.meta.title if request.title is None else request.title,
        status="idle",
        status_reason=None,
        draft=None,
        forked_from=request.session_id,
        message_count=sum(copy.role is not None for copy in copies),
        created_at=now,
        updated_at=now,
    )
    check_record(meta)
    change = Change(meta.session_id, meta=meta, leaf=copies[-1].id, entries=tuple(copies), fresh=True)
    return Outcome(ForkResponse(meta.session_id, meta), change, told(Created.of(meta), meta))


async def set_active_leaf(tools: Tools, request: SetActiveLeafRequest) -> Outcome:
    await record(tools.view, request.session_id)
    if await tools.view.entry(request.session_id, request.entry_id) is None:
        raise EntryNotFound(request.session_id, request.entry_id)
    change = Change(request.session_id, leaf=request.entry_id)
    return Outcome(SetActiveLeafResponse(request.entry_id), change)
