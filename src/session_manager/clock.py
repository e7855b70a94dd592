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


class SystemClock:
    def now(self) -> int:
        return time.time_ns() // 1_000_000


class RandomIds:
    def session(self) -> str:
        return f"s_{secrets.token_hex(16)}"

    def entry(self) -> str:
        return f"e_{secrets.token_hex(16)}"
