"""One subject in a process of its own: reads commands as JSON lines from its standard input, and answers each.

`open` makes a world (a session of many entries, many sessions, or nothing yet), `run` measures one kind of work in it.
Times are microseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import sqlite3
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench import content, machine
from bench.subjects import load
from bench.subjects.subject import NotOffered, Subject

PAGE = 50

UPDATES, REPLY = 200, 20_000
"""A streamed reply: so many updates, and so many characters at the end."""

BATCH = 1000

FANOUT, FANOUT_EVENTS, FANOUT_TEXT = 50, 1000, 8 << 10

Times = dict[str, Any]


class World:
    """A subject with something in it."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.size = 0
        self.next = 0
        self.sessions = 0
        self.baseline = machine.resident()
        self.beside: Subject | None = None
        """The same store on another file."""
        self.made: set[str] = set()
        """Sessions that earlier rounds made."""

    async def open(self, kind: str, size: int) -> dict[str, Any]:
        subject = self.subject
        if kind == "sessions" and type(subject).newest is Subject.newest:
            await subject.newest(PAGE)  # raises
        await subject.open()
        start = time.perf_counter()
        if kind == "entries":
            await subject.fill_entries("big", size)
            self.next = size
        elif kind == "sessions":
            await subject.fill_sessions(size)
        elif kind == "grown":
            self.sessions = size
            size = self.next = await self._ours().fill_grown(size)
        filled = time.perf_counter() - start
        disk = 0
        if kind != "small":
            await subject.close()
            disk = machine.on_disk(subject.directory)
            await subject.open()
        self.size = size
        return {
            "disk": disk,
            "seconds": filled,
            "resident": machine.resident(),
            "import": self.baseline,
            "full": subject.FULL,
            "how": subject.how,
            "scans": subject.scans,
            "batches": subject.BATCHES,
        }

    async def run(self, work: str, budget: float, most: int) -> dict[str, Any]:
        measure = getattr(self, f"work_{work}", None)
        if measure is None:
            raise NotOffered("measured on another subject only")
        gc.collect()
        machine.forget_peak()
        result: dict[str, Any] = await measure(budget, most)
        result["peak"] = machine.peak()
        if "journal" not in result:
            with contextlib.suppress(NotOffered):
                result["journal"], result["synchronous"] = await self.subject.settings()
        return result

    # --- one session of many entries ---

    async def work_append(self, budget: float, most: int) -> Times:
        async def one() -> None:
            self.next += 1
            await self.subject.append("big", self.next)

        return await timed(one, budget, most)

    async def work_append_alone(self, budget: float, most: int) -> Times:
        append = getattr(self.subject, "append_alone", None)
        if append is None:
            raise NotOffered("measured on bare sqlite3 only")

        async def one() -> None:
            self.next += 1
            await append("big", self.next)

        return await timed(one, budget, most)

    async def work_last(self, budget: float, most: int) -> Times:
        return await timed(self._page(lambda: self.subject.last("big", PAGE)), budget, most)

    async def work_middle(self, budget: float, most: int) -> Times:
        return await timed(self._page(lambda: self.subject.middle("big", self.size // 2, PAGE)), budget, most)

    async def work_fork(self, budget: float, most: int) -> Times:
        return await timed(lambda: self.subject.fork("big"), budget, most)

    async def work_resume(self, budget: float, most: int) -> Times:
        if self.subject.FULL == "no file":
            raise NotOffered("a restart forgets it")
        read = self._page(lambda: self.subject.last("big", PAGE))

        async def one() -> None:
            await self.subject.open()
            await read()

        return await timed(one, budget, min(most, 40), before=self.subject.close)

    def _page(self, read: Callable[[], Awaitable[int]]) -> Callable[[], Awaitable[None]]:
        async def one() -> None:
            found = await read()
            if found != PAGE:
                raise RuntimeError(f"{found} messages came instead of {PAGE}")

        return one

    # --- many sessions ---

    async def work_list(self, budget: float, most: int) -> Times:
        return await timed(self._some(lambda: self.subject.newest(PAGE)), budget, most)

    async def work_list_owner(self, budget: float, most: int) -> Times:
        return await timed(self._some(lambda: self.subject.newest_of_owner(PAGE)), budget, most)

    async def work_list_status(self, budget: float, most: int) -> Times:
        return await timed(self._some(lambda: self.subject.newest_working(PAGE)), budget, most)

    def _some(self, read: Callable[[], Awaitable[int]]) -> Callable[[], Awaitable[None]]:
        async def one() -> None:
            if not 0 < await read() <= PAGE:
                raise RuntimeError("no sessions came")

        return one

    # --- from nothing ---

    async def work_append_wal(self, budget: float, most: int) -> Times:
        """For those who leave SQLite's rollback journal on: what they could do if they did not."""
        if (await self.subject.settings())[0] == "wal":
            raise NotOffered("is in WAL mode anyway")
        directory = self.subject.directory / "wal"
        other = self.beside
        if other is None:
            directory.mkdir()
            other = self.beside = type(self.subject)(directory)
            connection = sqlite3.connect(other.file)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.close()
            await other.open()
            await other.new("wal")

        async def one() -> None:
            self.next += 1
            await other.append("wal", self.next)

        result = await timed(one, budget, most)
        result["journal"], result["synchronous"] = await other.settings()
        return result

    async def work_writers_1(self, budget: float, most: int) -> Times:
        return await self._writers(1, budget, most * 2)

    async def work_writers_64(self, budget: float, most: int) -> Times:
        return await self._writers(64, budget, most * 5)

    async def _writers(self, writers: int, budget: float, most: int) -> Times:
        subject = self.subject
        for number in range(writers):
            if f"writer-{number}" not in self.made:
                await subject.new(f"writer-{number}")
                self.made.add(f"writer-{number}")
        left = most
        deadline = time.perf_counter() + 3 * budget
        times: list[float] = []
        failures: list[str] = []

        async def write(session: str) -> None:
            nonlocal left
            while left > 0 and time.perf_counter() < deadline:
                left -= 1
                self.next += 1
                start = time.perf_counter_ns()
                try:
                    await subject.append(session, self.next)
                except Exception as error:
                    failures.append(f"{type(error).__name__}: {error}")
                else:
                    times.append((time.perf_counter_ns() - start) / 1e3)

        start = time.perf_counter()
        await asyncio.gather(*(write(f"writer-{number}") for number in range(writers)))
        elapsed = time.perf_counter() - start
        result: Times = {"times": times, "rate": len(times) / elapsed}
        if failures:
            result["failures"] = len(failures)
            result["failure"] = failures[0][:200]
        return result

    async def work_batch(self, budget: float, most: int) -> Times:
        async def fresh() -> None:
            self.next += 1
            await self.subject.new(f"batch-{self.next}")

        return await timed(
            lambda: self.subject.batch(f"batch-{self.next}", 0, BATCH), 2 * budget, min(most, 20), before=fresh
        )

    async def work_stream(self, budget: float, most: int) -> Times:
        """Several replies, one after another, each in a session of its own, and what they leave on the disk."""
        subject = self.subject
        if type(subject).update_reply is Subject.update_reply:
            await subject.update_reply("", "")  # raises
        await subject.close()
        before = machine.on_disk(subject.directory)
        await subject.open()
        times: list[float] = []
        replies = 0
        deadline = time.perf_counter() + 2 * budget
        while replies < (3 if most > 50 else 1) or (time.perf_counter() < deadline and replies < 10):
            self.next += 1
            session = f"stream-{self.next}"
            await subject.new(session)
            await subject.append(session, 0)
            await subject.start_reply(session)
            for update in range(1, UPDATES + 1):
                whole = content.text(replies, REPLY * update // UPDATES)
                start = time.perf_counter_ns()
                await subject.update_reply(session, whole)
                times.append((time.perf_counter_ns() - start) / 1e3)
            replies += 1
        high = machine.on_disk(subject.directory)
        await subject.close()
        after = machine.on_disk(subject.directory)
        await subject.open()
        whole_size = replies * REPLY
        return {
            "times": times,
            "left": (after - before) / whole_size,
            "disk_high": (high - before) / whole_size,
            "replies": replies,
        }

    # --- what only session-manager is asked ---

    def _ours(self) -> Any:
        if not hasattr(self.subject, "hub"):
            raise NotOffered("has no subscribers")
        return self.subject

    async def work_emit(self, budget: float, most: int) -> Times:
        """Appends that tell an event nobody hears, with no bindings at all and with 10,000 for other sessions."""
        ours = self._ours()
        if "emit" not in self.made:
            self.made.add("emit")
            await ours.new("emit")

        async def one() -> None:
            await ours.append("emit", 1)

        alone: list[float] = []
        beside: list[float] = []
        for turn in range(12):
            if turn % 2:
                ours.bind(10_000, lambda number: f"other-{number}")
            (beside if turn % 2 else alone).extend((await timed(one, budget / 4, most))["times"])
            ours.unbind()
        return {"times": alone, "beside": beside}

    async def work_fanout(self, budget: float, most: int) -> Times:
        """Events of 8 KiB to matching subscribers: how often each is encoded."""
        ours = self._ours()
        from session_manager import events

        events_wanted = FANOUT_EVENTS if most > 50 else 100
        await ours.new("fanout")
        ours.bind(FANOUT, lambda number: "fanout")
        encoded = 0
        real = events.encode  # type: ignore[attr-defined] # where events are encoded

        def counting(value: Any) -> bytes:
            nonlocal encoded
            encoded += 1
            return real(value)

        events.encode = counting  # type: ignore[attr-defined]
        received = ours.received
        start = time.perf_counter()
        try:
            for index in range(events_wanted):
                message = content.message(2 * index, FANOUT_TEXT)
                await ours.call("append", session_id="fanout", message=message)
            appended = time.perf_counter() - start
            await ours.delivery.drain(60)
        finally:
            events.encode = real  # type: ignore[attr-defined]
            ours.unbind()
        elapsed = time.perf_counter() - start
        delivered = ours.received - received
        return {
            "times": [1e6 * appended / events_wanted],
            "encodes": encoded / events_wanted,
            "delivered": delivered,
            "rate": delivered / elapsed,
        }

    async def work_cold(self, budget: float, most: int) -> Times:
        return await timed(lambda: self._ours().cold(self._any()), budget, most)

    async def work_fork_short(self, budget: float, most: int) -> Times:
        return await timed(lambda: self._ours().fork_short(self._any()), budget, most)

    async def work_append_cold(self, budget: float, most: int) -> Times:
        return await timed(lambda: self._ours().append_cold(self._any()), budget, most)

    def _any(self) -> int:
        """One of the sessions, each time another."""
        self.next += 1
        return self.next * 7919 % (self.sessions - 1)

    async def work_codec(self, budget: float, most: int) -> Times:
        ours = self._ours()
        parts = await ours.codec(1024, 20 * most)
        return {"times": [sum(parts.values())], "parts": parts}


async def timed(
    one: Callable[[], Awaitable[Any]],
    budget: float,
    most: int,
    before: Callable[[], Awaitable[None]] | None = None,
) -> Times:
    """Repeats for `budget` seconds, at most so often and at least once; what comes `before` is not timed."""
    times: list[float] = []
    deadline = time.perf_counter() + budget
    while len(times) < most and (not times or time.perf_counter() < deadline):
        if before is not None:
            await before()
        start = time.perf_counter_ns()
        await one()
        times.append((time.perf_counter_ns() - start) / 1e3)
    return {"times": times}


async def serve(name: str, directory: Path, answer: Callable[[Any], None]) -> None:
    try:
        world = World(load(name)(directory))
    except ImportError as error:
        answer({"not_offered": f"not installed: {error}"})
        return
    answer({"ready": True})
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        do = command.pop("do")
        try:
            if do == "quit":
                await world.subject.close()
                answer({})
                return
            answer(await (world.open if do == "open" else world.run)(**command))
        except NotOffered as reason:
            answer({"not_offered": str(reason)})
        except Exception as error:
            traceback.print_exc()
            answer({"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]})


def main() -> None:
    name, directory = sys.argv[1], Path(sys.argv[2])
    protocol = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not be taken for an answer

    def answer(value: Any) -> None:
        protocol.write(json.dumps(value) + "\n")
        protocol.flush()

    try:
        import uvloop
    except ImportError:
        runner = asyncio.run
    else:
        runner = uvloop.run
    runner(serve(name, directory, answer))
    os._exit(0)  # peers leave threads behind that would keep the process


if __name__ == "__main__":
    main()
