"""What is aimed for, as ratios within one run, and what a run came to. Computed from the recorded figures alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from bench.figures import paired, ratio
from bench.stores import WORKS
from bench.subjects import SUBJECTS

TITLES = {work.id: work.title for work in WORKS}

PUBLISHED = {"echo": 370.0, "echo rate": 10_000.0, "append rate": 7_200.0}
"""The published worker in Rust, without an fsync, on the real engine, with a lean client: microseconds, and calls per
second at 64 in flight. Only multiples of the echo of the same run are compared with ours."""

PUBLISHED_AT: Mapping[int, Mapping[str, float]] = {
    1_000: {"messages, first 50": 1_750.0, "list 50": 2_000.0, "fork of the long session": 7_600.0},
    20_000: {"messages, first 50": 21_600.0, "list 50": 53_000.0, "fork of the long session": 160_000.0},
}

AHEAD, AHEAD_OF_SCANS = 2.0, 20.0

COMMITS = COMMIT, COMMIT_BETWEEN = "a bare commit at FULL, no engine", "a bare commit at FULL, between echoes"
"""Rows beside an engine's: one right behind the other, and each behind an echo, as often as calls come."""


class Target(NamedTuple):
    what: str
    bound: str
    value: float
    met: bool
    short_by: float
    """How many times too much or too little; 1 when met."""

    @property
    def verdict(self) -> str:
        return "met" if self.met else f"short by {ratio(self.short_by)}x"


def at_most(what: str, value: float, bound: float, unit: str = "x") -> Target:
    return Target(what, f"at most {bound:g}{unit}", value, value <= bound, max(1.0, value / bound))


def at_least(what: str, value: float, bound: float, unit: str = "x") -> Target:
    return Target(what, f"at least {bound:g}{unit}", value, value >= bound, max(1.0, bound / value if value else 0))


class Rows:
    """The rows of a store run, by work, size and subject."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = {(row["work"], row["size"], row["subject"]): row for row in rows if "p50" in row}
        self.entries = sorted({row["size"] for row in rows if row["work"] == "append"})
        self.sessions = sorted({row["size"] for row in rows if row["work"] == "list"})

    def get(self, work: str, size: int, subject: str = "sqlite", key: str = "p50") -> float | None:
        found: float | None = self.rows.get((work, size, subject), {}).get(key)
        return found


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def stores(rows: list[dict[str, Any]], side_by_side: list[dict[str, Any]]) -> Iterator[Target]:
    found = Rows(rows)
    grown = {(row["work"], row["size"]): row["medians"] for row in side_by_side}
    entries, sessions = found.entries, found.sessions

    def beside(what: str, work: str, size: int, bound: float, floor: str = "") -> Iterator[Target]:
        ours, theirs = found.rows.get((work, size, "sqlite")), found.rows.get((floor or work, size, "floor"))
        if ours is not None and theirs is not None:
            yield at_most(what, paired(ours["medians"], theirs["medians"]), bound)

    def flat(what: str, work: str, sizes: list[int], bound: float, per: bool = False) -> Iterator[Target]:
        if len(sizes) > 1 and (work, sizes[-1]) in grown and (work, sizes[0]) in grown:
            value = paired(grown[work, sizes[-1]], grown[work, sizes[0]]) * (sizes[0] / sizes[-1] if per else 1)
            yield at_most(f"{what}: {sizes[-1]:,} beside {sizes[0]:,}", value, bound)

    for size in entries:
        yield from beside(
            f"append p50 beside a bare commit of the same two rows, {size:,} entries", "append", size, 1.5
        )
    for size in entries[:1]:
        yield from beside(
            f"append p50 beside a bare commit of one row, {size:,} entries", "append", size, 1.5, "append_alone"
        )
    rate = _ratio(found.get("writers_64", 0, key="rate"), found.get("writers_1", 0, key="rate"))
    if rate is not None:
        yield at_least("appends per second with 64 writers beside one", rate, 5)
    yield from beside("1,000 messages at once beside one executemany", "batch", 0, 1.5)
    yield from flat("last 50", "last", entries, 1.3)
    yield from flat("50 from the middle", "middle", entries, 1.3)
    yield from flat("append", "append", entries, 1.3)
    yield from flat("fork at the end, per entry", "fork", entries, 1.3, per=True)
    yield from flat("newest 50 sessions", "list", sessions, 2)
    yield from flat("newest 50 of an owner", "list_owner", sessions, 2)
    yield from flat("newest 50 with a status", "list_status", sessions, 2)
    left = found.get("stream", 0, key="left")
    if left is not None:
        yield at_most("left on disk by 200 updates of one reply, in final sizes", left, 3)
    row = found.rows.get(("emit", 0, "memory"))
    if row is not None:  # in memory, where no disk hides what an event costs
        value = paired(row["beside"]["medians"], row["medians"])
        yield at_most("append in memory with 10,000 bindings for other sessions beside none", value, 1.1)
    encodes = found.get("fanout", 0, key="encodes")
    if encodes is not None:
        yield at_most("encodings per event of 8 KiB with 50 subscribers", encodes, 1)
    codec = found.get("codec", 0)
    if codec is not None:
        yield at_most("decode, validate and encode an append of 1 KB", codec, 40, " us")


class Beside(NamedTuple):
    work: str
    size: int
    peer: str
    ahead: float
    bound: float
    why: str

    @property
    def met(self) -> bool:
        return self.ahead >= self.bound


def peers(rows: list[dict[str, Any]]) -> list[Beside]:
    """How far ahead of every peer, in every row that it has. Where it scans, 20x is asked at the greatest size."""
    found = Rows(rows)
    largest: dict[tuple[str, str], int] = {}
    for work, size, subject in found.rows:
        largest[work, subject] = max(size, largest.get((work, subject), 0))
    told: list[Beside] = []
    for (work, size, subject), row in found.rows.items():
        if not SUBJECTS[subject].peer:
            continue
        if "rate" in row:
            ahead = _ratio(found.get(work, size, key="rate"), row["rate"])
        else:
            ours = "append" if work == "append_wal" else work
            ahead = _ratio(row["p50"], found.get(ours, found.entries[0] if work == "append_wal" else size))
        if ahead is None:
            continue
        scans = (row.get("scans") or {}).get("list" if work.startswith("list") else work)
        asked = AHEAD_OF_SCANS if scans and size == largest[work, subject] else AHEAD
        told.append(Beside(work, size, subject, ahead, asked, f"reads {scans}" if scans else ""))
    return told


def wire(kind: str, found: dict[str, Any]) -> Iterator[Target]:
    rows = {(row["label"], row["size"]): row for row in found.get("calls", [])}
    sizes = list(found.get("sizes", ()))
    if not sizes:
        return

    def p50(label: str, size: int) -> float:
        return float(rows[label, size]["p50"])

    first = sizes[0]

    def beside(label: str, *others: str) -> float:
        sums = [sum(round_) for round_ in zip(*(rows[other, first]["medians"] for other in others), strict=True)]
        return paired(rows[label, first]["medians"], sums)

    rate, append = float(rows["echo", first]["rate"]), rows["append", first]
    yield at_most(f"{kind}: append p50 beside echo and bare commit", beside("append", "echo", COMMIT), 1.2)
    yield at_least(f"{kind}: appends per second at 64 in flight beside echo", append["rate"] / rate, 0.65)
    yield at_most(f"{kind}: get p50 beside echo", beside("get", "echo"), 1.15)
    same = beside("messages, first 50", "echo of a page")
    yield at_most(f"{kind}: page of 50 beside an echo of the same bytes", same, 1.3)
    if kind != "real":
        return
    theirs = PUBLISHED["append rate"] / PUBLISHED["echo rate"]
    yield at_least("real: appends at 64 in flight beside the published worker's", append["rate"] / rate / theirs, 0.75)
    for size, labels in PUBLISHED_AT.items():
        for label, published in labels.items():
            if (label, size) in rows:
                ours = p50(label, size) / p50("echo", size)
                ahead = published / PUBLISHED["echo"] / ours
                asked = 10 if size > 1_000 else 1
                yield at_least(f"real: {label}, {size:,}: ahead of the published worker", ahead, asked)


def grow(found: dict[str, Any]) -> Iterator[Target]:
    size = found["sizes"][-1]
    process = found[str(size)].get("process", {})
    if "ready" in process:
        yield at_most(f"worker ready with {size:,} sessions on disk", process["ready"], 1, " s")
        yield at_most("resident memory then", process["resident"] / 1e6, 150, " MB")
        yield at_most("resident memory under load, at most", process["peak"] / 1e6, 150, " MB")
