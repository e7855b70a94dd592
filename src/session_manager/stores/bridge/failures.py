"""What changes that failed may have written all the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from msgspec import Struct

from session_manager.model import Entry, decode
from session_manager.store import Change, Drop, Session
from session_manager.stores.memory import Kept

REMEMBERED, ATTEMPTS = 10_000, 16
"""Sessions of which failed changes are remembered, and how many of each."""


class _Failed(Struct):
    """Of one session, and what was there before."""

    before: Session | None = None
    after: list[Session] = []
    entries: dict[str, tuple[list[Entry], Entry | None]] = {}


class Written(Struct, frozen=True):
    """What is known of an entry that changes which failed had."""

    same: bool
    """Whether it is just what one of them would have written."""
    before: Entry | None
    """What it was before them."""


class Failures:
    def __init__(self) -> None:
        self._failed: OrderedDict[str, _Failed] = OrderedDict()

    def remember(self, change: Change, shown: Session | None, entries: Mapping[str, Entry | None]) -> None:
        """A change failed that was decided on what was `shown` of the session and of its `entries`."""
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
            failed.entries[entry.id] = [*written[-ATTEMPTS:], entry], entries.get(entry.id)
        if len(self._failed) > REMEMBERED:
            self._failed.popitem(last=False)

    def made(self, change: Change) -> None:
        """A later change of the session was made."""
        failed = self._failed.get(change.session_id)
        if failed is None:
            return
        failed.before, failed.after = None, []
        for entry in change.entries:
            failed.entries.pop(entry.id, None)
        if not failed.entries or Drop.ENTRIES in change.drops:
            del self._failed[change.session_id]

    def subtracted(self, session_id: str, read: Session) -> Session:
        failed = self._failed.get(session_id)
        if failed is None or failed.before is None:
            return read
        return Session(
            failed.before.meta if any(read.meta == after.meta for after in failed.after) else read.meta,
            failed.before.leaf if any(read.leaf == after.leaf for after in failed.after) else read.leaf,
        )

    def written(self, session_id: str, entry: Entry) -> Written | None:
        """None when no change failed that had the entry."""
        failed = self._failed.get(session_id)
        if failed is None or entry.id not in failed.entries:
            return None
        tried, before = failed.entries[entry.id]
        return Written(any(_same(entry, one) for one in tried), before)

    def forget(self, session_id: str, entry_id: str) -> None:
        failed = self._failed.get(session_id)
        if failed is not None:
            failed.entries.pop(entry_id, None)


def _same(one: Entry, other: Entry) -> bool:
    """Whether two entries say the same; the engine may have sorted the keys of one."""
    return (one.revision, one.timestamp, one.parent_id, one.role) == (
        other.revision,
        other.timestamp,
        other.parent_id,
        other.role,
    ) and decode(one.body) == decode(other.body)
