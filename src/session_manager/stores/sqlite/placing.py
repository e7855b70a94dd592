"""Where entries go: the index of the chain, as it is written."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from session_manager.model import Entry
from session_manager.stores.sqlite.known import UNPLACED, Known, Last, Place
from session_manager.stores.sqlite.rows import BRANCH, POS, Row


class Placing:
    def __init__(self, connection: sqlite3.Connection, staged: Mapping[tuple[int, str], Row]) -> None:
        """`staged` are entries that are to be inserted, by session number and id."""
        self._db, self._staged = connection, staged

    def place(self, known: Known, entry: Entry) -> Place:
        """Where a new entry goes: behind its parent if that is the tip of its branch, else on a branch of its own."""
        if entry.parent_id is None:
            place = self.new_branch(known, None, 0)
        else:
            last = known.last
            branch, pos = (
                last.place if last is not None and last.id == entry.parent_id else self.place_of(known, entry.parent_id)
            )
            if branch is None or pos is None:
                place = UNPLACED
            elif self._tip(known, branch) == pos:
                known.tips[branch] = pos + 1
                place = (branch, pos + 1)
            else:
                place = self.new_branch(known, branch, pos + 1)
        known.last = Last(entry.id, entry.parent_id, place)
        return place

    def place_of(self, known: Known, entry_id: str) -> Place:
        staged = self._staged.get((known.num, entry_id))
        if staged is not None:
            return staged[BRANCH], staged[POS]
        row = self._db.execute(
            "SELECT branch, pos FROM entry WHERE session = ? AND id = ?", (known.num, entry_id)
        ).fetchone()
        if row is None and known.fork is not None and (pos := known.fork.pos_of(entry_id)) is not None:
            return 0, pos
        return UNPLACED if row is None else row

    def _tip(self, known: Known, branch: int) -> int:
        tip = known.tips.get(branch)
        if tip is None:
            tip = self._db.execute(
                "SELECT max(pos) FROM entry WHERE session = ? AND branch = ?", (known.num, branch)
            ).fetchone()[0]
            if branch == 0 and known.fork is not None:
                tip = max(known.fork.last, -1 if tip is None else tip)
            known.tips[branch] = tip
        return tip

    def new_branch(self, known: Known, parent: int | None, start: int) -> Place:
        branch = known.branches
        self._db.execute("INSERT INTO branch VALUES (?, ?, ?, ?)", (known.num, branch, parent, start))
        known.branches += 1
        known.tips[branch] = start
        return branch, start
