"""What can be wrong with one session, whatever store it is in. Nothing here reads or writes a store."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec import Struct

from session_manager.doctor.findings import Finding
from session_manager.interop.opencode.sessions import is_imported, left_by_import
from session_manager.model import (
    AssistantMessage,
    Entry,
    FunctionCallBlock,
    FunctionResultBlock,
    FunctionResultMessage,
    SessionMeta,
)

STUCK = 60 * 60 * 1000
"""Milliseconds without a change after which a session that is `working` is suspected."""


class Patient(Struct):
    """All that is known of one session."""

    session_id: str
    meta: SessionMeta | None
    record_damaged: bool
    leaf: str | None
    entries: Mapping[str, Entry]
    """By id, in the order in which they were written, or what comes closest to it."""
    damaged: Mapping[str, str | None]
    """Entries that cannot be read, and their parents."""

    def parent_of(self, entry_id: str) -> str | None:
        entry = self.entries.get(entry_id)
        return self.damaged[entry_id] if entry is None else entry.parent_id

    def has(self, entry_id: str) -> bool:
        return entry_id in self.entries or entry_id in self.damaged

    def path(self, leaf: str) -> tuple[list[str], str | None]:
        """Ids from the farthest entry that can be reached up to `leaf`, and what is wrong at that end, if anything:
        `parent-missing` or `cycle`."""
        ids: list[str] = []
        seen: set[str] = set()
        at: str | None = leaf
        wrong = None
        while at is not None:
            if at in seen:
                wrong = "cycle"
                break
            if not self.has(at):
                wrong = "parent-missing"
                break
            seen.add(at)
            ids.append(at)
            at = self.parent_of(at)
        return ids[::-1], wrong

    def chained(self) -> list[str]:
        """Entries of conversations: all but bookkeeping that stands alone, which was never meant to be on a path."""
        parents = {entry.parent_id for entry in self.entries.values()}
        return [
            entry.id
            for entry in self.entries.values()
            if entry.role is not None or entry.parent_id is not None or entry.id in parents
        ]

    def newest(self, before: Collection[str] = ()) -> str | None:
        """The entry of a conversation that was written last, but before all of `before`, and whose path is whole and
        undamaged."""
        order = list(self.entries)
        end = next((place for place, id_ in enumerate(order) if id_ in before), len(order))
        fit = self.whole() & set(self.chained())
        return next((id_ for id_ in reversed(order[:end]) if id_ in fit), None)

    def resting_leaf(self) -> str | None:
        """Where the active leaf belongs if nothing tells but the rest of the session: at the newest entry, unless that
        was imported, so that nobody went on since. Then it is where the import left it: before what was taken back,
        and nowhere if that is all."""
        newest = self.newest() or next(reversed(self.chained()), None)
        left = None if self.meta is None else left_by_import(self.meta.metadata)
        if newest is None or left is None or not is_imported(self.entries[newest]):
            return newest
        return left.leaf if left.leaf is None or left.leaf in self.whole() else newest

    def whole(self) -> set[str]:
        """The entries whose paths reach a root and are undamaged."""
        known: dict[str, bool] = {}
        for start in self.entries:
            walked: list[str] = []
            at: str | None = start
            while at is not None and at not in known and at in self.entries:
                known[at] = False  # for as long as it is walked on: so a circle is not whole
                walked.append(at)
                at = self.entries[at].parent_id
            found = at is None or known.get(at, False)
            known.update(dict.fromkeys(walked, found))
        return {id_ for id_, found in known.items() if found}


def in_order(entries: Iterable[Entry]) -> dict[str, Entry]:
    """By id, each behind the one that it hangs on, and otherwise by time, which alone proves nothing: clocks are set
    back. Those that hang on each other in a circle come last."""
    by_id = {entry.id: entry for entry in entries}
    hanging: dict[str, list[Entry]] = {}
    ready: list[tuple[int, str]] = []
    for entry in by_id.values():
        if entry.parent_id is None or entry.parent_id not in by_id:
            ready.append((entry.timestamp, entry.id))
        else:
            hanging.setdefault(entry.parent_id, []).append(entry)
    heapq.heapify(ready)
    ordered: dict[str, Entry] = {}
    while ready:
        _, id_ = heapq.heappop(ready)
        ordered[id_] = by_id[id_]
        for entry in hanging.get(id_, ()):
            heapq.heappush(ready, (entry.timestamp, entry.id))
    return ordered | by_id


def examine(patient: Patient, now: int, stuck: int = STUCK) -> Iterator[Finding]:
    def found(kind: str, text: str, entry_id: str | None = None) -> Finding:
        return Finding(kind, text, patient.session_id, entry_id)

    meta, messages = patient.meta, sum(entry.role is not None for entry in patient.entries.values())
    for entry_id in patient.damaged:
        yield found("entry-damaged", "the entry does not hold what was written", entry_id)
    if patient.record_damaged:
        yield found("record-damaged", "the record does not hold what was written")
    elif meta is None and (patient.entries or patient.damaged):
        yield found("entries-without-record", f"{len(patient.entries)} entries and no record")
    if meta is not None and not patient.damaged:
        if not patient.entries and meta.message_count:
            yield found("record-without-entries", f"the record counts {meta.message_count} messages")
        elif meta.message_count != messages:
            yield found("count-wrong", f"the record counts {meta.message_count} messages, and there are {messages}")
    if meta is not None and patient.leaf is None and patient.resting_leaf() is not None:
        yield found("leaf-missing", f"{len(patient.chained())} entries and no active leaf")
    if patient.leaf is not None and not patient.has(patient.leaf):
        yield found("leaf-gone", "the active leaf names no entry", patient.leaf)
    yield from _broken_links(patient)
    if meta is not None and meta.status == "working" and now - meta.updated_at > stuck:
        yield found("stuck-working", f"working since {(now - meta.updated_at) // 60000} minutes without a change")
    yield from _calls(patient)


def _broken_links(patient: Patient) -> Iterator[Finding]:
    """Each missing parent once per entry that names it, each circle once."""
    checked: set[str] = set()
    for start in [*patient.entries, *patient.damaged]:
        walked: list[str] = []
        at: str | None = start
        while at is not None and at not in checked:
            checked.add(at)
            walked.append(at)
            parent = patient.parent_of(at)
            if parent is not None and not patient.has(parent):
                yield Finding("parent-missing", f"its parent {parent!r} is not there", patient.session_id, at)
                parent = None
            at = parent
        if at is not None and at in walked:
            yield Finding("cycle", "the links run in a circle", patient.session_id, at)


def _calls(patient: Patient) -> Iterator[Finding]:
    """Calls and results on the active path that have no counterpart."""
    if patient.leaf is None or patient.meta is None:
        return
    open_calls: dict[str, str] = {}
    calls: set[str] = set()
    for id_ in patient.path(patient.leaf)[0]:
        entry = patient.entries.get(id_)
        if entry is None or entry.role not in ("assistant", "function_result"):
            continue
        message = entry.message()
        if isinstance(message, AssistantMessage):
            for block in message.content:
                if isinstance(block, FunctionCallBlock):
                    open_calls[block.id] = id_
                    calls.add(block.id)
                elif isinstance(block, FunctionResultBlock):
                    open_calls.pop(block.function_call_id, None)
        elif isinstance(message, FunctionResultMessage):
            if message.function_call_id not in calls:
                text = f"it answers call {message.function_call_id!r}, which is not before it"
                yield Finding("result-without-call", text, patient.session_id, id_)
            open_calls.pop(message.function_call_id, None)
    working = patient.meta.status == "working"
    for call, id_ in open_calls.items():
        if not working:  # while it works, the result may be on its way
            yield Finding("call-without-result", f"call {call!r} has no result", patient.session_id, id_)
