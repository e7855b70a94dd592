"""A subscriber that never answers, or goes away, costs the others nothing and the worker a bounded amount of memory."""

from __future__ import annotations

import asyncio
import itertools
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from session_manager.bindings import MAX_BINDINGS, Binding, BindingTable, binding
from session_manager.delivery import Delivery, Pace
from session_manager.errors import InvalidRequest
from session_manager.events import Emission, MessageAdded
from session_manager.hub import Hub
from session_manager.model import TextBlock, UserMessage
from session_manager.store import Store
from session_manager.stores.memory import MemoryStore
from session_manager.stores.sqlite import SqliteStore
from tests.faults.conftest import Figure
from tests.faults.load import service, user

SESSIONS = 50


def events(count: int) -> Iterator[Emission]:
    for n in range(count):
        message = UserMessage([TextBlock(f"{n} " + "x" * 1000)], 0)
        yield Emission(MessageAdded(f"s{n % SESSIONS}", f"e{n}", n, None, message), None)


class Line:
    """Subscribers: `dead` never answers, the others at once."""

    def __init__(self) -> None:
        self.got: dict[str, list[int]] = {"alive": [], "dead": []}

    async def send(self, to: Binding, payload: bytes) -> None:
        if to.function_id == "dead":
            await asyncio.Event().wait()
        self.got[to.function_id].append(len(payload))


async def flood(count: int) -> tuple[int, int, int]:
    """Sends so many events to a dead and a living subscriber. How many the living one got, how many the dead one lost,
    and the most memory that was taken, in bytes."""
    line, table = Line(), BindingTable()
    delivery = Delivery(line.send, Pace())
    hub = Hub(table, delivery.take)
    for name in ("dead", "alive"):
        table.add(binding(name, "session::message-added", name, {}))
    tracemalloc.start()
    coming, sent = events(count), 0
    while batch := list(itertools.islice(coming, 500)):
        sent += len(batch)
        hub.publish(batch)
        deadline = asyncio.get_running_loop().time() + 60
        while len(line.got["alive"]) < sent and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    lost = 0
    for to, tally, waiting in delivery.tallies():
        if to.function_id == "dead":
            lost = tally.dropped
            assert waiting <= Pace().waiting
            assert lost + waiting + Pace().unanswered == count, "every event is delivered, waits or is counted as lost"
        else:
            assert tally.dropped == 0
    delivery.close()
    return len(line.got["alive"]), lost, peak


async def test_a_subscriber_that_never_answers_costs_the_others_nothing() -> None:
    with structlog.testing.capture_logs() as logs:
        alive, lost, peak = await flood(12_000)
    assert alive == 12_000
    assert lost > 1_500
    assert peak < 80 << 20
    told = [line for line in logs if "does not keep up" in line["event"]]
    assert 1 <= len(told) <= 5, "it is told, and not for every event"
    assert told[0]["dropped"] == 1, "it is told as soon as it happens"


@pytest.mark.long
async def test_a_subscriber_that_never_answers_while_100000_events_pass(figure: Figure) -> None:
    alive, lost, peak = await flood(100_000)
    assert alive == 100_000
    assert peak < 80 << 20
    figure(
        "Dead subscriber",
        "one subscriber never answers while 100,000 events of 1 KB pass, another answers at once",
        "100,000 events",
        f"the other got all; {lost:,} lost ones counted and logged; at most {peak >> 20} MB taken",
    )


async def test_ten_thousand_bindings_leave_nothing_behind(figure: Figure) -> None:
    line, table = Line(), BindingTable()
    delivery = Delivery(line.send, Pace())
    hub = Hub(table, delivery.take)
    line.got["x"] = []
    for n in range(10_000):
        config = ({"session_id": f"s{n}"}, {"metadata": {"owner": n}}, {"roles": ["user"]}, {})[n % 4]
        table.add(binding(f"b{n}", "session::message-added", "x", config))
        if n % 1000 == 0:
            hub.publish(list(events(1)))
    for n in range(10_000):
        table.remove(f"b{n}")
        delivery.forget(f"b{n}")
    await asyncio.sleep(0.1)
    assert len(table) == 0
    assert list(table.matching(next(events(1)))) == []
    assert table._filed == {}
    assert delivery.tallies() == []
    figure("Bindings", "10,000 bindings added, used and removed", "10,000", "nothing left behind")


def test_there_is_a_greatest_number_of_bindings() -> None:
    table = BindingTable()
    made = binding("b", "session::created", "f", {})
    for n in range(MAX_BINDINGS):
        table.add(Binding(str(n), made.trigger_type, made.function_id))
    with pytest.raises(InvalidRequest):
        table.add(made)
    table.add(Binding("5", made.trigger_type, "replaced"))
    table.remove("5")
    table.add(made)
    assert len(table) == MAX_BINDINGS


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_publisher_that_fails_stops_neither_the_caller_nor_the_store(kind: str, tmp_path: Path) -> None:
    def publish(_: object) -> None:
        raise RuntimeError("nobody should do this")

    store: Store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "sessions.db")
    await store.open()
    to = service(store, publish)
    await to.call("session::ensure", {"session_id": "s"})
    calls = [to.call("session::append", {"session_id": "s", "message": user(str(n))}) for n in range(20)]
    with structlog.testing.capture_logs() as logs:
        await asyncio.wait_for(asyncio.gather(*calls), 60)
    assert len(logs) == 20
    assert (await to.call("session::get", {"session_id": "s"}))["meta"]["message_count"] == 20
    await store.close()
