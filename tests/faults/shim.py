"""The library that stands between a process and its files (shim.c), and what it wrote down."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator, Mapping
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
    """One thing done: c(reate), w(rite), t(runcate), b(egin to sync), s(ynced), f(ailed to sync), u(nlink), r(ename),
    l(ink)."""

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
        body = data[at : at + size] if kind in "wrl" else b""
        at += len(body)
        yield Deed(kind, name, offset, body)


class _File:
    """What a disk holds of one file, whatever its names: what is safe, and what was done to it since."""

    def __init__(self) -> None:
        self.safe = bytearray()
        self.since: list[Deed] = []
        self.syncing = 0

    def settle(self) -> None:
        for deed in self.since[: self.syncing]:
            _apply(self.safe, deed)
        del self.since[: self.syncing]
        self.syncing = 0

    def forget(self, chance: random.Random) -> None:
        """A sync failed: what it was to bring to disk may be there or not, and no later sync brings it."""
        for deed in self.since:
            if chance.random() < 0.5:
                _apply(self.safe, deed)
        self.since.clear()
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


_Names = dict[str, _File]


class Disk:
    """A disk that keeps what was synced, and of the rest what chance leaves: any part, any order, torn at sectors."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._names: _Names = {}
        self._safe_names: _Names = {}
        """As they were when the directory was synced last."""
        self._renamed: list[Callable[[_Names], None]] = []
        """What was done to names since."""
        self._syncing = 0

    def take(self, deed: Deed) -> None:
        if deed.name == "":
            if deed.kind == "b":
                self._syncing = len(self._renamed)
            elif deed.kind == "s":
                for done in self._renamed[: self._syncing]:
                    done(self._safe_names)
                del self._renamed[: self._syncing]
                self._syncing = 0
        elif deed.kind == "c":
            self._name(_named(deed.name, _File()))
        elif deed.kind == "u":
            self._name(_unnamed(deed.name))
        elif deed.kind in "rl":
            self._name(_named(deed.data.decode(), self._names[deed.name]))
            if deed.kind == "r":
                self._renamed[-1] = _both(self._renamed[-1], _unnamed(deed.name))
                self._names.pop(deed.name)
        else:
            self._change(self._names.setdefault(deed.name, _File()), deed)

    def _change(self, file: _File, deed: Deed) -> None:
        if deed.kind in "wt":
            file.since.append(deed)
        elif deed.kind == "b":
            file.syncing = len(file.since)
        elif deed.kind == "s":
            file.settle()
        elif deed.kind == "f":
            file.forget(self._chance)

    def _name(self, done: Callable[[_Names], None]) -> None:
        done(self._names)
        self._renamed.append(done)

    def after_power_loss(self) -> Mapping[str, bytes]:
        """What is found on it afterwards. What was done to names is there up to a point, or any of it."""
        names, chance = dict(self._safe_names), self._chance
        upto = chance.randint(0, len(self._renamed)) if chance.random() < 0.5 else None
        for number, done in enumerate(self._renamed):
            if number < upto if upto is not None else chance.random() < 0.5:
                done(names)
        return {name: self._left(file, chance) for name, file in names.items()}

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


def _named(name: str, file: _File) -> Callable[[_Names], None]:
    def done(names: _Names) -> None:
        names[name] = file

    return done


def _unnamed(name: str) -> Callable[[_Names], None]:
    def done(names: _Names) -> None:
        names.pop(name, None)

    return done


def _both(first: Callable[[_Names], object], second: Callable[[_Names], object]) -> Callable[[_Names], None]:
    def done(names: _Names) -> None:
        first(names)
        second(names)

    return done
