"""What the writer knows of a session's rows, so that it need not ask."""

from __future__ import annotations

from typing import NamedTuple

from session_manager.model import JsonObject, SessionMeta
from session_manager.stores.sqlite.forks import Fork

Place = tuple[int | None, int | None]
"""Branch and position; (None, None) where the chain does not lead to a root."""

UNREAD = object()

UNPLACED: Place = (None, None)


class Last(NamedTuple):
    """The entry of a session that was written last."""

    id: str
    parent_id: str | object | None
    """UNREAD where it has no row of its own."""
    place: Place


class Known:
    """What the writer knows of a session's rows: a cache, dropped whenever a transaction fails."""

    __slots__ = (
        "branches", "fork", "labels", "last", "lasting", "leaf", "meta", "metadata", "num", "recorded", "tips"
    )  # fmt: skip

    def __init__(self, num: int) -> None:
        self.num = num
        self.leaf: str | None = None
        self.recorded = False
        """Whether there is a record; what it says is not looked at, for it may be damaged."""
        self.meta: SessionMeta | None = None
        """The record, if this transaction puts one."""
        self.lasting: tuple[str, int] | None = None
        """Status and creation time of the record put last."""
        self.metadata: JsonObject | object | None = UNREAD
        """Of the record put last; its labels need no second look."""
        self.labels: frozenset[bytes] = frozenset()
        self.branches = 0
        self.fork: Fork | None = None
        """What the session is a fork of, if it shares rows."""
        self.tips: dict[int, int] = {}
        self.last: Last | None = None
        """The next one most likely hangs under it, or is itself once more."""
