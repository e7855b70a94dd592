"""A thread that runs functions one after another, for work that may block.

A hop through this queue costs a third to a half of one through an executor, and a durable append makes one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from session_manager.errors import StorageError

P = ParamSpec("P")
T = TypeVar("T")


Done = Callable[[Any, BaseException | None], None]
"""Takes what a function returned, or what it raised; runs on the event loop of whoever asked."""


_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, Done]


class WorkThread:
    """It starts with the first function that it is given."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._stopped = False
        self._name = name
        self.started = False

    def start(self) -> None:
        """Starts it beforehand, while the caller waits for something else anyway."""
        if not self.started:
            self.started = True
            threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Runs the function on the thread. Cancelling the future does not stop it. After `stop` it fails with
        StorageError, for nobody would ever run the function."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self.do(partial(function, *args, **kwargs), done)
        return future

    def do(self, job: Callable[[], Any], done: Done) -> None:
        """The same without a future, whose waiters would be told one turn of the event loop later."""
        loop = asyncio.get_running_loop()
        if self._stopped:
            loop.call_soon(done, None, StorageError("the store is closed"))
        else:
            self.start()
            self._jobs.put((job, loop, done))

    def stop(self) -> None:
        """Lets the thread end once all that was handed to it is done."""
        self._stopped = True
        self._jobs.put(None)

    def _work(self) -> None:
        while (asked := self._jobs.get()) is not None:
            job, loop, done = asked
            try:
                result = job()
            except BaseException as error:  # it belongs to whoever asked
                _tell(loop, done, None, error)
            else:
                _tell(loop, done, result, None)
            result = None
            del asked, job, loop, done


def _tell(loop: asyncio.AbstractEventLoop, done: Done, result: Any, error: BaseException | None) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(done, result, error)
