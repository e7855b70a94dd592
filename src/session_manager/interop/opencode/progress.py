"""What is told of a mirror."""

from __future__ import annotations

from collections.abc import Callable

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


def on_change(tell: Callable[[MirrorProgress], None]) -> Callable[[MirrorProgress], None]:
    """Tells what changes for whoever operates a mirror, and not every commit."""
    before: tuple[bool, int] | None = None

    def changed(progress: MirrorProgress) -> None:
        nonlocal before
        now = progress.connected, progress.left_out
        if now != before:
            before = now
            tell(progress)

    return changed
