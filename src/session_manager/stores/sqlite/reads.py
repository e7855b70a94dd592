"""Reading on a thread."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from session_manager.stores.sqlite import files
from session_manager.stores.sqlite.failures import translated
from session_manager.stores.sqlite.glance import Identity, glance
from session_manager.stores.sqlite.reader import Reader
from session_manager.stores.sqlite.schema import APPLICATION_ID, VERSION
from session_manager.stores.threads import WorkThread

P = ParamSpec("P")
T = TypeVar("T")


class Reads:
    """A thread with a connection of its own, opened when first needed and again after a failure."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._thread = WorkThread(name)
        self._connection: sqlite3.Connection | None = None
        self._reader: Reader | None = None
        self._identity: Identity | None = None
        self._reading = threading.Lock()

    def run(self, read: Callable[Concatenate[Reader, P], T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        return self._thread.run(lambda: translated(self._read, lambda reader: read(reader, *args, **kwargs)))

    def _read(self, read: Callable[[Reader], T]) -> T:
        with self._reading:
            try:
                if self._reader is not None and glance(self._path).identity != self._identity:
                    self._close()
                    raise files.gone()
                return read(self._reader or self._connect())
            except (sqlite3.Error, OSError):
                self._close()
                raise

    def let_go(self) -> None:
        """Closes the connection once the read that is running is done. From any thread."""
        with self._reading:
            self._close()

    def _connect(self) -> Reader:
        self._identity = glance(self._path).identity
        self._connection = files.connect(self._path, read_only=True)
        if files.marks_of(self._connection) != (APPLICATION_ID, VERSION):
            self._close()
            raise files.gone()
        self._reader = Reader(self._connection)
        return self._reader

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._reader = None

    def start(self) -> None:
        self._thread.start()

    async def close(self) -> None:
        if self._thread.started:
            await self._thread.run(self.let_go)
        self._thread.stop()
