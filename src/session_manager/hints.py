"""What instances of this worker say to each other beside the schemas of the store protocol.

Every version of every function ignores keys that it does not know. So a bridge adds a `hint` to some calls of the store
protocol, which says what it is really after. A main instance that understands does just that and puts `hinted` into its
reply; any other answers as always, and the bridge goes on as the protocol has it. A hint that is not exactly of a shape
below, an unknown key in it included, is no hint.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from session_manager.model import Int64, JsonObject, Role, SessionMeta, Status, WireEntry
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


class ListShown(Struct):
    """What the `ListPage` has beside records."""

    more: bool


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


H = TypeVar("H", bound=_Hint)


def read(of: type[H], hint: Any) -> H | None:
    """A hint in a request; None when there is none, or none that is understood."""
    if hint is None:
        return None
    try:
        return msgspec.convert(hint, of)
    except msgspec.ValidationError:
        return None
