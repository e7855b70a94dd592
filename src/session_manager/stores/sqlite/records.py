"""Session records and leaves kept at hand, so that neither `get` nor a rule waits for the disk.

The file belongs to this process alone, so what was read once stays true with the changes since. Everything here runs on
the event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from session_manager.store import Change, Drop, Session

MOST = 4096
"""Sessions that are remembered."""


class Records:
    """`apply` must be told every change that has become durable, in order, and `clear` when it is not known what
    has."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Session] = OrderedDict()
        self.forgotten = 0
        """Grows whenever something is forgotten: what was read before that may be the state before a change."""

    def __len__(self) -> int:
        return len(self._known)

    def get(self, session_id: str) -> Session | None:
        session = self._known.get(session_id)
        if session is not None:
            self._known.move_to_end(session_id)
        return session

    def was_read(self, session_id: str, session: Session, forgotten: int) -> None:
        """What the disk said, and what `forgotten` was when it was asked. What a commit has told meanwhile is newer."""
        if session.meta is not None and forgotten == self.forgotten and session_id not in self._known:
            self._remember(session_id, session)

    def apply(self, batch: Sequence[Change]) -> None:
        for change in batch:
            before = self._known.get(change.session_id)
            has_meta = change.meta is not None or Drop.META in change.drops
            has_leaf = change.leaf is not None or Drop.LEAF in change.drops
            if before is not None:
                meta = change.meta if has_meta else before.meta
                leaf = change.leaf if has_leaf else before.leaf
                self._remember(change.session_id, Session(meta, leaf))
            elif has_meta and has_leaf:
                self._remember(change.session_id, Session(change.meta, change.leaf))
            else:
                self.forgotten += 1  # a read that began before the change must not be remembered

    def clear(self) -> None:
        self._known.clear()
        self.forgotten += 1

    def _remember(self, session_id: str, session: Session) -> None:
        self._known[session_id] = session
        self._known.move_to_end(session_id)
        if len(self._known) > MOST:
            self._known.popitem(last=False)
            self.forgotten += 1
