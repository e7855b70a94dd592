"""Telling the events of this instance's changes to the main instance, which tells everybody, this instance included.

One call per change, or a few for a very big one. Those of one session leave one after another, each when the one
before was answered, so that nothing overtakes; a call that fails is made again, with growing pauses, before anything
later of that session. What cannot be told within bounds is given up, counted, and handed to whoever can tell it another
way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import structlog
from msgspec import Raw, Struct

from session_manager.errors import SessionManagerError
from session_manager.events import Emission, MessageAdded, MessageUpdated, portions
from session_manager.model import encode

log = structlog.get_logger("session_manager.bridge")

Tell = Callable[[bytes], Awaitable[None]]
"""Makes one publish-events call with this payload. Raises SessionManagerError when it is not known to have arrived."""

GivenUp = Callable[[str, frozenset[str]], None]
"""Is told the session, and the entries, of events that will not leave any more."""


class Bounds(Struct, frozen=True):
    """Times are in seconds."""

    pause: float = 0.05
    longest_pause: float = 2.0
    patience: float = 60.0
    """From the first failure of a call until it is given up."""
    waiting: int = 10_000
    """Most changes that wait to be told."""
    at_once: int = 64
    """Most calls on their way, for different sessions."""


class _Change(Struct, frozen=True, eq=False):
    payload: bytes
    entries: frozenset[str]
    tried: asyncio.Event


class Announcer:
    def __init__(
        self,
        tell: Tell,
        given_up: GivenUp,
        bounds: Bounds | None = None,
        all_told: Callable[[str], None] = lambda session_id: None,
    ) -> None:
        """`all_told` learns of each session of which nothing is left to be told."""
        self._tell, self._given_up, self._bounds, self._all_told = tell, given_up, bounds or Bounds(), all_told
        self._queues: dict[str, deque[_Change]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(self._bounds.at_once)
        self._waiting = 0
        self.lost = 0
        """Changes whose events were given up."""

    def publish(self, emissions: Sequence[Emission]) -> None:
        """Takes the events of one change over and returns at once."""
        for portion in portions(emissions):
            self._publish(portion)

    def _publish(self, emissions: Sequence[Emission]) -> None:
        session_id = emissions[0].event.session_id
        events = [Raw(emission.envelope(emission.payload())) for emission in emissions]
        change = _Change(encode({"events": events}), entries_of(emissions), asyncio.Event())
        if self._waiting >= self._bounds.waiting:
            self._give_up(session_id, change)
            return
        self._waiting += 1
        queue = self._queues.get(session_id)
        if queue is not None:
            queue.append(change)
            return
        self._queues[session_id] = deque([change])
        task = asyncio.get_running_loop().create_task(self._run(session_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def is_telling(self, session_id: str) -> bool:
        """Whether something of a session waits to be told."""
        return session_id in self._queues

    async def announced(self, session_id: str) -> bool:
        """Waits until everything of a session that was published so far was told, or was tried in vain once, and
        returns whether it was told."""
        queue = self._queues.get(session_id)
        if not queue:
            return True
        last = queue[-1]
        await last.tried.wait()
        return last not in queue

    async def drain(self, seconds: float) -> int:
        """Waits until everything was told, at most so long; gives up the rest and returns how many changes it was."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        left = self._waiting
        for task in self._tasks:
            task.cancel()
        return left

    async def _run(self, session_id: str) -> None:
        queue = self._queues[session_id]
        everything = True
        try:
            while queue:
                if not await self._told(queue):
                    self._give_up(session_id, queue[0])
                    everything = False
                queue.popleft().tried.set()
                self._waiting -= 1
            if everything:
                self._all_told(session_id)
        finally:
            _let_go(queue)
            self._waiting -= len(queue)
            del self._queues[session_id]

    async def _told(self, queue: deque[_Change]) -> bool:
        """Whether the first of the queue could be told. While it cannot, nobody waits for those behind it."""
        loop = asyncio.get_running_loop()
        pause, deadline = self._bounds.pause, None
        while True:
            try:
                async with self._room:
                    await self._tell(queue[0].payload)
            except SessionManagerError:
                _let_go(queue)
                now = loop.time()
                deadline = deadline or now + self._bounds.patience
                if now + pause > deadline:
                    return False
                await asyncio.sleep(pause)
                pause = min(pause * 2, self._bounds.longest_pause)
            else:
                return True

    def _give_up(self, session_id: str, change: _Change) -> None:
        self.lost += 1
        if self.lost == 1 or self.lost % 1000 == 0:
            log.warning(
                "events of changes could not be told to the main instance", session_id=session_id, lost=self.lost
            )
        self._given_up(session_id, change.entries)


def _let_go(queue: deque[_Change]) -> None:
    for change in queue:
        change.tried.set()


def entries_of(emissions: Sequence[Emission]) -> frozenset[str]:
    return frozenset(
        emission.event.entry_id for emission in emissions if isinstance(emission.event, MessageAdded | MessageUpdated)
    )
