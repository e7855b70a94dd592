"""The change that comes most often as one statement: an entry behind the last one of its path, alone in its batch.

The statement writes into a view of the writer's own connection, whose trigger inserts the entry and updates the record.
So SQLite makes both or neither without a BEGIN and a COMMIT around them, and each statement less is a way less through
SQLite's module and the interpreter's lock.
"""

from __future__ import annotations

import sqlite3

from session_manager.stores.sqlite.rows import ENTRY, Row

_ENTRY = ["session", *ENTRY.split(", "), "branch", "pos", "seq"]
"""The columns of a Row."""

_RECORD = {"leaf": "leaf", "meta": "meta", "meta_sum": "sum", "updated_at": "updated_at"}
"""What the view calls the columns of a session that an append changes."""


def prepare(connection: sqlite3.Connection) -> None:
    """Makes the view and its trigger, for this connection only."""
    connection.execute(
        f"CREATE TEMP VIEW IF NOT EXISTS appended AS SELECT {', '.join(_ENTRY)},"  # noqa: S608 # fixed texts
        f" {', '.join(f'NULL AS {name}' for name in _RECORD)} FROM entry"
    )
    connection.execute(
        "CREATE TEMP TRIGGER IF NOT EXISTS append INSTEAD OF INSERT ON appended BEGIN"  # noqa: S608 # fixed texts
        f" INSERT INTO entry ({', '.join(_ENTRY)}) VALUES ({', '.join(f'NEW.{name}' for name in _ENTRY)});"
        f" UPDATE session SET {', '.join(f'{column} = NEW.{name}' for name, column in _RECORD.items())}, seq = NEW.seq"
        " WHERE num = NEW.session; END"
    )


_APPEND = f"INSERT INTO appended VALUES ({', '.join('?' * (len(_ENTRY) + len(_RECORD)))})"  # noqa: S608 # only marks


def append(connection: sqlite3.Connection, row: Row, leaf: str | None, meta: bytes, sum_: int, updated_at: int) -> None:
    """Inserts an entry and updates its session's record, whose status and creation time stay; in one transaction."""
    connection.execute(_APPEND, (*row, leaf, meta, sum_, updated_at))
