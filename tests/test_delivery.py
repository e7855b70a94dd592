"""Lanes: order, patience, bounds, and who pays for a subscriber that does not answer."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import msgspec

from session_manager.bindings import Binding
from session_manager.delivery import Delivery, Pace, Parcel
from session_manager.events import STORE_EVENTS, MessageUpdated
from tests.clockwork import Clockwork, clockwork
from tests.contract.scenario import until


class Subscribers:
    """Functions that answer when they are told to."""

    def __init__(self) -> None:
        self.got: dict[str, list[Any]] = defaultdict(list)
        self.silent: set[str] = set()
        self.answers: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.unreachable: set[str] = set()

    async def send(self, to: Binding, payload: bytes) -> None:
        if to.id in self.unreachable:
            raise ConnectionError
        self.got[to.id].append(msgspec.json.decode(payload))
        if to.id in self.silent:
            await self.answers[to.id].wait()


def binding(id_: str, trigger_type: str = "session::message-added") -> Binding:
    return Binding(id_, trigger_type, f"test::{id_}")


def parcels(to: Binding, numbers: range, session: str = "s", merge: str | None = None) -> list[Parcel]:
    return [Parcel(to, session, msgspec.json.encode(n), merge) for n in numbers]


async def test_events_of_a_session_leave_one_by_one_in_order() -> None:
    subscribers = Subscribers()
    delivery = Delivery(subscribers.send)
    delivery.take(parcels(binding("a"), range(300)))
    assert await delivery.drain(30) == 0
    assert subscribers.got["a"] == list(range(300))


async def test_a_binding_that_was_registered_anew_for_another_function_is_delivered_to_that() -> None:
    called: list[str] = []

    async def send(to: Binding, payload: bytes) -> None:
        called.append(to.function_id)

    delivery = Delivery(send)
    for function_id in ("first", "second"):
        delivery.take(parcels(Binding("a", "session::created", function_id), range(1)))
        assert await delivery.drain(30) == 0
    assert called == ["first", "second"]


async def test_the_next_event_waits_for_the_answer_to_the_one_before() -> None:
    subscribers = Subscribers()
    subscribers.silent.add("a")
    delivery = Delivery(subscribers.send, Pace(patience=60))
    delivery.take(parcels(binding("a"), range(3)))
    await until(lambda: subscribers.got["a"] == [0])
    await asyncio.sleep(0)
    assert subscribers.got["a"] == [0]
    subscribers.answers["a"].set()
    await until(lambda: subscribers.got["a"] == [0, 1, 2])


@clockwork
async def test_a_subscriber_that_is_busy_in_its_handler_gets_the_next_events_all_the_same() -> None:
    subscribers = Subscribers()
    subscribers.silent.add("a")
    delivery = Delivery(subscribers.send, Pace(patience=0.02, short=0.001))
    delivery.take(parcels(binding("a"), range(20)))
    began = asyncio.get_running_loop().time()
    await until(lambda: subscribers.got["a"] == list(range(20)))
    assert asyncio.get_running_loop().time() - began < 2, "each of them cost a patience, which grows"


@clockwork
async def test_an_answer_that_is_lost_costs_one_patience_and_not_the_order_of_what_follows() -> None:
    sent: list[tuple[int, float]] = []
    pace, held = Pace(patience=0.1, most_patience=0.1, short=0.001), asyncio.Event()

    async def send(to: Binding, payload: bytes) -> None:
        number = msgspec.json.decode(payload)
        sent.append((number, asyncio.get_running_loop().time()))
        if number != 1:
            await held.wait()  # the answer to 0 is lost, those to 2 and 3 take their time

    delivery = Delivery(send, pace)
    delivery.take(parcels(binding("a"), range(4)))
    await until(lambda: len(sent) == 4)
    assert [number for number, _ in sent] == [0, 1, 2, 3]
    assert sent[3][1] - sent[2][1] >= pace.patience
    held.set()
    assert await delivery.drain(30) == 0


@clockwork
async def test_after_a_slow_answer_the_next_ones_are_given_more_time() -> None:
    sent: list[tuple[int, float]] = []
    slow, pace = {40: 0.06, 42: 60.0}, Pace(patience=0.05, most_patience=1.0)

    async def send(to: Binding, payload: bytes) -> None:
        number = msgspec.json.decode(payload)
        sent.append((number, asyncio.get_running_loop().time()))
        await asyncio.sleep(slow.get(number, 0))

    delivery = Delivery(send, pace)
    delivery.take(parcels(binding("a"), range(41)))
    assert await delivery.drain(30) == 0
    delivery.take(parcels(binding("a"), range(41, 44)))
    await until(lambda: len(sent) == 44)
    assert [number for number, _ in sent] == list(range(44))
    assert sent[43][1] - sent[42][1] >= 0.1
    delivery.close()


@clockwork
async def test_an_answer_that_came_while_this_process_had_no_turn_is_looked_at_before_the_next_event_leaves() -> None:
    loop, seen = asyncio.get_running_loop(), list[str]()
    assert isinstance(loop, Clockwork)
    arrived = asyncio.Event()

    async def send(to: Binding, payload: bytes) -> None:
        seen.append(f"sent {payload.decode()}")
        await arrived.wait()
        for _ in range(5):  # what came is read, decoded and handed on
            await asyncio.sleep(0)
        seen.append(f"answered {payload.decode()}")

    delivery = Delivery(send, Pace(patience=0.02, most_patience=0.02))
    delivery.take(parcels(binding("a"), range(2)))
    loop.call_later(0.01, arrived.set)
    loop.call_later(0.005, loop.lose, 0.1)
    assert await delivery.drain(30) == 0
    assert seen == ["sent 0", "answered 0", "sent 1", "answered 1"]


@clockwork
async def test_a_large_payload_is_given_the_time_that_it_takes_on_its_way() -> None:
    """A small event that left a patience after an image would overtake it."""
    subscribers = Subscribers()
    subscribers.silent.add("a")
    delivery = Delivery(subscribers.send, Pace(patience=0.01, most_patience=0.01, bytes_per_second=1000))
    image = "x" * 60_000  # a minute at this rate
    delivery.take([Parcel(binding("a"), "images", msgspec.json.encode(image), None)])
    delivery.take(parcels(binding("a"), range(1), "images"))
    delivery.take(parcels(binding("a"), range(10, 13), "words"))
    await until(lambda: set(subscribers.got["a"]) >= {10, 11, 12})
    assert subscribers.got["a"] == [image, 10, 11, 12], (
        "what follows small events has left, what follows the image has not"
    )
    subscribers.answers["a"].set()
    assert await delivery.drain(30) == 0
    assert subscribers.got["a"][-1] == 0


async def test_other_sessions_and_other_bindings_do_not_wait_for_a_busy_one() -> None:
    subscribers = Subscribers()
    subscribers.silent.add("a")
    delivery = Delivery(subscribers.send, Pace(patience=60))
    delivery.take(parcels(binding("a"), range(2), "one"))
    delivery.take(parcels(binding("a"), range(10, 11), "two"))
    delivery.take(parcels(binding("b"), range(5), "one"))
    await until(lambda: subscribers.got["b"] == list(range(5)))
    assert sorted(subscribers.got["a"]) == [0, 10]


async def test_a_binding_has_only_so_many_unanswered_deliveries() -> None:
    subscribers = Subscribers()
    subscribers.silent.add("a")
    delivery = Delivery(subscribers.send, Pace(patience=60, unanswered=4))
    for session in range(10):
        delivery.take(parcels(binding("a"), range(1), f"s{session}"))
    await until(lambda: len(subscribers.got["a"]) == 4)
    await asyncio.sleep(0)
    assert len(subscribers.got["a"]) == 4
    subscribers.answers["a"].set()
    await until(lambda: len(subscribers.got["a"]) == 10)


async def test_a_full_queue_drops_the_oldest_and_counts_them() -> None:
    subscribers = Subscribers()
    subscribers.silent.add("a")
    delivery = Delivery(subscribers.send, Pace(patience=60, waiting=10))
    delivery.take(parcels(binding("a"), range(100)))
    [(_, tally, waiting)] = delivery.tallies()
    assert waiting == 10
    assert tally.dropped == 100 - 1 - 10, "all but the one on its way and the ten that may wait"
    await until(lambda: subscribers.got["a"] == [0])
    subscribers.answers["a"].set()
    assert await delivery.drain(30) == 0
    assert subscribers.got["a"] == [0, *range(90, 100)]


async def test_sessions_whose_events_were_all_dropped_do_not_keep_those_of_others_waiting() -> None:
    subscribers = Subscribers()
    subscribers.silent.add("a")
    delivery, to = Delivery(subscribers.send, Pace(unanswered=2, waiting=10)), binding("a")
    for number in range(102):
        delivery.take(parcels(to, range(number, number + 1), session=f"s{number}"))
    await until(lambda: subscribers.got["a"] == [0, 1])
    subscribers.answers["a"].set()
    assert await delivery.drain(30) == 0
    assert subscribers.got["a"] == [0, 1, *range(92, 102)]
    assert not delivery._outboxes["a"].lanes


async def test_sessions_whose_events_were_all_dropped_leave_nothing_behind() -> None:
    subscribers = Subscribers()
    subscribers.silent.add("a")
    delivery = Delivery(subscribers.send, Pace(unanswered=2, waiting=10))
    for session in range(1000):
        delivery.take(parcels(binding("a"), range(1), f"s{session}"))
    outbox = delivery._outboxes["a"]
    assert (len(outbox.lanes), len(outbox.stalled)) == (12, 10)
    assert outbox.tally.dropped == 988
    subscribers.answers["a"].set()
    assert await delivery.drain(30) == 0
    assert (outbox.tally.answered, outbox.lanes) == (12, {})


async def test_a_full_queue_is_also_one_of_many_bytes() -> None:
    subscribers = Subscribers()
    subscribers.silent.add("a")
    delivery = Delivery(subscribers.send, Pace(patience=60, waiting_bytes=1000))
    delivery.take(Parcel(binding("a"), "s", b'"' + b"x" * 498 + b'"', None) for _ in range(20))
    [(_, tally, waiting)] = delivery.tallies()
    assert (waiting, tally.dropped) == (2, 17)


async def test_a_lane_that_lags_merges_updates_of_one_message_into_the_newest() -> None:
    subscribers = Subscribers()
    subscribers.silent.add("a")
    delivery = Delivery(subscribers.send, Pace(patience=60, lag_parcels=5))
    to = binding("a", MessageUpdated.trigger_type)
    delivery.take(parcels(to, range(100), merge="e"))
    delivery.take(parcels(to, range(100, 101), merge="other"))
    await until(lambda: subscribers.got["a"] == [0])
    subscribers.answers["a"].set()
    assert await delivery.drain(30) == 0
    got = subscribers.got["a"]
    assert got[-2:] == [99, 100], "the newest of each message arrives, and in order"
    assert got == sorted(got)
    assert len(got) < 15
    [(_, tally, _)] = delivery.tallies()
    assert tally.merged == 101 - len(got)


async def test_a_lane_that_keeps_up_gets_every_update() -> None:
    subscribers = Subscribers()
    delivery = Delivery(subscribers.send)
    delivery.take(parcels(binding("a", MessageUpdated.trigger_type), range(50), merge="e"))
    assert await delivery.drain(30) == 0
    assert subscribers.got["a"] == list(range(50))


async def test_events_for_other_instances_are_never_merged() -> None:
    subscribers = Subscribers()
    subscribers.silent.add("a")
    delivery = Delivery(subscribers.send, Pace(patience=60, lag_parcels=5))
    delivery.take(parcels(binding("a", STORE_EVENTS), range(50), merge="e"))
    subscribers.answers["a"].set()
    assert await delivery.drain(30) == 0
    assert subscribers.got["a"] == list(range(50))


async def test_a_binding_that_is_gone_gets_nothing_more() -> None:
    subscribers = Subscribers()
    subscribers.silent.add("a")
    delivery = Delivery(subscribers.send, Pace(patience=60))
    delivery.take(parcels(binding("a"), range(5)))
    await until(lambda: subscribers.got["a"] == [0])
    delivery.forget("a")
    subscribers.answers["a"].set()
    assert await delivery.drain(30) == 0
    assert subscribers.got["a"] == [0]
    assert delivery.tallies() == []


async def test_a_subscriber_that_cannot_be_reached_is_counted_and_holds_nobody_up() -> None:
    subscribers = Subscribers()
    subscribers.unreachable.add("a")
    delivery = Delivery(subscribers.send)
    delivery.take(parcels(binding("a"), range(5)) + parcels(binding("b"), range(5)))
    assert await delivery.drain(30) == 0
    tallies = {to.id: tally for to, tally, _ in delivery.tallies()}
    assert (tallies["a"].failed, tallies["b"].answered) == (5, 5)


async def test_a_backlog_counts_bytes_too() -> None:
    """Whoever replays much waits while there is one, and a queue overflows by its bytes as well."""
    subscribers = Subscribers()
    subscribers.silent.add("b")
    delivery = Delivery(subscribers.send, Pace(waiting=100, waiting_bytes=10_000))
    delivery.take([Parcel(binding("b"), "s", msgspec.json.encode("x" * 1998), None) for _ in range(4)])
    assert delivery.backlog() == 60, "three wait, of which five would make the queue full"
    delivery.close()


async def test_a_session_is_under_way_until_the_last_of_it_is_answered() -> None:
    subscribers = Subscribers()
    subscribers.silent |= {"b", "c"}
    delivery = Delivery(subscribers.send)
    delivery.take(parcels(binding("b"), range(2), "one") + parcels(binding("c"), range(1), "other"))
    assert delivery.under_way() == {"one", "other"}
    await until(lambda: subscribers.got == {"b": [0, 1], "c": [0]})
    assert delivery.under_way() == {"one", "other"}, "sent, and not answered"
    subscribers.answers["c"].set()
    await until(lambda: delivery.under_way() == {"one"})
    subscribers.answers["b"].set()
    await until(lambda: delivery.under_way() == set())
    delivery.close()


async def test_lanes_and_queues_of_a_quiet_binding_hold_nothing() -> None:
    subscribers = Subscribers()
    delivery = Delivery(subscribers.send)
    for session in range(500):
        delivery.take(parcels(binding("a"), range(2), f"s{session}"))
    assert await delivery.drain(30) == 0
    outbox = delivery._outboxes["a"]
    assert (len(outbox.lanes), len(outbox.order), outbox.count, outbox.bytes) == (0, 0, 0, 0)
