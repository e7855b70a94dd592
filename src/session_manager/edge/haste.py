"""Answers that come too soon.

The engine files a call after it has sent it, and drops an answer that is back before that: the work is done and the
caller runs into its time-out.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence

SOON, SOON_ALONE = 0.002, 0.0005
"""One immediate answer in 12,000 was lost so, and of pages of 19 KB, sixteen in flight, one in 9,000. An answer that
took less than `SOON` seconds, or `SOON_ALONE` where no other call was in hand lately, is therefore sent once more,
`AGAIN` seconds later or up to twice that; of two answers the first counts."""

AGAIN, HELD_BYTES = 0.2, 4 << 20
"""Seconds that answers are held until they are sent once more, and most bytes of them. Sending each by itself, 20 ms
later, made every call of a series some 3 % slower."""

SMALL, LARGE, AMONG = 16 << 10, 256 << 10, 0.05
"""Reading an answer twice costs the engine, so one of more than `SMALL` bytes is held back until `SOON` instead where
several calls were in hand at a time during the last `AMONG` seconds. Alone it is sent again up to `LARGE`: on a quiet
machine none of 14,000 pages was lost, with other programs about one in a thousand. Reading more than that takes the
engine longer than filing the call."""

CROWDED, SOON_IN_A_CROWD, GLANCE = 1.5, 0.05, 1.0
"""Where so many times more wants to run than there are processors, the engine is stopped between the two for longer
(one answer in 24,000 was lost at 3.5 times, though it took more than `SOON`); so answers that took up to
`SOON_IN_A_CROWD` seconds count as too soon there. The load is looked at every `GLANCE` seconds."""


class Crowd:
    """How soon an answer is too soon at present."""

    def __init__(self) -> None:
        self._crowded, self._looked = False, -GLANCE

    def soon(self, now: float, among: bool) -> float:
        if now - self._looked >= GLANCE:
            self._looked = now
            self._crowded = os.getloadavg()[0] > CROWDED * (os.cpu_count() or 1)
        if self._crowded:
            return SOON_IN_A_CROWD
        return SOON if among else SOON_ALONE


class Again:
    """What is to be sent once more, many at a time."""

    def __init__(self, say: Callable[[Sequence[bytes]], None]) -> None:
        self._say = say
        self._due: list[bytes] = []
        self._later: list[bytes] = []
        self._bytes = 0
        """Of both."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, answer: bytes) -> None:
        self._later.append(answer)
        self._bytes += len(answer)
        if self._bytes > HELD_BYTES:
            self._turn()
        elif self._timer is None:
            self._wait()

    def end(self) -> None:
        """Says all of it now."""
        self._turn()
        self._turn()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(AGAIN, self._turn)

    def _turn(self) -> None:
        """What was due at the last turn has waited long enough."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due, self._due, self._later = self._due, self._later, []
        self._bytes = sum(map(len, self._due))
        if self._due:
            self._wait()
        if due:
            self._say(due)
