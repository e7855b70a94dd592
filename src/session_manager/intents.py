"""Sessions that are being changed and whose events have not left yet, noted where a kill of the process cannot reach.

A line is written before a change and one after its events have left, to a file that is not synced: it outlives the
process, not the machine. What is open when a worker starts was cut off: it may have happened without being told.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import structlog

from session_manager.model import encode

log = structlog.get_logger("session_manager.ledger")

COMPACT = 1 << 20
"""Bytes after which the file is written anew."""

MOST = 10_000
"""Most sessions that are noted as open; the oldest are let go."""

_read_line = msgspec.json.Decoder(tuple[bool, str]).decode


class Intents:
    """A file that cannot be written is done without."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: dict[str, None] = {}
        self._file: int | None = None
        self._size = 0

    def open(self) -> frozenset[str]:
        """Starts the file anew, and returns what the last process left open."""
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
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        except OSError as error:
            log.warning("changes under way are not noted", reason=error.strerror)
        for session_id in left:
            self.begin(session_id)  # until they are told
        return frozenset(left)

    def begin(self, session_id: str) -> None:
        if session_id in self._open:
            return
        self._open[session_id] = None
        self._write(True, session_id)
        if len(self._open) > MOST:
            self.done(next(iter(self._open)))

    def done(self, session_id: str) -> None:
        if session_id in self._open:
            del self._open[session_id]
            self._write(False, session_id)

    def _write(self, begins: bool, session_id: str) -> None:
        if self._file is None:
            return
        line = encode((begins, session_id)) + b"\n"
        try:
            if self._size > COMPACT:
                os.ftruncate(self._file, 0)
                self._size = 0
                line = b"".join(encode((True, open_)) + b"\n" for open_ in self._open)
            self._size += os.write(self._file, line)
        except OSError as error:
            log.warning("changes under way are not noted any more", reason=error.strerror)
            self.close()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
