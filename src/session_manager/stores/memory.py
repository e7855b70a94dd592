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
    Extent,
    Found,
    ListPage,
    ListQuery,
    PathPage,
    PathQuery,
    Session,
    Tell,
    View,
)
from session_manager.stores.index import Line, Records

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

    def rehangs(self, change: Change) -> bool:
        """Whether a change takes entries away or hangs one elsewhere, so that paths which were walked may be others."""
        if Drop.ENTRIES in change.drops:
            return True
        olds = [(self.entries.get(entry.id), entry) for entry in change.entries]
        return any(old is not None and old.parent_id != new.parent_id for old, new in olds)

    def is_empty(self) -> bool:
        return self.meta is None and self.leaf is None and not self.entries

    def path(self, query: PathQuery, line: Line | None = None) -> PathPage:
        """The page of `query`; `line` is a line over `entries`, if somebody keeps one."""
        if self.meta is None:
            return PathPage(Found.NO_SESSION)
        if query.leaf is not None and query.leaf not in self.entries:
            return PathPage(Found.NO_ENTRY, self.meta)
        leaf = self.leaf if query.leaf is None else query.leaf
        if leaf is None:
            return PathPage(Found.NO_LEAF, self.meta)
        line = Line(self.entries) if line is None else line
        end, start = line.lead_to(query.session_id, leaf), 0
        if query.after is not None:
            after = line.place(query.after)
            if after is None or after > end or not query.shows(self.entries[query.after].role):
                return PathPage(Found.NOT_SHOWN, self.meta)
            start = after + 1
        path = (self.entries[line.ids[place]] for place in range(start, end + 1))
        shown = (entry for entry in path if query.shows(entry.role))
        page = take(((entry, len(entry.body)) for entry in shown), query.limit, query.max_bytes)
        return PathPage(Found.PATH, self.meta, tuple(page), next(shown, None) is not None)


def take(sized: Iterable[tuple[T, int]], limit: int | None, max_bytes: int | None) -> list[T]:
    """The first items, at most `limit`, ending with the one that fills `max_bytes`; one at least, if there is any."""
    taken: list[T] = []
    room = max_bytes
    for item, size in sized:  # none is drawn from `sized` but what is taken: who asks it for more goes on behind these
        taken.append(item)
        if room is not None:
            room -= size
        if len(taken) == limit or (room is not None and room <= 0):
            break
    return taken


def is_listed(meta: SessionMeta, query: ListQuery) -> bool:
    return (query.status is None or meta.status == query.status) and matches(query.metadata, meta.metadata)


def list_page(metas: Iterable[SessionMeta], query: ListQuery) -> ListPage:
    """The page of `query` from all records, in any order."""
    order = query.order

    def position(meta: SessionMeta) -> tuple[int, bytes]:
        return order.key(meta), meta.session_id.encode()

    rows = [meta for meta in metas if is_listed(meta, query)]
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
        self._lines: dict[str, Line] = {}
        """Of sessions whose path was read."""
        self._records = Records({id_: kept.meta for id_, kept in self._kept.items() if kept.meta is not None})
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
        kept = self._kept.get(query.session_id)
        if kept is None:
            return PathPage(Found.NO_SESSION)
        line = self._lines.get(query.session_id)
        if line is None:
            line = self._lines[query.session_id] = Line(kept.entries)
        return kept.path(query, line)

    async def extent(self, session_id: str, entry_id: str) -> Extent | None:
        return None

    async def sessions(self, query: ListQuery) -> ListPage:
        metas = (self._kept[id_].meta for id_ in self._records.behind(query.order, query.after))
        rows = (meta for meta in metas if meta is not None and is_listed(meta, query))
        page = take(((meta, len(encode(meta))) for meta in rows), query.limit, query.max_bytes)
        return ListPage(tuple(page), next(rows, None) is not None)

    def ahead(self) -> View:
        return self

    def apply(self, change: Change) -> None:
        kept = self._kept.setdefault(change.session_id, Kept())
        if change.session_id in self._lines and kept.rehangs(change):
            del self._lines[change.session_id]
        before = kept.meta
        kept.apply(change)
        self._records.replace(change.session_id, before, kept.meta)
        if kept.is_empty():
            del self._kept[change.session_id]
            self._lines.pop(change.session_id, None)

    def commit(self, view: View, change: Change, durable: Tell = None, early: Tell = None) -> Awaitable[int]:
        self.apply(change)
        self._commits += 1
        if durable is not None:
            durable()
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.set_result(self._commits)
        return done

    async def settled(self, view: View, session_id: str) -> None:
        pass
