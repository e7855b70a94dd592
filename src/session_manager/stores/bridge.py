"""A store that another instance keeps: every operation is calls of the main instance's `session::store::*` functions.

Rules, locks and ids are this instance's own; nothing is cached, because others write to the same store. This module
knows the store protocol and not how a call travels: that is `Main`.

**Hints.** A main instance of this worker takes hints (see `hints`): it reads a session or a page in one call, which
costs what the page costs, and makes a change that has entries in one call, whole or not at all (a very big one in a
few, of which the last makes it visible). Whether it takes them
shows in every reply to a call that had one, so it may be replaced by a worker that does not at any time.

**Order of writes.** The protocol itself has no transactions, so beside another worker a change is several calls, and
what a reader elsewhere or a crash finds in between must make sense:

1. removals of entries and leaf;
2. entries: not yet on any path, so nobody meets them;
3. the leaf;
4. the record (an update, which moves no leaf, writes its entry here too). It comes behind the leaf, because an entry
   that the record counts and no leaf leads to looks as if it had been appended and then left for another branch;
5. removal of the record, last, so that a deletion that stopped halfway can be asked for again.

**What a failed write leaves.** The caller learns `session/storage`, and any subset of the failed step's calls may have
been done. What was being written is remembered, and until the session is written to again the view ahead of the store
subtracts it: a record, leaf or entry that is exactly what the failed change would have written is shown as it was
before. So a retry is decided on the state before the failure, writes everything anew, and tells its events; and a
different change does not build on the failed one. When the process itself dies in between, an entry that no leaf or
record knows about is recognised when its id is asked for again, by its time (every append stamps the record with the
time of its entry) and by the count of messages; it is forgotten if the leaf is still before it, and completed if not.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Literal, Protocol, TypeVar

import msgspec
import structlog
from msgspec import Raw, Struct

from session_manager import hints
from session_manager.errors import BrokenPath, StorageError
from session_manager.model import Entry, Revision, Role, SessionMeta, Timestamp, decode, decode_meta, encode
from session_manager.store import Change, Drop, Found, ListPage, ListQuery, PathPage, PathQuery, Session, View
from session_manager.stores.memory import Kept, list_page
from session_manager.tree import MISSING, chain

log = structlog.get_logger("session_manager.stores")

S = TypeVar("S")
T = TypeVar("T")

_NULL = Raw(b"null")

AT_ONCE = 32
"""Most calls of one change that are on their way at the same time."""

PROBE = 0.5
"""Seconds for which calls fail at once after one met silence; then the main is tried again."""

REMEMBERED, ATTEMPTS = 10_000, 16
"""Sessions of which failed changes are remembered, and how many of each."""

PART_ENTRIES, PART_BYTES = 500, 1 << 20
"""Most entries, and bytes of content but for the first, of a change that go out as one call: the main instance takes a
call in at one go, and others wait meanwhile."""

TAIL_STEPS, TAIL_FROM = 3, 500
"""A page behind a given entry is looked for at the end of the path, by so many single steps, in sessions that hold more
messages than this: there, reading all entries costs more."""


class MainError(Exception):
    """The main instance did not do it; the text says why and holds nothing of the content."""


class MainSilent(MainError):
    """No answer came in time: whether the call was carried out is not known."""


class Main(Protocol):
    """The way to the main instance."""

    async def open(self) -> None:
        """Connects. Raises MainError."""

    async def call(self, function_id: str, payload: bytes) -> bytes:
        """Calls one of its functions with JSON and returns the JSON of the reply. Raises MainError, in bounded time."""

    async def close(self) -> None:
        """Lets go of what the way needs."""


Doubt = Callable[[str, frozenset[str]], None]
"""Is told the session, and the entries, of a change that failed: whether it was made is not known."""


class _WireEntry(Struct):
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
    entries: list[_WireEntry]
    hinted: hints.PathShown | None = None


class _Metas(Struct):
    metas: list[Raw]
    hinted: hints.ListShown | None = None


class _Leaf(Struct):
    entry_id: str | None
    hinted: hints.SessionShown | None = None


class _Ok(Struct):
    ok: bool
    hinted: hints.ChangeMade | None = None


_read_role = msgspec.json.Decoder(_OfRole).decode
_read_text = msgspec.json.Decoder(str).decode
_read_wire: Callable[[bytes], _WireEntry | None] = msgspec.json.Decoder(_WireEntry | None).decode
_read_meta: Callable[[bytes], SessionMeta | None] = msgspec.json.Decoder(SessionMeta | None).decode
_read_wires = msgspec.json.Decoder(_Entries).decode
_read_metas = msgspec.json.Decoder(_Metas).decode
_read_leaf = msgspec.json.Decoder(_Leaf).decode
_read_ok = msgspec.json.Decoder(_Ok).decode


def _read_entry(reply: bytes) -> Entry | None:
    wire = _read_wire(reply)
    return None if wire is None else wire.entry()


def _read_entries(reply: bytes) -> tuple[list[Entry], hints.PathShown | None]:
    read = _read_wires(reply)
    return [wire.entry() for wire in read.entries], read.hinted


Step = list[tuple[str, Any]]
"""Calls that may be on their way at once: names of store functions and their payloads."""


class _Failed(Struct):
    """What failed changes of one session may have written, and what was there before them."""

    before: Session | None = None
    after: list[Session] = []
    entries: dict[str, tuple[list[Entry], Entry | None]] = {}

    def subtracted(self, read: Session) -> Session:
        if self.before is None:
            return read
        return Session(
            self.before.meta if any(read.meta == after.meta for after in self.after) else read.meta,
            self.before.leaf if any(read.leaf == after.leaf for after in self.after) else read.leaf,
        )


class BridgeStore:
    pipelines = False

    def __init__(
        self,
        main: Main,
        doubt: Doubt = lambda session_id, entry_ids: None,
        intend: Callable[[str], Awaitable[None]] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`intend` is told the session before each change, which waits for it."""
        self._main, self._doubt, self._intend, self._monotonic = main, doubt, intend, monotonic
        self._numbers = itertools.count(1)
        self._running: set[asyncio.Task[int]] = set()
        self._failed: OrderedDict[str, _Failed] = OrderedDict()
        self._heard = self._silent_until = float("-inf")
        self._hints = False
        """Whether the main instance takes hints, as far as its last answer tells."""

    async def open(self) -> None:
        """Raises StorageError unless the main instance serves its store."""
        try:
            await self._main.open()
        except MainError as error:
            raise StorageError(str(error)) from error
        try:
            await self._leaf("")
        except StorageError:
            await self._main.close()
            raise

    async def close(self) -> None:
        if self._running:
            await asyncio.wait(self._running)
        await self._main.close()

    # --- reads ---

    async def session(self, session_id: str) -> Session:
        if self._hints:
            read = await self._leaf(session_id)
            if read.hinted is not None:
                return Session(read.hinted.meta, read.entry_id)
        meta, read = await together(
            self._call("get-meta", {"session_id": session_id}, _read_meta), self._leaf(session_id)
        )
        return Session(meta, read.entry_id)

    async def _leaf(self, session_id: str) -> _Leaf:
        read = await self._call("get-active-leaf", {"session_id": session_id, "hint": hints.SessionHint()}, _read_leaf)
        self._hints = read.hinted is not None
        return read

    async def entry(self, session_id: str, entry_id: str) -> Entry | None:
        return await self._call("get-entry", {"session_id": session_id, "entry_id": entry_id}, _read_entry)

    async def entries(self, session_id: str) -> list[Entry]:
        return sorted(await self._entries(session_id), key=lambda entry: entry.id.encode())

    async def _entries(self, session_id: str) -> list[Entry]:
        return (await self._call("list-entries", {"session_id": session_id}, _read_entries))[0]

    async def metas(self) -> list[SessionMeta]:
        metas = _readable(await self._call("list-metas", {}, _read_metas))
        return sorted(metas, key=lambda meta: meta.session_id.encode())

    async def sessions(self, query: ListQuery) -> ListPage:
        read = await self._call("list-metas", {"hint": hints.ListHint.of(query)}, _read_metas)
        self._hints = read.hinted is not None
        metas = _readable(read)
        return list_page(metas, query) if read.hinted is None else ListPage(tuple(metas), read.hinted.more)

    async def path(self, query: PathQuery) -> PathPage:
        if self._hints:
            page = await self._hinted_path(query)
            if page is not None:
                return page
        if query.after is not None and query.leaf is None:
            page = await self._tail(query, query.after)
            if page is not None:
                return page
        return await self._whole_path(query)

    async def _hinted_path(self, query: PathQuery) -> PathPage | None:
        asked = {"session_id": query.session_id, "hint": hints.PathHint.of(query)}
        entries, shown = await self._call("list-entries", asked, _read_entries)
        self._hints = shown is not None
        if shown is None:
            return None
        if shown.broken is not None:
            raise BrokenPath(query.session_id, *shown.broken)
        return PathPage(shown.found, shown.meta, tuple(entries), shown.more)

    async def _whole_path(self, query: PathQuery) -> PathPage:
        """Everything is asked for at once. The answers may be of different moments: where they do not fit, the entries
        are read again behind the leaf, whose entry was written before it."""
        session, entries = await together(self.session(query.session_id), self._entries(query.session_id))
        try:
            page = _kept(session, entries).path(query)
        except BrokenPath:
            page = None
        if page is None or page.found is Found.NO_ENTRY:
            session = await self.session(query.session_id)
            page = _kept(session, await self._entries(query.session_id)).path(query)
        return page

    async def _tail(self, query: PathQuery, after: str) -> PathPage | None:
        """The page from the last few entries of the path; None when it does not end there, or is cheaper read whole.
        That the path behind `after` reaches a root is not looked at."""
        session, start = await together(self.session(query.session_id), self.entry(query.session_id, after))
        meta = session.meta
        if meta is None or meta.message_count <= TAIL_FROM or start is None or session.leaf is None:
            return None
        entries = {after: msgspec.structs.replace(start, parent_id=None)}
        at: str | None = session.leaf
        for _ in range(TAIL_STEPS):
            if at is None or at in entries:
                break
            entry = await self.entry(query.session_id, at)
            if entry is None:
                return None
            entries[at], at = entry, entry.parent_id
        return Kept(meta, session.leaf, entries).path(query) if at == after else None

    # --- changes ---

    def ahead(self) -> View:
        return _Ahead(self)

    def commit(self, view: View, change: Change) -> Awaitable[int]:
        assert isinstance(view, _Ahead)
        task = asyncio.get_running_loop().create_task(self._commit(view, change))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return asyncio.shield(task)

    async def settled(self, view: View, session_id: str) -> None:
        pass  # decisions are taken one after another, each on what was written

    async def _commit(self, view: _Ahead, change: Change) -> int:
        shown = view.sessions.get(change.session_id)
        if self._intend is not None:
            await self._intend(change.session_id)
        try:
            await self._make(view.mended(change), fresh=shown is None or shown.meta is None)
        except StorageError:
            self._remember(view, change, shown)
            self._doubt(change.session_id, frozenset(entry.id for entry in change.entries))
            raise
        failed = self._failed.get(change.session_id)
        if failed is not None:
            failed.before, failed.after = None, []
            for entry in change.entries:
                failed.entries.pop(entry.id, None)
            if not failed.entries or Drop.ENTRIES in change.drops:
                del self._failed[change.session_id]
        return next(self._numbers)

    def _remember(self, view: _Ahead, change: Change, shown: Session | None) -> None:
        if shown is None or Drop.META in change.drops:
            return  # nobody knows its id yet; or a deletion, which is not made undone by half
        failed = self._failed.setdefault(change.session_id, _Failed())
        self._failed.move_to_end(change.session_id)
        kept = Kept(shown.meta, shown.leaf, {})
        kept.apply(change)
        if failed.before != shown:
            failed.before, failed.after = shown, []
        failed.after = [*failed.after[-ATTEMPTS:], Session(kept.meta, kept.leaf)]
        for entry in change.entries:
            written, _ = failed.entries.get(entry.id, ([], None))
            failed.entries[entry.id] = [*written[-ATTEMPTS:], entry], view.entries.get(entry.id)
        if len(self._failed) > REMEMBERED:
            self._failed.popitem(last=False)

    async def _make(self, change: Change, *, fresh: bool) -> None:
        if self._hints and change.entries and not change.drops and await self._made_in_parts(change):
            return
        for step in steps_of(change, fresh=fresh):
            await self._all(step)

    async def _made_in_parts(self, change: Change) -> bool:
        """Makes a change in calls with hints, mostly one; leaf and record go with the last. False when the main
        instance turns out to take none, and has only some of the entries."""
        parts = _parts(change.entries)
        for number, (first, *others) in enumerate(parts, 1):
            hint: dict[str, Any] = {"entries": [entry.wire() for entry in others]}
            if number == len(parts):
                hint |= {"leaf": change.leaf, "meta": change.meta}
            asked = {"session_id": change.session_id, "entry": first.wire(), "hint": hint}
            self._hints = (await self._call("put-entry", asked, _read_ok)).hinted is not None
            if not self._hints:
                return False
        return True

    async def _all(self, step: Step) -> None:
        """Makes the calls of a step and waits for every one of them, also when one fails."""
        if len(step) == 1:
            await self._call(*step[0], _read_ok)
            return
        room = asyncio.Semaphore(AT_ONCE)
        failures: list[StorageError] = []

        async def one(name: str, payload: Any) -> None:
            async with room:
                if not failures:
                    try:
                        await self._call(name, payload, _read_ok)
                    except StorageError as error:
                        failures.append(error)

        async with asyncio.TaskGroup() as group:
            for name, payload in step:
                group.create_task(one(name, payload))
        if failures:
            raise failures[0]

    # --- calls ---

    async def _call(self, name: str, payload: Any, read: Callable[[bytes], T]) -> T:
        function_id = f"session::store::{name}"
        began = self._monotonic()
        if began < self._silent_until:
            raise StorageError(f"{function_id}: the main instance does not answer at present")
        try:
            reply = await self._main.call(function_id, encode(payload))
        except MainSilent as error:
            if self._heard < began:
                self._silent_until = self._monotonic() + PROBE
            raise StorageError(f"{function_id}: {error}") from error
        except MainError as error:
            raise StorageError(f"{function_id}: {error}") from error
        self._heard, self._silent_until = self._monotonic(), float("-inf")
        try:
            return read(reply)
        except (msgspec.MsgspecError, UnicodeError):
            raise StorageError(f"{function_id}: the main instance's reply cannot be read") from None


class _Ahead(View):
    """The view of one decision: what the main holds, less what a failed change may have left there."""

    def __init__(self, store: BridgeStore) -> None:
        self._store = store
        self.sessions: dict[str, Session] = {}
        self.entries: dict[str, Entry | None] = {}
        self._read: dict[str, Session] = {}
        self._uncounted = 0

    async def session(self, session_id: str) -> Session:
        read = await self._store.session(session_id)
        self._read[session_id] = shown = read
        failed = self._store._failed.get(session_id)
        if failed is not None:
            shown = failed.subtracted(read)
        self.sessions[session_id] = shown
        return shown

    async def entry(self, session_id: str, entry_id: str) -> Entry | None:
        entry = await self._store.entry(session_id, entry_id)
        if entry is not None:
            entry = await self._subtracted(session_id, entry)
        self.entries[entry_id] = entry
        return entry

    async def _subtracted(self, session_id: str, entry: Entry) -> Entry | None:
        session = self.sessions.get(session_id)
        failed = self._store._failed.get(session_id)
        if failed is not None and entry.id in failed.entries:
            written, before = failed.entries[entry.id]
            if any(_same(entry, one) for one in written) and not await self._built_on(session_id, entry, session):
                return before
            del failed.entries[entry.id]
        elif session is not None and session.meta is not None and _unknown_to(session.meta, entry):
            return await self._left_behind(session_id, session, session.meta, entry)
        return entry

    async def _left_behind(self, session_id: str, session: Session, meta: SessionMeta, entry: Entry) -> Entry | None:
        """What becomes of an entry whose writer seems to have died behind it."""
        if entry.role is not None:
            entries = await self._store.entries(session_id)
            if sum(one.role is not None for one in entries) <= meta.message_count:
                return entry  # it was counted: only the record's time is odd
        if session.leaf == entry.parent_id:
            return None  # as if it had never been
        if session.leaf == entry.id:
            await self._count(session_id, meta, entry)
        return entry

    async def _built_on(self, session_id: str, entry: Entry, session: Session | None) -> bool:
        """Whether somebody else has meanwhile continued behind an entry whose append failed here."""
        if session is None or session.leaf is None or session.leaf == entry.parent_id or entry.revision > 0:
            return False
        parents = {one.id: one.parent_id for one in await self._store.entries(session_id)}
        try:
            return entry.id in chain(session_id, session.leaf, lambda id_: parents.get(id_, MISSING))
        except BrokenPath:
            return False

    async def _count(self, session_id: str, meta: SessionMeta, entry: Entry) -> None:
        """The writer died between leaf and record: the append counts, so the record is brought up to it."""
        self._uncounted = int(entry.role is not None)
        meta = msgspec.structs.replace(
            meta, updated_at=entry.timestamp, message_count=meta.message_count + self._uncounted
        )
        await self._store._call("put-meta", {"meta": meta}, _read_ok)
        self._store._doubt(session_id, frozenset({entry.id}))

    def mended(self, change: Change) -> Change:
        """The change, with a leaf that was shown differently than it is put right, and a record counted up."""
        shown, read = self.sessions.get(change.session_id), self._read.get(change.session_id)
        differs = shown is not None and read is not None and shown.leaf != read.leaf
        if shown is not None and differs and change.leaf is None and Drop.LEAF not in change.drops:
            drops = change.drops | {Drop.LEAF} if shown.leaf is None else change.drops
            change = msgspec.structs.replace(change, leaf=shown.leaf, drops=drops)
        if change.meta is not None and self._uncounted:
            count = change.meta.message_count + self._uncounted
            change = msgspec.structs.replace(change, meta=msgspec.structs.replace(change.meta, message_count=count))
        return change


def _unknown_to(meta: SessionMeta, entry: Entry) -> bool:
    """Whether an entry is newer than its session's record, which a finished append stamps with the entry's time."""
    return entry.revision == 0 and meta.updated_at < entry.timestamp


def _same(one: Entry, other: Entry) -> bool:
    """Whether two entries say the same; the engine may have sorted the keys of one."""
    return (one.revision, one.timestamp, one.parent_id, one.role) == (
        other.revision,
        other.timestamp,
        other.parent_id,
        other.role,
    ) and decode(one.body) == decode(other.body)


def _parts(entries: Sequence[Entry]) -> list[list[Entry]]:
    parts: list[list[Entry]] = []
    room = 0
    for entry in entries:
        room -= len(entry.body)
        if room < 0 or len(parts[-1]) == PART_ENTRIES:
            parts.append([])
            room = PART_BYTES
        parts[-1].append(entry)
    return parts


def steps_of(change: Change, *, fresh: bool) -> list[Step]:
    """The calls of a change, in the order that the module's text explains. `fresh`: the session may have no record."""
    of_session = {"session_id": change.session_id}
    removals: Step = []
    if Drop.ENTRIES in change.drops:
        removals.append(("delete-entries", of_session))
    if Drop.LEAF in change.drops and change.leaf is None:
        removals.append(("delete-active-leaf", of_session))
    entries: Step = [("put-entry", {**of_session, "entry": entry.wire()}) for entry in change.entries]
    leaf: Step = [] if change.leaf is None else [("set-active-leaf", {**of_session, "entry_id": change.leaf})]
    record: Step = [] if change.meta is None else [("put-meta", {"meta": change.meta})]
    steps = [removals, entries, leaf, record] if leaf or fresh else [removals, entries + record]
    if Drop.META in change.drops and change.meta is None:
        steps.append([("delete-meta", of_session)])
    return [step for step in steps if step]


def _readable(read: _Metas) -> list[SessionMeta]:
    """Leaves out records that cannot be read, rather than fail for all the others."""
    metas = []
    for raw in read.metas:
        try:
            metas.append(decode_meta(raw))
        except msgspec.MsgspecError:
            log.warning("session record left out of a list: it cannot be read")
    return metas


def _kept(session: Session, entries: Iterable[Entry]) -> Kept:
    return Kept(session.meta, session.leaf, {entry.id: entry for entry in entries})


async def together(one: Coroutine[Any, Any, S], other: Coroutine[Any, Any, T]) -> tuple[S, T]:
    """Both results, worked for at once; raises when both are done and one has failed."""
    first, second = await asyncio.gather(one, other, return_exceptions=True)
    if isinstance(first, BaseException):
        raise first
    if isinstance(second, BaseException):
        raise second
    return first, second
