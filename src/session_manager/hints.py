"""What instances of this worker say to each other beside the schemas of the store protocol.

Every version of every function ignores keys that it does not know. So a bridge adds a `hint` to some calls of the store
protocol, which says what it is really after. A main instance that understands does just that and puts `hinted` into its
reply; any other answers as always, and the bridge goes on as the protocol has it. A hint that is not exactly of a shape
below, an unknown key in it included, is no hint.

The engine takes every value that it carries apart and puts it together again, numbers included, which it may change;
texts it only copies. So a bridge may add `packed: true` to a hint, and a main instance that understands puts what it
would list, if it is not too much, into one text instead. That is beside the hint and not in it, so that a main instance
which only knows hints still takes the hint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from session_manager.model import Entry, Int64, JsonObject, Role, SessionMeta, Status, WireEntry, encode
from session_manager.store import Found, ListQuery, Order, PathQuery

Count = Annotated[int, Meta(ge=1)]


class _Hint(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    pass


class PathHint(_Hint, frozen=True):
    """To list-entries: only the entries of this `PathQuery`, in its order. `PathShown` answers."""

    leaf: str | None = None
    roles: frozenset[Role] | None = None
    include_custom: bool = True
    after: str | None = None
    limit: Count | None = None
    max_bytes: Count | None = None

    @classmethod
    def of(cls, query: PathQuery) -> PathHint:
        return cls(**{name: getattr(query, name) for name in cls.__struct_fields__})

    def query(self, session_id: str) -> PathQuery:
        return PathQuery(session_id, **msgspec.structs.asdict(self))


class PathShown(Struct, omit_defaults=True):
    """What the `PathPage` has beside entries."""

    found: Found
    meta: SessionMeta | None = None
    more: bool = False
    broken: tuple[str, str] | None = None
    """Instead of all this, why the path could not be walked: the entry where it breaks, and how."""
    packed: str | None = None
    """The entries, where they are packed: see `packed_entries`."""


class ListHint(_Hint, frozen=True):
    """To list-metas: only the records of this `ListQuery`, in its order. `ListShown` answers."""

    order: Order = Order.UPDATED_DESC
    after: tuple[Int64, str] | None = None
    status: Status | None = None
    metadata: JsonObject | None = None
    limit: Count = 50
    max_bytes: Count | None = None

    @classmethod
    def of(cls, query: ListQuery) -> ListHint:
        return cls(**{name: getattr(query, name) for name in cls.__struct_fields__})

    def query(self) -> ListQuery:
        return ListQuery(**msgspec.structs.asdict(self))


class ListShown(Struct, omit_defaults=True):
    """What the `ListPage` has beside records."""

    more: bool
    packed: str | None = None
    """The records, where they are packed: JSON of all of them."""


class SessionHint(_Hint, frozen=True):
    """To get-active-leaf: the record as well, of the same moment. `SessionShown` answers."""


class SessionShown(Struct, omit_defaults=True):
    meta: SessionMeta | None = None


class ChangeHint(_Hint, frozen=True):
    """To put-entry: the rest of the entry's change, to be made with it as one. `ChangeMade` answers."""

    entries: tuple[WireEntry, ...] = ()
    leaf: str | None = None
    meta: SessionMeta | None = None


class ChangeMade(Struct):
    pass


PACKED_BYTES = 8 << 20
"""Most bytes that are packed: quotes in a text grow, and the engine carries no more than 64 MiB."""


_NULL = Raw(b"null")


class _Packed(Struct, array_like=True, gc=False):
    """An entry in short, its fields as `Entry` has them."""

    id: str
    parent_id: str | None
    timestamp: int
    role: Role | None
    body: Raw
    revision: int
    origin: Raw


_read_packed = msgspec.json.Decoder(list[_Packed]).decode
_read_raws = msgspec.json.Decoder(list[Raw]).decode


def packed_entries(entries: Sequence[Entry]) -> str | None:
    """The entries as one text; None when they are too many."""
    if sum(entry.size for entry in entries) > PACKED_BYTES:
        return None
    return encode(
        [
            _Packed(
                entry.id,
                entry.parent_id,
                entry.timestamp,
                entry.role,
                Raw(entry.body),
                entry.revision,
                _NULL if entry.origin is None else Raw(entry.origin),
            )
            for entry in entries
        ]
    ).decode()


def unpacked_entries(packed: str) -> list[Entry]:
    """Raises MsgspecError."""
    return [
        Entry(
            entry.id,
            entry.parent_id,
            entry.timestamp,
            entry.role,
            bytes(entry.body),
            entry.revision,
            None if bytes(entry.origin) == b"null" else bytes(entry.origin),
        )
        for entry in _read_packed(packed)
    ]


def packed_metas(metas: Iterable[SessionMeta]) -> str | None:
    """Records as one text; None when they are too many."""
    packed = encode(metas)
    return packed.decode() if len(packed) <= PACKED_BYTES else None


def unpacked_metas(packed: str) -> list[Raw]:
    """Each record as JSON. Raises MsgspecError."""
    return _read_raws(packed)


H = TypeVar("H", bound=_Hint)


def read(of: type[H], hint: Any) -> H | None:
    """A hint in a request; None when there is none, or none that is understood."""
    if hint is None:
        return None
    try:
        return msgspec.convert(hint, of)
    except msgspec.ValidationError:
        return None
