"""Kills a loaded process again and again, on one store: python -m tests.faults.crash KIND DIRECTORY KILLS SEED.

Prints what was seen as one JSON object. This process has no threads, so that it can fork at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults.load import LEAST, Told, check_store, load_store


def forked(work: Callable[[int], None]) -> tuple[int, int]:
    """The id of a child that does the work, and where to read what it writes."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        status = 1
        try:
            work(writing)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    return pid, reading


def read(fd: int, until: float | None = None) -> bytes:
    """What comes until the end, or until a time."""
    data = bytearray()
    while True:
        rest = None if until is None else max(0.0, until - time.monotonic())
        if not select.select([fd], [], [], rest)[0]:
            return bytes(data)
        part = os.read(fd, 1 << 20)
        if not part:
            return bytes(data)
        data += part


def acknowledged(said: bytes) -> int:
    """How many lines are no announcement of what is about to be asked for."""
    return sum(bool(line) and b'"look"' not in line for line in said.split(b"\n"))


def check(directory: Path, kind: str, told: Told, *, recent: bool = False) -> list[str]:
    def work(fd: int) -> None:
        with os.fdopen(fd, "wb") as out:
            out.write(json.dumps(asyncio.run(check_store(directory, kind, told, recent=recent))).encode())

    pid, reading = forked(work)
    answer = read(reading)
    os.close(reading)
    _, status = os.waitpid(pid, 0)
    found: list[str] = json.loads(answer) if answer else [f"the store could not be checked (status {status})"]
    return found


def main(kind: str, directory: Path, kills: int, seed: int) -> None:
    told, moments = Told(), random.Random(seed)
    problems: list[str] = []
    done = 0
    while done < kills and not problems:
        name = f"r{done}"

        def work(fd: int, name: str = name, seed: int = seed + done) -> None:
            asyncio.run(load_store(directory, kind, fd, name, seed, None))

        pid, reading = forked(work)
        first = select.select([reading], [], [], 30)[0]
        said = read(reading, time.monotonic() + moments.uniform(0.0, 0.25)) if first else b""
        late = time.monotonic() + 60
        while done == 0 and acknowledged(said) <= LEAST and time.monotonic() < late:
            said += read(reading, time.monotonic() + 0.05)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        said += read(reading)
        os.close(reading)
        told.take(said.split(b"\n"))
        problems += check(directory, kind, told, recent=True)
        told.recent.clear()
        done += 1
    problems += check(directory, kind, told)
    size = sum(path.stat().st_size for path in directory.iterdir())
    print(json.dumps({"kills": done, "acknowledged": told.acknowledged, "problems": problems[:5], "bytes": size}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
