"""The database file: how it is made, opened and recognised, and what lies beside it."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from session_manager.errors import StorageError
from session_manager.stores.directories import sync_directory
from session_manager.stores.sqlite.glance import Identity
from session_manager.stores.sqlite.schema import APPLICATION_ID, STEPS, VERSION

CHECKPOINT_PAGES = 1000
"""The log is copied into the database file when it holds so many pages (4 MB), and is then written from its start."""

LOG_BYTES = 4608 << 10
"""The length of the log file. It is made so long beforehand, and stays so: a commit that makes a file longer costs the
disk about twice as much as one that writes over what is there."""

BUSY_MS = 5000
"""How long a statement waits for another program that has the database locked."""


HEADER = 100
"""Bytes at the beginning of a SQLite file that tell what it is."""


def prepare(path: Path) -> bytes:
    """Makes the file, private to this user, where there is none, and its entry in the directory durable. Returns its
    header. Raises OSError. To be called only while this process has no connection to the file, which would lose its
    locks."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        header = os.pread(fd, HEADER, 0)
    finally:
        os.close(fd)
    if not header:  # else it was made before; and with the first commit SQLite brings the directory to disk once more
        sync_directory(path.parent)
    return header


def connect(path: Path, synchronous: str = "FULL", *, read_only: bool = False) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}"
    connection = sqlite3.connect(
        uri, timeout=BUSY_MS / 1000, uri=True, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        if not read_only:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        connection.execute("PRAGMA cache_size = -16000")
        connection.execute("PRAGMA cell_size_check = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def lengthen(connection: sqlite3.Connection, log: Path, identity: Identity) -> None:
    """Makes the log file of a connection as long as it is to be, if it is still the one there. SQLite takes zeros
    behind its last commit for what they are: nothing. No other connection can write to the log meanwhile, which it
    would where a process has lost the database to another and does not know yet. Raises OSError or sqlite3.Error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        fd = os.open(log, os.O_WRONLY | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            length = found.st_size
            if length < LOG_BYTES and (found.st_dev, found.st_ino) == identity:
                os.pwrite(fd, bytes(LOG_BYTES - length), length)
                os.fsync(fd)
        finally:
            os.close(fd)
    finally:
        connection.execute("ROLLBACK")


def gone() -> StorageError:
    return StorageError("the database file was removed or replaced")


def tells_version(header: bytes, path: Path) -> bool:
    """Whether a header alone tells that the file is ours and of the newest version: no log or journal lies beside it
    that might say otherwise, and would have to be read first."""
    return (
        header.startswith(b"SQLite format 3\0")
        and int.from_bytes(header[60:64], "big") == VERSION
        and int.from_bytes(header[68:72], "big") == APPLICATION_ID
        and not any(os.path.lexists(f"{path}{suffix}") for suffix in ("-wal", "-journal"))
    )


def version_of(path: Path) -> int:
    """The schema version of a database, without changing a byte of it. Raises StorageError when it is not ours."""
    try:
        version, application, tables = _header(path, "ro")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname != "SQLITE_READONLY_ROLLBACK":
            raise
        version, application, tables = _header(path, "rw")  # a change that was cut off has to be undone first
    if tables and application != APPLICATION_ID:
        raise StorageError("the file is a SQLite database, but not one of session-manager")
    if version > VERSION:
        raise StorageError(f"the database has schema version {version}, newer than this program's {VERSION}")
    return version if tables else 0


def marks_of(connection: sqlite3.Connection) -> tuple[int, int]:
    """Application id and schema version."""
    application: int = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return application, version


def _header(path: Path, mode: str) -> tuple[int, int, int]:
    """Schema version, application id and number of tables."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True)
    try:
        application, version = marks_of(connection)
        tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    finally:
        connection.close()
    return version, application, tables


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
        if connection.in_transaction:
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


class Mark:
    """The number of the last acknowledged commit, in a small file beside the database.

    SQLite takes a log that was cut for one that ends there, and the commits behind the cut are gone without a word; a
    database that is behind its mark tells. The mark is written a moment after the commit was acknowledged and is not
    synced, so it is never ahead, and after a kill or a power loss it may be behind, which is harmless. A disk that does
    not take it costs this notice and nothing else.
    """

    WIDTH = 20

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + ".mark")
        self._fd: int | None = None

    def read(self) -> int:
        """0 when there is none."""
        try:
            return int(self._path.read_bytes()[: self.WIDTH])
        except (OSError, ValueError):
            return 0

    def set(self, number: int) -> None:
        try:
            if self._fd is None:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._fd, b"%020d" % number, 0)
        except OSError:
            self.close()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
