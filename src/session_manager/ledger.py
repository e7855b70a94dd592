"""What subscribers were told, kept in a file, so that a worker which was killed knows what they may have missed.

The file follows a second or so behind, once everything has been delivered. In between, the sessions that are told of
are listed in a second file, which is not synced and outlives the process, not the machine: of those something may be
untold. Files that cannot be used are done without: then a kill costs subscribers what was under way.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from session_manager.catchup import Known, Told
from session_manager.events import Emission
from session_manager.model import JsonObject, encode

log = structlog.get_logger("session_manager.ledger")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS session (id TEXT PRIMARY KEY, known BLOB NOT NULL, save INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS state (floor INTEGER NOT NULL, save INTEGER NOT NULL, clean INTEGER NOT NULL);
"""

_read_known = msgspec.json.Decoder(Known).decode
_read_line = msgspec.json.Decoder(tuple[str, JsonObject | None]).decode


class Past(Struct, frozen=True):
    """What a file told of the worker before."""

    clean: bool
    """Whether that worker had time to tell everything."""
    doubtful: frozenset[str]
    """Sessions of which something may not have been told."""


class Saving(Struct, frozen=True):
    """What one save writes."""

    gone: list[tuple[str]]
    rows: list[tuple[str, bytes, int]]
    state: tuple[int, int, bool]


class Ledger:
    """The methods that touch files, which may block, and those that look at `Told` are different ones, so that they can
    be called on different threads; those that touch files one after another, in the order of what they write."""

    def __init__(self, path: Path) -> None:
        self._path, self._since_path = path, path.with_suffix(".since")
        self._save = 0
        self._since: set[str] = set()
        """Sessions that are listed in the second file."""
        self._since_file: int | None = None
        self._db: sqlite3.Connection | None = None

    def open(self, told: Told) -> Past | None:
        """Fills `told` from the file. None when there was none, or none that could be read."""
        for _ in range(2):
            try:
                return self._open(told)
            except (sqlite3.DatabaseError, msgspec.MsgspecError, OSError) as error:
                self._forget()
                if isinstance(error, sqlite3.OperationalError | OSError):
                    log.warning("what subscribers were told is not kept", reason=str(error))
                    return None
                with contextlib.suppress(OSError):
                    for path in self._path.parent.glob(f"{self._path.name}*"):
                        path.unlink()
        log.warning("what subscribers were told is not kept", reason="the file is damaged and cannot be removed")
        return None

    def _open(self, told: Told) -> Past | None:
        self._path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        self._path.touch(mode=0o600)
        self._db = db = sqlite3.connect(self._path, timeout=0.2, isolation_level=None, check_same_thread=False)
        for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=OFF"):
            db.execute(f"PRAGMA {pragma}")
        db.executescript(_SCHEMA)
        state = db.execute("SELECT floor, save, clean FROM state").fetchone()
        if state is None:
            return None
        told.floor, self._save, clean = state
        for session_id, known in db.execute("SELECT id, known FROM session ORDER BY save"):
            told.put(session_id, _read_known(known))
        listed = {} if clean else self._listed()
        for session_id, metadata in listed.items():
            if session_id not in told.sessions:
                told.put(session_id, Known(metadata=metadata))
        told.changes.clear()  # the list stays until something is saved, by when they have been told again
        return Past(bool(clean), frozenset(listed))

    def _listed(self) -> dict[str, JsonObject | None]:
        listed: dict[str, JsonObject | None] = {}
        for line in self._since_path.read_bytes().splitlines() if self._since_path.exists() else ():
            with contextlib.suppress(msgspec.MsgspecError):  # the last line may be torn
                session_id, metadata = _read_line(line)
                listed[session_id] = metadata
        return listed

    def begin(self, told: Told) -> None:
        """From now on, whoever opens the file without this having been closed has followed a kill. Never raises."""
        if self._db is None:
            return
        try:
            self._db.execute("BEGIN")
            self._db.execute("DELETE FROM state")
            self._db.execute("INSERT INTO state VALUES (?, ?, 0)", (told.floor, self._save))
            self._db.execute("COMMIT")
            self._since_file = os.open(self._since_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except (sqlite3.Error, OSError) as error:
            self._give_up(error)
        self.save(self.saving(told))

    def lacks(self, emissions: Sequence[Emission]) -> bool:
        """Whether a session that is to be told of is not listed yet."""
        if self._since_file is not None:
            for emission in emissions:  # with every change, so no generator
                if emission.event.session_id not in self._since:
                    return True
        return False

    def lines(self, emissions: Sequence[Emission]) -> bytes:
        """What `write` has to write before these are told."""
        lines = b""
        for emission in emissions:
            session_id = emission.event.session_id
            if session_id not in self._since:
                self._since.add(session_id)
                lines += b"\n" + encode((session_id, emission.metadata))  # so a torn line before it ends there
        return lines

    def write(self, lines: bytes) -> None:
        """Touches a file; never raises."""
        if self._since_file is not None:
            try:
                while lines:
                    lines = lines[os.write(self._since_file, lines) :]
            except OSError as error:
                self._give_up(error)

    def saving(self, told: Told, *, clean: bool = False) -> Saving | None:
        """What was noted since the last save, for `save`. What is told from now on has to be listed anew."""
        if self._db is None or not (told.changes or clean):
            return None
        self._save += 1
        gone, rows = [], []
        for session_id in told.changes:
            known = told.sessions.get(session_id)
            if known is None:
                gone.append((session_id,))
            else:
                rows.append((session_id, encode(known), self._save))
        told.changes.clear()
        self._since.clear()
        return Saving(gone, rows, (told.floor, self._save, clean))

    def save(self, saving: Saving | None) -> None:
        """Touches files; never raises."""
        if self._db is None or saving is None:
            return
        try:
            self._db.execute("BEGIN")
            self._db.executemany("DELETE FROM session WHERE id = ?", saving.gone)
            self._db.executemany("INSERT OR REPLACE INTO session VALUES (?, ?, ?)", saving.rows)
            self._db.execute("UPDATE state SET floor = ?, save = ?, clean = ?", saving.state)
            self._db.execute("COMMIT")
            if self._since_file is not None:
                os.ftruncate(self._since_file, 0)
        except (sqlite3.Error, OSError) as error:
            self._give_up(error)

    def close(self, saving: Saving | None) -> None:
        self.save(saving)
        self._forget()

    def abandon(self) -> None:
        """Leaves the file as it was found."""
        self._forget()

    def _give_up(self, error: Exception) -> None:
        log.warning("what subscribers were told is not kept any more", reason=str(error))
        self._forget()

    def _forget(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._since_file is not None:
            os.close(self._since_file)
            self._since_file = None
