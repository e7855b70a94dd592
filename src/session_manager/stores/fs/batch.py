"""Making a batch of changes durable, each session's part wholly or not at all.

A part is one append to the session's file, or one file that takes the place of another; a crash leaves it done or not
done. When the disk fails instead, what was done of the part is undone, and the other parts are none the worse.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path

import structlog

from session_manager.errors import StorageError
from session_manager.store import EVERYTHING, Change
from session_manager.stores.directories import sync_directory
from session_manager.stores.fs.files import Directory, File, put, storage_error, sync, write
from session_manager.stores.fs.lines import change_lines, whole_lines
from session_manager.stores.fs.names import LONGEST, file_name
from session_manager.stores.memory import Kept

log = structlog.get_logger("session_manager.fs")


OPEN_AT_ONCE = 128
"""Files that are open at the same time: a process may have so many descriptors only."""


def apply(directory: Directory, changes: Sequence[Change], syncs: Executor) -> dict[str, StorageError]:
    """Makes the changes durable. Says of which sessions nothing was kept, and why."""
    sessions: dict[str, list[Change]] = {}
    for change in changes:
        sessions.setdefault(change.session_id, []).append(change)
    parts = [_part(directory, id_, own) for id_, own in sessions.items()]
    failed: dict[str, StorageError] = {}
    for first in range(0, len(parts), OPEN_AT_ONCE):
        failed |= _apply(directory, parts[first : first + OPEN_AT_ONCE], syncs)
    return failed


def _part(directory: Directory, id_: str, changes: Sequence[Change]) -> _Part:
    file = directory.files.get(id_)
    anew = any(change.drops for change in changes) or (file is not None and file.doubtful)
    return (_Anew if anew else _Append)(directory, id_, changes)


def _apply(directory: Directory, parts: list[_Part], syncs: Executor) -> dict[str, StorageError]:
    failed: dict[str, StorageError] = {}

    def sift(parts: list[_Part], errors: Iterable[StorageError | None]) -> list[_Part]:
        """The parts without an error; the others are undone."""
        fine = []
        for part, error in zip(parts, errors, strict=True):
            if error is None:
                fine.append(part)
            else:
                part.undo()
                failed[part.id] = error
        return fine

    parts = sift(parts, [_tried(part.write) for part in parts])
    parts = sift(parts, (syncs.map if len(parts) > 1 else map)(_tried, [part.sync for part in parts]))
    parts = sift(parts, [_tried(part.rename) for part in parts])
    if any(part.names_change for part in parts):
        error = _tried(lambda: sync_directory(directory.path))
        parts = sift(parts, [error if part.names_change else None for part in parts])
    for part in parts:
        part.settle()
    return failed


def _tried(step: Callable[[], object]) -> StorageError | None:
    try:
        step()
    except (OSError, UnicodeDecodeError, StorageError) as error:
        return storage_error(error)
    return None


class _Part:
    """What a batch does to one session. The steps come in this order; after one that failed comes `undo`."""

    names_change = False
    """Whether a name in the directory was given or taken."""

    def __init__(self, directory: Directory, id_: str, changes: Sequence[Change]) -> None:
        self.id, self._changes, self._directory = id_, changes, directory
        self._known = id_ in directory.files
        self._file = directory.files.get(id_) or File(file_name(id_))
        self._path = directory.path / self._file.name

    def write(self) -> None:
        if self.id in self._directory.unreadable:
            raise StorageError(f"the file of session {self.id!r} cannot be read")
        if len(self._file.name) > LONGEST:
            raise StorageError(f"the session id is too long: its file name would have {len(self._file.name)} bytes")
        if not self._known and os.path.lexists(self._path):
            raise StorageError(f"the file name for session {self.id!r} is taken: do two ids differ only by case?")

    def sync(self) -> None:
        pass

    def rename(self) -> None:
        pass

    def undo(self) -> None:
        pass

    def settle(self) -> None:
        pass


class _Append(_Part):
    """Lines at the end of the file, which is made if need be."""

    _fd: int | None = None
    _added = 0
    _syncing = False

    def write(self) -> None:
        super().write()
        data = change_lines(*self._changes)
        if not data:
            return
        if self._file.unended:
            data = b"\n" + data
        made = 0 if self._known else os.O_CREAT | os.O_EXCL
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | made, 0o600)
        self.names_change = not self._known
        self._directory.cut(self._file, self._fd)
        self._added = len(data)
        write(self._fd, data)

    def sync(self) -> None:
        if self._fd is not None:
            self._syncing = True
            sync(self._fd)

    def undo(self) -> None:
        if self._fd is None:
            return
        try:
            if not self._known:
                self._path.unlink()
            elif self._added:
                self._file.doubtful = self._syncing
                os.ftruncate(self._fd, self._file.size)
        except OSError as error:
            self._file.end = None
            self._directory.files[self.id] = self._file
            log.warning("what failed cannot be undone yet", file=self._file.name, error=error.strerror)
        os.close(self._fd)

    def settle(self) -> None:
        if self._fd is None:
            return
        os.close(self._fd)
        self._directory.files[self.id] = self._file
        self._file.grew(self._added)
        if self._file.size > self._file.check_at:
            self._directory.untidy.add(self.id)


class _Anew(_Part):
    """A file that takes the place of the one before, or none when nothing is left."""

    _data = b""
    _new: Path | None = None
    _old: Path | None = None

    def write(self) -> None:
        super().write()
        kept = Kept()
        if self._known:
            self._directory.check(self._file)
            if self._changes[0].drops != EVERYTHING:
                kept = self._directory.read(self.id)[1].kept
        for change in self._changes:
            kept.apply(change)
        self._data = whole_lines(kept)
        if self._data:
            self._new = self._directory.aside()
            put(self._new, self._data)

    def rename(self) -> None:
        if self._known:
            old = self._directory.aside()
            with suppress(OSError):  # where the file system has no links, there is no way back
                os.link(self._path, old)
                self._old = old
        if self._new is not None:
            os.replace(self._new, self._path)
            self.names_change = True
        elif self._known:
            self._path.unlink()
            self.names_change = True

    def undo(self) -> None:
        try:
            if self._new is not None:
                self._new.unlink(missing_ok=True)
            if self._old is not None:
                os.replace(self._old, self._path)
            elif self.names_change and not self._known:
                self._path.unlink()
            elif self.names_change:
                raise OSError("there is no way back")
        except OSError as error:
            self._directory.unreadable.add(self.id)
            log.error("what failed cannot be undone; the session rests", file=self._file.name, error=str(error))

    def settle(self) -> None:
        if self._old is not None:
            with suppress(OSError):  # then it is swept away at the next start
                self._old.unlink()
        if self._data:
            self._directory.files[self.id] = self._file
            self._file.holds(self._data, len(self._data), len(self._data))
        else:
            self._directory.files.pop(self.id, None)
