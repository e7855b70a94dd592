"""Looking at a database without trusting it, and mending what can be derived from the rest."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from session_manager.errors import StorageError
from session_manager.model import Entry, SessionMeta, decode_meta
from session_manager.stores.directories import sync_directory
from session_manager.stores.sqlite import files, forks, rows
from session_manager.stores.sqlite.forks import Fork
from session_manager.stores.sqlite.labels import digests
from session_manager.stores.sqlite.schema import LAST_COMMIT, SHARING

PROBLEMS = 20
"""Most problems of the file that SQLite is asked for."""


class Row(Struct):
    """An entry's row as it is, sound or not."""

    num: int
    id: str
    parent_id: str | None
    entry: Entry | None
    """None when the row is damaged."""
    branch: int | None
    pos: int | None


class Held(Struct):
    """What a database holds of one session."""

    num: int
    session_id: str
    meta: SessionMeta | None
    damaged: bool
    """Whether there is a record that cannot be read."""
    leaf: str | None
    rows: list[Row]
    """In the order in which they were first written."""
    columns: list[str]
    """What of the repeated columns and of the labels does not agree with the record."""
    places: list[str]
    """What of the index of paths does not agree with the entries."""

    @property
    def index(self) -> list[str]:
        """All that is derived and does not agree with the rest."""
        return [*self.columns, *self.places]


class Unreadable(Struct):
    """A session of which something cannot be read."""

    session_id: str
    why: str


class Inspection:
    """One state of a database. To be closed."""

    def __init__(self, path: Path) -> None:
        """Raises StorageError when the file is not there or is no such database."""
        if not path.exists():
            raise StorageError("there is no such database")
        self._path = path
        try:
            version = files.version_of(path)
            if version == 0:
                raise StorageError("the database has no tables yet")
            self._db = files.connect(path, read_only=True)
            if version < SHARING:
                self._db.execute("CREATE TEMP TABLE fork (session, source, branch, last, prefix)")
            self._db.execute("BEGIN")
            self.last: int = self._db.execute(LAST_COMMIT).fetchone()[0]
        except sqlite3.Error as error:
            raise StorageError(f"the database cannot be read ({error.sqlite_errorname})") from error

    def close(self) -> None:
        self._db.close()

    def file_problems(self) -> list[str]:
        """What SQLite finds wrong with the file itself."""
        try:
            found = [text for (text,) in self._db.execute(f"PRAGMA integrity_check({PROBLEMS})")]
        except sqlite3.Error as error:
            found = [str(error)]
        return [text for text in found if text != "ok"]

    def lost_commits(self) -> int:
        """How many commits were acknowledged that the database does not have."""
        return max(0, files.Mark(self._path).read() - self.last)

    def strays(self) -> int:
        """Rows of entries that belong to no session."""
        count: int = self._db.execute(
            "SELECT count(*) FROM entry WHERE session NOT IN (SELECT num FROM session UNION SELECT source FROM fork)"
        ).fetchone()[0]
        return count

    def sessions(self) -> Iterator[Held | Unreadable]:
        """All sessions by id, also where some cannot be read. Raises StorageError when the list itself cannot."""
        try:
            listed = self._db.execute("SELECT num, id FROM session ORDER BY id").fetchall()
        except sqlite3.Error as error:
            raise StorageError(f"the sessions cannot be listed ({error.sqlite_errorname})") from error
        for num, id_ in listed:
            try:
                yield self._session(num, str(id_))
            except sqlite3.Error as error:
                yield Unreadable(str(id_), f"the database cannot be read ({error.sqlite_errorname})")
            except StorageError as error:
                yield Unreadable(str(id_), error.why)

    def _session(self, num: int, id_: str) -> Held | Unreadable:
        row = self._db.execute(
            "SELECT leaf, meta, sum, status, created_at, updated_at FROM session WHERE num = ?", (num,)
        ).fetchone()
        if row is None:
            return Unreadable(id_, "it is listed in an index and nowhere else")
        leaf, stored, sum_, *repeated = row
        meta, damaged = None, False
        try:
            meta = rows.meta(id_, stored, sum_)
        except StorageError:
            damaged = True
        held = Held(num, id_, meta, damaged, leaf, self._rows(num, id_), [], [])
        held.columns = list(self._wrong_columns(held, repeated))
        held.places = list(self._wrong_places(held))
        return held

    def _rows(self, num: int, session_id: str) -> list[Row]:
        found: list[Row] = []
        statement = f"SELECT num, branch, pos, {rows.ENTRY} FROM entry WHERE session = ? ORDER BY num"  # noqa: S608
        for number, branch, pos, *columns in self._db.execute(statement, (num,)):
            try:
                entry: Entry | None = rows.entry(session_id, columns)
            except StorageError:
                entry = None
            found.append(Row(number, str(columns[0]), columns[1], entry, branch, pos))
        fork = forks.fork_of(self._db, num)
        return found if fork is None else [*self._shared(fork, session_id), *found]

    def _shared(self, fork: Fork, session_id: str) -> Iterator[Row]:
        """What a fork has without rows of its own, as if it had them."""
        for pos, columns in forks.inherited(self._db, fork):
            row = fork.row_at(pos, columns)
            try:
                entry: Entry | None = rows.entry(session_id, row)
            except StorageError:
                entry = None
            yield Row(0, row[0], row[1], entry, 0, pos)

    def _wrong_columns(self, held: Held, repeated: list[Any]) -> Iterator[str]:
        meta = held.meta
        if meta is not None and repeated != [meta.status, meta.created_at, meta.updated_at]:
            yield "the columns that lists sort by do not agree with the record"
        if not held.damaged:
            labels = {row[0] for row in self._db.execute("SELECT digest FROM label WHERE session = ?", (held.num,))}
            if labels != digests(None if meta is None else meta.metadata):
                yield "the labels that lists filter by do not agree with the record"

    def _wrong_places(self, held: Held) -> Iterator[str]:
        """Entries that have a place must hang on the entry before it; those without one are walked, which is right."""
        branches: dict[int, tuple[int | None, int]] = {
            branch: (parent, start)
            for branch, parent, start in self._db.execute(
                "SELECT branch, parent, start FROM branch WHERE session = ?", (held.num,)
            )
        }
        places: dict[tuple[int | None, int | None], Row] = {
            (row.branch, row.pos): row for row in held.rows if row.branch is not None
        }
        for row in held.rows:
            if row.branch is None or row.pos is None:
                continue
            if row.branch not in branches:
                yield f"entry {row.id!r} is on a branch that is not there"
                continue
            parent, start = branches[row.branch]
            before = (
                places.get((row.branch, row.pos - 1)) if row.pos > start else _end(places, branches, parent, row.pos)
            )
            if (None if before is None else before.id) != row.parent_id:
                yield f"the place of entry {row.id!r} does not agree with its parent"


def _end(
    places: dict[tuple[int | None, int | None], Row],
    branches: dict[int, tuple[int | None, int]],
    branch: int | None,
    pos: int,
) -> Row | None:
    """The entry before the first one of a branch, on the branches below."""
    while branch is not None and branch in branches:
        parent, start = branches[branch]
        if pos - 1 >= start:
            return places.get((branch, pos - 1))
        branch = parent
    return None


class Mender:
    """Changes to a database that no other process has open."""

    def __init__(self, path: Path) -> None:
        """Raises StorageError."""
        with _told():
            self._db = files.connect(path)

    def close(self) -> None:
        self._db.close()

    def back_up(self, to: Path) -> None:
        """A copy of the whole database, private to this user and on disk; it must not be there yet. Raises
        StorageError; then there is none."""
        with _told():
            os.close(os.open(to, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            try:
                with closing(sqlite3.connect(to)) as target:
                    self._db.backup(target)
                sync_directory(to.parent)
            except BaseException:
                to.unlink()
                raise

    def mend_index(self, held: Held) -> None:
        """Makes what is wrong of a session's index right: its columns and labels agree with its record, its paths are
        found by walking. For the latter, forks that share its rows, and itself, are copied first. Raises StorageError
        where that cannot be done."""
        with self._whole():
            if held.columns:
                self._renew_columns(held)
            if held.places:
                self._forget_places(held)

    def _renew_columns(self, held: Held) -> None:
        if held.meta is not None:
            self._db.execute(
                "UPDATE session SET status = ?, created_at = ?, updated_at = ? WHERE num = ?",
                (held.meta.status, held.meta.created_at, held.meta.updated_at, held.num),
            )
        self._db.execute("DELETE FROM label WHERE session = ?", (held.num,))
        metadata = None if held.meta is None else held.meta.metadata
        self._db.executemany("INSERT INTO label VALUES (?, ?)", [(one, held.num) for one in digests(metadata)])

    def _forget_places(self, held: Held) -> None:
        own = forks.fork_of(self._db, held.num)
        for fork in [*forks.forks_from(self._db, held.num), *([] if own is None else [own])]:
            forks.copy_out(self._db, fork, self._db.execute(LAST_COMMIT).fetchone()[0])
        self._db.execute("UPDATE entry SET branch = NULL, pos = NULL WHERE session = ?", (held.num,))
        self._db.execute("DELETE FROM branch WHERE session = ?", (held.num,))

    def salvage(self, held: Held) -> SessionMeta:
        """What can still be told of a damaged record: all of it if it can be read, else what its columns repeat."""
        stored, status, created_at, updated_at = self._db.execute(
            "SELECT meta, status, created_at, updated_at FROM session WHERE num = ?", (held.num,)
        ).fetchone()
        try:
            meta = decode_meta(stored)
        except (TypeError, ValueError):
            pass
        else:
            if meta.session_id == held.session_id:
                return meta
        return SessionMeta(
            session_id=held.session_id,
            title="",
            description="",
            status=status if status in ("idle", "working", "done", "error") else "idle",
            created_at=created_at if type(created_at) is int else 0,
            updated_at=updated_at if type(updated_at) is int else 0,
            message_count=0,
        )

    @contextmanager
    def _whole(self) -> Iterator[None]:
        with _told():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise


@contextmanager
def _told() -> Iterator[None]:
    """Failures as StorageError."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        kind = getattr(error, "sqlite_errorname", None) or getattr(error, "strerror", None) or type(error).__name__
        raise StorageError(f"the database failed ({kind})") from error
