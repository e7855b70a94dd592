"""How a command that goes on and on is told to end."""

from __future__ import annotations

import queue
import signal

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Ending:
    """SIGTERM, SIGINT, or `tell` from any thread; waited for in the main thread, where it is made.

    The handler of a signal runs between two steps of the main thread, in the middle of `wait` too, and again when a
    second signal follows at once. So it takes no lock that `wait` may be holding: a `threading.Event`, whose waiting
    holds one for a moment, hangs now and then. Signals that come once it has been told are ignored, to the very end of
    the process, where Python would no longer call a handler.
    """

    def __init__(self) -> None:
        self._told: queue.SimpleQueue[None] = queue.SimpleQueue()  # the one queue whose `put` may interrupt itself
        for number in _SIGNALS:
            signal.signal(number, lambda *_: self.tell())

    def tell(self) -> None:
        if self._told.empty():
            self._told.put(None)

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it has been told, after so many seconds at the latest."""
        try:
            self._told.get(timeout=seconds)
        except queue.Empty:
            return False
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        self.tell()
        return True
