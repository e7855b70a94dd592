"""Replies of the store protocol, read no further than the store has to look."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec
import structlog
from msgspec import Raw, Struct

from session_manager import hints
from session_manager.model import Entry, Revision, Role, SessionMeta, Timestamp, decode_meta, encode

log = structlog.get_logger("session_manager.stores")

_NULL = Raw(b"null")


class _Entry(Struct):
    """An entry whose content is not looked into: the main instance let it in, and it goes out as it is."""

    id: str
    timestamp: Timestamp
    parent_id: str | None = None
    revision: Revision = 0
    origin: Raw = _NULL
    message: Raw = _NULL
    custom_type: Raw = _NULL
    data: Raw = _NULL
    kind: Literal["message", "custom"] = "message"

    def entry(self) -> Entry:
        """Raises MsgspecError."""
        role: Role | None = None
        if self.kind == "message":
            role, body = _read_role(self.message).role, bytes(self.message)
        else:
            body = b'{"custom_type":%b,"data":%b}' % (encode(_read_text(self.custom_type)), bytes(self.data))
        origin = None if bytes(self.origin) == b"null" else bytes(self.origin)
        return Entry(self.id, self.parent_id, self.timestamp, role, body, self.revision, origin)


class _OfRole(Struct):
    role: Role


class _Entries(Struct):
    entries: list[_Entry]
    hinted: hints.PathShown | None = None


class _Metas(Struct):
    metas: list[Raw]
    hinted: hints.ListShown | None = None


class Leaf(Struct):
    entry_id: str | None
    hinted: hints.SessionShown | None = None


class Ok(Struct):
    ok: bool
    hinted: hints.ChangeMade | None = None


_read_role = msgspec.json.Decoder(_OfRole).decode
_read_text = msgspec.json.Decoder(str).decode
_read_wire: Callable[[bytes], _Entry | None] = msgspec.json.Decoder(_Entry | None).decode
_read_entries = msgspec.json.Decoder(_Entries).decode
_read_metas = msgspec.json.Decoder(_Metas).decode

# Each of these takes a reply and raises MsgspecError when it is none.
read_meta: Callable[[bytes], SessionMeta | None] = msgspec.json.Decoder(SessionMeta | None).decode
read_leaf = msgspec.json.Decoder(Leaf).decode
read_ok = msgspec.json.Decoder(Ok).decode


def read_entry(reply: bytes) -> Entry | None:
    wire = _read_wire(reply)
    return None if wire is None else wire.entry()


def read_entries(reply: bytes) -> tuple[list[Entry], hints.PathShown | None]:
    read = _read_entries(reply)
    if read.hinted is not None and read.hinted.packed is not None:
        return hints.unpacked_entries(read.hinted.packed), read.hinted
    return [wire.entry() for wire in read.entries], read.hinted


def read_metas(reply: bytes) -> tuple[list[SessionMeta], hints.ListShown | None]:
    read = _read_metas(reply)
    if read.hinted is not None and read.hinted.packed is not None:
        return _readable(hints.unpacked_metas(read.hinted.packed)), read.hinted
    return _readable(read.metas), read.hinted


def _readable(raws: Iterable[Raw]) -> list[SessionMeta]:
    """Leaves out records that cannot be read, rather than fail for all the others."""
    metas = []
    for raw in raws:
        try:
            metas.append(decode_meta(raw))
        except msgspec.MsgspecError:
            log.warning("session record left out of a list: it cannot be read")
    return metas
