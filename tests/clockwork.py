"""Time that passes only while nobody has anything to do: what is promised about seconds is tried on no real ones, so
that neither a slow machine nor a busy one has a part in it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

LONGEST = 1000.0
"""Seconds that no test takes."""


class Clockwork(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next thing to be done. Not for tests that wait for threads or sockets."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._selector: Any
        select = self._selector.select

        def passed(timeout: float | None) -> Any:
            ready = select(0)
            assert ready or timeout is not None, "everybody waits for what will never happen"
            self._now += timeout or 0.0
            assert self._now < LONGEST, "what is waited for does not happen"
            return ready

        self._selector.select = passed

    def time(self) -> float:
        return self._now

    def lose(self, seconds: float) -> None:
        """As if this process had had no turn for so long."""
        self._now += seconds


def clockwork(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that runs on a `Clockwork`."""

    @functools.wraps(test)
    def run(*args: Any, **options: Any) -> None:
        with asyncio.Runner(loop_factory=Clockwork) as runner:
            runner.run(_run(test, args, options))

    return run


async def _run(test: Callable[..., Awaitable[None]], args: Any, options: Any) -> None:
    await test(*args, **options)
