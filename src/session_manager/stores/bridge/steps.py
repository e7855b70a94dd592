"""The calls of a change, and their order.

The store protocol itself has no transactions, so beside a main instance without hints a change is several calls, and
what a reader elsewhere or a crash finds in between must make sense:

1. removals of entries and leaf;
2. entries: not yet on any path, so nobody meets them;
3. the leaf;
4. the record (an update, which moves no leaf, writes its entry here too). It comes behind the leaf, because an entry
   that the record counts and no leaf leads to looks as if it had been appended and then left for another branch;
5. removal of the record, last, so that a deletion that stopped halfway can be asked for again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from session_manager.model import Entry
from session_manager.store import Change, Drop

PART_ENTRIES, PART_BYTES = 500, 1 << 20
"""Most entries, and bytes of content but for the first, of a change that go out as one call: the main instance takes a
call in at one go, and others wait meanwhile."""

Step = list[tuple[str, Any]]
"""Calls that may be on their way at once: names of store functions and their payloads."""


def steps_of(change: Change, *, fresh: bool) -> list[Step]:
    """`fresh`: the session may have no record."""
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


def parts_of(entries: Sequence[Entry]) -> list[list[Entry]]:
    """The entries of a change with hints, call by call."""
    parts: list[list[Entry]] = []
    room = 0
    for entry in entries:
        room -= len(entry.body)
        if room < 0 or len(parts[-1]) == PART_ENTRIES:
            parts.append([])
            room = PART_BYTES
        parts[-1].append(entry)
    return parts
