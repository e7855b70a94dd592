"""Forks that share the rows of the session they come from.

A fork of a long path holds no copies. It says where its path comes from, and the ids that its entries have: a prefix
and their position. Of the positions on branch 0 that it shares, those that have a row of its own are that row; the
others are what the source has there. Before a source changes a shared row, each fork gets what was there as a row of
its own (`keep`). A source that is deleted leaves what its forks still need under its number (`trim`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from session_manager.model import Entry
from session_manager.store import Copied
from session_manager.stores.sqlite import rows
from session_manager.stores.sqlite.failures import OfOneSession
from session_manager.stores.sqlite.rows import ENTRY

SHARED_FROM = 100
"""A shorter path is copied: that costs little, and nobody has to look after it later."""

DEEPEST = 24
"""Most forks of forks that are looked through; the next one is a copy."""

_INSERT = f"INSERT INTO entry (session, {ENTRY}, branch, pos, seq) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?)"  # noqa: S608 # fixed texts


class Fork(NamedTuple):
    """A row of `fork`."""

    session: int
    source: int
    branch: int
    """Of the source, on which the shared path ends."""
    last: int
    """The last position that is shared."""
    prefix: str

    def id_at(self, pos: int) -> str:
        return Copied.id_at(self.prefix, pos)

    def parent_at(self, pos: int) -> str | None:
        return self.id_at(pos - 1) if pos else None

    def pos_of(self, entry_id: str) -> int | None:
        """Where a shared entry is; None for any other."""
        digits = entry_id.removeprefix(self.prefix)
        try:
            pos = int(digits, 16)
        except ValueError:
            return None
        return pos if 0 <= pos <= self.last and self.id_at(pos) == entry_id else None

    def entry_at(self, pos: int, entry: Entry) -> Entry:
        """A source's entry as the fork has it."""
        return Entry(self.id_at(pos), self.parent_at(pos), entry.timestamp, entry.role, entry.body, 0, entry.origin)

    def row_at(self, pos: int, columns: Sequence[Any]) -> tuple[Any, ...]:
        """Columns of ENTRY of a source as those of a row of the fork. What was damaged stays so."""
        _, _, timestamp, role, body, revision, origin, sum_ = columns
        if rows.is_sound(timestamp, role, body, revision, origin, sum_):
            sum_, revision = rows.checksum(timestamp, role, body, 0, origin), 0
        return (self.id_at(pos), self.parent_at(pos), timestamp, role, body, revision, origin, sum_)


class Stretch(NamedTuple):
    """Rows of one branch, one behind another, that are part of a path."""

    session: int
    branch: int
    first: int
    last: int


def fork_of(db: sqlite3.Connection, session: int) -> Fork | None:
    row = db.execute("SELECT session, source, branch, last, prefix FROM fork WHERE session = ?", (session,)).fetchone()
    return None if row is None else Fork(*row)


def forks_from(db: sqlite3.Connection, source: int) -> list[Fork]:
    found = db.execute("SELECT session, source, branch, last, prefix FROM fork WHERE source = ?", (source,))
    return [Fork(*row) for row in found.fetchall()]


def is_source(db: sqlite3.Connection, session: int) -> bool:
    return (
        db.execute("SELECT 1 FROM fork WHERE source = ? AND session > source LIMIT 1", (session,)).fetchone()
        is not None
    )


def depth(db: sqlite3.Connection, session: int) -> int:
    """How many forks of forks a session is, as far as it matters."""
    found = 0
    fork = fork_of(db, session)
    while fork is not None and found < DEEPEST:
        found += 1
        fork = fork_of(db, fork.source)
    return found


# --- paths ---


def branches(db: sqlite3.Connection, session: int, branch: int, pos: int) -> list[Stretch]:
    """The path that ends at a place, from the root on: one stretch per branch it runs through, shared rows among them.
    Raises OfOneSession where the index is damaged."""
    found: list[Stretch] = []
    at: int | None = branch
    while at is not None:
        parent, start = _start(db, session, at)
        found.append(Stretch(session, at, start, pos))
        at, pos = parent, start - 1
    found.reverse()
    return found


def _start(db: sqlite3.Connection, session: int, branch: int) -> tuple[int | None, int]:
    """The branch that a branch leaves, and its first position."""
    row = db.execute("SELECT parent, start FROM branch WHERE session = ? AND branch = ?", (session, branch)).fetchone()
    if row is None or (row[0] is not None and row[0] >= branch):
        raise OfOneSession("the index of a session is damaged")
    return row[0], row[1]


def source_path(db: sqlite3.Connection, fork: Fork) -> list[Stretch]:
    """What a fork shares, as `branches` of its source. Raises OfOneSession where forks could lead in a circle."""
    if fork.source >= fork.session:
        raise OfOneSession("the index of a session is damaged")
    return branches(db, fork.source, fork.branch, fork.last)


def path(db: sqlite3.Connection, own: list[Stretch], fork: Fork | None, first: int, last: int) -> list[Stretch]:
    """Between two positions, the path that `branches` of a session gave, each stretch with the session whose rows it
    really is. `fork` is that of the session."""
    own = [one._replace(first=max(one.first, first), last=min(one.last, last)) for one in own]
    own = [one for one in own if one.first <= one.last]
    if fork is None or not own or own[0].branch != 0 or own[0].first > fork.last:
        return own
    head = own[0]
    first, last = head.first, min(fork.last, head.last)
    source = source_path(db, fork)
    shared = path(db, source, fork_of(db, fork.source), first, last)
    found = _overlaid(shared, _own_rows(db, fork.session, first, last))
    if head.last > last:
        found.append(head._replace(first=last + 1))
    return found + own[1:]


def at(db: sqlite3.Connection, fork: Fork, pos: int) -> Any:
    """The columns of ENTRY of what a fork has at a shared position without a row of its own; None when it is gone."""
    for one in source_path(db, fork):
        if one.first <= pos <= one.last:
            return columns_at(db, fork.source, one.branch, pos)
    return None


def columns_at(db: sqlite3.Connection, session: int, branch: int, pos: int) -> Any:
    """The columns of ENTRY of what a session has at a place, be it shared; None when it is gone."""
    found = db.execute(
        f"SELECT {ENTRY} FROM entry WHERE session = ? AND branch = ? AND pos = ? AND branch IS NOT NULL",  # noqa: S608
        (session, branch, pos),
    ).fetchone()
    if found is None and branch == 0 and (fork := fork_of(db, session)) is not None and pos <= fork.last:
        return at(db, fork, pos)
    return found


def inherited(db: sqlite3.Connection, fork: Fork, what: str = ENTRY) -> Iterable[tuple[int, Any]]:
    """What a fork has without rows of its own: position and columns."""
    for stretch in path(db, branches(db, fork.session, 0, fork.last), fork, 0, fork.last):
        if stretch.session != fork.session:
            yield from (
                (pos, columns)
                for pos, *columns in db.execute(
                    f"SELECT pos, {what} FROM entry WHERE session = ? AND branch = ? AND pos BETWEEN ? AND ?"  # noqa: S608
                    " AND branch IS NOT NULL ORDER BY pos",
                    stretch,
                )
            )


def _own_rows(db: sqlite3.Connection, session: int, first: int, last: int) -> list[Stretch]:
    """The shared positions of a fork, between two, that have rows of its own."""
    found: list[Stretch] = []
    for (pos,) in db.execute(
        "SELECT pos FROM entry WHERE session = ? AND branch = 0 AND pos BETWEEN ? AND ? AND branch IS NOT NULL"
        " ORDER BY pos",
        (session, first, last),
    ):
        if found and found[-1].last == pos - 1:
            found[-1] = found[-1]._replace(last=pos)
        else:
            found.append(Stretch(session, 0, pos, pos))
    return found


def _has_own_row(db: sqlite3.Connection, session: int, last: int) -> bool:
    """Whether a fork has one at any shared position up to one."""
    found = db.execute(
        "SELECT 1 FROM entry WHERE session = ? AND branch = 0 AND pos <= ? AND branch IS NOT NULL LIMIT 1",
        (session, last),
    )
    return found.fetchone() is not None


def _overlaid(below: list[Stretch], above: list[Stretch]) -> list[Stretch]:
    """Both sorted by position; where both have one, `above` counts."""
    found: list[Stretch] = []
    done = 0
    for one in below:
        first = one.first
        while done < len(above) and above[done].first <= one.last:
            top = above[done]
            if first < top.first:
                found.append(one._replace(first=first, last=top.first - 1))
            first = max(first, top.last + 1)
            if first > one.last + 1:
                break  # it hides some of the next one too
            found.append(top)
            done += 1
        if first <= one.last:
            found.append(one._replace(first=first))
    return found + above[done:]


# --- changes, within the writer's transaction ---


def share(db: sqlite3.Connection, session: int, source: int, branch: int, pos: int, prefix: str) -> Fork:
    """Makes a session without entries a fork of the path that ends at a place."""
    while (fork := fork_of(db, source)) is not None and branch == 0 and pos <= fork.last:
        if _has_own_row(db, source, pos):
            break
        branch = next(one.branch for one in source_path(db, fork) if one.last >= pos)
        source = fork.source  # which has all of it
    made = Fork(session, source, branch, pos, prefix)
    db.execute("INSERT INTO fork (session, source, branch, last, prefix) VALUES (?, ?, ?, ?, ?)", made)
    return made


def keep(db: sqlite3.Connection, source: int, branch: int, pos: int, seq: int) -> None:
    """Gives each fork that shares a position a row of its own there, before the source's is changed."""
    ends = _ends_behind(db, source, branch, pos)
    lacking = db.execute(
        "SELECT session, source, branch, last, prefix FROM fork WHERE source = ? AND last >= ? AND NOT EXISTS (SELECT 1"
        " FROM entry WHERE entry.session = fork.session AND entry.branch = 0 AND pos = ? AND entry.branch IS NOT NULL)",
        (source, pos, pos),
    ).fetchall()
    sharing = [fork for row in lacking if (fork := Fork(*row)).branch in ends]
    columns = columns_at(db, source, branch, pos) if sharing else None
    if columns is not None:
        db.executemany(_INSERT, ((fork.session, *fork.row_at(pos, columns), pos, seq) for fork in sharing))


def copy_out(db: sqlite3.Connection, fork: Fork, seq: int) -> None:
    """Makes a fork one that shares nothing."""
    copies = [(fork.session, *fork.row_at(pos, columns), pos, seq) for pos, columns in inherited(db, fork)]
    db.executemany(_INSERT, copies)
    let_go(db, fork)


def copy_all(db: sqlite3.Connection, left: int, session: int, seq: int) -> None:
    """Gives a session copies, without places, of what it had under a number that it left to its forks."""
    fork = fork_of(db, left)
    if fork is not None:
        copies = [(session, *fork.row_at(pos, columns), seq) for pos, columns in inherited(db, fork)]
        db.executemany(f"INSERT INTO entry (session, {ENTRY}, seq) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", copies)  # noqa: S608 # fixed texts
    db.execute(
        f"INSERT INTO entry (session, {ENTRY}, seq) SELECT ?, {ENTRY}, ? FROM entry WHERE session = ? ORDER BY num",  # noqa: S608 # fixed texts
        (session, seq, left),
    )


def let_go(db: sqlite3.Connection, fork: Fork) -> None:
    """Forgets that a session is a fork, and what only it still needed."""
    db.execute("DELETE FROM fork WHERE session = ?", (fork.session,))
    _trim_if_gone(db, fork.source)


def trim(db: sqlite3.Connection, gone: int) -> None:
    """Removes of a session that is gone what none of its forks needs."""
    needed: dict[int, int] = {}
    for end, last in _ends(db, gone):
        at: int | None = end
        while at is not None and at not in needed:
            needed[at] = last
            at, start = _start(db, gone, at)
            last = start - 1
        if at is not None:
            needed[at] = max(last, needed[at])  # what lies below has been seen
    for (branch,) in db.execute("SELECT branch FROM branch WHERE session = ?", (gone,)).fetchall():
        db.execute(
            "DELETE FROM entry WHERE session = ? AND branch = ? AND pos > ? AND branch IS NOT NULL",
            (gone, branch, needed.get(branch, -1)),
        )
        if branch not in needed:
            db.execute("DELETE FROM branch WHERE session = ? AND branch = ?", (gone, branch))
    if _has_unplaced(db, gone):
        db.execute("DELETE FROM entry WHERE session = ? AND branch IS NULL", (gone,))
    own = fork_of(db, gone)
    if own is None:
        return
    if 0 not in needed:
        let_go(db, own)
    elif needed[0] < own.last:
        db.execute("UPDATE fork SET last = ? WHERE session = ?", (needed[0], gone))
        _trim_if_gone(db, own.source)


def _trim_if_gone(db: sqlite3.Connection, source: int) -> None:
    if db.execute("SELECT 1 FROM session WHERE num = ?", (source,)).fetchone() is None:
        trim(db, source)


def _ends(db: sqlite3.Connection, source: int) -> list[tuple[int, int]]:
    """The branches on which paths end that forks share, and the last position of each that is shared."""
    return db.execute(
        "SELECT branch, max(last) FROM fork WHERE source = ? AND session > source GROUP BY branch", (source,)
    ).fetchall()


def _ends_behind(db: sqlite3.Connection, source: int, branch: int, pos: int) -> set[int]:
    """Those of the ends whose paths run through a place."""
    behind = {branch: True}
    ends = [end for end, _ in _ends(db, source)]
    for end in ends:
        way: list[int] = []
        at: int | None = end
        while at is not None and at not in behind:
            way.append(at)
            parent, start = _start(db, source, at)
            at = None if parent == branch and start <= pos else parent
        behind.update(dict.fromkeys(way, at is not None and behind[at]))
    return {end for end in ends if behind[end]}


def _has_unplaced(db: sqlite3.Connection, session: int) -> bool:
    """Two counts in indexes, where to look at every row would take thirty times as long."""
    counts = db.execute(
        "SELECT (SELECT count(*) FROM entry WHERE session = :it),"
        " (SELECT count(*) FROM entry WHERE session = :it AND branch IS NOT NULL)",
        {"it": session},
    )
    every, placed = counts.fetchone()
    return bool(every != placed)
