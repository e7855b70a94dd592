"""A thread that runs functions one after another, for work that may block.

A hop through this queue costs about a third of one through an executor, and a durable append makes one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from session_manager.errors import StorageError

P = ParamSpec("P")
T = TypeVar("T")


class WorkThread:
    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = SimpleQueue()
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Runs the function on the thread. Cancelling the future does not stop it. After `stop` it fails with
        StorageError, for nobody would ever run the function."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._stopped:
            future.set_exception(StorageError("the store is closed"))
            return future
        self._jobs.put((lambda: function(*args, **kwargs), future))
        return future

    def stop(self) -> None:
        """Lets the thread end once all that was handed to it is done."""
        self._stopped = True
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, future = job
            loop = future.get_loop()
            try:
                result = function()
            except BaseException as error:  # it belongs to whoever waits for it
                _tell(loop, _fail, future, error)
            else:
                _tell(loop, _finish, future, result)
            del job, function, future


def _tell(loop: asyncio.AbstractEventLoop, settle: Callable[..., None], future: asyncio.Future[Any], what: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(settle, future, what)


def _finish(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
