"""The changes that come most often as one statement each: an entry behind the last one of its path, and the last one
written anew, as a reply is while it streams; alone in their batch.

The statement writes into a view of the writer's own connection, whose trigger changes the entry and the record. So
SQLite makes all of it or nothing without a BEGIN and a COMMIT around, and each statement less is a way less through
SQLite's module and the interpreter's lock.
"""

from __future__ import annotations

import sqlite3

from session_manager.model import Entry
from session_manager.stores.sqlite.rows import CONTENT, ENTRY, Record, Row, content
from session_manager.stores.sqlite.schema import NOTE_COMMIT

_RECORD = ("leaf", "meta", "meta_sum", "updated_at")
"""What the views call the columns of a Record."""

_KEY = ("session", "id", "seq")

_ENTRY = ("session", *ENTRY.split(", "), "branch", "pos", "seq")
"""The columns of a Row."""

_CONTENT = tuple(CONTENT.split(", "))


def _new(columns: tuple[str, ...]) -> str:
    return ", ".join(f"NEW.{column}" for column in columns)


_PUT_RECORD = (
    "UPDATE session SET leaf = NEW.leaf, meta = NEW.meta, sum = NEW.meta_sum, updated_at = NEW.updated_at,"
    " seq = NEW.seq WHERE num = NEW.session"
)

_VIEWS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "appended": (
        (*_ENTRY, *_RECORD),
        (f"INSERT INTO entry ({', '.join(_ENTRY)}) VALUES ({_new(_ENTRY)})", _PUT_RECORD),  # noqa: S608 # fixed texts
    ),
    "replaced": (
        (*_KEY, *_CONTENT, *_RECORD),
        (
            f"UPDATE entry SET ({CONTENT}, seq) = ({_new(_CONTENT)}, NEW.seq)"  # noqa: S608 # fixed texts
            " WHERE session = NEW.session AND id = NEW.id",
            _PUT_RECORD,
            NOTE_COMMIT.format(number="NEW.seq"),
        ),
    ),
}
"""Per view, its columns, and what writing a row into it does."""


def prepare(connection: sqlite3.Connection) -> None:
    """Makes the views and their triggers, for this connection only."""
    for view, (columns, statements) in _VIEWS.items():
        nothing = ", ".join(f"NULL AS {column}" for column in columns)
        connection.execute(f"CREATE TEMP VIEW IF NOT EXISTS {view} AS SELECT {nothing}")
        connection.execute(
            f"CREATE TEMP TRIGGER IF NOT EXISTS {view}_alone INSTEAD OF INSERT ON {view}"
            f" BEGIN {'; '.join(statements)}; END"
        )


def _into(view: str) -> str:
    return f"INSERT INTO {view} VALUES ({', '.join('?' * len(_VIEWS[view][0]))})"  # noqa: S608 # only marks


_APPEND, _REPLACE = _into("appended"), _into("replaced")


def append(connection: sqlite3.Connection, row: Row, record: Record) -> None:
    """Inserts an entry and updates its session's record, whose status and creation time stay; in one transaction."""
    connection.execute(_APPEND, (*row, *record))


def replace(connection: sqlite3.Connection, session: int, entry: Entry, seq: int, record: Record) -> None:
    """The same for an entry that has a row, and keeps its parent."""
    connection.execute(_REPLACE, (session, entry.id, seq, *content(entry), *record))
