"""Looking at what lies where, before every commit, for little.

A file is looked at without asking for its times. Since Linux 6.13 a file whose times somebody has asked for gets new
ones with the very next write, and not only with the next tick of the clock; that write's sync then has the inode to
write as well. Python's `os.stat` always asks for the times. Asked before every commit, it makes a commit in WAL mode
about a third slower on ext4.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from pathlib import Path
from typing import NamedTuple

Identity = tuple[int, int]
"""Device and inode."""

SETTLED = 3.0
"""Seconds after which two changes of a directory have different times. FAT counts by two, others by the tick."""

_AT_FDCWD = -100
_STATX_INO_AND_SIZE = 0x100 | 0x200
_STATX = struct.Struct("=32xQQ88xII112x")
"""Of `struct statx`, the same on every machine: inode, size, and the device's two numbers."""

_statx = getattr(ctypes.CDLL(None, use_errno=False), "statx", None)
"""Linux has it, by most of its C libraries."""


class Glance(NamedTuple):
    identity: Identity
    size: int


def glance(path: Path) -> Glance:
    """Raises OSError when there is nothing, like `os.stat`."""
    if _statx is not None:
        found = ctypes.create_string_buffer(_STATX.size)
        if _statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_INO_AND_SIZE, found) == 0:
            inode, size, major, minor = _STATX.unpack(found)
            return Glance((os.makedev(major, minor), inode), size)
    told = os.stat(path)  # where the call is not allowed, or there is nothing, this says so
    return Glance((told.st_dev, told.st_ino), told.st_size)


class Directory:
    """Tells whether anything was made, renamed or removed in a directory since it was last found in order: one look in
    place of one at every file."""

    def __init__(self, path: Path) -> None:
        self._path = os.fspath(path)
        self._found: tuple[int, ...] | None = None
        self._in_order: tuple[int, ...] | None = None

    def has_changed(self) -> bool:
        """Whether its files have to be looked at: something may be different."""
        try:
            told = os.stat(self._path)
        except OSError:
            self._found = None
            return True
        self._found = (told.st_dev, told.st_ino, told.st_mtime_ns, told.st_ctime_ns)
        return self._found != self._in_order

    def is_in_order(self) -> None:
        """Says that the files that `has_changed` asked to be looked at are what they should be. A directory that was
        changed just now is not believed yet: with the next change it might show the same time."""
        if self._found is not None and time.time_ns() - max(self._found[2:]) > SETTLED * 1e9:
            self._in_order = self._found
