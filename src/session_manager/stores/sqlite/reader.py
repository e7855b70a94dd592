"""Reading: everything here runs on a reader's thread, each call in one read transaction, so in one state."""

from __future__ import annotations

import sqlite3
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

from session_manager.errors import BrokenPath
from session_manager.model import Entry, Role, SessionMeta
from session_manager.store import Extent, Found, ListPage, ListQuery, PathPage, PathQuery, Session
from session_manager.stores.memory import take
from session_manager.stores.sqlite import forks, lists, rows
from session_manager.stores.sqlite.forks import Fork, Stretch
from session_manager.stores.sqlite.rows import ENTRY, checked
from session_manager.tree import MISSING, chain

PART = 128
"""Positions of a fork's path that are looked up in one go at first, and twice as many each further time: where many of
them have rows of their own, a page does not pay for the whole path."""

UNKNOWN = object()


class _Path(NamedTuple):
    """The way to a place of a session."""

    session: int
    fork: Fork | None
    """What the session is a fork of."""
    stretches: list[Stretch]
    """From the root on, as if the session shared none of them."""

    def holds(self, branch: int | None, pos: int) -> bool:
        """Whether a place of the session is on the way; one that has no place is not."""
        return branch is not None and any(
            branch == one.branch and one.first <= pos <= one.last for one in self.stretches
        )

    def branch_at(self, pos: int) -> int | None:
        """None before the root."""
        index = bisect_right(self.stretches, pos, key=lambda one: one.first) - 1
        return None if index < 0 else self.stretches[index].branch


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
        row = self._own(session_id, entry_id)
        return self._shared(session_id, entry_id) if row is None else rows.entry(session_id, row)

    def _own(self, session_id: str, entry_id: str) -> Any:
        return self._db.execute(
            f"SELECT {ENTRY} FROM entry WHERE session = (SELECT num FROM session WHERE id = ?) AND id = ?",  # noqa: S608
            (session_id, entry_id),
        ).fetchone()

    def _shared(self, session_id: str, entry_id: str) -> Entry | None:
        """An entry that a fork has without a row of its own."""
        with self._snapshot() as db:
            fork = self._fork(session_id)
            pos = None if fork is None else fork.pos_of(entry_id)
            if fork is None or pos is None:
                return None
            row = self._own(session_id, entry_id)
            if row is not None:  # by now
                return rows.entry(session_id, row)
            columns = forks.at(db, fork, pos)
            return None if columns is None else fork.entry_at(pos, checked(session_id, entry_id, *columns[1:]))

    def _fork(self, session_id: str) -> Fork | None:
        row = self._db.execute("SELECT num FROM session WHERE id = ?", (session_id,)).fetchone()
        return None if row is None else forks.fork_of(self._db, row[0])

    def entries(self, session_id: str) -> list[Entry]:
        with self._snapshot() as db:
            own = db.execute(
                f"SELECT {ENTRY} FROM entry WHERE session = (SELECT num FROM session WHERE id = ?) ORDER BY id",  # noqa: S608
                (session_id,),
            ).fetchall()
            found = [rows.entry(session_id, row) for row in own]
            fork = self._fork(session_id)
            if fork is not None:
                shared = forks.inherited(db, fork)
                found += [fork.entry_at(pos, checked(session_id, fork.id_at(pos), *row[1:])) for pos, row in shared]
                found.sort(key=lambda entry: entry.id.encode())
            return found

    def metas(self) -> list[SessionMeta]:
        found = self._db.execute("SELECT id, meta, sum FROM session WHERE meta IS NOT NULL ORDER BY id").fetchall()
        return [meta for row in found if (meta := lists.readable(*row)) is not None]

    def ids(self) -> list[str]:
        """The ids of all sessions of which anything is kept."""
        return [id_ for (id_,) in self._db.execute("SELECT id FROM session ORDER BY id")]

    # --- paths ---

    def path(self, query: PathQuery) -> PathPage:
        with self._snapshot() as db:
            known = self._recorded(query.session_id)
            if known is None:
                return PathPage(Found.NO_SESSION)
            num, meta, active, fork = known
            leaf = active if query.leaf is None else query.leaf
            if leaf is None:
                return PathPage(Found.NO_LEAF, meta)
            end = self._place(num, fork, leaf)
            if end is None and query.leaf is not None:
                return PathPage(Found.NO_ENTRY, meta)
            if end is None or end[0] is None:
                return self._walk(num, fork, leaf, query, meta)
            path = _Path(num, fork, forks.branches(db, num, end[0], end[1]))
            return self._indexed(path, query, meta)

    def _recorded(self, session_id: str) -> tuple[int, SessionMeta, str | None, Fork | None] | None:
        """Number, record and leaf of a session, and what it is a fork of; None when it has no record."""
        row = self._db.execute(
            "SELECT num, leaf, meta, sum, fork.session, source, branch, last, prefix"
            " FROM session LEFT JOIN fork ON fork.session = num WHERE id = ?",
            (session_id,),
        ).fetchone()
        meta = None if row is None else rows.meta(session_id, row[2], row[3])
        return None if meta is None else (row[0], meta, row[1], None if row[4] is None else Fork(*row[4:]))

    def extent(self, session_id: str, entry_id: str) -> Extent | None:
        with self._snapshot() as db:
            known = self._recorded(session_id)
            if known is None:
                return None
            num, meta, _, fork = known
            end = self._place(num, fork, entry_id)
            if end is None or end[0] is None or end[1] + 1 < forks.SHARED_FROM:
                return None
            if forks.depth(db, num) >= forks.DEEPEST:
                return None
            messages = 0
            own = forks.branches(db, num, end[0], end[1])
            for stretch in forks.path(db, own, fork, 0, end[1]):
                entries, with_role = db.execute(
                    "SELECT count(*), count(role) FROM entry WHERE session = ? AND branch = ? AND pos BETWEEN ? AND ?"
                    " AND branch IS NOT NULL",
                    stretch,
                ).fetchone()
                if entries != stretch.last - stretch.first + 1:
                    return None
                messages += with_role
            return Extent(meta, end[1] + 1, messages)

    def _place(self, num: int, fork: Fork | None, entry_id: str) -> tuple[int, int, Any] | None:
        """Branch, position and role; the role of what a fork shares is UNKNOWN."""
        row: tuple[int, int, Any] | None = self._db.execute(
            "SELECT branch, pos, role FROM entry WHERE session = ? AND id = ?", (num, entry_id)
        ).fetchone()
        if row is None and fork is not None and (pos := fork.pos_of(entry_id)) is not None:
            return 0, pos, UNKNOWN
        return row

    def _role(self, path: _Path, place: tuple[int, int, Any]) -> Role | None:
        _, pos, role = place
        if role is UNKNOWN and path.fork is not None:
            _, _, _, role, *_ = forks.at(self._db, path.fork, pos) or (None,) * 4
        found: Role | None = role
        return found

    def _indexed(self, path: _Path, query: PathQuery, meta: SessionMeta) -> PathPage:
        start = 0
        if query.after is not None:
            after = self._place(path.session, path.fork, query.after)
            if after is None or not path.holds(after[0], after[1]) or not query.shows(self._role(path, after)):
                return PathPage(Found.NOT_SHOWN, meta)
            start = after[1] + 1
        limit = None if query.limit is None else query.limit + 1
        found = self._stretch(path, start, query)
        page = _taken(found, limit, query.max_bytes)
        full = limit is not None and len(page) == limit
        more = full or next(found, None) is not None
        if full:
            page.pop()
        return PathPage(Found.PATH, meta, tuple(page), more)

    def _stretch(self, path: _Path, start: int, query: PathQuery) -> Iterator[Entry]:
        """The shown entries from position `start` on. Each is checked to hang on the entry placed before it, and none
        to be missing between two of them, or behind the last."""
        shown, roles = _shown(query)
        before, before_id = -2, None
        for stretch in self._stretches(path, start):
            shares = path.fork if stretch.session != path.session else None
            expected = stretch.first
            if shares is not None or before_id is UNKNOWN:
                before = -2
            found = self._rows(
                f"SELECT {ENTRY}, pos FROM entry WHERE session = ? AND branch = ? AND pos BETWEEN ? AND ?"  # noqa: S608 # fixed texts
                f" AND branch IS NOT NULL {shown} ORDER BY pos",
                (stretch.session, stretch.branch, expected, stretch.last, *roles),
            )
            for id_, parent_id, timestamp, role, body, revision, origin, sum_, pos in found:
                entry = checked(query.session_id, id_, parent_id, timestamp, role, body, revision, origin, sum_)
                if before != pos - 1:
                    if pos > expected:
                        self._check_whole(stretch, expected, pos - 1, query)
                    before_id = UNKNOWN if shares is not None else self._at(path, pos - 1)
                if parent_id != before_id and before_id is not UNKNOWN:
                    raise BrokenPath(query.session_id, id_, "it does not hang on the entry before it")
                before, before_id, expected = pos, id_, pos + 1
                yield entry if shares is None else shares.entry_at(pos, entry)
            if shares is not None:
                before_id = UNKNOWN  # it has another id where it comes from
            if expected <= stretch.last:
                self._check_whole(stretch, expected, stretch.last, query)

    def _check_whole(self, stretch: Stretch, first: int, last: int, query: PathQuery) -> None:
        """That there is an entry at every position, shown or not; an index tells."""
        count = self._db.execute(
            "SELECT count(*) FROM entry WHERE session = ? AND branch = ? AND pos BETWEEN ? AND ?"
            " AND branch IS NOT NULL",
            (stretch.session, stretch.branch, first, last),
        ).fetchone()[0]
        if count != last - first + 1:
            raise BrokenPath(query.session_id, query.leaf or "", f"an entry between {first} and {last} is missing")

    def _stretches(self, path: _Path, start: int) -> Iterator[Stretch]:
        """The path from position `start` on, with the sessions whose rows it really is."""
        end, width = path.stretches[-1].last, PART
        if path.fork is None:
            width = end + 1
        while start <= end:
            yield from forks.path(self._db, path.stretches, path.fork, start, start + width - 1)
            start, width = start + width, 2 * width

    def _at(self, path: _Path, pos: int) -> str | None:
        """The id of the entry at a position of the path; None before the root, or where it is missing."""
        branch = path.branch_at(pos)
        if path.fork is not None and branch == 0 and pos <= path.fork.last:
            return path.fork.id_at(pos)  # whether or not it has a row of its own
        row = self._db.execute(
            "SELECT id FROM entry WHERE session = ? AND branch = ? AND pos = ? AND branch IS NOT NULL",
            (path.session, branch, pos),
        ).fetchone()
        return None if row is None else row[0]

    def _walk(self, num: int, fork: Fork | None, leaf: str, query: PathQuery, meta: SessionMeta) -> PathPage:
        """A path that the index does not know: from link to link."""
        links: dict[str, tuple[str | None, Role | None]] = {
            id_: (parent_id, role)
            for id_, parent_id, role in self._db.execute(
                "SELECT id, parent_id, role FROM entry WHERE session = ?", (num,)
            )
        }
        if fork is not None:
            roles = forks.inherited(self._db, fork, "role")
            links.update((fork.id_at(pos), (fork.parent_at(pos), role)) for pos, (role,) in roles)
        ids = chain(query.session_id, leaf, lambda id_: links[id_][0] if id_ in links else MISSING)
        shown = [id_ for id_ in ids if query.shows(links[id_][1])]
        start = 0
        if query.after is not None:
            if query.after not in shown:
                return PathPage(Found.NOT_SHOWN, meta)
            start = shown.index(query.after) + 1
        found = (self._linked(num, fork, id_, query) for id_ in shown[start:])
        page = take(((entry, len(entry.body)) for entry in found), query.limit, query.max_bytes)
        return PathPage(Found.PATH, meta, tuple(page), start + len(page) < len(shown))

    def _linked(self, num: int, fork: Fork | None, id_: str, query: PathQuery) -> Entry:
        statement = f"SELECT {ENTRY} FROM entry WHERE session = ? AND id = ?"  # noqa: S608 # fixed texts
        row = self._db.execute(statement, (num, id_)).fetchone()
        if row is None and fork is not None and (pos := fork.pos_of(id_)) is not None:
            _, _, *columns = forks.at(self._db, fork, pos)
            return fork.entry_at(pos, checked(query.session_id, id_, None, *columns))
        return rows.entry(query.session_id, row)

    # --- lists ---

    def sessions(self, query: ListQuery) -> ListPage:
        with self._snapshot():
            return lists.page(self._rows, query)


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
