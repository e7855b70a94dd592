"""Every function of the worker beside an echo, one call at a time and 64 in flight."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from bench import content, figures, machine
from bench.subjects.floor import Floor
from bench.targets import COMMIT, COMMIT_BETWEEN
from bench.wire.line import Line, frame

IN_FLIGHT = 64
WRITERS = 64
PAGE = 50
OFTEN = 3.0
"""How many times more calls there are of what others are measured by, and of what is measured by it."""

Payloads = Callable[[int], Any]


class Plan(NamedTuple):
    rounds: int
    alone: int
    """Calls one at a time, per round."""
    together: int
    """Calls with 64 in flight, per round."""
    sizes: tuple[int, ...]
    """Entries of the long session, and number of sessions."""


FULL = Plan(3, 150, 800, (1_000, 20_000))
QUICK = Plan(2, 20, 130, (200, 500))


class Function(NamedTuple):
    label: str
    id: str
    payload: Payloads
    share: float = 1.0
    """Of the plan's repetitions: less for what costs much."""


def user(index: int) -> dict[str, Any]:
    return content.message(2 * index)


class World:
    """What the calls are about."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.many: list[str] = []
        self.entries: list[str] = []
        self.sessions = 0
        self._fresh = 0

    async def make(self) -> None:
        for index in range(WRITERS):
            made = await self.line.call("session::create", {"title": f"writer {index}", "metadata": {"app": "bench"}})
            self.many.append(made["session_id"])
        self.big = await self._session("big")
        self.short = await self._session("short")
        reply = await self._append_many(self.short, 0, 10)
        self.short_ids = reply["entry_ids"]
        self.updated: list[str] = []
        for session in self.many:
            appended = await self.line.call("session::append", {"session_id": session, "message": content.message(1)})
            self.updated.append(appended["entry_id"])

    async def _session(self, title: str) -> str:
        return str((await self.line.call("session::create", {"title": title}))["session_id"])

    async def _append_many(self, session: str, first: int, count: int) -> Any:
        messages = [user(index) for index in range(first, first + count)]
        return await self.line.call("session::append-many", {"session_id": session, "messages": messages})

    async def grow(self, size: int) -> None:
        """The long session to so many entries, and as many sessions as that."""
        while len(self.entries) < size:
            count = min(500, size - len(self.entries))
            self.entries += (await self._append_many(self.big, len(self.entries), count))["entry_ids"]
        if self.sessions < size:
            first = self.sessions

            def frames(index: int) -> tuple[bytes, bytes]:
                owner = f"u{(first + index) % content.OWNERS}"
                return frame("session::create", {"title": f"s{first + index}", "metadata": {"owner": owner}})

            await self.line.at_once(frames, size - first, IN_FLIGHT)
            self.sessions = size

    def fresh(self) -> int:
        self._fresh += 1
        return self._fresh

    def by_size(self) -> list[Function]:
        """What may cost more the more there is."""
        middle = self.entries[len(self.entries) // 2]
        last = self.entries[-1]
        page: dict[str, Any] = {"session_id": self.big, "limit": PAGE}
        return [
            Function("append", "session::append", lambda i: {"session_id": self.many[i % WRITERS], "message": user(i)}, OFTEN),
            Function("append to the long session", "session::append", lambda i: {"session_id": self.big, "message": user(i)}),
            Function("messages, first 50", "session::messages", lambda i: page, 0.5),
            Function("messages, 50 from the middle", "session::messages", lambda i: {**page, "after_entry_id": middle}, 0.5),
            Function("get-message", "session::get-message", lambda i: {"session_id": self.big, "entry_id": last}),
            Function("get", "session::get", lambda i: {"session_id": self.many[i % WRITERS]}, OFTEN),
            Function("list 50", "session::list", lambda i: {"limit": PAGE}, 0.5),
            Function("list 50 of one owner in 1,000", "session::list", lambda i: {"limit": PAGE, "metadata": {"owner": "u7"}}, 0.5),
            Function("fork of the long session", "session::fork", lambda i: {"session_id": self.big, "entry_id": last}, 0.0),
        ]  # fmt: skip

    def others(self) -> list[Function]:
        """The other functions, each in a typical call."""
        many, short = self.many, self.short
        status = ("working", "idle")

        def session(i: int) -> str:
            return many[i % WRITERS]

        def raw_entry(i: int) -> Any:
            entry = {"kind": "message", "id": f"raw{i % 1000}", "parent_id": None, "timestamp": 1, "revision": 0}
            return {"session_id": "raw", "entry": {**entry, "message": user(i)}}

        def raw_meta(i: int) -> Any:
            meta = {"session_id": f"raw{i % 1000}", "title": "", "description": "", "status": "idle"}
            return {"meta": {**meta, "created_at": 1, "updated_at": 1, "message_count": 0}}

        event = {
            "trigger_type": "session::deleted",
            "payload": {"session_id": "nobody", "timestamp": 1},
            "session_metadata": {},
        }
        made = Function
        return [
            made("create", "session::create", lambda i: {"title": f"t{i}", "metadata": {"app": "bench"}}),
            made("ensure, there already", "session::ensure", lambda i: {"session_id": session(i)}),
            made("ensure, new", "session::ensure", lambda i: {"session_id": f"ensured-{self.fresh()}"}),
            made("set-meta", "session::set-meta", lambda i: {"session_id": session(i), "title": f"t{i}"}),
            made("set-draft", "session::set-draft", lambda i: {"session_id": session(i), "draft": f"d{i}"}),
            made("set-status", "session::set-status", lambda i: {"session_id": session(i), "status": status[i // WRITERS % 2]}),
            made("delete, of nothing", "session::delete", lambda i: {"session_id": "nobody"}),
            made("append-many of 10", "session::append-many", lambda i: {"session_id": session(i), "messages": [user(n) for n in range(10)]}, 0.5),
            made("update-message", "session::update-message", lambda i: {"session_id": session(i), "entry_id": self.updated[i % WRITERS], "content": user(i)["content"]}),
            made("fork of 10", "session::fork", lambda i: {"session_id": short, "entry_id": self.short_ids[-1]}, 0.5),
            made("set-active-leaf", "session::set-active-leaf", lambda i: {"session_id": short, "entry_id": self.short_ids[i % 10]}),
            made("config-status", "session::config-status", lambda i: {}),
            made("on-config-change", "session::on-config-change", lambda i: {}, 0.1),
            made("store::get-meta", "session::store::get-meta", lambda i: {"session_id": session(i)}),
            made("store::put-meta", "session::store::put-meta", raw_meta),
            made("store::delete-meta", "session::store::delete-meta", lambda i: {"session_id": f"raw{i % 1000}"}),
            made("store::list-metas", "session::store::list-metas", lambda i: {}, 0.02),
            made("store::get-entry", "session::store::get-entry", lambda i: {"session_id": short, "entry_id": self.short_ids[0]}),
            made("store::put-entry", "session::store::put-entry", raw_entry),
            made("store::list-entries", "session::store::list-entries", lambda i: {"session_id": short}, 0.5),
            made("store::delete-entries", "session::store::delete-entries", lambda i: {"session_id": "raw"}),
            made("store::get-active-leaf", "session::store::get-active-leaf", lambda i: {"session_id": short}),
            made("store::set-active-leaf", "session::store::set-active-leaf", lambda i: {"session_id": session(i), "entry_id": "none"}),
            made("store::delete-active-leaf", "session::store::delete-active-leaf", lambda i: {"session_id": session(i)}),
            made("store::publish-events", "session::store::publish-events", lambda i: {"events": [event]}),
        ]  # fmt: skip


class Measured(NamedTuple):
    """The processes whose CPU is read."""

    worker: int
    echo: int
    engine: int | None


async def measure(
    line: Line, world: World, functions: list[Function], plan: Plan, pids: Measured, size: int
) -> list[dict[str, Any]]:
    """A row per function, and rows `echo`, `echo of a page` and COMMITS of the same minutes."""
    page = await line.call("session::messages", {"session_id": world.big, "limit": PAGE})
    await line.call("bench::keep", {"page": page})
    same = len(msgspec.json.encode(page))
    body = {"session_id": world.big, "message": user(0)}
    echoes = [
        Function("echo", "bench::echo", lambda i: body, OFTEN),
        Function("echo of a page", "bench::page", lambda i: {}, 0.5),
    ]
    rounds: dict[str, list[dict[str, Any]]] = {}
    often = round(OFTEN * plan.alone)
    with tempfile.TemporaryDirectory(prefix="bench-floor-") as directory:
        floor = Floor(Path(directory))
        await floor.open()
        await floor.new("big")
        for round_ in range(plan.rounds):
            rounds.setdefault(COMMIT, []).append({"times": await _commits(floor, often)})
            between = await _commits(floor, often, lambda: _echo(line, body))
            rounds.setdefault(COMMIT_BETWEEN, []).append({"times": between})
            for function in [*echoes, *functions]:
                echoing = function.id.startswith("bench::")
                pid = pids.echo if echoing else pids.worker
                answers = rounds.setdefault(function.label, [])
                answers.append(await _one(line, function, plan, pid, pids.engine, round_))
            click.echo(f"    round {round_ + 1} of {plan.rounds}", err=True)
        await floor.close()
    rows = [{"label": label, "size": size, **_told(answers)} for label, answers in rounds.items()]
    next(row for row in rows if row["label"] == "echo of a page")["bytes"] = same
    return rows


async def _echo(line: Line, body: Any) -> None:
    await line.one_by_one(lambda _: frame("bench::echo", body), 1)


async def _commits(floor: Floor, count: int, before: Callable[[], Awaitable[None]] | None = None) -> list[float]:
    from bench.child import timed

    async def one() -> None:
        await floor.append("big", 0)

    times: list[float] = (await timed(one, 10.0, count, before))["times"]
    return times


async def _one(line: Line, function: Function, plan: Plan, pid: int, engine: int | None, round_: int) -> dict[str, Any]:
    start = round_ * 10_000_000

    def frames(index: int) -> tuple[bytes, bytes]:
        return frame(function.id, function.payload(start + index))

    alone = await line.one_by_one(frames, max(2, round(plan.alone * function.share)))
    found: dict[str, Any] = {"times": alone.times, "lost": alone.lost, "refused": alone.refused}
    found["refusal"] = alone.refusal
    together = round(plan.together * function.share)
    if together:
        start += 1_000_000
        before, engine_before = machine.cpu(pid), machine.cpu(engine) if engine else 0.0
        calls = await line.at_once(frames, together, IN_FLIGHT)
        found |= {
            "rate": calls.rate,
            "cpu": 1e6 * (machine.cpu(pid) - before) / together,
            "engine_cpu": 1e6 * (machine.cpu(engine) - engine_before) / together if engine else None,
            "client_cpu": 1e6 * calls.cpu,
            "lost": alone.lost + calls.lost,
            "refused": alone.refused + calls.refused,
            "refusal": alone.refusal or calls.refusal,
        }
    return found


def _told(answers: list[dict[str, Any]]) -> dict[str, Any]:
    row = figures.summary([answer["times"] for answer in answers if answer["times"]])
    for key in ("rate", "cpu", "engine_cpu", "client_cpu"):
        values = [answer[key] for answer in answers if answer.get(key) is not None]
        if values:
            row[key] = statistics.median(values)
    for key in ("lost", "refused"):
        row[key] = sum(answer.get(key, 0) for answer in answers)
    row["refusal"] = next((answer["refusal"] for answer in answers if answer.get("refusal")), "")
    return row
