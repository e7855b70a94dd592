"""`python -m bench grow`: the same figures on a small store and on one of a million entries and 100,000 sessions, and
the worker as a process on both."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from bench import content, figures, machine
from bench.stores import Child
from bench.wire import processes
from bench.wire.line import Line, frame

SMALL, LARGE = 1_000, 100_000
"""Sessions; ten times as many entries, a twentieth of which are one session's."""

QUICK = (300, 1_000)

WORKS = {
    "append": "append to the long session",
    "append_cold": "append to a session not used lately",
    "last": "read the last 50 of the long session",
    "middle": "read 50 from its middle",
    "cold": "get a session not used lately, and its messages",
    "list": "list the newest 50 sessions",
    "list_owner": "list the newest 50 of one owner in 1,000",
    "list_status": "list the newest 50 with a status",
    "fork_short": "read and fork a session of 10",
    "batch": "append 1,000 messages at once",
    "writers_64": "append, 64 writers",
    "resume": "open the store and read the last 50",
}

LOAD = 4_000
"""Appends over the wire, and a quarter as many pages and lists, while memory is watched."""


def run(quick: bool) -> dict[str, Any]:
    sizes = QUICK if quick else (SMALL, LARGE)
    budget, most, rounds = (0.05, 20, 1) if quick else (0.3, 200, 3)
    found: dict[str, Any] = {"sizes": sizes}
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="bench-grow-", ignore_cleanup_errors=True) as base:
            found[str(size)] = _measured(Path(base), size, budget, most, rounds)
            load = LOAD // 20 if quick else LOAD
            found[str(size)]["process"] = asyncio.run(_process(Path(base), load))
    return found


def _measured(base: Path, size: int, budget: float, most: int, rounds: int) -> dict[str, Any]:
    child = Child("sqlite", base / "sqlite")
    try:
        child.answer(60)
        child.send(do="open", kind="grown", size=size)
        opened = child.answer(1200)
        click.echo(f"  {size:,} sessions filled in {opened.get('seconds', 0):.0f} s", err=True)
        rows: dict[str, Any] = {}
        for work in WORKS:
            answers = []
            for _ in range(rounds):
                child.send(do="run", work=work, budget=budget, most=most)
                answers.append(child.answer())
            timed = [answer for answer in answers if answer.get("times")]
            if not timed:
                rows[work] = answers[0]
                continue
            rows[work] = figures.summary([answer["times"] for answer in timed])
            rates = sorted(answer["rate"] for answer in timed if "rate" in answer)
            if rates:
                rows[work]["rate"] = rates[len(rates) // 2]
        return {"opened": opened, "rows": rows}
    finally:
        child.end()


async def _process(base: Path, load: int) -> dict[str, Any]:
    """The worker on that file: when it is ready, and how much memory it takes."""
    with processes.engine("loopback", base / "engine") as (url, _):
        line = await Line(url, "bench-grow").open()
        # What the file system still holds of a file just written is nothing a restart can count on, and nothing this
        # can drop without being root; so the file is warm here.
        start = time.monotonic()
        with processes.worker(url, base / "worker", base / "sqlite" / "store.db") as worker:
            await processes.worker_ready(line)
            ready = time.monotonic() - start
            resident = machine.resident(worker.pid)
            machine.forget_peak(worker.pid)
            sessions = [f"session-{index}" for index in range(64)]
            for session in sessions:
                await line.call("session::ensure", {"session_id": session})

            def appends(index: int) -> tuple[bytes, bytes]:
                message = content.message(2 * index, 1000)
                return frame("session::append", {"session_id": sessions[index % 64], "message": message})

            def pages(index: int) -> tuple[bytes, bytes]:
                return frame("session::messages", {"session_id": "big" if index % 2 else sessions[index % 64]})

            def lists(index: int) -> tuple[bytes, bytes]:
                return frame("session::list", {"limit": 50, "metadata": {"owner": "u7"}} if index % 2 else {})

            rate = (await line.at_once(appends, load, 64)).rate
            await line.at_once(pages, load // 4, 64)
            await line.at_once(lists, load // 4, 64)
            found = {"ready": ready, "resident": resident, "peak": machine.peak(worker.pid), "rate": rate}
            line.close()
        return found
