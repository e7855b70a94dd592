"""What subscribers cost those who write, and how soon they hear."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from bench import content, figures
from bench.wire.line import Calls, Line, frame
from bench.wire.processes import Subscriber

IN_FLIGHT = 64


class Plan(NamedTuple):
    subscribers: tuple[int, ...]
    paces: tuple[tuple[float, int], ...]
    """Seconds between two appends, and how many of them."""
    bindings: tuple[int, ...]
    appends: int


FULL = Plan((0, 1, 10), ((0.0, 300), (0.002, 300), (0.010, 200), (0.030, 100)), (0, 1, 10, 50), 1500)
QUICK = Plan((0, 1, 2), ((0.0, 30), (0.010, 15)), (0, 1, 10), 150)


class Appends:
    """Frames of appends whose entries are named, so that their events can be told apart."""

    def __init__(self) -> None:
        self._next = 0

    def some(self, sessions: list[str]) -> tuple[Any, list[str]]:
        ids: list[str] = []

        def frames(index: int) -> tuple[bytes, bytes]:
            self._next += 1
            ids.append(f"event-{self._next}")
            payload = {"session_id": sessions[index % len(sessions)], "entry_id": ids[-1]}
            return frame("session::append", {**payload, "message": content.message(2 * self._next)})

        return frames, ids


async def measure(url: str, line: Line, sessions: list[str], plan: Plan) -> dict[str, Any]:
    appends = Appends()
    latency: list[dict[str, Any]] = []
    for count in plan.subscribers:
        with _subscribers(url, count, 1, {"session_id": sessions[0]}) as subscribers:
            await _heard(line, appends, sessions[:1], subscribers)
            for pace, many in plan.paces:
                frames, ids = appends.some(sessions[:1])
                calls = await line.one_by_one(frames, many, pace)
                row = {"subscribers": count, "pace": pace, **figures.summary([calls.times]), "lost": calls.lost}
                latency.append(row | await _delays(subscribers, dict(zip(ids, calls.sent, strict=True))))
    rates: list[dict[str, Any]] = []
    for bindings in plan.bindings:
        with _subscribers(url, min(1, bindings), bindings, {}) as subscribers:
            await _heard(line, appends, sessions, subscribers)
            frames, ids = appends.some(sessions)
            calls = await line.at_once(frames, plan.appends, IN_FLIGHT)
            heard = await _arrived(subscribers, set(ids), plan.appends * bindings, calls)
            rates.append({"bindings": bindings, "rate": calls.rate, "lost": calls.lost, **heard})
    return {"latency": latency, "rates": rates}


@contextlib.contextmanager
def _subscribers(url: str, count: int, bindings: int, config: dict[str, Any]) -> Iterator[list[Subscriber]]:
    made: list[Subscriber] = []
    try:
        made += [Subscriber(url, f"{count}-{bindings}-{number}", bindings, config) for number in range(count)]
        for subscriber in made:
            assert subscriber.line() == "bound"
        yield made
    finally:
        for subscriber in made:
            subscriber.end()
        time.sleep(0.3 if made else 0)  # the engine takes their bindings back


async def _heard(line: Line, appends: Appends, sessions: list[str], subscribers: list[Subscriber]) -> None:
    """Appends until every binding of every subscriber has had an event."""
    loop = asyncio.get_running_loop()
    hearing = [loop.run_in_executor(None, subscriber.line) for subscriber in subscribers]
    deadline = loop.time() + 20
    while not all(future.done() for future in hearing):
        if loop.time() > deadline:
            raise RuntimeError("subscribers hear nothing")
        frames, _ = appends.some(sessions)
        await line.one_by_one(frames, 1)
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)
    for subscriber in subscribers:
        subscriber.came()


async def _delays(subscribers: list[Subscriber], sent: dict[str, int]) -> dict[str, Any]:
    """Microseconds from sending an append to its event, over all subscribers; and how many events did not come."""
    delays: list[float] = []
    missing = out_of_place = 0
    for subscriber in subscribers:
        came = dict(subscriber.came())
        for _ in range(40):
            if len(came.keys() & sent.keys()) == len(sent):
                break
            await asyncio.sleep(0.05)
            came |= dict(subscriber.came())
        delays += [(came[id_] - at) / 1e3 for id_, at in sent.items() if id_ in came]
        missing += len(sent.keys() - came.keys())
        order = [id_ for id_ in came if id_ in sent]
        out_of_place += sum(a != b for a, b in zip(order, [id_ for id_ in sent if id_ in came], strict=True))
    if not delays:
        return {"missing": missing}
    return {
        "delay_p50": figures.quantile(delays, 0.5),
        "delay_p99": figures.quantile(delays, 0.99),
        "missing": missing,
        "out_of_place": out_of_place,
    }


async def _arrived(subscribers: list[Subscriber], ids: set[str], expected: int, calls: Calls) -> dict[str, Any]:
    """How many events came, and how long after the last append the last of them did."""
    count = last = 0
    quiet = 0
    while subscribers and count < expected and quiet < 60:
        came = [(id_, at) for subscriber in subscribers for id_, at in subscriber.came() if id_ in ids]
        count += len(came)
        last = max([last, *(at for _, at in came)])
        quiet = 0 if came else quiet + 1
        if count < expected:
            await asyncio.sleep(0.05)
    behind = max(0.0, (last - calls.last) / 1e9)
    events = count / (calls.elapsed + behind) if count else 0.0
    return {"events": count, "expected": expected, "behind": behind, "events_rate": events}
