"""The store: reads and changes as calls."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

import msgspec

from session_manager import hints
from session_manager.errors import BrokenPath, StorageError
from session_manager.model import Entry, SessionMeta, encode
from session_manager.store import Change, Extent, Found, ListPage, ListQuery, PathPage, PathQuery, Session, Tell, View
from session_manager.stores.bridge.ahead import Ahead
from session_manager.stores.bridge.failures import Failures
from session_manager.stores.bridge.main import Main, MainError, MainSilent
from session_manager.stores.bridge.steps import Step, parts_of, steps_of
from session_manager.stores.bridge.wire import Leaf, read_entries, read_entry, read_leaf, read_meta, read_metas, read_ok
from session_manager.stores.memory import Kept, list_page

S = TypeVar("S")
T = TypeVar("T")

AT_ONCE = 32
"""Most calls of one change that are on their way at the same time."""

PROBE = 0.5
"""Seconds for which calls fail at once after one met silence; then the main is tried again."""

TAIL_STEPS, TAIL_FROM = 3, 500
"""A page behind a given entry is looked for at the end of the path, by so many single steps, in sessions that hold more
messages than this: there, reading all entries costs more."""


Doubt = Callable[[str, frozenset[str]], None]
"""Is told the session, and the entries, of a change that failed: whether it was made is not known."""


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
        self._failures = Failures()
        self._heard = self._silent_until = float("-inf")
        self._hints = False
        """Whether the main instance takes hints, as far as its last answer tells."""

    @property
    def whole(self) -> bool:
        return self._hints

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
            self._call("get-meta", {"session_id": session_id}, read_meta), self._leaf(session_id)
        )
        return Session(meta, read.entry_id)

    async def _leaf(self, session_id: str) -> Leaf:
        read = await self._call("get-active-leaf", {"session_id": session_id, "hint": hints.SessionHint()}, read_leaf)
        self._hints = read.hinted is not None
        return read

    async def entry(self, session_id: str, entry_id: str) -> Entry | None:
        return await self._call("get-entry", {"session_id": session_id, "entry_id": entry_id}, read_entry)

    async def entries(self, session_id: str) -> list[Entry]:
        return sorted(await self._entries(session_id), key=lambda entry: entry.id.encode())

    async def _entries(self, session_id: str) -> list[Entry]:
        return (await self._call("list-entries", {"session_id": session_id}, read_entries))[0]

    async def metas(self) -> list[SessionMeta]:
        metas, _ = await self._call("list-metas", {}, read_metas)
        return sorted(metas, key=lambda meta: meta.session_id.encode())

    async def extent(self, session_id: str, entry_id: str) -> Extent | None:
        return None

    async def sessions(self, query: ListQuery) -> ListPage:
        asked = {"hint": hints.ListHint.of(query), "packed": True}
        metas, shown = await self._call("list-metas", asked, read_metas)
        self._hints = shown is not None
        return list_page(metas, query) if shown is None else ListPage(tuple(metas), shown.more)

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
        asked = {"session_id": query.session_id, "hint": hints.PathHint.of(query), "packed": True}
        entries, shown = await self._call("list-entries", asked, read_entries)
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
        return Ahead(self, self._failures)

    def commit(self, view: View, change: Change, durable: Tell = None, early: Tell = None) -> Awaitable[int]:
        assert isinstance(view, Ahead)
        task = asyncio.get_running_loop().create_task(self._commit(view, change, durable))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return asyncio.shield(task)

    async def settled(self, view: View, session_id: str) -> None:
        pass  # decisions are taken one after another, each on what was written

    async def completed(self, meta: SessionMeta, entry_id: str) -> None:
        """Writes the record of a session whose writer died behind an entry."""
        await self._call("put-meta", {"meta": meta}, read_ok)
        self._doubt(meta.session_id, frozenset({entry_id}))

    async def _commit(self, view: Ahead, change: Change, durable: Tell) -> int:
        shown = view.sessions.get(change.session_id)
        if self._intend is not None:
            await self._intend(change.session_id)
        try:
            await self._make(view.mended(change), fresh=shown is None or shown.meta is None)
        except StorageError:
            self._failures.remember(change, shown, view.entries)
            self._doubt(change.session_id, frozenset(entry.id for entry in change.entries))
            raise
        self._failures.made(change)
        if durable is not None:
            durable()
        return next(self._numbers)

    async def _make(self, change: Change, *, fresh: bool) -> None:
        if self._hints and change.entries and not change.drops and await self._made_in_parts(change):
            return
        for step in steps_of(change, fresh=fresh):
            await self._all(step)

    async def _made_in_parts(self, change: Change) -> bool:
        """Makes a change in calls with hints, mostly one; leaf and record go with the last. False when the main
        instance turns out to take none, and has only some of the entries."""
        parts = parts_of(change.entries)
        for number, (first, *others) in enumerate(parts, 1):
            hint: dict[str, Any] = {"entries": [entry.wire() for entry in others]}
            if number == len(parts):
                hint |= {"leaf": change.leaf, "meta": change.meta}
            asked = {"session_id": change.session_id, "entry": first.wire(), "hint": hint}
            self._hints = (await self._call("put-entry", asked, read_ok)).hinted is not None
            if not self._hints:
                return False
        return True

    async def _all(self, step: Step) -> None:
        """Makes the calls of a step and waits for every one of them, also when one fails."""
        if len(step) == 1:
            await self._call(*step[0], read_ok)
            return
        room = asyncio.Semaphore(AT_ONCE)
        failures: list[StorageError] = []

        async def one(name: str, payload: Any) -> None:
            async with room:
                if not failures:
                    try:
                        await self._call(name, payload, read_ok)
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
