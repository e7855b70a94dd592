"""A batch of changes, made durable wholly or not at all.

Each session's part is one append to its file, or one file that takes the place of another; a crash leaves each of
them there or not there. When the disk fails instead, what was done is undone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, suppress
from pathlib import Path

import structlog

from session_manager.errors import StorageError
from session_manager.store import EVERYTHING, Change
from session_manager.stores.fs.files import Directory, File, sync, write
from session_manager.stores.fs.lines import change_lines, whole_lines
from session_manager.stores.fs.names import file_name
from session_manager.stores.memory import Kept

log = structlog.get_logger("session_manager.fs")


def apply(directory: Directory, changes: Sequence[Change], syncs: Executor) -> None:
    """Makes the changes durable. Raises OSError, UnicodeDecodeError or StorageError when nothing of them was kept."""
    sessions: dict[str, list[Change]] = {}
    for change in changes:
        sessions.setdefault(change.session_id, []).append(change)
    batch = _Batch(directory)
    with batch.closing, batch.undo:
        for id_, own in sessions.items():
            batch.add(id_, own)
        batch.bring_to_disk(syncs)
        batch.undo.pop_all()
    batch.settle()


class _Batch:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self.closing, self.undo = ExitStack(), ExitStack()
        self._written: list[int] = []
        """Open files with something new in them."""
        self._renames: list[tuple[Path, Path | None]] = []
        """Paths, and the temporary files that take their places; None where nothing does."""
        self._names_change = False
        self._done: list[Callable[[], object]] = []
        """What is noted once all is durable."""

    def add(self, id_: str, changes: Sequence[Change]) -> None:
        file = self._directory.files.get(id_)
        if any(change.drops for change in changes):
            self._write_anew(id_, file, changes)
        elif data := b"".join(map(change_lines, changes)):
            self._append(id_, file, data)

    def _append(self, id_: str, file: File | None, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        files = self._directory.files
        if file is None:
            file = File(file_name(id_))
            self._only(id_, file)
            fd = os.open(self._directory.path / file.name, flags | os.O_CREAT | os.O_EXCL, 0o600)
            self.undo.callback(self._remove, id_, file)
            self._names_change = True
            self._done.append(lambda: files.update({id_: file}))
        else:
            fd = os.open(self._directory.path / file.name, flags)
        self.closing.callback(os.close, fd)
        self._directory.cut(file, fd)
        if file.size:
            self.undo.callback(self._shorten, file)
        if file.unended:
            data = b"\n" + data
        write(fd, data)
        self._written.append(fd)
        self._done.append(lambda: self._grew(id_, file, len(data)))

    def _write_anew(self, id_: str, file: File | None, changes: Sequence[Change]) -> None:
        kept = Kept()
        if file is not None:
            fd = os.open(self._directory.path / file.name, os.O_WRONLY | os.O_CLOEXEC)
            self.closing.callback(os.close, fd)
            self._directory.cut(file, fd)
            if changes[0].drops != EVERYTHING:
                kept = self._directory.read(id_)[1].kept
        for change in changes:
            kept.apply(change)
        files, path = self._directory.files, self._directory.path / file_name(id_)
        if kept.is_empty():
            if file is not None:
                self._renames.append((self._directory.path / file.name, None))
                self._done.append(lambda: files.pop(id_))
            return
        if file is None:
            file = File(file_name(id_))
            self._only(id_, file)
        path = self._directory.path / file.name
        data = whole_lines(kept)
        aside = self._directory.put_aside(2 * len(self._renames), data)
        self._renames.append((path, aside))
        self._done.append(lambda: file.holds(data, len(data), len(data)))
        self._done.append(lambda: files.update({id_: file}))

    def _only(self, id_: str, file: File) -> None:
        """Raises StorageError when a new session's file is there already."""
        if os.path.lexists(self._directory.path / file.name):
            raise StorageError(f"a file that is not of session {id_!r} has its name; ids may differ only by case")

    def bring_to_disk(self, syncs: Executor) -> None:
        if len(self._written) == 1:
            sync(self._written[0])
        else:
            list(syncs.map(sync, self._written))
        for number, (path, new) in enumerate(self._renames):
            old = self._directory.aside(2 * number + 1)
            if path.exists():
                self._set_aside(path, old)
            if new is None:
                path.unlink()
            else:
                os.replace(new, path)
        if self._names_change or self._renames:
            self._directory.sync_names()

    def _set_aside(self, path: Path, old: Path) -> None:
        old.unlink(missing_ok=True)
        try:
            os.link(path, old)
        except OSError:
            log.debug("the file system has no links; a removal cannot be undone", file=path.name)
            return
        self.undo.callback(os.replace, old, path)
        self._done.append(old.unlink)

    def settle(self) -> None:
        for done in self._done:
            with suppress(OSError):  # a temporary file that stays is removed at the next start
                done()

    # --- what a failure undoes ---

    def _grew(self, id_: str, file: File, by: int) -> None:
        file.grew(by)
        if file.size > file.check_at:
            self._directory.untidy.add(id_)

    def _shorten(self, file: File) -> None:
        try:
            os.truncate(self._directory.path / file.name, file.size)
        except OSError as error:
            file.end = None
            log.warning("a change could not be taken back yet", file=file.name, error=error.strerror)

    def _remove(self, id_: str, file: File) -> None:
        try:
            (self._directory.path / file.name).unlink()
        except OSError as error:
            file.end = None
            self._directory.files[id_] = file
            log.warning("a file could not be taken back yet", file=file.name, error=error.strerror)
