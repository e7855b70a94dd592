"""The right to use a store's files, held by one process at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import NoReturn

from session_manager.errors import StorageError, Unready


class Holder:
    """A lock on a file beside the data, with the holder's process id in it. The kernel takes it back when the process
    dies, and what it says then means nothing."""

    def __init__(self, lock: Path, what: str) -> None:
        self._path, self._what = lock, what
        self._fd: int | None = None
        self._identity: tuple[int, int] | None = None

    def acquire(self) -> None:
        """Raises Unready when another process has it, OSError when there can be no such file."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(fd, 32).partition(b"\n")[0].decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise Unready(f"the {self._what} is in use by another process (pid {holder})") from None
        told = f"{os.getpid()}\n".encode()
        os.pwrite(fd, told, 0)
        found = os.fstat(fd)
        if found.st_size > len(told):
            os.ftruncate(fd, len(told))  # rarely, for it costs ten times what all the rest here does
        self.release()
        self._fd, self._identity = fd, _identity(found)

    def holds(self) -> bool:
        """Whether the file is still the one that is locked. Where somebody has removed it, another process can lock a
        new one. Raises OSError."""
        try:
            return _identity(os.stat(self._path)) == self._identity
        except FileNotFoundError:
            return False

    def take_again(self) -> NoReturn:
        """For who finds that it does not hold any more: takes the lock, unless another process has it, and raises
        StorageError all the same. What was decided on is of no worth, for another one may have been here meanwhile."""
        self.acquire()
        raise StorageError(f"the lock file of the {self._what} was removed; try again")

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = self._identity = None


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
