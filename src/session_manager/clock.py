"""Time and ids, injected so that tests decide both."""

from __future__ import annotations

import secrets
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> int:
        """Milliseconds since the Unix epoch."""


class Ids(Protocol):
    def session(self) -> str:
        """A fresh session id: `s_` and 32 lower-case hex digits."""

    def entry(self) -> str:
        """A fresh entry id: `e_` and 32 lower-case hex digits."""

    def entries(self, count: int) -> list[str]:
        """Fresh entry ids, in their order: an index of ids then takes them one behind the other."""

    def prefix(self) -> str:
        """The beginning of fresh entry ids; with 8 more lower-case hex digits it is one."""


class SystemClock:
    def now(self) -> int:
        return time.time_ns() // 1_000_000


class RandomIds:
    """Ids from the system's random source, which is asked for many at a time: asking costs more than the id."""

    def __init__(self) -> None:
        self._ready: list[str] = []

    def session(self) -> str:
        return f"s_{self._next()}"

    def entry(self) -> str:
        return f"e_{self._next()}"

    def entries(self, count: int) -> list[str]:
        return sorted([f"e_{digits}" for digits in _random(count)])

    def prefix(self) -> str:
        return f"e_{self._next()[:24]}"

    def _next(self) -> str:
        if not self._ready:
            self._ready = _random(256)
        return self._ready.pop()


def _random(count: int) -> list[str]:
    """So many times 32 hex digits."""
    digits = secrets.token_hex(16 * count)
    return [digits[start : start + 32] for start in range(0, len(digits), 32)]
