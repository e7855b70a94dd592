"""Rows and what they stand for. A row that does not hold what was once written is refused, not served."""

from __future__ import annotations

from typing import Any, Final
from zlib import crc32

import msgspec

from session_manager.errors import StorageError
from session_manager.model import Entry, SessionMeta, decode_meta, encode

CONTENT = "timestamp, role, body, revision, origin, sum"
"""The columns of a Content."""

ENTRY = f"id, parent_id, {CONTENT}"
"""The columns of an Entry, in its order, and their checksum."""

_ROLES = {None: 0, "user": 1, "assistant": 2, "function_result": 3, "custom": 4}

Row = tuple[int, str, str | None, int, str | None, bytes, int, bytes | None, int, int | None, int | None, int]
"""`session`, what ENTRY names, `branch`, `pos`, `seq`."""

PARENT: Final = 2
BRANCH: Final = 9
POS: Final = 10
"""Where they are in a Row."""


Content = tuple[int, str | None, bytes, int, bytes | None, int]
"""What of a Row an update of its entry changes, beside `seq`: `timestamp` to `sum`."""


Record = tuple[str | None, bytes, int, int]
"""Of a session's row what every change of its record changes: `leaf`, `meta`, `sum`, `updated_at`."""


def row(session: int, entry: Entry, branch: int | None, pos: int | None, seq: int) -> Row:
    return (session, entry.id, entry.parent_id, *content(entry), branch, pos, seq)


def content(entry: Entry) -> Content:
    revision = signed(entry.revision)
    timestamp, role, body, origin = entry.timestamp, entry.role, entry.body, entry.origin
    return timestamp, role, body, revision, origin, checksum(timestamp, role, body, revision, origin)


def signed(revision: int) -> int:
    """A revision as it is kept."""
    return revision if revision < 2**63 else revision - 2**64


def checksum(timestamp: int, role: str | None, body: bytes, revision: int, origin: bytes | None) -> int:
    """Of what no other row vouches for; ids are checked by the links between entries."""
    seed = (timestamp * 31 + revision * 7 + _ROLES[role]) & 0xFFFFFFFF
    if origin is not None:
        seed = crc32(origin, seed)
    return crc32(body, seed)


def is_sound(timestamp: Any, role: Any, body: Any, revision: Any, origin: Any, stored: Any) -> bool:
    """Whether columns hold what was once written."""
    try:
        return bool(checksum(timestamp, role, body, revision, origin) == stored)
    except (TypeError, KeyError):  # a value of a type or a role that was never written
        return False


def entry(session_id: str, row: Any) -> Entry:
    """The entry in a row of ENTRY. Raises StorageError when the row is damaged."""
    return checked(session_id, *row)


def checked(
    session_id: str,
    id_: str,
    parent_id: str | None,
    timestamp: int,
    role: Any,
    body: bytes,
    revision: int,
    origin: bytes | None,
    stored: int,
) -> Entry:
    """The same, column by column."""
    if not is_sound(timestamp, role, body, revision, origin, stored) or type(id_) is not str:
        raise StorageError(f"entry {id_!r} of session {session_id!r} is damaged")
    return Entry(id_, parent_id, timestamp, role, body, revision if revision >= 0 else revision + 2**64, origin)


def record(leaf: str | None, meta: SessionMeta) -> Record:
    stored = encode(meta)
    return leaf, stored, crc32(stored), meta.updated_at


def meta(session_id: str, stored: bytes | None, sum_: int | None) -> SessionMeta | None:
    """The record in a row. Raises StorageError when it is damaged."""
    if stored is None:
        return None
    try:
        if crc32(stored) == sum_:
            return decode_meta(stored)
    except (TypeError, msgspec.MsgspecError):
        pass
    raise StorageError(f"the record of session {session_id!r} is damaged")
