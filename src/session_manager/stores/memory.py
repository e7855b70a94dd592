"""A store in this process's memory, which goes with it: the shortest one, to be read to learn what a store is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

from msgspec import Struct

from session_manager.filters import matches
from session_manager.model import Entry, SessionMeta, encode
from session_manager.store import (
    Change,
    Drop,
    Found,
    ListPage,
    ListQuery,
    PathPage,
    PathQuery,
    Session,
    View,
)
from session_manager.tree import MISSING, chain

T = TypeVar("T")


class Kept(Struct):
    """All that is kept of one session."""

    meta: SessionMeta | None = None
    leaf: str | None = None
    entries: dict[str, Entry] = {}

    def apply(self, change: Change) -> None:
        if Drop.ENTRIES in change.drops:
            self.entries.clear()
        if Drop.LEAF in change.drops:
            self.leaf = None
        if Drop.META in change.drops:
            self.meta = None
        for entry in change.entries:
            self.entries[entry.id] = entry
        if change.leaf is not None:
            self.leaf = change.leaf
        if change.meta is not None:
            self.meta = change.meta

    def is_empty(self) -> bool:
        return self.meta is None and self.leaf is None and not self.entries

    def path(self, query: PathQuery) -> PathPage:
        if self.meta is None:
            return PathPage(Found.NO_SESSION)
        if query.leaf is not None and query.leaf not in self.entries:
            return PathPage(Found.NO_ENTRY, self.meta)
        leaf = self.leaf if query.leaf is None else query.leaf
        if leaf is None:
            return PathPage(Found.NO_LEAF, self.meta)
        entries = self.entries
        ids = chain(query.session_id, leaf, lambda id_: entries[id_].parent_id if id_ in entries else MISSING)
        return page_of([entries[id_] for id_ in ids if query.shows(entries[id_].role)], query, self.meta)


def page_of(shown: list[Entry], query: PathQuery, meta: SessionMeta) -> PathPage:
    """The page of `query` from the whole path as filtered."""
    start = 0
    if query.after is not None:
        start = next((n for n, entry in enumerate(shown, 1) if entry.id == query.after), 0)
        if start == 0:
            return PathPage(Found.NOT_SHOWN, meta)
    page = take(((entry, len(entry.body)) for entry in shown[start:]), query.limit, query.max_bytes)
    return PathPage(Found.PATH, meta, tuple(page), start + len(page) < len(shown))


def take(sized: Iterable[tuple[T, int]], limit: int | None, max_bytes: int | None) -> list[T]:
    """The first items, at most `limit`, ending with the one that fills `max_bytes`; one at least, if there is any."""
    taken: list[T] = []
    room = max_bytes
    for item, size in sized:
        if len(taken) == limit or (room is not None and room <= 0):
            break
        taken.append(item)
        if room is not None:
            room -= size
    return taken


def list_page(metas: Iterable[SessionMeta], query: ListQuery) -> ListPage:
    """The page of `query` from all records, in any order."""
    order = query.order

    def position(meta: SessionMeta) -> tuple[int, bytes]:
        return order.key(meta), meta.session_id.encode()

    rows = [
        meta
        for meta in metas
        if (query.status is None or meta.status == query.status) and matches(query.metadata, meta.metadata)
    ]
    rows.sort(key=position, reverse=order.descending)
    if query.after is not None:
        after = (query.after[0], query.after[1].encode())
        rows = [row for row in rows if (position(row) < after if order.descending else position(row) > after)]
    page = take(((meta, len(encode(meta))) for meta in rows), query.limit, query.max_bytes)
    return ListPage(tuple(page), len(page) < len(rows))


class MemoryStore:
    """Everything in dictionaries; a change is durable as soon as it is made."""

    pipelines = True
    notices: tuple[str, ...] = ()

    def __init__(self, kept: dict[str, Kept] | None = None) -> None:
        self._kept = kept or {}
        self._commits = 0

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._kept

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def session(self, session_id: str) -> Session:
        kept = self._kept.get(session_id)
        return Session() if kept is None else Session(kept.meta, kept.leaf)

    async def entry(self, session_id: str, entry_id: str) -> Entry | None:
        kept = self._kept.get(session_id)
        return None if kept is None else kept.entries.get(entry_id)

    async def entries(self, session_id: str) -> list[Entry]:
        kept = self._kept.get(session_id, Kept())
        return sorted(kept.entries.values(), key=lambda entry: entry.id.encode())

    async def metas(self) -> list[SessionMeta]:
        metas = [kept.meta for kept in self._kept.values() if kept.meta is not None]
        return sorted(metas, key=lambda meta: meta.session_id.encode())

    async def ids(self) -> list[str]:
        return sorted(self._kept, key=str.encode)

    async def path(self, query: PathQuery) -> PathPage:
        return self._kept.get(query.session_id, Kept()).path(query)

    async def sessions(self, query: ListQuery) -> ListPage:
        return list_page((kept.meta for kept in self._kept.values() if kept.meta is not None), query)

    def ahead(self) -> View:
        return self

    def apply(self, change: Change) -> None:
        kept = self._kept.setdefault(change.session_id, Kept())
        kept.apply(change)
        if kept.is_empty():
            del self._kept[change.session_id]

    def commit(self, view: View, change: Change) -> Awaitable[int]:
        self.apply(change)
        self._commits += 1
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.set_result(self._commits)
        return done

    async def settled(self, view: View, session_id: str) -> None:
        pass
