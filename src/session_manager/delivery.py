"""Deliveries to subscribers: lanes, because the engine keeps no order among calls.

One lane per binding and session. The next event of a lane leaves when the one before was answered, or after a
patience, whichever comes first; as long as the subscriber stays silent after that a short pace replaces the patience,
so that one which runs a whole agent turn inside its handler gets that turn's events at once. The patience is longer
where answers usually take longer (a busy machine must not cost the order), and the pace slows down with every further
event that is not answered (a subscriber that never answers must not be a busy machine). An answer ends the silence,
whatever older ones are missing: the engine loses one now and then, and that must not cost the order of what follows.

A lane that lags merges waiting updates of one message into the newest, which carries the whole message. Each binding
has one bounded queue; on overflow the oldest parcels are dropped, counted and logged. Nothing a subscriber does is felt
by a writer.

Everything here runs on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

import structlog
from msgspec import Struct

from session_manager.bindings import Binding
from session_manager.events import STORE_EVENTS

log = structlog.get_logger("session_manager.delivery")

Send = Callable[[Binding, bytes], Awaitable[None]]
"""Delivers one payload and returns when the subscriber has answered; raises when it cannot be reached."""


UNKNOWN = 0.0125
"""Seconds that an answer is taken to need as long as none has come: rather wait a moment than lose the order."""

FADING = 0.99
"""What is left of the slowest answer's time with every further answer."""

LATE = 0.01
"""Seconds by which a patience may end late. Where it is more this process had no turn for so long, and the answer may
have come meanwhile without having been looked at."""


class Parcel(Struct, frozen=True):
    """One event on its way to one binding."""

    binding: Binding
    session_id: str
    payload: bytes
    merge: str | None
    """The entry whose waiting updates this one makes superfluous, if it is an update."""


class Pace(Struct, frozen=True):
    """How deliveries are timed and bounded. Times are in seconds.

    The patience must stay above the 40 ms that a delayed acknowledgement takes: a sender that gives up sooner stays
    one answer behind for ever.
    """

    patience: float = 0.050
    most_patience: float = 0.250
    bytes_per_second: float = 8e6
    """What a payload may take on its way, beyond the patience: the message after an image must not overtake it."""
    short: float = 0.0025
    unanswered: int = 64
    """Most deliveries of one binding without an answer."""
    waiting: int = 10_000
    """Most parcels of one binding that wait to be sent."""
    waiting_bytes: int = 64 << 20
    lag: float = 1.0
    lag_parcels: int = 200
    """A lane lags when its oldest parcel waits longer than `lag`, or more than so many wait."""


class Tally(Struct):
    """What became of the parcels of one binding."""

    answered: int = 0
    failed: int = 0
    merged: int = 0
    dropped: int = 0


class _Waiting:
    __slots__ = ("gone", "lane", "merge", "payload", "since")

    def __init__(self, lane: _Lane, payload: bytes, merge: str | None, since: float) -> None:
        self.lane, self.payload, self.merge, self.since, self.gone = lane, payload, merge, since, False


class _Lane:
    """The parcels of one session for one binding."""

    __slots__ = ("last", "newest", "outstanding", "queue", "ready", "session_id", "silent", "stalled", "timer")
    # `silent`: how many in a row were given up waiting for.

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.queue: deque[_Waiting] = deque()
        self.newest: dict[str, _Waiting] = {}
        self.last: asyncio.Task[None] | None = None
        self.outstanding = self.silent = 0
        self.ready = True
        self.stalled = False
        self.timer: asyncio.TimerHandle | None = None

    def idle(self) -> bool:
        return not self.queue and not self.outstanding and self.timer is None


class _Outbox:
    """The queue of one binding: its lanes, and all its waiting parcels in the order in which they came."""

    __slots__ = (
        "binding",
        "bytes",
        "count",
        "lanes",
        "order",
        "peak",
        "reachable",
        "stalled",
        "tally",
        "unanswered",
        "usual",
    )
    # `usual`: seconds that an answer usually takes; `peak`: what the slowest of late took. Long handlers left aside.

    def __init__(self, binding: Binding) -> None:
        self.binding = binding
        self.lanes: dict[str, _Lane] = {}
        self.order: deque[_Waiting] = deque()
        self.stalled: OrderedDict[str, _Lane] = OrderedDict()
        self.tally = Tally()
        self.unanswered = self.count = self.bytes = 0
        self.reachable = True
        self.usual, self.peak = UNKNOWN, 0.0

    def took(self, seconds: float, most: float) -> None:
        """Learns how long an answer took, or that it takes longer than so long."""
        self.usual += (min(seconds, most) - self.usual) / 8
        self.peak = max(self.peak * FADING, seconds if seconds < most else 0.0)

    def tidy(self) -> None:
        """Lets go of what no longer waits, also behind a parcel that waits long."""
        while self.order and self.order[0].gone:
            self.order.popleft()
        if len(self.order) > 2 * self.count + 1000:
            self.order = deque(waiting for waiting in self.order if not waiting.gone)


class Delivery:
    """Sends parcels. `tallies` is there for operators to read."""

    def __init__(self, send: Send, pace: Pace | None = None) -> None:
        self._send, self._pace = send, pace or Pace()
        self._outboxes: dict[str, _Outbox] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, parcels: Iterable[Parcel]) -> None:
        """Takes parcels over and returns at once."""
        now = asyncio.get_running_loop().time()
        for parcel in parcels:
            outbox = self._outboxes.get(parcel.binding.id)
            if outbox is None:
                outbox = self._outboxes[parcel.binding.id] = _Outbox(parcel.binding)
            outbox.binding = parcel.binding  # which may have been registered anew, for another function
            self._queue(outbox, parcel, now)

    def forget(self, binding_id: str) -> None:
        """Drops what still waits for a binding that is no more, and tells what it lost."""
        outbox = self._outboxes.pop(binding_id, None)
        if outbox is not None and (outbox.tally.dropped or outbox.tally.failed):
            log.warning(
                "deliveries lost",
                function_id=outbox.binding.function_id,
                trigger_type=outbox.binding.trigger_type,
                dropped=outbox.tally.dropped,
                failed=outbox.tally.failed,
            )
        for lane in outbox.lanes.values() if outbox else ():
            if lane.timer is not None:
                lane.timer.cancel()
            lane.queue.clear()

    def tallies(self) -> Sequence[tuple[Binding, Tally, int]]:
        """Per binding: what became of its parcels, and how many wait."""
        return [(outbox.binding, outbox.tally, outbox.count) for outbox in self._outboxes.values()]

    def backlog(self) -> int:
        """The longest queue of those that move: a subscriber that has stopped answering holds up nobody who waits. In
        parcels, or as many as its bytes count for: it may overflow by either."""
        most, parcel = self._pace.unanswered, self._pace.waiting_bytes / self._pace.waiting
        return max(
            (
                max(outbox.count, int(outbox.bytes / parcel))
                for outbox in self._outboxes.values()
                if outbox.unanswered < most
            ),
            default=0,
        )

    def under_way(self) -> set[str]:
        """The sessions of which something was not answered yet."""
        return set().union(*(outbox.lanes for outbox in self._outboxes.values()))

    async def drain(self, seconds: float) -> int:
        """Waits until everything was sent and answered, at most so long. Returns how many parcels are left."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while (left := self._left()) and loop.time() < deadline:  # noqa: ASYNC110 # once, at the end, with a deadline
            await asyncio.sleep(0.01)
        return left

    def close(self) -> None:
        """Gives up what is left."""
        for id_ in list(self._outboxes):
            self.forget(id_)
        for task in self._tasks:
            task.cancel()

    def _left(self) -> int:
        return sum(outbox.count + outbox.unanswered for outbox in self._outboxes.values())

    def _queue(self, outbox: _Outbox, parcel: Parcel, now: float) -> None:
        lane = outbox.lanes.get(parcel.session_id)
        if lane is None:
            lane = outbox.lanes[parcel.session_id] = _Lane(parcel.session_id)
        merge = None if outbox.binding.trigger_type == STORE_EVENTS else parcel.merge
        waiting = _Waiting(lane, parcel.payload, merge, now)
        if merge is not None and lane.queue:
            self._merge(outbox, lane, merge, now)
        lane.queue.append(waiting)
        outbox.order.append(waiting)
        outbox.count += 1
        outbox.bytes += len(parcel.payload)
        if merge is not None:
            lane.newest[merge] = waiting
        self._advance(outbox, lane)
        while outbox.count > 1 and (outbox.count > self._pace.waiting or outbox.bytes > self._pace.waiting_bytes):
            self._drop_oldest(outbox)

    def _merge(self, outbox: _Outbox, lane: _Lane, entry_id: str, now: float) -> None:
        """In a lane that lags, makes a waiting update of the entry superfluous."""
        older = lane.newest.get(entry_id)
        lagging = len(lane.queue) > self._pace.lag_parcels or now - lane.queue[0].since > self._pace.lag
        if older is None or older.gone or not lagging:
            return
        self._discard(outbox, older)
        outbox.tally.merged += 1

    def _drop_oldest(self, outbox: _Outbox) -> None:
        while outbox.order:
            oldest = outbox.order.popleft()
            if not oldest.gone:
                self._discard(outbox, oldest)
                self._let_go(outbox, oldest.lane)
                outbox.tally.dropped += 1
                if outbox.tally.dropped == 1 or outbox.tally.dropped % self._pace.waiting == 0:
                    log.warning(
                        "deliveries dropped: the subscriber does not keep up",
                        function_id=outbox.binding.function_id,
                        trigger_type=outbox.binding.trigger_type,
                        dropped=outbox.tally.dropped,
                    )
                return

    def _discard(self, outbox: _Outbox, waiting: _Waiting) -> None:
        waiting.gone = True
        outbox.count -= 1
        outbox.bytes -= len(waiting.payload)
        waiting.payload = b""
        lane = waiting.lane
        if waiting.merge is not None and lane.newest.get(waiting.merge) is waiting:
            del lane.newest[waiting.merge]
        while lane.queue and lane.queue[0].gone:
            lane.queue.popleft()

    def _advance(self, outbox: _Outbox, lane: _Lane) -> None:
        """Sends the lane's next parcel if its turn has come."""
        if not lane.ready or not lane.queue or lane.stalled:
            return
        if outbox.unanswered >= self._pace.unanswered:
            lane.stalled = True
            outbox.stalled[lane.session_id] = lane
            return
        waiting = lane.queue[0]
        payload = waiting.payload
        self._discard(outbox, waiting)
        outbox.tidy()
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._deliver(outbox, payload))
        self._tasks.add(task)
        lane.last, lane.ready = task, False
        pause = self._pause(outbox, lane) + len(payload) / self._pace.bytes_per_second
        lane.timer = loop.call_later(pause, self._impatient, outbox, lane)
        lane.outstanding += 1
        outbox.unanswered += 1
        sent = loop.time()
        task.add_done_callback(lambda done: self._answered(outbox, lane, done, loop.time() - sent))

    def _pause(self, outbox: _Outbox, lane: _Lane) -> float:
        """Seconds after which the next parcel of a lane leaves without an answer to the one before."""
        pace = self._pace
        if lane.silent:
            return max(pace.short * (1 + lane.silent / 4), outbox.usual)
        return max(pace.patience, min(max(8 * outbox.usual, 2 * outbox.peak), pace.most_patience))

    async def _deliver(self, outbox: _Outbox, payload: bytes) -> None:
        binding, tally = outbox.binding, outbox.tally
        try:
            await self._send(binding, payload)
        except Exception as error:  # whatever a subscriber or the connection does must not end a lane
            tally.failed += 1
            if outbox.reachable:
                outbox.reachable = False
                log.warning(
                    "delivery failed",
                    function_id=binding.function_id,
                    trigger_type=binding.trigger_type,
                    error=getattr(error, "code", None) or type(error).__name__,
                )
        else:
            tally.answered += 1
            outbox.reachable = True

    def _impatient(self, outbox: _Outbox, lane: _Lane) -> None:
        assert lane.timer is not None
        loop = asyncio.get_running_loop()
        late = loop.time() - lane.timer.when()
        if late > LATE:
            lane.timer = loop.call_later(min(late, self._pace.patience), self._impatient, outbox, lane)
            return
        lane.timer, lane.ready = None, True
        lane.silent += 1
        outbox.took(2 * self._pause(outbox, lane), self._pace.most_patience)
        self._advance(outbox, lane)

    def _answered(self, outbox: _Outbox, lane: _Lane, done: asyncio.Task[None], took: float) -> None:
        outbox.took(took, self._pace.most_patience)
        self._tasks.discard(done)
        outbox.unanswered -= 1
        lane.outstanding -= 1
        if lane.last is done:
            lane.last, lane.ready, lane.silent = None, True, 0
            if lane.timer is not None:
                lane.timer.cancel()
                lane.timer = None
            self._advance(outbox, lane)
        self._close(outbox, lane)
        while outbox.stalled and outbox.unanswered < self._pace.unanswered:
            _, next_lane = outbox.stalled.popitem(last=False)
            next_lane.stalled = False
            self._advance(outbox, next_lane)

    def _let_go(self, outbox: _Outbox, lane: _Lane) -> None:
        """Of a lane of which everything was dropped, there may be any number."""
        if lane.stalled and not lane.queue:
            del outbox.stalled[lane.session_id]
            lane.stalled = False
            self._close(outbox, lane)

    def _close(self, outbox: _Outbox, lane: _Lane) -> None:
        """Lets go of a lane that has nothing to do."""
        if lane.idle() and outbox.lanes.get(lane.session_id) is lane:
            del outbox.lanes[lane.session_id]
