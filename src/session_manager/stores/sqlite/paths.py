"""Active paths held in memory, of the sessions that are read again and again.

An agent reads its session at every turn, and a reply that streams reads its entry with every update. What is held here
is answered on the event loop, without a hop to a thread and back, which costs more than the reading does.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence

from msgspec import Struct

from session_manager.model import Entry
from session_manager.store import Change, Found, PathPage, PathQuery, Session
from session_manager.stores.memory import take

ROOM = 48 << 20
"""Bytes that all paths together may take."""

LONGEST = 40 << 20
"""Bytes that one may take."""

BESIDE = 400
"""Bytes that an entry takes beside its content."""

PATIENCE, PER_READ = 2, 500
"""A path is held once it was read `PATIENCE` times, and once more for every `PER_READ` entries of it: loading an entry
costs about what reading it does."""

COUNTED = 4096
"""Sessions whose reads are counted."""

STEPS = 2000
"""Most entries that are looked at on the event loop for one page."""

Load = Callable[[PathQuery], asyncio.Future[PathPage]]
"""Reads from disk."""


class _Path(Struct):
    """A path from its root on. Entries that hang on its end are part of it, whether or not the leaf has come there."""

    entries: list[Entry]
    places: dict[str, int]
    size: int

    def put(self, entry: Entry) -> bool:
        """Whether the path still is one after the entry was stored."""
        place = self.places.get(entry.id)
        if place is None:
            if entry.parent_id == self.entries[-1].id:
                self.places[entry.id] = len(self.entries)
                self.entries.append(entry)
                self.size += entry.size + BESIDE
            return True
        before = self.entries[place]
        self.entries[place] = entry
        self.size += entry.size - before.size
        return before.parent_id == entry.parent_id


class Paths:
    """Everything runs on the event loop. `apply` must be told every change that has become durable, in order, and
    `clear` when it is not known what has."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._held: OrderedDict[str, _Path] = OrderedDict()
        self._size = 0
        self._reads: OrderedDict[str, int] = OrderedDict()
        self._loading: tuple[str, asyncio.Future[PathPage]] | None = None
        """The one session whose path is being loaded."""
        self._meanwhile: list[Change] = []
        """Its changes since then."""

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._held

    @property
    def size(self) -> int:
        return self._size

    # --- reads ---

    def entry(self, session_id: str, entry_id: str) -> Entry | None:
        """The entry, if it is on a path that is held."""
        path = self._held.get(session_id)
        place = None if path is None else path.places.get(entry_id)
        if path is None or place is None:
            return None
        self._held.move_to_end(session_id)
        return path.entries[place]

    def page(self, session: Session, query: PathQuery) -> PathPage | None:
        """The page of `query`, if it lies on a path that is held. `session` is what is known of it now."""
        path = self._held.get(query.session_id)
        leaf = session.leaf if query.leaf is None else query.leaf
        if path is None or session.meta is None or leaf is None:
            return None
        end = path.places.get(leaf)
        if end is None:
            if query.leaf is None:
                self._let_go(query.session_id)  # the leaf has gone elsewhere
            return None
        self._held.move_to_end(query.session_id)
        start = 0
        if query.after is not None:
            after = path.places.get(query.after)
            if after is None or after > end or not query.shows(path.entries[after].role):
                return PathPage(Found.NOT_SHOWN, session.meta)
            start = after + 1
        last = min(end, start + STEPS)
        shown = (entry for place in range(start, last + 1) if query.shows((entry := path.entries[place]).role))
        page = take(((entry, len(entry.body)) for entry in shown), query.limit, query.max_bytes)
        more = next(shown, None) is not None
        return PathPage(Found.PATH, session.meta, tuple(page), more) if more or last == end else None

    # --- what is held ---

    def was_read(self, session_id: str, messages: int) -> None:
        """To be told of a read from disk, and how long the session is. Begins to load the path, once that is worth
        its cost."""
        reads = self._reads.pop(session_id, 0) + 1
        self._reads[session_id] = reads
        if len(self._reads) > COUNTED:
            self._reads.popitem(last=False)
        if reads < PATIENCE + messages // PER_READ or self._loading is not None or session_id in self._held:
            return
        self._reads[session_id] = -reads  # where it cannot be held, the next attempt is a while off
        loading = self._load(PathQuery(session_id, max_bytes=LONGEST))
        self._loading = session_id, loading
        loading.add_done_callback(self._loaded)

    def _loaded(self, loading: asyncio.Future[PathPage]) -> None:
        failed = loading.cancelled() or loading.exception() is not None  # whoever reads it from disk is told
        if self._loading is None or self._loading[1] is not loading:
            return
        session_id, _ = self._loading
        changes, self._loading, self._meanwhile = self._meanwhile, None, []
        page = None if failed else loading.result()
        if page is not None and page.found is Found.PATH and page.entries and not page.more:  # none: it is damaged
            self._hold(session_id, page.entries)
            self.apply(changes)  # what was loaded shows a part of these or all; one made twice changes nothing

    def _hold(self, session_id: str, entries: Sequence[Entry]) -> None:
        places = {entry.id: place for place, entry in enumerate(entries)}
        path = self._held[session_id] = _Path(list(entries), places, sum(entry.size + BESIDE for entry in entries))
        self._size += path.size

    def apply(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.session_id in self._held:
                self._change(change)
            elif self._loading is not None and change.session_id == self._loading[0]:
                self._meanwhile.append(change)
        while self._size > ROOM:
            self._let_go(next(iter(self._held)))

    def _change(self, change: Change) -> None:
        path = self._held[change.session_id]
        before = path.size
        stays = not change.drops and all(path.put(entry) for entry in change.entries)
        self._size += path.size - before
        if not stays or path.size > LONGEST:
            self._let_go(change.session_id)

    def _let_go(self, session_id: str) -> None:
        self._size -= self._held.pop(session_id).size

    def clear(self) -> None:
        self._held.clear()
        self._size = 0
        self._loading, self._meanwhile = None, []
