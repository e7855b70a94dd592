"""The port: what a store can do. Every store keeps these promises, and the shared suite in tests/stores checks them.

A store keeps, per session id, three independent things: the session record (`SessionMeta`), the active leaf (an entry
id), and entries by id. It holds no rules: any combination may exist (entries without a record, a leaf that names no
entry), because the raw store protocol can write each alone.

Session and entry ids are any text, compared byte for byte (UTF-8). A store never returns an object that a later change
alters, and never keeps one that a caller can alter: values cross the port frozen or as JSON bytes.

Errors: every method that touches storage raises `StorageError` when the storage fails or what is stored cannot be
read; nothing else escapes a store. What a store returns is what it was given: bodies and origins go into replies as
they are, so a store that cannot vouch for bytes that it read raises instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from session_manager.model import Entry, JsonObject, Role, SessionMeta, Status


class Session(Struct, frozen=True):
    """What is known of a session without its entries."""

    meta: SessionMeta | None = None
    leaf: str | None = None


class Drop(StrEnum):
    """A part of a session that a change removes."""

    META = "meta"
    ENTRIES = "entries"
    LEAF = "leaf"


EVERYTHING = frozenset(Drop)


class Copied(Struct, frozen=True):
    """The path of another session that ends in an entry, as entries of this one: with the same content, at revision 0,
    with ids that tell their position. Only for a store whose `extent` told of that path just now; `Outdated` is raised
    where it is another one by then."""

    session_id: str
    entry_id: str
    prefix: str
    entries: int
    """How many that are; another number means that it is another path by now."""

    @staticmethod
    def id_at(prefix: str, position: int) -> str:
        return f"{prefix}{position:08x}"


class Extent(Struct, frozen=True):
    """How long a path is."""

    meta: SessionMeta
    """The session record in the same state of the store."""
    entries: int
    messages: int


class Change(Struct, frozen=True):
    """One atomic change of one session. Removals are made first, then what is given is put.

    Entries replace entries of the same id, whatever the revision. A part that is neither given nor dropped stays.
    """

    session_id: str
    meta: SessionMeta | None = None
    leaf: str | None = None
    entries: tuple[Entry, ...] = ()
    drops: frozenset[Drop] = frozenset()
    fresh: bool = False
    """Whether the ids of all entries were just made, so that no store needs to look for entries that they replace."""
    copied: Copied | None = None
    """Entries of a session that has none yet."""

    def sizes(self) -> list[int]:
        """Per entry, the bytes of its content."""
        return [
            len(entry.body) if entry.origin is None else len(entry.body) + len(entry.origin) for entry in self.entries
        ]


class PathQuery(Struct, frozen=True):
    """A stretch of the path that ends in a leaf, oldest first."""

    session_id: str
    leaf: str | None = None
    """The entry where the path ends; None means the active leaf."""
    roles: frozenset[Role] | None = None
    """Only messages of these roles; None means all of them."""
    include_custom: bool = True
    """Whether bookkeeping entries are shown."""
    after: str | None = None
    """Start right behind this entry, which must be shown by the filters above."""
    limit: int | None = None
    """At most so many entries; None means all."""
    max_bytes: int | None = None
    """Stop early once the bodies come to more than this, but never before the first entry."""

    def shows(self, role: Role | None) -> bool:
        if role is None:
            return self.include_custom
        return self.roles is None or role in self.roles


class Found(StrEnum):
    """What a path query met."""

    PATH = "path"
    NO_SESSION = "no session"
    """There is no session record."""
    NO_ENTRY = "no entry"
    """`leaf` was given and names no entry of the session."""
    NO_LEAF = "no leaf"
    """No leaf was given and the session has none."""
    NOT_SHOWN = "not shown"
    """`after` is not an entry of the path as filtered."""


class PathPage(Struct, frozen=True):
    found: Found
    meta: SessionMeta | None = None
    """The session record in the same state of the store, unless there is none."""
    entries: tuple[Entry, ...] = ()
    more: bool = False
    """Whether shown entries remain behind these."""


class Order(StrEnum):
    CREATED_ASC = "created_asc"
    CREATED_DESC = "created_desc"
    UPDATED_DESC = "updated_desc"

    @property
    def descending(self) -> bool:
        return self is not Order.CREATED_ASC

    def key(self, meta: SessionMeta) -> int:
        return meta.updated_at if self is Order.UPDATED_DESC else meta.created_at


class ListQuery(Struct, frozen=True):
    """Session records in an order; ties are broken by session id as UTF-8 bytes, in the same direction."""

    order: Order = Order.UPDATED_DESC
    after: tuple[int, str] | None = None
    """Only records strictly behind this key and id; no record needs to be there."""
    status: Status | None = None
    metadata: JsonObject | None = None
    """Only records whose metadata has all of these, equal deeply and in type; None and {} mean all records."""
    limit: int = 50
    max_bytes: int | None = None
    """Stop early once the records come to more than this, but never before the first."""


class ListPage(Struct, frozen=True):
    metas: tuple[SessionMeta, ...]
    more: bool


Tell = Callable[[], None] | None
"""Is told of a change; None where nobody is to be."""


class View(Protocol):
    """What a decision is based on."""

    async def session(self, session_id: str) -> Session:
        """The record and the leaf, in one state; an empty `Session` when there is neither."""

    async def entry(self, session_id: str, entry_id: str) -> Entry | None:
        """One entry, whether or not the session has a record."""


class Store(View, Protocol):
    """A store. Its own reads show only what is durable."""

    pipelines: bool
    """Whether a change is visible to `ahead()` as soon as `commit` returned its awaitable. Where it is not, the caller
    must wait for one change of a session before it decides on the next."""

    async def open(self) -> None:
        """Makes the store ready. Raises StorageError, saying why, when it cannot be used."""

    async def close(self) -> None:
        """Waits for what was committed, then lets go of files and connections. Safe to call twice."""

    async def entries(self, session_id: str) -> list[Entry]:
        """All entries of all branches, by id as UTF-8 bytes."""

    async def metas(self) -> list[SessionMeta]:
        """All session records, by session id as UTF-8 bytes."""

    async def path(self, query: PathQuery) -> PathPage:
        """A stretch of a path, read in one state of the store. Looks, in this order, for: the session record; the
        given leaf; the active leaf; the whole path (`BrokenPath` when a parent is missing or the links run in a
        circle); `after` among the shown entries."""

    async def extent(self, session_id: str, entry_id: str) -> Extent | None:
        """How long the path is that ends in an entry, where this store makes a copy of it (`Change.copied`) for less
        than what reading and writing it costs; else None."""

    async def sessions(self, query: ListQuery) -> ListPage:
        """A page of session records, read in one state of the store."""

    def ahead(self) -> View:
        """A view of what is durable and of every change committed so far but not yet durable. A decision taken on it
        is handed to `commit` together with it."""

    def commit(self, view: View, change: Change, durable: Tell = None, early: Tell = None) -> Awaitable[int]:
        """Takes the change over. The awaitable gives the number of the commit (growing, never reused) once the
        change is durable, or raises StorageError when nothing of it was kept. Changes become durable in the order in
        which they were handed over; when one fails, so do all of its session that were decided after it and were not
        yet durable, those decided on a view older than the failure included, and all others that wait may fail with
        it. `durable` is called as soon as the change is durable, in the order of the commits and before anybody who
        waits learns of it; it returns at once and never raises. `early` is called as soon as the change is durable, on
        whatever thread knows first and before `durable`, or not at all; it returns at once. Cancelling who waits does
        not cancel the change."""

    def settled(self, view: View, session_id: str) -> Awaitable[None]:
        """Waits until what `view` showed of the session is durable, so that an answer based on it may leave. Raises
        StorageError when it never will be."""


async def check_answers(view: View) -> None:
    """Raises StorageError when nothing at all can be read. After a session could not be, this tells one that is damaged
    from a store that is away."""
    await view.session("")
