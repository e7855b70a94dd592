"""The database file: who may open it, and how."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path

from session_manager.errors import StorageError
from session_manager.stores.sqlite.schema import APPLICATION_ID, STEPS, VERSION

CHECKPOINT_PAGES = 4000
"""The log is copied into the database file when it has grown to so many pages (16 MB)."""

JOURNAL_BYTES = 16 << 20
"""What is kept of the log file when it is started anew."""


class Holder:
    """The right to use a database file, held by one process at a time. The kernel takes it back when that one dies."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + ".lock")
        self._fd: int | None = None

    def acquire(self) -> None:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(fd, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise StorageError(f"the database is in use by another process (pid {holder})") from None
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
        self._fd = fd

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def prepare(path: Path) -> None:
    """Makes the directory and the file, private to this user. Raises OSError."""
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def connect(path: Path, synchronous: str, *, read_only: bool = False) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, cached_statements=256)
    connection.execute("PRAGMA busy_timeout = 5000")
    if not read_only:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {JOURNAL_BYTES}")
    connection.execute("PRAGMA cache_size = -16000")
    return connection


def version_of(path: Path) -> int:
    """The schema version of a database, without changing a byte of it. Raises StorageError when it is not ours."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        application: int = connection.execute("PRAGMA application_id").fetchone()[0]
        tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    finally:
        connection.close()
    if tables and application != APPLICATION_ID:
        raise StorageError("the file is a SQLite database, but not one of session-manager")
    if version > VERSION:
        raise StorageError(f"the database has schema version {version}, newer than this program's {VERSION}")
    return version if tables else 0


def migrate(connection: sqlite3.Connection, version: int, steps: tuple[str, ...] = STEPS) -> None:
    """Brings the schema from `version` to the newest, wholly or not at all."""
    if version == len(steps):
        return
    connection.execute("BEGIN EXCLUSIVE")
    try:
        for step in steps[version:]:
            for statement in statements(step):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(steps)}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def statements(script: str) -> list[str]:
    """The statements of a script; `executescript` would commit what is open."""
    found: list[str] = []
    current = ""
    for line in script.splitlines():
        current += line + "\n"
        if sqlite3.complete_statement(current):
            found.append(current)
            current = ""
    return found
