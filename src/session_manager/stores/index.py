"""Indexes over what is held in memory, so that a page costs the page and not the session or the store."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping

from session_manager.model import Entry, SessionMeta
from session_manager.store import Order
from session_manager.tree import MISSING, chain

_Place = tuple[int, bytes]
"""The time that counts, and the session id as UTF-8."""


class Line:
    """The path that was asked for last, from its root on, with the place of each entry on it. Another path is walked
    only as far as it leaves this one."""

    __slots__ = ("_entries", "_places", "ids")

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = entries
        self.ids: list[str] = []
        self._places: dict[str, int] = {}

    def forget(self) -> None:
        """To be called when an entry was taken away or hung elsewhere."""
        self.ids.clear()
        self._places.clear()

    def place(self, entry_id: str) -> int | None:
        return self._places.get(entry_id)

    def lead_to(self, session_id: str, leaf: str) -> int:
        """Makes the line one that the path to `leaf` lies on, and returns the leaf's place. Raises BrokenPath."""
        place = self._places.get(leaf)
        if place is not None:
            return place
        beside = chain(session_id, leaf, self._parent_beside)
        parent = self._entries[beside[0]].parent_id
        shared = 0 if parent is None else self._places[parent] + 1
        for id_ in self.ids[shared:]:
            del self._places[id_]
        self.ids[shared:] = beside
        self._places.update(zip(beside, range(shared, len(self.ids)), strict=True))
        return len(self.ids) - 1

    def _parent_beside(self, entry_id: str) -> object:
        """The parent that is not on the line; None where the line is reached, or a root."""
        entry = self._entries.get(entry_id)
        if entry is None:
            return MISSING
        return None if entry.parent_id in self._places else entry.parent_id


class Records:
    """The sessions that have a record, in the orders of lists."""

    def __init__(self, metas: Mapping[str, SessionMeta]) -> None:
        self._created, self._updated = (
            sorted((order.key(meta), id_.encode()) for id_, meta in metas.items())
            for order in (Order.CREATED_ASC, Order.UPDATED_DESC)
        )

    def replace(self, session_id: str, before: SessionMeta | None, after: SessionMeta | None) -> None:
        id_ = session_id.encode()
        for places, order in ((self._created, Order.CREATED_ASC), (self._updated, Order.UPDATED_DESC)):
            if before is not None and after is not None and order.key(before) == order.key(after):
                continue
            if before is not None:
                del places[bisect_left(places, (order.key(before), id_))]
            if after is not None:
                insort(places, (order.key(after), id_))

    def behind(self, order: Order, after: tuple[int, str] | None) -> Iterator[str]:
        """Session ids in an order, from the one behind `after` on."""
        places = self._updated if order is Order.UPDATED_DESC else self._created
        at = None if after is None else (after[0], after[1].encode())
        if order.descending:
            row = range((len(places) if at is None else bisect_left(places, at)) - 1, -1, -1)
        else:
            row = range(0 if at is None else bisect_right(places, at), len(places))
        return (places[number][1].decode() for number in row)
