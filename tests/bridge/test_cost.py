"""What calls through a bridge cost beside the same calls at the main instance. Measures, and judges nothing."""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bench import content, machine
from bench.subjects.floor import Floor
from bench.wire import processes
from bench.wire.line import Line, frame
from tests.wire import worker_process

ROUNDS, CALLS, PAGE = 5, 100, 50

LENGTHS, SESSIONS = (200, 1_000, 5_000), (1_000, 20_000)

Timed = Callable[[], Awaitable[list[float]]]
"""Makes some calls one after the other and returns the microseconds of each."""


def calls(line: Line, function: str, payload: Callable[[int], Any], count: int = CALLS) -> Timed:
    async def timed() -> list[float]:
        done = await line.one_by_one(lambda index: frame(f"session::{function}", payload(index)), count)
        assert not done.refused, done.refusal
        if done.lost:
            told(f"  {done.lost} of {count} calls of {function} unanswered after 10 s")
        return done.times

    return timed


def told(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def beside(*rows: tuple[str, Timed]) -> list[float]:
    """The medians of several kinds of calls, in rounds, so that the machine's moods meet all of them; prints them."""
    medians: dict[str, list[float]] = {name: [] for name, _ in rows}
    for _ in range(ROUNDS):
        for name, timed in rows:
            medians[name].append(statistics.median(await timed()))
    for name, of in medians.items():
        told(f"  {name:45} {statistics.median(of):8.0f} us   ({min(of):.0f} to {max(of):.0f})")
    return [statistics.median(of) for of in medians.values()]


async def quiet(pids: list[int]) -> None:
    """Returns when these processes have nothing to do: the events of many changes are told for a while after them."""
    while True:
        before = sum(map(machine.cpu, pids))
        await asyncio.sleep(0.5)
        if sum(map(machine.cpu, pids)) - before < 0.03:
            return


async def grow(line: Line, session_id: str, size: int) -> None:
    have = (await line.call("session::ensure", {"session_id": session_id}))["meta"]["message_count"]
    for first in range(have, size, 200):
        messages = [content.message(index) for index in range(first, min(size, first + 200))]
        await line.call("session::append-many", {"session_id": session_id, "messages": messages})


@pytest.mark.bench
@pytest.mark.engine
async def test_a_bridge_beside_its_main_instance(capsys: pytest.CaptureFixture[str]) -> None:
    kind = processes.engines()[-1]
    with (
        capsys.disabled(),
        tempfile.TemporaryDirectory(prefix="bridge-cost-", ignore_cleanup_errors=True) as directory,
        ExitStack() as stack,
    ):
        base = Path(directory)
        there, there_pid = stack.enter_context(processes.engine(kind, base / "there"))
        here, here_pid = stack.enter_context(processes.engine(kind, base / "here"))
        stack.enter_context(processes.echo(here, base / "echo"))
        main = stack.enter_context(processes.worker(there, base / "main"))
        at_main = await Line(there, "bench-there").open()
        await processes.worker_ready(at_main)
        over = {"adapter": {"name": "bridge", "config": {"url": there}}}
        bridge = stack.enter_context(worker_process(here, base / "bridge", value=over))
        assert bridge.process is not None
        through = await Line(here, "bench-here").open()
        await processes.worker_ready(through)
        await processes.ready(through, "bench::echo", {})

        told(f"\n{kind} engines; medians of {ROUNDS} rounds' medians (lowest to highest)")
        await at_main.call("session::ensure", {"session_id": "s"})
        floor = Floor(base)
        await floor.open()
        await floor.new("s")

        def message(index: int) -> dict[str, Any]:
            return {"session_id": "s", "message": content.message(2 * index)}

        def named(index: int) -> dict[str, Any]:
            named.count = getattr(named, "count", 0) + 1  # type: ignore[attr-defined] # a counter of its own
            return message(index) | {"entry_id": f"named-{named.count}"}  # type: ignore[attr-defined]

        async def echo() -> list[float]:
            return (await through.one_by_one(lambda index: frame("bench::echo", message(index)), CALLS)).times

        async def commit() -> list[float]:
            from bench.child import timed

            async def one() -> None:
                await floor.append("s", 0)

            times: list[float] = (await timed(one, 10.0, CALLS))["times"]
            return times

        pids = {"bridge": bridge.process.pid, "main": main.pid, "its engine": here_pid, "main's engine": there_pid}
        running = [pid for pid in pids.values() if pid]
        echoes, commits, _, appends, _ = await beside(
            ("echo", echo),
            ("bare commit, synchronous FULL", commit),
            ("append at the main instance", calls(at_main, "append", message)),
            ("append through the bridge", calls(through, "append", message)),
            ("append with an id through the bridge", calls(through, "append", named)),
        )
        told(f"  append through the bridge: {appends / (echoes + commits):.1f} times echo and commit")
        before = {name: machine.cpu(pid) for name, pid in pids.items() if pid}
        done = await through.at_once(lambda index: frame("session::append", message(index)), 400, 1)
        spent = {name: 1e6 * (machine.cpu(pids[name]) - was) / 400 for name, was in before.items()}  # type: ignore[arg-type]
        told(f"  CPU per append, us: {', '.join(f'{name} {each:.0f}' for name, each in spent.items())}")
        sessions = [f"w{number}" for number in range(64)]
        for id_ in sessions:
            await at_main.call("session::ensure", {"session_id": id_})
        done = await through.at_once(
            lambda index: frame("session::append", message(index) | {"session_id": sessions[index % 64]}), 2000, 64
        )
        told(f"  appends a second, 64 sessions at once: {done.rate:.0f}")

        for length in LENGTHS:
            await grow(at_main, "page", length)
            await quiet(running)
            ids = (await at_main.call("session::messages", {"session_id": "page", "limit": length // 2}))["messages"]
            first = {"session_id": "page", "limit": PAGE}
            middle = {**first, "after_entry_id": ids[-1]["entry_id"]}
            for where, asked in (("first", first), ("middle", middle)):
                one, other = await beside(
                    (f"{where} {PAGE} of {length:,}, main", calls(at_main, "messages", lambda _, asked=asked: asked)),  # type: ignore[misc]
                    (f"{where} {PAGE} of {length:,}, bridge", calls(through, "messages", lambda _, asked=asked: asked)),  # type: ignore[misc]
                )
                told(f"  {other / one:.2f} times")
        made = 65
        for count in SESSIONS:
            await at_main.at_once(
                lambda index, made=made: frame("session::create", {"title": f"session {made + index}"}),  # type: ignore[misc]
                count - made,
                64,
            )
            made = count
            await quiet(running)
            one, other = await beside(
                (f"list {PAGE} of {count:,} sessions, main", calls(at_main, "list", lambda _: {"limit": PAGE})),
                (f"list {PAGE} of {count:,} sessions, bridge", calls(through, "list", lambda _: {"limit": PAGE})),
            )
            told(f"  {other / one:.2f} times")
        await floor.close()
        at_main.close()
        through.close()
