"""Waiting for an engine in the main thread, which may be told to end meanwhile."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import structlog

from session_manager.edge.addresses import address
from session_manager.edge.failures import GivenUp, no_engine

log = structlog.get_logger("session_manager.edge")

Pause = Callable[[float], bool]
"""Waits so many seconds, or less; returns whether to give up."""


def sleep(seconds: float) -> bool:
    """A pause that gives nothing up."""
    time.sleep(seconds)
    return False


def wait(pause: Pause, seconds: float, why: str) -> None:
    """Pauses, for the reason given. Raises GivenUp where `pause` says so."""
    if pause(seconds):
        raise GivenUp(why)


GLANCE = 0.1
"""Seconds between two looks at whether an engine listens or answers, and whether to give up."""


def probe(url: str, seconds: float, pause: Pause = sleep) -> None:
    """Waits so many seconds until something listens at the URL. Raises EngineError, saying why nothing does, which the
    SDK would not tell; and GivenUp where `pause` says so."""
    target = address(url)
    deadline = time.monotonic() + seconds
    told = False
    while True:
        try:
            socket.create_connection(target, timeout=2).close()
        except OSError as error:
            absent = no_engine(url, error)
            left = deadline - time.monotonic()
            if left < 0:
                raise absent from None
            if not told and left > 1:
                log.warning("waiting", reason=str(absent), seconds=round(left))
                told = True
            wait(pause, GLANCE, str(absent))
        else:
            return
