"""Reading: everything here runs on a reader's thread, each call in one read transaction, so in one state."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import structlog

from session_manager.errors import BrokenPath, StorageError
from session_manager.filters import matches
from session_manager.model import Entry, Role, SessionMeta, decode_meta
from session_manager.store import Found, ListPage, ListQuery, Order, PathPage, PathQuery, Session
from session_manager.stores.memory import take
from session_manager.stores.sqlite.writer import digest
from session_manager.tree import MISSING, chain

log = structlog.get_logger("session_manager.sqlite")

ENTRY = "id, parent_id, timestamp, role, body, revision, origin"
"""The columns of an Entry, in its order."""

RARE = 1000
"""A metadata filter that at most so many sessions match is answered from them; a commoner one from the sorted list."""


class _Segment(NamedTuple):
    """A stretch of one branch that is part of a path."""

    branch: int
    first: int
    last: int


class Reader:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    @contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        self._db.execute("BEGIN")
        try:
            yield self._db
        finally:
            self._db.execute("COMMIT")

    def session(self, session_id: str) -> Session:
        row = self._db.execute("SELECT meta, leaf FROM session WHERE id = ?", (session_id,)).fetchone()
        return Session() if row is None else Session(_meta(session_id, row[0]), row[1])

    def entry(self, session_id: str, entry_id: str) -> Entry | None:
        row = self._db.execute(
            f"SELECT {ENTRY} FROM entry WHERE session = (SELECT num FROM session WHERE id = ?) AND id = ?",  # noqa: S608
            (session_id, entry_id),
        ).fetchone()
        return None if row is None else Entry(*row)

    def entries(self, session_id: str) -> list[Entry]:
        rows = self._db.execute(
            f"SELECT {ENTRY} FROM entry WHERE session = (SELECT num FROM session WHERE id = ?) ORDER BY id",  # noqa: S608
            (session_id,),
        )
        return [Entry(*row) for row in rows]

    def metas(self) -> list[SessionMeta]:
        rows = self._db.execute("SELECT id, meta FROM session WHERE meta IS NOT NULL ORDER BY id")
        return [meta for id_, stored in rows if (meta := _readable(id_, stored)) is not None]

    # --- paths ---

    def path(self, query: PathQuery) -> PathPage:
        with self._snapshot() as db:
            row = db.execute("SELECT num, meta, leaf FROM session WHERE id = ?", (query.session_id,)).fetchone()
            meta = None if row is None else _meta(query.session_id, row[1])
            if meta is None:
                return PathPage(Found.NO_SESSION)
            num, leaf = row[0], row[2] if query.leaf is None else query.leaf
            if leaf is None:
                return PathPage(Found.NO_LEAF, meta)
            end = self._place(num, leaf)
            if end is None and query.leaf is not None:
                return PathPage(Found.NO_ENTRY, meta)
            if end is None or end[0] is None:
                return self._walk(num, leaf, query, meta)
            return self._indexed(num, end[0], end[1], query, meta)

    def _place(self, num: int, entry_id: str) -> tuple[int, int, Role | None] | None:
        row: tuple[int, int, Role | None] | None = self._db.execute(
            "SELECT branch, pos, role FROM entry WHERE session = ? AND id = ?", (num, entry_id)
        ).fetchone()
        return row

    def _indexed(self, num: int, branch: int, pos: int, query: PathQuery, meta: SessionMeta) -> PathPage:
        segments = self._segments(num, branch, pos, query.session_id)
        start = 0
        if query.after is not None:
            after = self._place(num, query.after)
            if (
                after is None
                or not query.shows(after[2])
                or not any(s.branch == after[0] and s.first <= after[1] <= s.last for s in segments)
            ):
                return PathPage(Found.NOT_SHOWN, meta)
            start = after[1] + 1
        limit = None if query.limit is None else query.limit + 1
        rows = self._stretch(num, segments, start, query)
        page = take(((entry, len(entry.body)) for entry in rows), limit, query.max_bytes)
        full = limit is not None and len(page) == limit
        more = full or next(rows, None) is not None
        if full:
            page.pop()
        return PathPage(Found.PATH, meta, tuple(page), more)

    def _segments(self, num: int, branch: int, pos: int, session_id: str) -> list[_Segment]:
        """The stretches of the path that ends at a place, from the root on: one per branch it runs through."""
        segments: list[_Segment] = []
        at: int | None = branch
        while at is not None:
            row = self._db.execute(
                "SELECT parent, start FROM branch WHERE session = ? AND branch = ?", (num, at)
            ).fetchone()
            if row is None or (row[0] is not None and row[0] >= at):
                raise StorageError(f"the index of session {session_id!r} is damaged")
            segments.append(_Segment(at, row[1], pos))
            at, pos = row[0], row[1] - 1
        segments.reverse()
        return segments

    def _stretch(self, num: int, segments: list[_Segment], start: int, query: PathQuery) -> Iterator[Entry]:
        """The shown entries from position `start` on, checked to hang together."""
        shown, roles = _shown(query)
        before: tuple[int, str] | None = None
        for segment in segments:
            if segment.last < start:
                continue
            expected = max(segment.first, start)
            rows = self._db.execute(
                f"SELECT pos, {ENTRY} FROM entry WHERE session = ? AND branch = ? AND pos BETWEEN ? AND ?"  # noqa: S608 # fixed texts
                f" AND branch IS NOT NULL {shown} ORDER BY pos",
                (num, segment.branch, expected, segment.last, *roles),
            )
            for pos, *columns in rows:
                entry = Entry(*columns)
                if (not shown and pos != expected) or (
                    before is not None and before[0] == pos - 1 and entry.parent_id != before[1]
                ):
                    raise BrokenPath(query.session_id, entry.id, "an entry before it is missing")
                before, expected = (pos, entry.id), pos + 1
                yield entry
            if not shown and expected <= segment.last:
                raise BrokenPath(query.session_id, before[1] if before else "", "an entry behind it is missing")

    def _walk(self, num: int, leaf: str, query: PathQuery, meta: SessionMeta) -> PathPage:
        """A path that the index does not know: from link to link."""
        links: dict[str, tuple[str | None, Role | None]] = {
            id_: (parent_id, role)
            for id_, parent_id, role in self._db.execute(
                "SELECT id, parent_id, role FROM entry WHERE session = ?", (num,)
            )
        }
        ids = chain(query.session_id, leaf, lambda id_: links[id_][0] if id_ in links else MISSING)
        shown = [id_ for id_ in ids if query.shows(links[id_][1])]
        start = 0
        if query.after is not None:
            if query.after not in shown:
                return PathPage(Found.NOT_SHOWN, meta)
            start = shown.index(query.after) + 1
        rows = (
            Entry(*self._db.execute(f"SELECT {ENTRY} FROM entry WHERE session = ? AND id = ?", (num, id_)).fetchone())  # noqa: S608
            for id_ in shown[start:]
        )
        page = take(((entry, len(entry.body)) for entry in rows), query.limit, query.max_bytes)
        return PathPage(Found.PATH, meta, tuple(page), start + len(page) < len(shown))

    # --- lists ---

    def sessions(self, query: ListQuery) -> ListPage:
        with self._snapshot():
            rare = self._rare(query)
            rows = self._sorted(query) if rare is None else self._among(rare, query)
            limit = query.limit + 1
            page = take(
                (
                    (meta, len(stored))
                    for id_, stored in rows
                    if (meta := _readable(id_, stored)) is not None and matches(query.metadata, meta.metadata)
                ),
                limit,
                query.max_bytes,
            )
            full = len(page) == limit
            if full:
                page.pop()
            return ListPage(tuple(page), full or (len(page) > 0 and self._goes_on(rows, query)))

    def _goes_on(self, rows: Iterator[tuple[str, bytes]], query: ListQuery) -> bool:
        return any(
            (meta := _readable(id_, stored)) is not None and matches(query.metadata, meta.metadata)
            for id_, stored in rows
        )

    def _rare(self, query: ListQuery) -> bytes | None:
        """The digest of the label that fewest sessions have, if few enough."""
        rarest: tuple[int, bytes] | None = None
        for key, value in (query.metadata or {}).items():
            label = digest(key, value)
            count = self._db.execute(
                "SELECT count(*) FROM (SELECT 1 FROM label WHERE digest = ? LIMIT ?)", (label, RARE + 1)
            ).fetchone()[0]
            if rarest is None or count < rarest[0]:
                rarest = (count, label)
        return rarest[1] if rarest is not None and rarest[0] <= RARE else None

    def _sorted(self, query: ListQuery) -> Iterator[tuple[str, bytes]]:
        """Rows in order, from an index that has that order."""
        where, parameters = _list_terms(query)
        labels = [digest(key, value) for key, value in (query.metadata or {}).items()]
        where += ["EXISTS (SELECT 1 FROM label WHERE label.digest = ? AND label.session = session.num)" for _ in labels]
        return iter(
            self._db.execute(
                f"SELECT id, meta FROM session WHERE {' AND '.join(where)} ORDER BY {_order(query.order)}",  # noqa: S608 # fixed texts
                (*parameters, *labels),
            )
        )

    def _among(self, label: bytes, query: ListQuery) -> Iterator[tuple[str, bytes]]:
        """Rows in order, sorted from those that have a rare label."""
        where, parameters = _list_terms(query)
        return iter(
            self._db.execute(
                "SELECT id, meta FROM label CROSS JOIN session ON session.num = label.session"  # noqa: S608 # fixed texts
                f" WHERE label.digest = ? AND {' AND '.join(where)} ORDER BY {_order(query.order)}",
                (label, *parameters),
            )
        )


def _shown(query: PathQuery) -> tuple[str, tuple[Any, ...]]:
    """The SQL condition of what a path query shows; empty when it shows everything."""
    if query.roles is None:
        return ("", ()) if query.include_custom else ("AND role IS NOT NULL", ())
    roles = tuple(sorted(query.roles))
    custom = " OR role IS NULL" if query.include_custom else ""
    return f"AND (role IN ({','.join('?' * len(roles))}){custom})", roles


def _list_terms(query: ListQuery) -> tuple[list[str], list[Any]]:
    where, parameters = ["meta IS NOT NULL"], list[Any]()
    if query.status is not None:
        where.append("status = ?")
        parameters.append(query.status)
    if query.after is not None:
        key = _key(query.order)
        where.append(f"({key}, id) {'<' if query.order.descending else '>'} (?, ?)")
        parameters += query.after
    return where, parameters


def _key(order: Order) -> str:
    return "updated_at" if order is Order.UPDATED_DESC else "created_at"


def _order(order: Order) -> str:
    direction = "DESC" if order.descending else "ASC"
    return f"{_key(order)} {direction}, id {direction}"


def _meta(session_id: str, stored: bytes | None) -> SessionMeta | None:
    if stored is None:
        return None
    try:
        return decode_meta(stored)
    except msgspec.MsgspecError:
        raise StorageError(f"the record of session {session_id!r} cannot be read") from None


def _readable(session_id: str, stored: bytes) -> SessionMeta | None:
    """A record for a list, which leaves out one that cannot be read rather than fail for all the others."""
    try:
        return _meta(session_id, stored)
    except StorageError:
        log.warning("session record left out of a list: it cannot be read", session_id=session_id)
        return None
