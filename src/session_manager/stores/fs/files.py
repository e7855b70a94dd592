"""The files of a directory: finding and reading them, and what is done to one of them at a time.

Everything here runs on the store's thread, and with the directory held.
"""

from __future__ import annotations

import base64
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import structlog
from msgspec import Struct
from msgspec.structs import replace

from session_manager.errors import StorageError
from session_manager.stores.directories import sync_directory
from session_manager.stores.fs.lines import Notice, Replayed, replay
from session_manager.stores.fs.names import SUFFIX, file_name, session_id
from session_manager.stores.memory import Kept

log = structlog.get_logger("session_manager.fs")

LOCK = "session-manager.lock"
"""The file that says which process uses the directory."""

TORN = "torn-lines.log"
"""Where the bytes of changes that were cut off go when a session's file is written on, one JSON object per line."""

WORTH = 64 << 10
"""A file is written anew when the lines that do not count any more come to more than those that do, and than this."""

NOTICES = 5
"""Notices of one file that are told one by one."""

sync = getattr(os, "fdatasync", os.fsync)


class File(Struct, eq=False):
    """What is known of one file."""

    name: str
    size: int = 0
    """Bytes that count."""
    end: int | None = 0
    """Its length: greater than `size` when a change was cut off; None when a failure left it unknown."""
    unended: bool = False
    """Whether its last line lacks the newline."""
    doubtful: bool = False
    """Whether the disk failed to take what is behind `size`, and may hold any of it: nothing is to be written there."""
    check_at: int = WORTH
    """The size at which it is looked whether to write it anew."""

    def holds(self, data: bytes, size: int, live: int) -> None:
        """Notes what the file was found to hold: so many bytes that count, and `live` in lines that still do."""
        self.size, self.end = size, len(data)
        self.unended = size > 0 and data[size - 1 : size] != b"\n"
        self.doubtful = False
        self.check_at = max(2 * live, size + size // 2) + WORTH

    def grew(self, by: int) -> None:
        self.size += by
        self.end, self.unended = self.size, False


class Scan(Struct):
    """What a directory holds."""

    kept: dict[str, Kept]
    notices: list[str]
    """What could not be taken as it is, each a line for people."""
    lost: list[str] = []
    """Those of them that tell of something that is not served."""


class Directory:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: dict[str, File] = {}
        """The file of each session that has one."""
        self.unreadable: set[str] = set()
        """Sessions whose file is there and cannot be read."""
        self.untidy: set[str] = set()
        """Sessions whose files may be worth writing anew."""
        self._asides = 0

    # --- reading ---

    def scan(self) -> Scan:
        """Reads all files, and changes none. Raises OSError when the directory cannot be read."""
        scan = Scan({}, [])
        with os.scandir(os.fsencode(self.path)) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.name.endswith(SUFFIX.encode()):
                    self._find(entry, scan)
        for id_, file in self.files.items():
            self._load(id_, file, scan)
        return scan

    def _find(self, entry: os.DirEntry[bytes], scan: Scan) -> None:
        name = os.fsdecode(entry.name)
        try:
            id_ = session_id(entry.name)
        except ValueError:
            _tell(scan, name, ["skipped: the name stands for no session id"])
            return
        if not entry.is_file():
            _tell(scan, name, ["skipped: it is no file"])
            return
        other = self.files.get(id_)
        if other is not None:  # such as %6B.jsonl beside k.jsonl: the name that would be given today wins
            used, skipped = (name, other.name) if name == file_name(id_) else (other.name, name)
            _tell(scan, skipped, [f"skipped: {used} stands for the same session"], lost=True)
            name = used
        self.files[id_] = File(name)

    def _load(self, id_: str, file: File, scan: Scan) -> None:
        try:
            data, replayed = self.read(id_)
        except (OSError, UnicodeDecodeError) as error:
            self.unreadable.add(id_)
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            _tell(scan, file.name, [f"the session cannot be read: {why}"], lost=True)
            return
        live = len(replayed.compact)
        file.holds(data, replayed.size, live)
        if replayed.size - live > max(live, WORTH):
            self.untidy.add(id_)
        for lost in (True, False):
            texts = [f"line {notice.line}: {notice.why}" for notice in replayed.notices if notice.lost is lost]
            _tell(scan, file.name, texts, lost=lost)
        if not replayed.kept.is_empty():
            scan.kept[id_] = replayed.kept

    def read(self, id_: str) -> tuple[bytes, Replayed]:
        """What the session's file holds. Raises OSError and UnicodeDecodeError."""
        data = (self.path / self.files[id_].name).read_bytes()
        replayed = replay(data)
        meta = replayed.kept.meta
        if meta is not None and meta.session_id != id_:
            # A change goes to the session that the record names, so a record must name where it lies.
            replayed.kept.meta = replace(meta, session_id=id_)
            replayed.notices.append(Notice(1, f"the record names session {meta.session_id!r}; the file's name counts"))
        return data, replayed

    # --- writing ---

    def cut(self, file: File, fd: int) -> None:
        """Takes a change that was cut off from the end of the file, and keeps its bytes elsewhere. Raises OSError, and
        StorageError when the file is not as this process left it."""
        end = os.fstat(fd).st_size
        if end < file.size or end != (end if file.end is None else file.end):
            raise StorageError("the session's file was changed by another program")
        if end > file.size:
            with (self.path / file.name).open("rb") as readable:
                readable.seek(file.size)
                self._keep_torn(file, readable.read())
            os.ftruncate(fd, file.size)
        file.end = file.size

    def _keep_torn(self, file: File, torn: bytes) -> None:
        told = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "file": file.name, "offset": file.size}
        try:
            told["text"] = torn.decode()
        except UnicodeDecodeError:
            told["base64"] = base64.b64encode(torn).decode()
        fd = os.open(self.path / TORN, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            write(fd, json.dumps(told).encode() + b"\n")
            sync(fd)
        finally:
            os.close(fd)
        log.warning("a change that was cut off was moved away", file=file.name, bytes=len(torn), to=TORN)

    def check(self, file: File) -> None:
        """The same for a file that is to be written anew."""
        fd = os.open(self.path / file.name, os.O_WRONLY | os.O_CLOEXEC)
        try:
            self.cut(file, fd)
        finally:
            os.close(fd)

    def aside(self) -> Path:
        """A new name, which stands for no session."""
        self._asides += 1
        return self.path / f"~{self._asides}{SUFFIX}.tmp"

    # --- writing anew ---

    def sweep(self) -> None:
        """Removes temporary files that an end without warning left. Raises OSError."""
        for path in self.path.glob(f"~*{SUFFIX}.tmp"):
            path.unlink()

    def tidy(self) -> None:
        """Writes the files anew that are worth it. One that cannot be stays as it is."""
        while self.untidy:
            id_ = self.untidy.pop()
            try:
                if id_ in self.files:
                    self._tidy(id_, self.files[id_])
            except (OSError, UnicodeDecodeError, StorageError) as error:
                log.warning("a file could not be written anew", file=self.files[id_].name, error=str(error))

    def _tidy(self, id_: str, file: File) -> None:
        self.check(file)
        before = file.size
        data, replayed = self.read(id_)
        compact = replayed.compact
        if before - len(compact) <= max(len(compact), WORTH):
            file.holds(data, replayed.size, len(compact))
            return
        aside = self.aside()
        put(aside, compact)
        os.replace(aside, self.path / file.name)
        file.holds(compact, len(compact), len(compact))
        sync_directory(self.path)
        log.info("a file was written anew", file=file.name, bytes_before=before, bytes_after=len(compact))


def put(path: Path, data: bytes) -> None:
    """Brings data to disk in a file of its own, private to this user. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write(fd, data)
        sync(fd)
    finally:
        os.close(fd)


def storage_error(error: OSError | UnicodeDecodeError | StorageError) -> StorageError:
    """What a failure is called outside; the cause goes to the log."""
    if isinstance(error, StorageError):
        return error
    kind = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
    log.warning("the data directory failed", kind=kind, error=str(error))
    return StorageError(f"the data directory failed ({kind})")


def write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _tell(scan: Scan, name: str, notices: list[str], *, lost: bool = False) -> None:
    told = notices[:NOTICES]
    if len(notices) > NOTICES:
        told.append(f"and {len(notices) - NOTICES} more like these")
    for text in told:
        log.warning("found in the data directory", file=name, what=text)
    lines = [f"{name}: {text}" for text in told]
    scan.notices += lines
    scan.lost += lines if lost else []
