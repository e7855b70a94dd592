"""Sessions that are being changed and whose events have not left yet, noted where a kill of the process cannot reach.

A line is written before a change and one some time after its events have left, to a file that is not synced: it
outlives the process, not the machine. What is open when a worker starts may have been cut off, and have happened
without being told. The file is written on a thread, for a disk can keep whoever writes waiting.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
import structlog

from session_manager.model import encode
from session_manager.stores.threads import WorkThread

log = structlog.get_logger("session_manager.ledger")

COMPACT = 1 << 20
"""Bytes after which the file is written anew."""

LINGER = 1.0
"""Seconds for which a session stays open after its events have left: the next change of it, if it comes in time, needs
not be noted."""

MOST = 10_000
"""Most sessions that are noted as open; the oldest are let go."""

_read_line = msgspec.json.Decoder(tuple[bool, str]).decode


class Intents:
    """A file that cannot be written is done without."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = WorkThread("intents")
        self._open: dict[str, None] = {}
        self._over: set[str] = set()
        """Those of them that linger."""
        self._timer: asyncio.TimerHandle | None = None
        self._file: int | None = None
        self._size = 0
        self._closed = False

    async def open(self) -> frozenset[str]:
        """Starts the file anew, and returns what the last process left open."""
        self._open = await self._thread.run(self._start)  # until they are told
        return frozenset(self._open)

    def _start(self) -> dict[str, None]:
        left: dict[str, None] = {}
        try:
            lines = self._path.read_bytes().splitlines() if self._path.exists() else []
            for line in lines:
                try:
                    begins, session_id = _read_line(line)
                except msgspec.MsgspecError:
                    continue  # the last line may be torn
                if begins:
                    left[session_id] = None
                else:
                    left.pop(session_id, None)
            self._path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
            self._begin_anew(_lines(True, left))
        except OSError as error:
            log.warning("changes under way are not noted", reason=error.strerror)
        return left

    def _begin_anew(self, lines: bytes) -> None:
        """Another file takes the place of the one that is there, which a kill in between must not empty."""
        aside = self._path.with_suffix(".new")
        file = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        try:
            os.write(file, lines)
            os.replace(aside, self._path)
        except OSError:
            os.close(file)
            raise
        self._forget()
        self._file = file

    async def begin(self, session_id: str) -> None:
        """Returns when it is noted that a change of the session may come."""
        self._over.discard(session_id)
        if session_id in self._open:
            return
        self._open[session_id] = None
        noted = self._note(True, [session_id])
        if len(self._open) > MOST:
            self._over.add(next(iter(self._open)))
            self._close_over()
        await noted

    def done(self, session_id: str) -> None:
        """Everything of the session has been told."""
        if session_id in self._open and not self._closed:
            self._over.add(session_id)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(LINGER, self._close_over)

    def _close_over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        over, self._over = self._over, set()
        for session_id in over:
            del self._open[session_id]
        if over:
            self._note(False, over)

    def _note(self, begins: bool, session_ids: Iterable[str]) -> asyncio.Future[None]:
        anew = self._size > COMPACT
        lines = _lines(True, self._open) if anew else _lines(begins, session_ids)
        self._size = len(lines) if anew else self._size + len(lines)
        return self._thread.run(self._write, lines, anew=anew)

    def _write(self, lines: bytes, *, anew: bool) -> None:
        if self._file is None:
            return
        try:
            if anew:
                self._begin_anew(lines)
            else:
                os.write(self._file, lines)
        except OSError as error:
            log.warning("changes under way are not noted any more", reason=error.strerror)
            self._forget()

    async def close(self) -> None:
        """Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._close_over()
            await self._thread.run(self._forget)
            self._thread.stop()

    def _forget(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _lines(begins: bool, session_ids: Iterable[str]) -> bytes:
    return b"".join(encode((begins, session_id)) + b"\n" for session_id in session_ids)
