"""One lock per session, which exists only while somebody holds it or waits for it."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType


class SessionLocks:
    """First come, first served; `len()` tells how many sessions are locked."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def hold(self, session_id: str) -> _Hold:
        return _Hold(self._waiting, session_id)


class _Hold:
    def __init__(self, waiting: dict[str, deque[asyncio.Future[None]]], session_id: str) -> None:
        self._waiting, self._session_id = waiting, session_id

    async def __aenter__(self) -> None:
        queue = self._waiting.get(self._session_id)
        if queue is None:
            self._waiting[self._session_id] = deque()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release()  # the turn came in the very moment of the cancellation: pass it on
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def _release(self) -> None:
        queue = self._waiting[self._session_id]
        while queue:
            turn = queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[self._session_id]
