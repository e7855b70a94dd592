"""The same work on every store, side by side: all are there at once, and take turns round by round, so that a slow
minute of the machine is a slow minute for all of them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from bench import figures
from bench.subjects import SUBJECTS

PATIENCE = 180.0
"""Seconds for one command, filling included."""


class Work(NamedTuple):
    id: str
    world: str
    """entries, sessions or small"""
    title: str
    unit: str = "per call"


WORKS: tuple[Work, ...] = (
    Work("append", "entries", "append one message, one writer"),
    Work("append_alone", "entries", "one insert in one commit"),
    Work("last", "entries", "read the last 50 messages"),
    Work("middle", "entries", "read 50 messages from the middle"),
    Work("fork", "entries", "fork at the end"),
    Work("resume", "entries", "resume: open the store again and read the last 50"),
    Work("list", "sessions", "list the newest 50 sessions"),
    Work("list_owner", "sessions", "list the newest 50 of one owner (1 session in 1,000, but at least 60)"),
    Work("list_status", "sessions", "list the newest 50 with a status (1 session in 100, but at least 60)"),
    Work("writers_1", "small", "append, one writer"),
    Work("writers_64", "small", "append, 64 writers, a session each"),
    Work("append_wal", "small", "append in WAL mode, for those that do not use it"),
    Work("batch", "small", "append 1,000 messages at once"),
    Work("stream", "small", "stream 200 updates into a reply of 20 KB", "per update"),
    Work("emit", "small", "append while 10,000 bindings listen to other sessions"),
    Work("fanout", "small", "append 8 KiB with 50 matching subscribers"),
    Work("codec", "small", "decode, validate and encode one append of 1 KB"),
)


class Plan(NamedTuple):
    entries: tuple[int, ...]
    sessions: tuple[int, ...]
    rounds: int
    budget: float
    """Seconds per row and round."""
    most: int
    """Repetitions per row and round."""
    enough: float
    """Seconds that one row may take altogether before further rounds are left out."""
    too_long: float
    """Work of which one piece is expected to take so many seconds is left out."""


FULL = Plan((1_000, 10_000, 50_000), (1_000, 10_000, 100_000), 5, 0.25, 200, 4.0, 12.0)
QUICK = Plan((200, 1_000), (200, 1_000), 2, 0.05, 20, 0.5, 2.0)


class Child:
    """A subject in its process."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.dead: str | None = None
        directory.mkdir(parents=True)
        self._log = (directory.parent / f"{name}.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.child", name, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore", "OTEL_SDK_DISABLED": "true"},
        )

    def send(self, **command: Any) -> None:
        if self.dead is None:
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps(command).encode() + b"\n")
                self._process.stdin.flush()
            except OSError:
                self.dead = "its process ended"

    def answer(self, patience: float = PATIENCE) -> dict[str, Any]:
        """What it answered; `error` or `not_offered` when it did not do it."""
        if self.dead is not None:
            return {"error": self.dead}
        assert self._process.stdout is not None
        line = b""
        if select.select([self._process.stdout], [], [], patience)[0]:
            line = self._process.stdout.readline()
            if not line:
                self.dead = "its process ended"
        else:
            self.dead = f"no answer after {patience:.0f} s"
            self._process.kill()
        if self.dead is not None:
            return {"error": self.dead}
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> None:
        self.send(do="quit")
        if self.dead is None:
            self.answer(20)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]


def run(plan: Plan, names: Sequence[str], works: Sequence[str]) -> list[dict[str, Any]]:
    """A row per work, size and subject."""
    rows: list[dict[str, Any]] = []
    pace: dict[tuple[str, str], tuple[float, int]] = {}
    """Per subject and work: seconds of one piece, and the size at which."""
    worlds = [*(("entries", size) for size in plan.entries), *(("sessions", size) for size in plan.sessions)]
    for kind, size in [*worlds, ("small", 0)]:
        chosen = [work for work in WORKS if work.world == kind and work.id in works]
        if chosen:
            with _children(kind, size, names) as (children, opened):
                for work in chosen:
                    started = time.perf_counter()
                    if work.id == "batch":  # one by one, where that is the only way
                        for name, (seconds, _) in [(n, p) for (n, w), p in pace.items() if w == "writers_1"]:
                            if opened[name].get("batches") is False:
                                pace[name, work.id] = (1000 * seconds, 1)
                    found = _measure(work, size, children, plan, pace)
                    for row in found:
                        row.update(
                            {key: opened[row["subject"]].get(key) for key in ("disk", "full", "how", "scans")}
                            | {"import": opened[row["subject"]].get("import")}
                        )
                    rows += found
                    label = f"{work.title}, {size:,}" if size else work.title
                    click.echo(f"  {label}: {time.perf_counter() - started:.1f} s", err=True)
    return rows


def flat(plan: Plan) -> list[dict[str, Any]]:
    """session-manager on sqlite alone, reading from disk, at all sizes side by side and in turns: what grows, whatever
    the minute does."""
    rows: list[dict[str, Any]] = []
    for kind, sizes in (("entries", plan.entries), ("sessions", plan.sessions)):
        with contextlib.ExitStack() as stack:
            opened = {size: stack.enter_context(_children(kind, size, ["sqlite-disk"]))[0][0] for size in sizes}
            for work in WORKS:
                if work.world != kind or work.id in ("append_alone", "resume"):
                    continue
                answers: dict[int, list[list[float]]] = {size: [] for size in sizes}
                for _ in range(plan.rounds):
                    for size, child in opened.items():
                        child.send(do="run", work=work.id, budget=plan.budget, most=plan.most)
                        answers[size].append(child.answer().get("times", []))
                for size, rounds in answers.items():
                    if all(rounds):
                        rows.append({"work": work.id, "size": size, **figures.summary(rounds)})
    return rows


@contextlib.contextmanager
def _children(kind: str, size: int, names: Sequence[str]) -> Iterator[tuple[list[Child], dict[str, dict[str, Any]]]]:
    """The subjects, each with that much in it. They are filled at the same time; nothing is measured then."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as base:
        children: list[Child] = []
        opened: dict[str, dict[str, Any]] = {}
        try:
            start = time.perf_counter()
            children += [Child(name, Path(base) / name) for name in names]
            for child in children:
                ready = child.answer(60)
                if "ready" in ready:
                    child.send(do="open", kind=kind, size=size)
                else:
                    child.dead = str(ready.get("not_offered") or ready.get("error"))
                    opened[child.name] = ready
            for child in children:
                if child.name not in opened:
                    opened[child.name] = child.answer()
            click.echo(f"{kind} {size or ''} ready after {time.perf_counter() - start:.1f} s", err=True)
            yield children, opened
        finally:
            for child in children:
                child.end()


def _measure(
    work: Work, size: int, children: Sequence[Child], plan: Plan, pace: dict[tuple[str, str], tuple[float, int]]
) -> list[dict[str, Any]]:
    found: dict[str, list[dict[str, Any]]] = {child.name: [] for child in children}
    refused: dict[str, dict[str, Any]] = {}
    spent = dict.fromkeys(found, 0.0)
    for round_ in range(plan.rounds):
        for child in children:
            name = child.name
            if name in refused or (spent[name] > plan.enough and found[name]):
                continue
            before = pace.get((name, work.id))
            if not found[name] and before is not None and before[0] * (size or 1) / before[1] > plan.too_long:
                why = f"left out: {figures.duration(before[0] * 1e6)}" + (f" at {before[1]:,}" if size else "")
                refused[name] = {"not_offered": why}
                continue
            start = time.perf_counter()
            child.send(do="run", work=work.id, budget=plan.budget, most=plan.most)
            answer = child.answer()
            spent[name] += time.perf_counter() - start
            if "times" not in answer:
                refused[name] = answer
                if round_ == 0 or "error" in answer:
                    continue
            else:
                found[name].append(answer)
    rows = []
    for name, answers in found.items():
        row: dict[str, Any] = {"work": work.id, "size": size, "subject": name}
        if answers and any(answer["times"] for answer in answers):
            row |= figures.summary([answer["times"] for answer in answers if answer["times"]])
            row |= _extra(answers)
            pace[name, work.id] = (row["p50"] / 1e6, size or 1)
        row |= {key: value for key, value in refused.get(name, {}).items() if key in ("error", "not_offered")}
        rows.append(row)
    return rows


def _extra(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the rounds say beside their times."""
    last = answers[-1]
    extra: dict[str, Any] = {"peak": max(answer.get("peak", 0) for answer in answers)}
    for key in ("rate", "left", "disk_high", "encodes"):
        values = sorted(answer[key] for answer in answers if key in answer)
        if values:
            extra[key] = values[len(values) // 2]
    if any("beside" in answer for answer in answers):
        extra["beside"] = figures.summary([answer["beside"] for answer in answers])
    for key in ("journal", "synchronous", "failure", "parts", "delivered"):
        if key in last:
            extra[key] = last[key]
    failures = sum(answer.get("failures", 0) for answer in answers)
    if failures:
        extra["failures"] = failures
        extra["failure"] = next(answer["failure"] for answer in answers if "failure" in answer)
    return extra


def names(peers: bool, only: Sequence[str]) -> list[str]:
    """The subjects to measure. The floor and sqlite are always there: everything is told in their terms."""
    wanted = [name for name in only if name in SUBJECTS]
    return [
        name
        for name, subject in SUBJECTS.items()
        if (peers or not subject.peer) and (not wanted or name in wanted or name in ("floor", "sqlite"))
    ]
