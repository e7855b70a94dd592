"""The disorder of a real engine, on purpose and from a seed.

The engine runs every delivery and every answer as a task of its own, so what was sent closely together arrives in any
order. Tests that pass on an orderly engine prove nothing about that.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Unkindness:
    """How unkind an engine is.

    The defaults are what was seen on the real one: neighbours of a burst change places, things half a millisecond apart
    do not. `Unkindness.none()` is an orderly engine.
    """

    #: Whether deliveries, answers and replayed bindings change places at all.
    shuffles: bool = True
    #: Share of a burst that is held back a little, so that it falls behind later bursts too.
    held: float = 0.2
    #: Whether what comes alone is held back too.
    always: bool = False
    #: Longest time anything is held back, in seconds.
    hold: float = 0.001
    #: Chance that a worker's answer is dropped: the work is done and the caller runs into its time-out. The real engine
    #: loses one in thousands, from workers that answer at once.
    lost_replies: float = 0.0
    #: How long the configuration files are read, in seconds. The real engine looks at them half a second after every
    #: write and reads them in a millisecond or so; what is set or registered meanwhile is undone: an old value is back
    #: for half a second, a new entry is dropped and comes back without its schema.
    slow_files: float = 0.0

    @classmethod
    def none(cls) -> Unkindness:
        """Everything in the order it came."""
        return cls(shuffles=False, held=0.0, hold=0.0)

    @classmethod
    def cruel(cls) -> Unkindness:
        """Far more disorder than the real engine shows: half of everything waits up to 30 ms."""
        return cls(held=0.5, hold=0.03, always=True)


# Closer together than this counts as a burst.
_CROWDED_S = 0.0001


class Disorder:
    """Runs things soon, in an order nobody should rely on."""

    def __init__(self, unkindness: Unkindness, rng: random.Random) -> None:
        self.unkindness = unkindness
        self._rng = rng
        self._waiting: list[Callable[[], None]] = []
        self._last = 0.0

    def soon(self, run: Callable[[], None]) -> None:
        """Run `run` in this or a coming turn of the event loop, before or after its neighbours."""
        if not self.unkindness.shuffles:
            run()
            return
        self._waiting.append(run)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._turn)

    def shuffled(self, items: Iterable[T]) -> list[T]:
        """The items in any order."""
        order = list(items)
        if self.unkindness.shuffles:
            self._rng.shuffle(order)
        return order

    def loses_reply(self) -> bool:
        """Whether this answer goes the way of the lost ones."""
        chance = self.unkindness.lost_replies
        return chance > 0 and self._rng.random() < chance

    def _turn(self) -> None:
        batch, self._waiting = self._waiting, []
        loop = asyncio.get_running_loop()
        now = loop.time()
        crowded = len(batch) > 1 or now - self._last < _CROWDED_S
        self._last = now
        share = self.unkindness.held if crowded or self.unkindness.always else 0.0
        if len(batch) > 1:
            self._rng.shuffle(batch)
        for run in batch:
            if share > 0.0 and self._rng.random() < share:
                loop.call_later(self._rng.random() * self.unkindness.hold, run)
            else:
                run()
