"""Runs: the new entries of a batch, each of which hangs on the one before it, inserted many in one statement.

What the rows of a run have in common is given to SQLite once, and an entry's id serves as the next one's parent too.
That takes less than half the time of a statement per row, and the interpreter is free for others all the while.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from session_manager.model import Entry
from session_manager.stores.sqlite.rows import checksum, signed

LENGTH = 50
"""Entries of one statement. More of them save little; and some builds of SQLite take 999 values and no more."""

_SHARED = ("session", "parent_id", "timestamp", "revision", "origin", "branch", "pos", "seq")
"""What a run's rows share: the parent is the first one's, and so is the position."""

_OWN = ("id", "role", "body", "sum")


def _row(index: int) -> str:
    number = {name: f"?{at}" for at, name in enumerate(_SHARED, 1)}
    own = {name: f"?{len(_SHARED) + 1 + index * len(_OWN) + at}" for at, name in enumerate(_OWN)}
    if index:
        number["parent_id"] = f"?{len(_SHARED) + 1 + (index - 1) * len(_OWN)}"
    number["pos"] += f" + {index}"
    return f"({', '.join([*number.values(), *own.values()])})"


_INSERT = f"INSERT INTO entry ({', '.join(_SHARED + _OWN)}) VALUES {', '.join(map(_row, range(LENGTH)))}"  # noqa: S608 # fixed texts


def is_one(entries: Sequence[Entry]) -> bool:
    """Whether entries are a run: long enough, a chain, and alike in what the rows are to share."""
    first, count = entries[0], len(entries)
    return (
        count >= LENGTH
        and [entry.parent_id for entry in entries[1:]] == [entry.id for entry in entries[:-1]]
        and [entry.timestamp for entry in entries].count(first.timestamp) == count
        and [entry.revision for entry in entries].count(first.revision) == count
        and [entry.origin for entry in entries].count(first.origin) == count
    )


def insert(
    db: sqlite3.Connection, session: int, entries: Sequence[Entry], branch: int | None, pos: int | None, seq: int
) -> int:
    """Inserts a run, the first of it at that place, as far as it fills whole statements. Returns how many that were."""
    timestamp, revision, origin = entries[0].timestamp, signed(entries[0].revision), entries[0].origin
    # A checksum begins with what is shared and ends with the body, so that most of it is the same for all.
    begun = {role: checksum(timestamp, role, b"", revision, origin) for role in {entry.role for entry in entries}}
    whole = len(entries) - len(entries) % LENGTH
    for start in range(0, whole, LENGTH):
        place = (branch, None if pos is None else pos + start)
        values: list[Any] = [session, entries[start].parent_id, timestamp, revision, origin, *place, seq]
        for entry in entries[start : start + LENGTH]:
            role, body = entry.role, entry.body
            values += (entry.id, role, body, crc32(body, begun[role]))
        db.execute(_INSERT, values)
    return whole
