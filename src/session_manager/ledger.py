"""What subscribers were told, kept in a file, so that a worker which was killed knows what they may have missed.

The file follows a second or so behind what has been delivered and answered. In between, the sessions that are told of
are listed in a second file, which is not synced and outlives the process, not the machine: of those something may be
untold. What is still under way when the file is saved stays listed in it, and what it says of those sessions stays as
it was. Files that cannot be used are done without: then a kill costs subscribers what was under way.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from session_manager.catchup import Known, Told
from session_manager.events import Created, Deleted, Emission, MetaUpdated
from session_manager.model import JsonObject, encode

log = structlog.get_logger("session_manager.ledger")

MOST = 10_000
"""Most sessions that stay listed at a save; the oldest are let go."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS session (id TEXT PRIMARY KEY, known BLOB NOT NULL, save INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS state (floor INTEGER NOT NULL, save INTEGER NOT NULL, clean INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS listed (line BLOB NOT NULL);
"""


class Line(Struct, array_like=True, frozen=True):
    """A session of which something may be untold."""

    session_id: str
    metadata: JsonObject | None
    """What filters are to see of it, were it deleted."""
    created_at: int | None = None
    """When it was made, if that is among what may be untold; of several of this id, the first."""


_read_known = msgspec.json.Decoder(Known).decode
_read_line = msgspec.json.Decoder(Line).decode


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
    listed: list[Line]
    state: tuple[int, int, bool]


class Ledger:
    """The methods that touch files, which may block, and those that look at `Told` are different ones, so that they can
    be called on different threads; those that touch files one after another, in the order of what they write."""

    def __init__(self, path: Path) -> None:
        self._path, self._since_path = path, path.with_suffix(".since")
        self._save = 0
        self._lines: dict[str, Line] = {}
        """What is listed, in either file."""
        self._fresh: set[str] = set()
        """Sessions that were listed since the last save: their change may not even be made yet."""
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
        told.settle(())  # as whoever saved it did
        if not clean:
            self._read_lines(db, told)
        return Past(bool(clean), frozenset(self._lines))

    def _read_lines(self, db: sqlite3.Connection, told: Told) -> None:
        """Whatever subscribers were told of these last, it may be another status or title than the file says."""
        written = [line for (line,) in db.execute("SELECT line FROM listed")]
        if self._since_path.exists():
            written += self._since_path.read_bytes().splitlines()
        for text in written:
            with contextlib.suppress(msgspec.MsgspecError):  # the last line may be torn
                line = _read_line(text)
                self._lines[line.session_id] = line
                known = told.sessions.get(line.session_id) or Known()
                known.status = known.labels = None
                known.metadata = line.metadata
                known.perhaps_created_at = known.perhaps_created_at or line.created_at
                told.put(line.session_id, known)

    def begin(self, told: Told) -> None:
        """From now on, whoever opens the file without this having been closed has followed a kill. Touches files; never
        raises."""
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

    def lacks(self, emissions: Sequence[Emission]) -> bool:
        """Whether something that is to be told is not listed yet."""
        if self._since_file is not None:
            for emission in emissions:  # with every change, so no generator
                if self._line(emission) is not None:
                    return True
        return False

    def _line(self, emission: Emission) -> Line | None:
        """What has to be listed before this is told; None when it is."""
        event, metadata = emission.event, emission.metadata
        listed = self._lines.get(event.session_id)
        if listed is not None and not isinstance(event, Created | MetaUpdated | Deleted):
            return None
        created_at = event.created_at if isinstance(event, Created) else None
        if listed is not None and listed.created_at is not None:
            created_at = listed.created_at
        if listed is not None and listed.metadata is metadata and listed.created_at == created_at:
            return None
        return Line(event.session_id, metadata, created_at)

    def lines(self, emissions: Sequence[Emission]) -> bytes:
        """What `write` has to write before these are told."""
        lines = b""
        for emission in emissions:
            line = self._line(emission)
            if line is not None:
                self._lines[line.session_id] = line
                self._fresh.add(line.session_id)
                lines += b"\n" + encode(line)  # so a torn line before it ends there
        return lines

    def write(self, lines: bytes) -> None:
        """Touches a file; never raises."""
        if self._since_file is not None:
            try:
                while lines:
                    lines = lines[os.write(self._since_file, lines) :]
            except OSError as error:
                self._give_up(error)

    def saving(
        self,
        told: Told,
        owed: Collection[str] = (),
        under_way: Collection[str] = (),
        until: int | None = None,
        *,
        clean: bool = False,
    ) -> Saving | None:
        """For `save`: what was noted until a count of changes, but for sessions of which something is under way to
        subscribers or owed to them, which stay listed. None when there is nothing new. What is told from now on of the
        sessions that it holds has to be listed anew."""
        settled = told.settle({*owed, *under_way}, until)
        unlisted = any(session_id not in self._lines for session_id in owed)
        if self._db is None or not (settled or self._fresh or clean or unlisted):
            return None
        self._save += 1
        gone, rows = [], []
        for session_id in settled:
            known = told.sessions.get(session_id)
            if known is None:
                gone.append((session_id,))
            else:
                rows.append((session_id, encode(known), self._save))
        kept = {*told.changes, *owed, *under_way, *self._fresh}.difference(settled)
        self._fresh.clear()
        self._lines = {session_id: line for session_id, line in self._lines.items() if session_id in kept}
        for session_id in owed:
            if session_id not in self._lines:
                self._lines[session_id] = Line(session_id, told.sessions.get(session_id, Known()).metadata)
        while len(self._lines) > MOST:
            del self._lines[next(iter(self._lines))]
        listed = [] if clean else list(self._lines.values())
        return Saving(gone, rows, listed, (told.floor, self._save, clean))

    def save(self, saving: Saving | None) -> None:
        """Touches files; never raises."""
        if self._db is None or saving is None:
            return
        try:
            self._db.execute("BEGIN")
            self._db.executemany("DELETE FROM session WHERE id = ?", saving.gone)
            self._db.executemany("INSERT OR REPLACE INTO session VALUES (?, ?, ?)", saving.rows)
            self._db.execute("DELETE FROM listed")
            self._db.executemany("INSERT INTO listed VALUES (?)", ((encode(line),) for line in saving.listed))
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
