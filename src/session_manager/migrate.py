"""Copying everything that one store holds into another.

Each session is compared first, so a migration can be run again at any time: what is there already is left alone, and
what an interrupted run began is finished. A session goes over in one change if it is not very large, else in several,
parents before children and the record last: while it has no record, nobody meets it and the next run knows that it is
not complete. A session that has changed in the target itself is never written over unless that is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import msgspec
import structlog
from msgspec import Struct, field

from session_manager.door import check, check_record
from session_manager.errors import SessionManagerError, StorageError
from session_manager.filters import canonical
from session_manager.model import Entry, SessionMeta, decode, decode_message, encode
from session_manager.store import EVERYTHING, Change, Drop, Store

log = structlog.get_logger("session_manager.migrate")

AT_ONCE = 8
"""Sessions on their way at the same time; on a disk they share batches."""

CHANGE_ENTRIES, CHANGE_BYTES = 5000, 16 << 20
"""A session of more entries, or bytes of content, goes over in several changes."""

GIVE_UP = 10
"""So many sessions in a row that the target does not take end the migration."""

Progress = Callable[[str, int, int], None]
"""Told after every session: what is being done, how many are done, of how many."""


@runtime_checkable
class Inventory(Protocol):
    """What a store that holds the data itself can tell besides what every store can."""

    notices: tuple[str, ...]
    """What was found that could not be taken as it is, each a line for people."""

    async def ids(self) -> list[str]:
        """The ids of all sessions of which anything is kept, with a record or without, as UTF-8 bytes in order."""


class Problem(Struct, frozen=True):
    session_id: str
    why: str


class Report(Struct):
    """What a migration did, and what it found when it looked again at the end."""

    sessions: int = 0
    """Sessions of the source."""
    entries: int = 0
    """Their entries, those of skipped sessions left out."""
    new: int = 0
    continued: int = 0
    """Sessions that an interrupted run had begun."""
    updated: int = 0
    """Sessions that had gone on in the source since an earlier run, or that were written over."""
    there: int = 0
    """Sessions that were equal already."""
    skipped: list[Problem] = field(default_factory=list)
    """Sessions that are not in the target as they are in the source."""
    verified_sessions: int = 0
    verified_entries: int = 0
    """What was read again from both stores at the end and is equal."""
    only_in_target: int = 0
    """Sessions that the target has besides."""
    notices: list[str] = field(default_factory=list)
    """What the source itself could not read."""

    @property
    def complete(self) -> bool:
        """Whether everything that the source can read is in the target, equal."""
        return not self.skipped and (self.verified_sessions, self.verified_entries) == (self.sessions, self.entries)


class _Skip(Exception):
    """This session cannot go over; the text says why."""


class _Side(Struct):
    """All that one store keeps of a session."""

    meta: SessionMeta | None
    leaf: str | None
    entries: dict[str, Entry]

    def is_empty(self) -> bool:
        return self.meta is None and self.leaf is None and not self.entries


async def migrate(source: Store, target: Store, progress: Progress, *, overwrite: bool = False) -> Report:
    """Copies all sessions of `source` into `target`, both open. Raises StorageError when a store fails for good."""
    report = Report(notices=list(source.notices) if isinstance(source, Inventory) else [])
    ids = await _ids(source)
    report.sessions = len(ids)
    run = _Run(source, target, report, overwrite=overwrite)
    await _each(ids, run.copy, lambda done: progress("copying", done, len(ids)))
    skipped = {problem.session_id for problem in report.skipped}
    copied = [id_ for id_ in ids if id_ not in skipped]
    await _each(copied, run.verify, lambda done: progress("verifying", done, len(copied)))
    report.only_in_target = len(set(await _ids(target)) - set(ids))
    report.skipped.sort(key=lambda problem: problem.session_id.encode())
    return report


async def _ids(store: Store) -> list[str]:
    return await store.ids() if isinstance(store, Inventory) else [meta.session_id for meta in await store.metas()]


async def _each(ids: list[str], work: Callable[[str], Any], done: Callable[[int], None]) -> None:
    """Works on some of them at a time. The first error ends it."""
    left: Iterator[str] = iter(ids)
    count = 0
    done(0)

    async def worker() -> None:
        nonlocal count
        for id_ in left:
            await work(id_)
            count += 1
            done(count)

    workers = [asyncio.ensure_future(worker()) for _ in range(AT_ONCE)]
    try:
        await asyncio.gather(*workers)
    finally:
        for running in workers:
            running.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


class _Run:
    def __init__(self, source: Store, target: Store, report: Report, *, overwrite: bool) -> None:
        self._source, self._target, self._report, self._overwrite = source, target, report, overwrite
        self._failures = 0

    async def copy(self, id_: str) -> None:
        try:
            source = await self._read_source(id_)
            _check(id_, source)
            target = await _read(self._target, id_)
            kind = self._kind(source, target)
            if kind != "there":
                await self._write(id_, source, target, anew=kind == "replaced")
        except _Skip as skip:
            self._skip(id_, str(skip))
        except StorageError as error:
            self._failures += 1
            if self._failures >= GIVE_UP:
                raise
            self._skip(id_, str(error))
        else:
            self._failures = 0
            name = "updated" if kind == "replaced" else kind
            setattr(self._report, name, getattr(self._report, name) + 1)
            self._report.entries += len(source.entries)

    async def _read_source(self, id_: str) -> _Side:
        try:
            return await _read(self._source, id_)
        except SessionManagerError as error:
            raise _Skip(f"the source cannot read it: {error}") from None

    def _skip(self, id_: str, why: str) -> None:
        log.warning("session not migrated", session_id=id_, why=why)
        self._report.skipped.append(Problem(id_, why))

    def _kind(self, source: _Side, target: _Side) -> str:
        """What there is to do with a session, as the name of its count, or "replaced". Raises _Skip."""
        if target.is_empty() and not source.is_empty():
            return "new"
        differing = [entry for entry in source.entries.values() if not _same(entry, target.entries.get(entry.id))]
        extra = target.entries.keys() - source.entries.keys()
        meta_is_same = _same_meta(source.meta, target.meta)
        record_is_same = meta_is_same and source.leaf == target.leaf
        if record_is_same and not differing and not extra:
            return "there"
        if self._overwrite:
            return "replaced"
        if extra:
            raise _Skip(f"the target's session has {len(extra)} entries that the source's has not")
        if any(
            (known := target.entries.get(entry.id)) is not None and known.revision >= entry.revision
            for entry in differing
        ):
            raise _Skip("the target's session has entries of the same ids with other content")
        if target.meta is None:
            return "continued"
        if source.meta is None:
            raise _Skip("the target's session has a record and the source's has none")
        if not record_is_same and source.meta.updated_at < target.meta.updated_at:
            raise _Skip("the target's session has changed by itself")
        if not record_is_same and source.meta.updated_at == target.meta.updated_at:
            raise _Skip("the two sessions differ and neither is newer: a draft or the active leaf, say")
        return "updated"

    async def _write(self, id_: str, source: _Side, target: _Side, *, anew: bool) -> None:
        known = {} if anew else target.entries
        entries = [entry for entry in parents_first(source.entries) if not _same(entry, known.get(entry.id))]
        drops = EVERYTHING if anew else frozenset[Drop]()
        parts = list(in_parts(entries))
        for part in parts[:-1]:
            await self._commit(Change(id_, entries=tuple(part), drops=drops))
            drops = frozenset()
        if source.leaf is None and target.leaf is not None:
            drops |= {Drop.LEAF}
        await self._commit(Change(id_, source.meta, source.leaf, tuple(parts[-1]), drops))

    async def _commit(self, change: Change) -> None:
        await self._target.commit(self._target.ahead(), change)

    async def verify(self, id_: str) -> None:
        try:
            source, target = await _read(self._source, id_), await _read(self._target, id_)
        except StorageError as error:
            self._skip(id_, f"it cannot be read again: {error}")
            return
        if (
            not _same_meta(source.meta, target.meta)
            or source.leaf != target.leaf
            or source.entries.keys() != target.entries.keys()
            or not all(_same(entry, target.entries[entry.id]) for entry in source.entries.values())
        ):
            self._skip(id_, "it differs after it was copied: did somebody write to one of the stores?")
            return
        self._report.verified_sessions += 1
        self._report.verified_entries += len(source.entries)


async def _read(store: Store, id_: str) -> _Side:
    session = await store.session(id_)
    return _Side(session.meta, session.leaf, {entry.id: entry for entry in await store.entries(id_)})


def _check(id_: str, side: _Side) -> None:
    """The door: raises _Skip when the session holds what could not be served."""
    try:
        check({"session_id": id_})
        if side.meta is not None:
            check({"meta": side.meta.wire()})
            check_record(side.meta)
        for entry in side.entries.values():
            if entry.role is not None:
                decode_message(entry.body)
            content = {"message": decode(entry.body)} if entry.role is not None else decode(entry.body)
            origin = {} if entry.origin is None else {"origin": decode(entry.origin)}
            place = {"id": entry.id, "parent_id": entry.parent_id, "timestamp": entry.timestamp}
            try:
                check({"entry": {**content, **origin, **place}})
            except SessionManagerError as error:
                raise _Skip(f"entry {entry.id!r}: {error}") from None
    except SessionManagerError as error:
        raise _Skip(str(error)) from None
    except (msgspec.MsgspecError, TypeError) as error:
        raise _Skip(f"what is stored is damaged: {error}") from None


def _same(a: Entry, b: Entry | None) -> bool:
    """Whether two entries are equal, whatever the order of keys in their content."""
    if a == b:
        return True
    return (
        b is not None
        and (a.id, a.parent_id, a.timestamp, a.role, a.revision) == (b.id, b.parent_id, b.timestamp, b.role, b.revision)
        and _same_json(a.body, b.body)
        and _same_json(a.origin, b.origin)
    )


def _same_json(a: bytes | None, b: bytes | None) -> bool:
    return a == b or (a is not None and b is not None and canonical(decode(a)) == canonical(decode(b)))


def _same_meta(a: SessionMeta | None, b: SessionMeta | None) -> bool:
    return canonical(a) == canonical(b)


def parents_first(entries: dict[str, Entry]) -> list[Entry]:
    """The entries, each behind its parent where that is one of them and the links run in no circle."""
    ordered: dict[str, Entry] = {}
    for entry in entries.values():
        line: dict[str, Entry] = {}
        at: Entry | None = entry
        while at is not None and at.id not in ordered and at.id not in line:
            line[at.id] = at
            at = None if at.parent_id is None else entries.get(at.parent_id)
        for id_ in reversed(line):
            ordered[id_] = line[id_]
    return list(ordered.values())


def in_parts(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """The entries in lists that fit in one change; one list at least."""
    part: list[Entry] = []
    size = 0
    for entry in entries:
        if part and (len(part) >= CHANGE_ENTRIES or size + len(entry.body) > CHANGE_BYTES):
            yield part
            part, size = [], 0
        part.append(entry)
        size += len(entry.body)
    yield part


def as_json(report: Report) -> bytes:
    """The report for programs, with `complete` in it."""
    return encode({**msgspec.to_builtins(report), "complete": report.complete})
