"""Directories: where one is, and names in it that are as durable as what is in the files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from session_manager.errors import StorageError


def place(base: Path, given: str) -> Path:
    """The path that a setting or a command names, without links. Raises StorageError for the home of somebody who has
    none, and for a link that leads to itself."""
    try:
        named = base / Path(given).expanduser()
    except RuntimeError:
        raise StorageError("there is no home directory for the `~` of the path") from None
    found = Path(os.path.realpath(named))
    try:
        found.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise StorageError("the path is a link that leads to itself") from None
    return found


def prepare_directory(directory: Path) -> None:
    """Makes the directory and those above it, private to this user and durable. Raises OSError."""
    if directory.is_dir():
        return
    prepare_directory(directory.parent)
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory)) from None
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Brings the names that were given and taken in it to disk. Raises OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
