"""`python -m bench wire`: on every engine there is."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from bench import machine
from bench.wire import calls, events, processes
from bench.wire.line import Line


def run(quick: bool) -> dict[str, Any]:
    """Per engine: rows of calls and of events, or why there are none."""
    found: dict[str, Any] = {}
    for kind in processes.engines():
        started = time.perf_counter()
        try:
            found[kind] = asyncio.run(_on(kind, quick))
        except (OSError, RuntimeError, TimeoutError, AssertionError) as error:
            found[kind] = {"error": f"{type(error).__name__}: {error}"}
            click.echo(f"  {kind}: {error}", err=True)
        click.echo(f"  {kind} engine: {time.perf_counter() - started:.0f} s", err=True)
    return found


async def _on(kind: str, quick: bool) -> dict[str, Any]:
    plan = calls.QUICK if quick else calls.FULL
    with (
        tempfile.TemporaryDirectory(prefix="bench-wire-", ignore_cleanup_errors=True) as base,
        processes.engine(kind, Path(base) / "engine") as (url, engine_pid),
        processes.echo(url, Path(base) / "echo") as echo,
        processes.worker(url, Path(base) / "worker") as worker,
    ):
        line = await Line(url, "bench-client").open()
        await processes.ready(line, "bench::echo", {}, 30)
        await processes.worker_ready(line)
        world = calls.World(line)
        await world.make()
        pids = calls.Measured(worker.pid, echo.pid, engine_pid)
        rows: list[dict[str, Any]] = []
        for number, size in enumerate(plan.sizes):
            await world.grow(size)
            functions = world.by_size() + (world.others() if number == 0 else [])
            click.echo(f"    {kind}, {size:,} entries and sessions", err=True)
            rows += await calls.measure(line, world, functions, plan, pids, size)
        resident, peak = machine.resident(worker.pid), machine.peak(worker.pid)
        heard = await events.measure(url, line, world.many, events.QUICK if quick else events.FULL)
        line.close()
        return {"calls": rows, **heard, "resident": resident, "peak": peak, "sizes": plan.sizes}
