"""The library that stands between a process and its files (shim.c), and what it wrote down."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from msgspec import Struct

SOURCE = Path(__file__).with_name("shim.c")

SECTOR = 512
"""A disk writes so many bytes whole or not at all."""


def build(directory: Path) -> Path:
    """The library, built; skips the test where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler (cc) to stand between the worker and its disk")
    library = directory / "shim.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl", "-lpthread"],
        check=True,
        capture_output=True,
    )
    return library


def environment(
    library: Path, directory: Path, *, log: Path | None = None, control: Path | None = None
) -> dict[str, str]:
    made = {**os.environ, "LD_PRELOAD": str(library), "SHIM_DIR": str(directory.resolve())}
    if log is not None:
        made["SHIM_LOG"] = str(log)
    if control is not None:
        made["SHIM_CONTROL"] = str(control)
    return made


class Deed(Struct, frozen=True):
    """One thing done: c(reate), w(rite), t(runcate), b(egin to sync), s(ynced), u(nlink), r(ename)."""

    kind: str
    name: str
    offset: int
    data: bytes


def deeds(log: Path) -> Iterator[Deed]:
    data, at = log.read_bytes(), 0
    while at < len(data):
        kind = chr(data[at])
        (length,) = struct.unpack_from("<I", data, at + 1)
        name = data[at + 5 : at + 5 + length].decode()
        offset, size = struct.unpack_from("<qQ", data, at + 5 + length)
        at += 21 + length
        body = data[at : at + size] if kind in "wr" else b""
        at += len(body)
        yield Deed(kind, name, offset, body)


class _File:
    """What a disk holds of one file: what is safe, and what was done to it since."""

    def __init__(self) -> None:
        self.safe = bytearray()
        self.since: list[Deed] = []
        self.syncing = 0
        self.named = False
        """Whether its entry in the directory is safe."""

    def settle(self) -> None:
        for deed in self.since[: self.syncing]:
            _apply(self.safe, deed)
        del self.since[: self.syncing]
        self.syncing = 0


def _apply(content: bytearray, deed: Deed, data: bytes | None = None, shift: int = 0) -> None:
    if deed.kind == "t":
        if deed.offset <= len(content):
            del content[deed.offset :]
        else:
            content.extend(bytes(deed.offset - len(content)))
        return
    data = deed.data if data is None else data
    start = deed.offset + shift
    if start > len(content):
        content.extend(bytes(start - len(content)))
    content[start : start + len(data)] = data


class Disk:
    """A disk that keeps what was synced, and of the rest what chance leaves: any part, any order, torn at sectors."""

    def __init__(self) -> None:
        self.files: dict[str, _File] = {}
        self.removed: dict[str, _File] = {}
        """Files whose removal is not safe."""

    def take(self, deed: Deed) -> None:
        if deed.name == "":
            if deed.kind == "s":
                self._directory_synced()
            return
        if deed.kind == "c":
            self.files[deed.name] = _File()
            return
        if deed.kind == "u":
            gone = self.files.pop(deed.name, None)
            if gone is not None and gone.named:
                self.removed[deed.name] = gone
            return
        file = self.files.setdefault(deed.name, _File())
        if deed.kind in "wt":
            file.since.append(deed)
        elif deed.kind == "b":
            file.syncing = len(file.since)
        elif deed.kind == "s":
            file.settle()

    def _directory_synced(self) -> None:
        self.removed.clear()
        for file in self.files.values():
            file.named = True

    def after_power_loss(self, chance: random.Random) -> Mapping[str, bytes]:
        """What is found on it afterwards."""
        found: dict[str, bytes] = {}
        for name, file in self.removed.items():
            if name not in self.files and chance.random() < 0.5:
                found[name] = self._left(file, chance)
        for name, file in self.files.items():
            if file.named or chance.random() < 0.5:
                found[name] = self._left(file, chance)
        return found

    def _left(self, file: _File, chance: random.Random) -> bytes:
        content = bytearray(file.safe)
        kind = chance.random()
        since = list(file.since)
        if kind < 0.2:
            return bytes(content)  # nothing of it
        if kind < 0.4:
            since = since[: chance.randint(0, len(since))]  # in order, up to a point
        else:
            since = [deed for deed in since if chance.random() < 0.6]  # any of it
            if kind < 0.8:
                chance.shuffle(since)
        for deed in since:
            if deed.kind == "t" or chance.random() < 0.5:
                _apply(content, deed)
                continue
            for start in range(0, len(deed.data), SECTOR):  # torn
                if chance.random() < 0.6:
                    _apply(content, deed, deed.data[start : start + SECTOR], start)
        return bytes(content)
