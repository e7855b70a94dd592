"""Applying batches of changes: everything here runs on the writer's thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from session_manager.errors import Outdated
from session_manager.model import Entry, JsonObject, SessionMeta
from session_manager.store import Change, Copied, Drop
from session_manager.stores.sqlite import forks, lone, rows, runs
from session_manager.stores.sqlite.known import UNPLACED, UNREAD, Known, Last, Place
from session_manager.stores.sqlite.labels import digests
from session_manager.stores.sqlite.placing import Placing
from session_manager.stores.sqlite.rows import BRANCH, PARENT, POS, Row
from session_manager.stores.sqlite.schema import LAST_COMMIT, NOTE_COMMIT

KNOWN = 10_000
"""Sessions whose row the writer remembers."""

_NOTE_COMMIT = NOTE_COMMIT.format(number="?1")

CHUNK = 500
"""Ids looked up in one statement."""


class Writer:
    def __init__(self, connection: sqlite3.Connection, at_least: int = 0) -> None:
        """Numbers go on behind `at_least`, whatever the database says."""
        self._db = connection
        lone.prepare(connection)
        self._known: dict[str, Known] = {}
        self._staged: dict[tuple[int, str], Row] = {}
        """Entries to be inserted at the end of the transaction."""
        self._places = Placing(connection, self._staged)
        self._touched: dict[str, tuple[Known, int]] = {}
        self._kept: dict[int, set[Place] | None] = {}
        """Per session, by number, where all forks that share its rows have rows of their own; None when there are no
        such forks. Part of the same cache."""
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
        if len(batch) == 1 and self._alone(batch[0], first):
            self._sequence = first
            return first
        self._db.execute("BEGIN IMMEDIATE")
        try:
            for seq, change in enumerate(batch, first):
                self._change(change, seq)
            last = first + len(batch) - 1
            self._flush()
            self._db.execute(_NOTE_COMMIT, (last,))
            self._db.execute("COMMIT")
        except BaseException:
            self._forget_all()
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._sequence += len(batch)
        if len(self._known) > KNOWN:
            self._known.clear()
            self._kept.clear()
        return first

    def _alone(self, change: Change, seq: int) -> bool:
        """Makes a change durable that adds an entry behind the last one, or writes the last one anew, and changes no
        more of the record than that asks for. Returns whether it is such a change; if not, nothing was done."""
        known, meta = self._known.get(change.session_id), change.meta
        if (
            known is None
            or known.last is None
            or meta is None
            or len(change.entries) != 1
            or known.lasting != (meta.status, meta.created_at)
            or known.metadata is not meta.metadata
            or change.drops
        ):
            return False
        [entry], last = change.entries, known.last
        is_next = change.fresh and entry.parent_id == last.id
        if not is_next and not self._is_last(known, last, entry):
            return False
        leaf = known.leaf if change.leaf is None else change.leaf
        record = rows.record(leaf, meta)
        try:
            if is_next:
                lone.append(self._db, rows.row(known.num, entry, *self._places.place(known, entry), seq), record)
            else:
                lone.replace(self._db, known.num, entry, seq, record)
        except BaseException:
            self._forget_all()
            raise
        known.leaf = leaf
        return True

    def _is_last(self, known: Known, last: Last, entry: Entry) -> bool:
        """Whether it is the entry written last, where it was, and concerns no fork."""
        return entry.id == last.id and entry.parent_id == last.parent_id and self._kept.get(known.num, UNREAD) is None

    def _forget_all(self) -> None:
        self._known.clear()
        self._kept.clear()
        self._staged.clear()
        self._touched.clear()

    def _change(self, change: Change, seq: int) -> None:
        known = self._session(change.session_id, seq)
        if change.drops:
            self._drop(change.session_id, known, change.drops)
        if change.copied is not None:
            self._share(known, change.copied)
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

    def _session(self, session_id: str, seq: int) -> Known:
        known = self._find(session_id)
        if known is None:
            num = self._db.execute("INSERT INTO session (id, seq) VALUES (?, ?)", (session_id, seq)).lastrowid
            assert num is not None
            known = self._known[session_id] = Known(num)
            self._kept[num] = None
        return known

    def _find(self, session_id: str) -> Known | None:
        known = self._known.get(session_id)
        if known is not None:
            return known
        row = self._db.execute("SELECT num, leaf, meta IS NOT NULL FROM session WHERE id = ?", (session_id,)).fetchone()
        if row is None:
            return None
        known = self._known[session_id] = Known(row[0])
        known.leaf = row[1]
        known.recorded = bool(row[2])
        known.fork = forks.fork_of(self._db, known.num)
        known.labels = frozenset(
            digest for (digest,) in self._db.execute("SELECT digest FROM label WHERE session = ?", (known.num,))
        )
        known.branches = self._db.execute(
            "SELECT coalesce(max(branch) + 1, 0) FROM branch WHERE session = ?", (known.num,)
        ).fetchone()[0]
        return known

    def _drop(self, session_id: str, known: Known, drops: frozenset[Drop]) -> None:
        self._insert_staged()
        if Drop.ENTRIES in drops:
            if forks.is_source(self._db, known.num):
                forks.trim(self._db, self._renumber(known))
            else:
                self._db.execute("DELETE FROM entry WHERE session = ?", (known.num,))
                self._db.execute("DELETE FROM branch WHERE session = ?", (known.num,))
                if known.fork is not None:
                    forks.let_go(self._db, known.fork)
            known.branches, known.last, known.fork = 0, None, None
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

    # --- forks ---

    def _share(self, known: Known, copied: Copied) -> None:
        """Makes a session without entries a fork."""
        self._insert_staged()
        source = self._find(copied.session_id)
        branch, pos = UNPLACED if source is None else self._places.place_of(source, copied.entry_id)
        if source is None or branch is None or pos is None or pos + 1 != copied.entries:
            raise Outdated("what was to be copied has changed meanwhile; try again")
        if known.num < source.num:
            self._renumber(known)
        known.fork = forks.share(self._db, known.num, source.num, branch, pos, copied.prefix)
        self._kept[known.fork.source] = set()
        self._places.new_branch(known, None, 0)
        known.tips[0] = pos
        known.last = Last(known.fork.id_at(pos), UNREAD, (0, pos))

    def _keep_for_forks(self, known: Known, entry_id: str, seq: int) -> None:
        """To be called before an entry is changed in place."""
        if known.num not in self._kept:
            self._kept[known.num] = set() if forks.is_source(self._db, known.num) else None
        kept = self._kept[known.num]
        if kept is None:
            return
        place = self._places.place_of(known, entry_id)
        if place not in kept and place[0] is not None and place[1] is not None:
            forks.keep(self._db, known.num, place[0], place[1], seq)
            kept.add(place)

    def _renumber(self, known: Known) -> int:
        """The session goes on without the entries that it has, under another number. The old one, which is given back,
        is nobody's as long as it has forks, for they have greater ones."""
        left = known.num
        known.num = self._db.execute("SELECT max(num) + 1 FROM session").fetchone()[0]
        self._db.execute("UPDATE session SET num = ? WHERE num = ?", (known.num, left))
        self._db.execute("UPDATE label SET session = ? WHERE session = ?", (known.num, left))
        self._kept[known.num] = None
        return left

    # --- entries ---

    def _put_fresh(self, known: Known, entries: Sequence[Entry], seq: int) -> None:
        if runs.is_one(entries):
            self._insert_staged()
            branch, pos = self._places.place(known, entries[0])
            count = runs.insert(self._db, known.num, entries, branch, pos, seq)
            if branch is not None and pos is not None:
                pos = known.tips[branch] = pos + count - 1
            known.last = Last(entries[count - 1].id, entries[count - 1].parent_id, (branch, pos))
            entries = entries[count:]
        for entry in entries:
            self._staged[known.num, entry.id] = rows.row(known.num, entry, *self._places.place(known, entry), seq)

    def _put_entries(self, known: Known, entries: Sequence[Entry], seq: int) -> None:
        existing = self._existing(known, [entry.id for entry in entries])
        for entry in entries:
            key = (known.num, entry.id)
            staged = self._staged.get(key)
            if staged is not None:
                old_parent = staged[PARENT]
            elif entry.id in existing:
                old_parent = existing[entry.id]
            else:
                self._staged[key] = rows.row(known.num, entry, *self._places.place(known, entry), seq)
                continue
            if old_parent != entry.parent_id:
                self._insert_staged()
                staged = None
                self._unplace(known, seq)
            if staged is not None:
                self._staged[key] = rows.row(known.num, entry, staged[BRANCH], staged[POS], seq)
            else:
                self._replace(known, entry, seq)

    def _existing(self, known: Known, ids: Sequence[str]) -> dict[str, str | None]:
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
        if known.fork is not None:
            for id_ in ids:
                pos = known.fork.pos_of(id_)
                if pos is not None:
                    found.setdefault(id_, known.fork.parent_at(pos))
        return found

    def _replace(self, known: Known, entry: Entry, seq: int) -> None:
        self._keep_for_forks(known, entry.id, seq)
        replaced = self._db.execute(
            "UPDATE entry SET parent_id = ?, timestamp = ?, role = ?, body = ?, revision = ?, origin = ?, sum = ?,"
            " seq = ? WHERE session = ? AND id = ?",
            (entry.parent_id, *rows.content(entry), seq, known.num, entry.id),
        ).rowcount
        if not replaced and known.fork is not None:  # it was the source's so far
            self._staged[known.num, entry.id] = rows.row(known.num, entry, 0, known.fork.pos_of(entry.id), seq)
            self._insert_staged()

    def _unplace(self, known: Known, seq: int) -> None:
        """An entry was hung elsewhere, so no place of the session can be trusted: from now on its paths are walked."""
        if forks.is_source(self._db, known.num):  # one copy for the session, not one for each of them
            left = self._renumber(known)
            forks.copy_all(self._db, left, known.num, seq)
            forks.trim(self._db, left)
        elif known.fork is not None:
            forks.copy_out(self._db, known.fork, seq)
        known.fork = None
        self._kept[known.num] = None
        self._db.execute("UPDATE entry SET branch = NULL, pos = NULL WHERE session = ?", (known.num,))
        self._db.execute("DELETE FROM branch WHERE session = ?", (known.num,))
        known.branches, known.last = 0, None
        known.tips.clear()

    # --- the end of the transaction ---

    def _insert_staged(self) -> None:
        if self._staged:
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

    def _put_record(self, known: Known, meta: SessionMeta, seq: int) -> None:
        record, lasting = rows.record(known.leaf, meta), (meta.status, meta.created_at)
        if known.lasting == lasting:  # then one index less is written
            self._db.execute(
                "UPDATE session SET leaf = ?, meta = ?, sum = ?, updated_at = ?, seq = ? WHERE num = ?",
                (*record, seq, known.num),
            )
        else:
            self._db.execute(
                "UPDATE session SET leaf = ?, meta = ?, sum = ?, updated_at = ?, status = ?, created_at = ?,"
                " seq = ? WHERE num = ?",
                (*record, *lasting, seq, known.num),
            )
            known.lasting = lasting

    def _has_entries(self, known: Known) -> bool:
        row = self._db.execute("SELECT 1 FROM entry WHERE session = ? LIMIT 1", (known.num,)).fetchone()
        return row is not None or known.fork is not None

    def _label(self, known: Known, metadata: JsonObject | None) -> None:
        if metadata is known.metadata:
            return
        labels = digests(metadata)
        for gone in known.labels - labels:
            self._db.execute("DELETE FROM label WHERE digest = ? AND session = ?", (gone, known.num))
        for new in labels - known.labels:
            self._db.execute("INSERT INTO label VALUES (?, ?)", (new, known.num))
        known.labels, known.metadata = labels, metadata
