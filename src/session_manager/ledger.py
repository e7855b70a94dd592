"""What subscribers were told, kept in a file, so that a worker which was killed knows what they may have missed.

The file follows a second or so behind and is never waited for. What was noted within the last few saves before a kill
counts as possibly untold. A file that cannot be used is done without: then a kill costs subscribers what was under way.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from session_manager.catchup import Known, Told
from session_manager.model import encode

log = structlog.get_logger("session_manager.ledger")

MARGIN = 5
"""Saves before a kill whose sessions are not trusted."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS session (id TEXT PRIMARY KEY, known BLOB NOT NULL, save INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS state (floor INTEGER NOT NULL, save INTEGER NOT NULL, clean INTEGER NOT NULL);
"""

_read_known = msgspec.json.Decoder(Known).decode


class Past(Struct, frozen=True):
    """What a file told of the worker before."""

    clean: bool
    """Whether that worker had time to tell everything."""
    doubtful: frozenset[str]
    """Sessions of which something may not have been told."""


class Ledger:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._save = 0
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
                for path in self._path.parent.glob(f"{self._path.name}*"):
                    path.unlink()
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
        doubtful = set()
        for session_id, known, save in db.execute("SELECT id, known, save FROM session ORDER BY save"):
            told.put(session_id, _read_known(known))
            if save > self._save - MARGIN:
                doubtful.add(session_id)
        told.changes.clear()
        return Past(bool(clean), frozenset() if clean else frozenset(doubtful))

    def begin(self, told: Told) -> None:
        """From now on, whoever opens the file without this having been closed has followed a kill."""
        if self._db is not None:
            self._db.execute("DELETE FROM state")
            self._db.execute("INSERT INTO state VALUES (?, ?, 0)", (told.floor, self._save))

    def save(self, told: Told, *, clean: bool = False) -> None:
        """Writes what was noted since the last save. Takes some milliseconds; never raises."""
        if self._db is None or not (told.changes or clean):
            return
        self._save += 1
        gone, rows = [], []
        for session_id in told.changes:
            known = told.sessions.get(session_id)
            if known is None:
                gone.append((session_id,))
            else:
                rows.append((session_id, encode(known), self._save))
        told.changes.clear()
        try:
            self._db.execute("BEGIN")
            self._db.executemany("DELETE FROM session WHERE id = ?", gone)
            self._db.executemany("INSERT OR REPLACE INTO session VALUES (?, ?, ?)", rows)
            self._db.execute("UPDATE state SET floor = ?, save = ?, clean = ?", (told.floor, self._save, clean))
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            log.warning("what subscribers were told is not kept any more", reason=str(error))
            self._forget()

    def close(self, told: Told, *, clean: bool) -> None:
        self.save(told, clean=clean)
        self._forget()

    def abandon(self) -> None:
        """Leaves the file as it was found."""
        self._forget()

    def _forget(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
