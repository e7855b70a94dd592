"""Limits and cursors of pages. A cursor is opaque to callers and holds no state of the process."""

from __future__ import annotations

import base64
import binascii
import sys
from typing import TypeVar

import msgspec
from msgspec import Struct

from session_manager.errors import InvalidCursor
from session_manager.model import SessionMeta
from session_manager.store import Order, PathPage

MAX_PAGE_BYTES = 4 << 20
"""A page stops early at so many bytes of content: the SDKs decode on their event loop, and frames are bounded."""


def bounded(page: PathPage, most: int | None) -> PathPage:
    """The page, ended before content and origins come to more than `most` bytes, but not before its first entry. A
    store stops behind the entry with which the content alone does: then origins, or a very big last entry, may be more
    than the engine carries."""
    room = sys.maxsize if most is None else most
    for count, entry in enumerate(page.entries):
        room -= entry.size
        if room < 0 and count:
            return msgspec.structs.replace(page, entries=page.entries[:count], more=True)
    return page


MOST = 1 << 32
"""No page is longer, whatever the configuration says: stores count in 64 bits with a sign. Its bytes end it long
before."""


class Limits(Struct, frozen=True):
    """How long pages are, in records."""

    default: int = 50
    maximum: int = 500

    def of(self, asked: int | None) -> int:
        return max(1, min(self.default if asked is None else asked, self.maximum, MOST))


_P = TypeVar("_P", bound=Struct)


class _ListPosition(Struct):
    order: Order
    key: int
    id: str


class _PathPosition(Struct):
    entry_id: str


def list_cursor(order: Order, last: SessionMeta) -> str:
    return _write(_ListPosition(order, order.key(last), last.session_id))


def list_position(order: Order, cursor: str) -> tuple[int, str]:
    """The position behind which a listing in `order` goes on. Raises InvalidCursor."""
    position = _read(cursor, _ListPosition)
    if not -(2**63) <= position.key < 2**63:
        raise InvalidCursor("the cursor was not made by this function")
    if position.order is not order:
        raise InvalidCursor(f"the cursor belongs to a listing in the order {position.order}")
    return position.key, position.id


def path_cursor(entry_id: str) -> str:
    return _write(_PathPosition(entry_id))


def path_position(cursor: str) -> str:
    """The entry behind which the page starts. Raises InvalidCursor."""
    return _read(cursor, _PathPosition).entry_id


def _write(position: Struct) -> str:
    return base64.b64encode(msgspec.json.encode(position)).decode()


def _read(cursor: str, of: type[_P]) -> _P:
    try:
        return msgspec.json.decode(base64.b64decode(cursor, validate=True), type=of)
    except (binascii.Error, ValueError, RecursionError, msgspec.MsgspecError):
        raise InvalidCursor("the cursor was not made by this function") from None
