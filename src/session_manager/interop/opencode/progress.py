"""What is told of a mirror."""

from __future__ import annotations

from msgspec import Struct


class MirrorProgress(Struct):
    """What a mirror has done so far, for whoever watches it."""

    sessions: int = 0
    commits: int = 0
    events: int = 0
    reconnects: int = 0
    left_out: int = 0
    """Sessions at present."""
    connected: bool = False
    last: str = ""
