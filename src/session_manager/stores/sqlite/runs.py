"""Runs: new entries of one session of which each hangs on the one before it, inserted many in one statement.

What the rows of a run have in common is given to SQLite once, and an entry's id serves as the next one's parent too.
That takes half the time of a statement per row, and the interpreter is free for others all the while.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from session_manager.model import Entry
from session_manager.stores.sqlite.rows import ENTRY, checksum, signed

LENGTH = 50
"""Entries of one statement. More of them save little; and some builds of SQLite take 999 values and no more."""

_SHARED, _OWN = 5, 7
"""How many values a run's rows share: session, parent of the first, branch, position of the first and commit. And how
many each of them has of its own."""


def _row(index: int) -> str:
    own = [_SHARED + 1 + index * _OWN + offset for offset in range(_OWN)]
    parent = own[0] - _OWN if index else 2
    id_, *others = (f"?{number}" for number in own)
    return f"(?1, {id_}, ?{parent}, {', '.join(others)}, ?3, ?4 + {index}, ?5)"


_INSERT = f"INSERT INTO entry (session, {ENTRY}, branch, pos, seq) VALUES {', '.join(map(_row, range(LENGTH)))}"  # noqa: S608 # fixed texts


def hang_together(entries: Sequence[Entry]) -> bool:
    """Whether each of the entries hangs on the one before it."""
    return [entry.parent_id for entry in entries[1:]] == [entry.id for entry in entries[:-1]]


def insert(
    db: sqlite3.Connection, session: int, entries: Sequence[Entry], branch: int | None, pos: int | None, seq: int
) -> int:
    """Inserts a run, the first of it at that place, as far as it fills whole statements. Returns how many that were."""
    whole = len(entries) - len(entries) % LENGTH
    for start in range(0, whole, LENGTH):
        parent_id = entries[start].parent_id
        values: list[Any] = [session, parent_id, branch, None if pos is None else pos + start, seq]
        for entry in entries[start : start + LENGTH]:
            timestamp, role, body, origin = entry.timestamp, entry.role, entry.body, entry.origin
            revision = signed(entry.revision)
            sum_ = checksum(timestamp, role, body, revision, origin)
            values += (entry.id, timestamp, role, body, revision, origin, sum_)
        db.execute(_INSERT, values)
    return whole
