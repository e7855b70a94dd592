"""Reading: everything here runs on a reader's thread, each call in one read transaction, so in one state."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple, get_args

import structlog

from session_manager.errors import BrokenPath, StorageError
from session_manager.filters import matches
from session_manager.model import Entry, Role, SessionMeta, Status
from session_manager.store import Found, ListPage, ListQuery, Order, PathPage, PathQuery, Session
from session_manager.stores.memory import take
from session_manager.stores.sqlite import rows
from session_manager.stores.sqlite.rows import ENTRY, checked
from session_manager.stores.sqlite.writer import digest
from session_manager.tree import MISSING, chain

log = structlog.get_logger("session_manager.sqlite")

STATUSES: tuple[Status, ...] = get_args(get_args(Status)[0])

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
        self._cursors: list[sqlite3.Cursor] = []

    @contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        self._db.execute("BEGIN")
        try:
            yield self._db
        finally:
            # A cursor in the middle of its rows holds on to this state of the database, and an error that somebody
            # keeps would keep the cursor: the next read would see the past.
            for cursor in self._cursors:
                cursor.close()
            self._cursors.clear()
            if self._db.in_transaction:
                self._db.execute("COMMIT")

    def _rows(self, statement: str, parameters: Sequence[Any]) -> Iterator[Any]:
        """Rows one by one, until the snapshot ends."""
        cursor = self._db.execute(statement, parameters)
        self._cursors.append(cursor)
        return cursor

    def session(self, session_id: str) -> Session:
        row = self._db.execute("SELECT meta, sum, leaf FROM session WHERE id = ?", (session_id,)).fetchone()
        return Session() if row is None else Session(rows.meta(session_id, row[0], row[1]), row[2])

    def entry(self, session_id: str, entry_id: str) -> Entry | None:
        row = self._db.execute(
            f"SELECT {ENTRY} FROM entry WHERE session = (SELECT num FROM session WHERE id = ?) AND id = ?",  # noqa: S608
            (session_id, entry_id),
        ).fetchone()
        return None if row is None else rows.entry(session_id, row)

    def entries(self, session_id: str) -> list[Entry]:
        found = self._db.execute(
            f"SELECT {ENTRY} FROM entry WHERE session = (SELECT num FROM session WHERE id = ?) ORDER BY id",  # noqa: S608
            (session_id,),
        ).fetchall()
        return [rows.entry(session_id, row) for row in found]

    def metas(self) -> list[SessionMeta]:
        found = self._db.execute("SELECT id, meta, sum FROM session WHERE meta IS NOT NULL ORDER BY id").fetchall()
        return [meta for row in found if (meta := _readable(*row)) is not None]

    def ids(self) -> list[str]:
        """The ids of all sessions of which anything is kept."""
        return [id_ for (id_,) in self._db.execute("SELECT id FROM session ORDER BY id")]

    # --- paths ---

    def path(self, query: PathQuery) -> PathPage:
        with self._snapshot() as db:
            row = db.execute("SELECT num, meta, leaf, sum FROM session WHERE id = ?", (query.session_id,)).fetchone()
            meta = None if row is None else rows.meta(query.session_id, row[1], row[3])
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
        found = self._stretch(num, segments, start, query)
        page = _taken(found, limit, query.max_bytes)
        full = limit is not None and len(page) == limit
        more = full or next(found, None) is not None
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
        """The shown entries from position `start` on. Each is checked to hang on the entry placed before it, and none
        to be missing between two of them, or behind the last."""
        shown, roles = _shown(query)
        before, before_id = -2, None
        for segment in segments:
            if segment.last < start:
                continue
            expected = max(segment.first, start)
            found = self._rows(
                f"SELECT {ENTRY}, pos FROM entry WHERE session = ? AND branch = ? AND pos BETWEEN ? AND ?"  # noqa: S608 # fixed texts
                f" AND branch IS NOT NULL {shown} ORDER BY pos",
                (num, segment.branch, expected, segment.last, *roles),
            )
            for id_, parent_id, timestamp, role, body, revision, origin, sum_, pos in found:
                entry = checked(query.session_id, id_, parent_id, timestamp, role, body, revision, origin, sum_)
                if before != pos - 1:
                    if pos > expected:
                        self._check_whole(num, segment, expected, pos - 1, query)
                    before_id = self._at(num, segments, pos - 1)
                if parent_id != before_id:
                    raise BrokenPath(query.session_id, id_, "it does not hang on the entry before it")
                before, before_id, expected = pos, id_, pos + 1
                yield entry
            if expected <= segment.last:
                self._check_whole(num, segment, expected, segment.last, query)

    def _check_whole(self, num: int, segment: _Segment, first: int, last: int, query: PathQuery) -> None:
        """That there is an entry at every position, shown or not; an index tells."""
        count = self._db.execute(
            "SELECT count(*) FROM entry WHERE session = ? AND branch = ? AND pos BETWEEN ? AND ?"
            " AND branch IS NOT NULL",
            (num, segment.branch, first, last),
        ).fetchone()[0]
        if count != last - first + 1:
            raise BrokenPath(query.session_id, query.leaf or "", f"an entry between {first} and {last} is missing")

    def _at(self, num: int, segments: list[_Segment], pos: int) -> str | None:
        """The id of the entry at a position of the path; None before the root, or where it is missing."""
        for segment in segments:
            if segment.first <= pos <= segment.last:
                row = self._db.execute(
                    "SELECT id FROM entry WHERE session = ? AND branch = ? AND pos = ? AND branch IS NOT NULL",
                    (num, segment.branch, pos),
                ).fetchone()
                return None if row is None else row[0]
        return None

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
        statement = f"SELECT {ENTRY} FROM entry WHERE session = ? AND id = ?"  # noqa: S608 # fixed texts
        found = (
            rows.entry(query.session_id, self._db.execute(statement, (num, id_)).fetchone()) for id_ in shown[start:]
        )
        page = take(((entry, len(entry.body)) for entry in found), query.limit, query.max_bytes)
        return PathPage(Found.PATH, meta, tuple(page), start + len(page) < len(shown))

    # --- lists ---

    def sessions(self, query: ListQuery) -> ListPage:
        with self._snapshot():
            rare = self._rare(query)
            found = self._sorted(query) if rare is None else self._among(rare, query)
            shown = (
                (meta, len(stored))
                for id_, stored, sum_ in found
                if (meta := _readable(id_, stored, sum_)) is not None and matches(query.metadata, meta.metadata)
            )
            limit = query.limit + 1
            page = take(shown, limit, query.max_bytes)
            full = len(page) == limit
            if full:
                page.pop()
            return ListPage(tuple(page), full or (len(page) > 0 and next(shown, None) is not None))

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

    def _sorted(self, query: ListQuery) -> Iterator[Any]:
        """Rows in order: SQLite merges the ranges of the statuses, each from an index that has that order."""
        where, parameters = _list_terms(query)
        labels = [digest(key, value) for key, value in (query.metadata or {}).items()]
        where += ["EXISTS (SELECT 1 FROM label WHERE label.digest = ? AND label.session = session.num)" for _ in labels]
        statuses = STATUSES if query.status is None else (query.status,)
        terms = " AND ".join(where)
        ranges = (
            f"SELECT {_key(query.order)}, id, meta, sum FROM session WHERE status = '{status}' AND {terms}"  # noqa: S608 # fixed texts
            for status in statuses
        )
        direction = _direction(query.order)
        found = self._rows(
            f"{' UNION ALL '.join(ranges)} ORDER BY 1 {direction}, 2 {direction}",
            (*parameters, *labels) * len(statuses),
        )
        return map(itemgetter(1, 2, 3), found)

    def _among(self, label: bytes, query: ListQuery) -> Iterator[Any]:
        """Rows in order, sorted from those that have a rare label."""
        where, parameters = _list_terms(query)
        if query.status is not None:
            where.append("status = ?")
            parameters.append(query.status)
        return self._rows(
            "SELECT id, meta, sum FROM label CROSS JOIN session ON session.num = label.session"  # noqa: S608 # fixed texts
            f" WHERE label.digest = ? AND {' AND '.join(where)} ORDER BY {_order(query.order)}",
            (label, *parameters),
        )


def _taken(found: Iterator[Entry], limit: int | None, max_bytes: int | None) -> list[Entry]:
    """`take` for entries, without a step more than it needs for each."""
    page: list[Entry] = []
    room = sys.maxsize if max_bytes is None else max_bytes
    for entry in islice(found, None if limit is None else min(limit, sys.maxsize)):
        page.append(entry)
        room -= len(entry.body)
        if room <= 0:
            break
    return page


def _shown(query: PathQuery) -> tuple[str, tuple[Any, ...]]:
    """The SQL condition of what a path query shows; empty when it shows everything."""
    if query.roles is None:
        return ("", ()) if query.include_custom else ("AND role IS NOT NULL", ())
    roles = tuple(sorted(query.roles))
    custom = " OR role IS NULL" if query.include_custom else ""
    return f"AND (role IN ({','.join('?' * len(roles))}){custom})", roles


def _list_terms(query: ListQuery) -> tuple[list[str], list[Any]]:
    where, parameters = ["status IS NOT NULL"], list[Any]()
    if query.after is not None:
        key = _key(query.order)
        where.append(f"({key}, id) {'<' if query.order.descending else '>'} (?, ?)")
        parameters += query.after
    return where, parameters


def _key(order: Order) -> str:
    return "updated_at" if order is Order.UPDATED_DESC else "created_at"


def _direction(order: Order) -> str:
    return "DESC" if order.descending else "ASC"


def _order(order: Order) -> str:
    direction = _direction(order)
    return f"{_key(order)} {direction}, id {direction}"


def _readable(session_id: str, stored: bytes, sum_: int | None) -> SessionMeta | None:
    """A record for a list, which leaves out one that is damaged rather than fail for all the others."""
    try:
        return rows.meta(session_id, stored, sum_)
    except StorageError:
        log.warning("session record left out of a list: it is damaged", session_id=session_id)
        return None
