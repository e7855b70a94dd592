"""Subscribers that an engine's restart has cut off: what is for them waits until they are back.

Everybody finds a restarted engine again at a pace of his own, the worker within a second, others up to half a minute
later. What happens in between would go to functions that are not there yet. So the bindings from before the restart
stay for a while, and deliveries to them wait until the engine brings the binding again.

Everything here runs on the deliveries' event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from session_manager.edge.failures import Undelivered

HOPE = 60.0
"""Seconds that a subscriber has to come back; longer than the SDKs' longest pause between two attempts."""

UNCLEAR = 3.0
"""Seconds after a reconnect in which it may not be known yet whether the engine has restarted."""

AGAIN = 0.05
"""Seconds before a delivery is tried again in that time."""

_GONE = ("function_not_found", "invocation_stopped")


class Absence:
    def __init__(self) -> None:
        self._awaited: dict[str, asyncio.Event] = {}
        self._unclear_until = 0.0

    def reconnected(self) -> None:
        self._unclear_until = asyncio.get_running_loop().time() + UNCLEAR

    def expect(self, binding_ids: Iterable[str]) -> None:
        for id_ in binding_ids:
            self._awaited.setdefault(id_, asyncio.Event())

    def back(self, binding_id: str) -> None:
        """Lets go of what waits: the binding is there again, or is given up."""
        event = self._awaited.pop(binding_id, None)
        if event is not None:
            event.set()

    async def deliver(self, binding_id: str, once: Callable[[], Awaitable[None]]) -> None:
        """Delivers when the subscriber is there. Raises Undelivered."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + HOPE
        while True:
            event = self._awaited.get(binding_id)
            if event is not None:
                try:
                    async with asyncio.timeout_at(deadline):
                        await event.wait()
                except TimeoutError:
                    raise Undelivered(_GONE[0]) from None
            try:
                await once()
            except Undelivered as error:
                unclear = loop.time() < self._unclear_until or binding_id in self._awaited
                if error.code not in _GONE or not unclear or loop.time() > deadline:
                    raise
                await asyncio.sleep(AGAIN)
            else:
                return
