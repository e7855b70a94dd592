"""Applying batches of changes: everything here runs on the writer's thread."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from session_manager.filters import canonical
from session_manager.model import Entry, JsonObject, SessionMeta, encode
from session_manager.store import Change, Drop
from session_manager.stores.sqlite import rows, runs
from session_manager.stores.sqlite.rows import BRANCH, PARENT, POS, SEQ, Row
from session_manager.stores.sqlite.schema import LAST_COMMIT

KNOWN = 10_000
"""Sessions whose row the writer remembers."""

CHUNK = 500
"""Ids looked up in one statement."""

Place = tuple[int | None, int | None]
"""Branch and position; (None, None) where the chain does not lead to a root."""

UNREAD = object()

UNPLACED: Place = (None, None)


def digest(key: str, value: Any) -> bytes:
    """What `label` holds of one top-level key of a session's metadata."""
    return hashlib.blake2b(encode(key) + canonical(value), digest_size=12).digest()


def digests(metadata: JsonObject | None) -> frozenset[bytes]:
    return frozenset(digest(key, value) for key, value in (metadata or {}).items())


class _Known:
    """What the writer knows of a session's rows: a cache, dropped whenever a transaction fails."""

    __slots__ = ("branches", "labels", "last", "lasting", "leaf", "meta", "metadata", "num", "recorded", "tips")

    def __init__(self, num: int) -> None:
        self.num = num
        self.leaf: str | None = None
        self.recorded = False
        """Whether there is a record; what it says is not looked at, for it may be damaged."""
        self.meta: SessionMeta | None = None
        """The record, if this transaction puts one."""
        self.lasting: tuple[str, int] | None = None
        """Status and creation time of the record put last."""
        self.metadata: JsonObject | object | None = UNREAD
        """Of the record put last; its labels need no second look."""
        self.labels: frozenset[bytes] = frozenset()
        self.branches = 0
        self.tips: dict[int, int] = {}
        self.last: tuple[str, Place] | None = None
        """The entry written last and its place, for the next one most likely hangs under it."""


class Writer:
    def __init__(self, connection: sqlite3.Connection, at_least: int = 0) -> None:
        """Numbers go on behind `at_least`, whatever the database says."""
        self._db = connection
        self._known: dict[str, _Known] = {}
        self._staged: dict[tuple[int, str], Row] = {}
        """Entries to be inserted at the end of the transaction."""
        self._inserted: int | None = None
        """The number of the commit that inserted the last entry, as far as this transaction did."""
        self._touched: dict[str, tuple[_Known, int]] = {}
        self.stored: int = connection.execute(LAST_COMMIT).fetchone()[0]
        """The number of the last commit that the database knows of."""
        self._sequence = max(self.stored, at_least)

    @property
    def in_transaction(self) -> bool:
        """Whether what failed could not be undone."""
        return self._db.in_transaction

    def apply(self, batch: Sequence[Change]) -> int:
        """Makes the batch durable in one transaction and returns the number of its first commit."""
        first: int = self._sequence + 1
        self._inserted = None
        self._db.execute("BEGIN IMMEDIATE")
        try:
            for seq, change in enumerate(batch, first):
                self._change(change, seq)
            last = first + len(batch) - 1
            self._flush()
            if self._inserted != last:
                self._db.execute("UPDATE sequence SET last = ?", (last,))
            self._db.execute("COMMIT")
        except BaseException:
            self._forget_all()
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._sequence += len(batch)
        if len(self._known) > KNOWN:
            self._known.clear()
        return first

    def _forget_all(self) -> None:
        self._known.clear()
        self._staged.clear()
        self._touched.clear()

    def _change(self, change: Change, seq: int) -> None:
        known = self._session(change.session_id, seq)
        if change.drops:
            self._drop(change.session_id, known, change.drops)
        if change.entries:
            if change.fresh:
                self._put_fresh(known, change.entries, seq)
            else:
                self._put_entries(known, change.entries, seq)
        if change.leaf is not None:
            known.leaf = change.leaf
        if change.meta is not None:
            known.meta, known.recorded = change.meta, True
        self._touched[change.session_id] = (known, seq)

    def _session(self, session_id: str, seq: int) -> _Known:
        known = self._known.get(session_id)
        if known is not None:
            return known
        row = self._db.execute("SELECT num, leaf, meta IS NOT NULL FROM session WHERE id = ?", (session_id,)).fetchone()
        if row is None:
            num = self._db.execute("INSERT INTO session (id, seq) VALUES (?, ?)", (session_id, seq)).lastrowid
            assert num is not None
            known = _Known(num)
        else:
            known = _Known(row[0])
            known.leaf = row[1]
            known.recorded = bool(row[2])
            known.labels = frozenset(
                digest for (digest,) in self._db.execute("SELECT digest FROM label WHERE session = ?", (known.num,))
            )
            known.branches = self._db.execute(
                "SELECT coalesce(max(branch) + 1, 0) FROM branch WHERE session = ?", (known.num,)
            ).fetchone()[0]
        self._known[session_id] = known
        return known

    def _drop(self, session_id: str, known: _Known, drops: frozenset[Drop]) -> None:
        self._insert_staged()
        if Drop.ENTRIES in drops:
            self._db.execute("DELETE FROM entry WHERE session = ?", (known.num,))
            self._db.execute("DELETE FROM branch WHERE session = ?", (known.num,))
            self._inserted = None
            known.branches, known.last = 0, None
            known.tips.clear()
        if Drop.LEAF in drops:
            known.leaf = None
        if Drop.META in drops and known.recorded:
            known.meta, known.recorded, known.lasting = None, False, None
            self._db.execute(
                "UPDATE session SET meta = NULL, sum = NULL, status = NULL, created_at = NULL, updated_at = NULL"
                " WHERE num = ?",
                (known.num,),
            )
            self._label(known, None)

    # --- entries ---

    def _put_fresh(self, known: _Known, entries: Sequence[Entry], seq: int) -> None:
        if len(entries) >= runs.LENGTH and runs.hang_together(entries):
            self._insert_staged()
            branch, pos = self._place(known, entries[0])
            count = runs.insert(self._db, known.num, entries, branch, pos, seq)
            if branch is not None and pos is not None:
                pos = known.tips[branch] = pos + count - 1
            known.last = (entries[count - 1].id, (branch, pos))
            self._inserted = seq
            entries = entries[count:]
        for entry in entries:
            self._staged[known.num, entry.id] = rows.row(known.num, entry, *self._place(known, entry), seq)

    def _put_entries(self, known: _Known, entries: Sequence[Entry], seq: int) -> None:
        existing = self._existing(known, [entry.id for entry in entries])
        for entry in entries:
            key = (known.num, entry.id)
            staged = self._staged.get(key)
            if staged is not None:
                old_parent = staged[PARENT]
            elif entry.id in existing:
                old_parent = existing[entry.id]
            else:
                self._staged[key] = rows.row(known.num, entry, *self._place(known, entry), seq)
                continue
            if old_parent != entry.parent_id:
                self._insert_staged()
                staged = None
                self._unplace(known)
            if staged is not None:
                self._staged[key] = rows.row(known.num, entry, staged[BRANCH], staged[POS], seq)
            else:
                self._replace(known, entry, seq)

    def _existing(self, known: _Known, ids: Sequence[str]) -> dict[str, str | None]:
        """The parent of each id that has a row."""
        found: dict[str, str | None] = {}
        for start in range(0, len(ids), CHUNK):
            chunk = ids[start : start + CHUNK]
            marks = ",".join("?" * len(chunk))
            found.update(
                self._db.execute(
                    f"SELECT id, parent_id FROM entry WHERE session = ? AND id IN ({marks})",  # noqa: S608 # only marks
                    (known.num, *chunk),
                ).fetchall()
            )
        return found

    def _replace(self, known: _Known, entry: Entry, seq: int) -> None:
        _, id_, *values, _, _, _ = rows.row(known.num, entry, None, None, seq)
        self._db.execute(
            "UPDATE entry SET parent_id = ?, timestamp = ?, role = ?, body = ?, revision = ?, origin = ?, sum = ?,"
            " seq = ? WHERE session = ? AND id = ?",
            (*values, seq, known.num, id_),
        )

    def _unplace(self, known: _Known) -> None:
        """An entry was hung elsewhere, so no place of the session can be trusted: from now on its paths are walked."""
        self._db.execute("UPDATE entry SET branch = NULL, pos = NULL WHERE session = ?", (known.num,))
        self._db.execute("DELETE FROM branch WHERE session = ?", (known.num,))
        known.branches, known.last = 0, None
        known.tips.clear()

    def _place(self, known: _Known, entry: Entry) -> Place:
        """Where a new entry goes: behind its parent if that is the tip of its branch, else on a branch of its own."""
        if entry.parent_id is None:
            place = self._new_branch(known, None, 0)
        else:
            last = known.last
            branch, pos = (
                last[1] if last is not None and last[0] == entry.parent_id else self._place_of(known, entry.parent_id)
            )
            if branch is None or pos is None:
                place = UNPLACED
            elif self._tip(known, branch) == pos:
                known.tips[branch] = pos + 1
                place = (branch, pos + 1)
            else:
                place = self._new_branch(known, branch, pos + 1)
        known.last = (entry.id, place)
        return place

    def _place_of(self, known: _Known, entry_id: str) -> Place:
        staged = self._staged.get((known.num, entry_id))
        if staged is not None:
            return staged[BRANCH], staged[POS]
        row = self._db.execute(
            "SELECT branch, pos FROM entry WHERE session = ? AND id = ?", (known.num, entry_id)
        ).fetchone()
        return UNPLACED if row is None else row

    def _tip(self, known: _Known, branch: int) -> int:
        tip = known.tips.get(branch)
        if tip is None:
            tip = self._db.execute(
                "SELECT max(pos) FROM entry WHERE session = ? AND branch = ?", (known.num, branch)
            ).fetchone()[0]
            known.tips[branch] = tip
        return tip

    def _new_branch(self, known: _Known, parent: int | None, start: int) -> Place:
        branch = known.branches
        self._db.execute("INSERT INTO branch VALUES (?, ?, ?, ?)", (known.num, branch, parent, start))
        known.branches += 1
        known.tips[branch] = start
        return branch, start

    # --- the end of the transaction ---

    def _insert_staged(self) -> None:
        if self._staged:
            self._inserted = next(reversed(self._staged.values()))[SEQ]
            self._db.executemany(
                f"INSERT INTO entry (session, {rows.ENTRY}, branch, pos, seq)"  # noqa: S608 # fixed texts
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                self._staged.values(),
            )
            self._staged.clear()

    def _flush(self) -> None:
        self._insert_staged()
        for session_id, (known, seq) in self._touched.items():
            meta = known.meta
            if meta is not None:
                self._put_record(known, meta, seq)
                self._label(known, meta.metadata)
                known.meta = None
            elif known.recorded or known.leaf is not None or self._has_entries(known):
                self._db.execute("UPDATE session SET leaf = ?, seq = ? WHERE num = ?", (known.leaf, seq, known.num))
            else:
                self._db.execute("DELETE FROM session WHERE num = ?", (known.num,))
                del self._known[session_id]
        self._touched.clear()

    def _put_record(self, known: _Known, meta: SessionMeta, seq: int) -> None:
        stored = encode(meta)
        lasting = (meta.status, meta.created_at)
        if known.lasting == lasting:  # then one index less is written
            self._db.execute(
                "UPDATE session SET leaf = ?, meta = ?, sum = ?, updated_at = ?, seq = ? WHERE num = ?",
                (known.leaf, stored, crc32(stored), meta.updated_at, seq, known.num),
            )
        else:
            self._db.execute(
                "UPDATE session SET leaf = ?, meta = ?, sum = ?, status = ?, created_at = ?, updated_at = ?,"
                " seq = ? WHERE num = ?",
                (known.leaf, stored, crc32(stored), *lasting, meta.updated_at, seq, known.num),
            )
            known.lasting = lasting

    def _has_entries(self, known: _Known) -> bool:
        row = self._db.execute("SELECT 1 FROM entry WHERE session = ? LIMIT 1", (known.num,)).fetchone()
        return row is not None

    def _label(self, known: _Known, metadata: JsonObject | None) -> None:
        if metadata is known.metadata:
            return
        labels = digests(metadata)
        for gone in known.labels - labels:
            self._db.execute("DELETE FROM label WHERE digest = ? AND session = ?", (gone, known.num))
        for new in labels - known.labels:
            self._db.execute("INSERT INTO label VALUES (?, ?)", (new, known.num))
        known.labels, known.metadata = labels, metadata
