"""An append or an update alone in its batch, which is one statement: it does what a transaction would have done."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from session_manager.errors import StorageError
from session_manager.model import Entry
from session_manager.store import Change, Copied, Drop, PathQuery
from session_manager.stores.sqlite import SqliteStore, lone
from tests.stores.test_promises import chain, entry, meta, put

TABLES = ("session", "entry", "branch", "label")


def contents(path: Path) -> list[list[tuple[Any, ...]]]:
    with sqlite3.connect(path) as db:
        tables = [db.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall() for name in TABLES]
    db.close()
    return tables


def some_changes(chance: random.Random) -> list[Change]:
    """Of three sessions, most of them appends of one entry, and all that may come with one or between two of them."""
    changes: list[Change] = []
    held: dict[str, list[Entry]] = {"s0": [], "s1": [], "s2": []}
    tips: dict[str, str] = {}
    records: dict[str, Any] = {name: {"status": "idle", "metadata": None} for name in held}
    for n in range(200):
        name = chance.choice(list(held))
        there, record = held[name], records[name]
        if there and chance.random() < 0.3:
            again = chance.choice((there[-1], chance.choice(there)))
            replaced = entry(again.id, again.parent_id, chance.choice(("user", "custom")), size=n, revision=n)
            leaf = chance.choice((None, again.id))
            changes.append(Change(name, meta(name, updated=n, message_count=n, **record), leaf, (replaced,)))
            continue
        drops: frozenset[Drop] = frozenset()
        if chance.random() < 0.05:
            drops = frozenset(chance.sample((Drop.META, Drop.LEAF, Drop.ENTRIES), chance.randint(1, 3)))
        if Drop.ENTRIES in drops:
            there.clear()
            tips.pop(name, None)
        if chance.random() < 0.1:
            record["status"] = chance.choice(("idle", "working", "done"))
        if chance.random() < 0.1:
            record["metadata"] = chance.choice(({"a": n}, None))
        if chance.random() < 0.05:
            record["created"] = n
        if there and chance.random() < 0.1:
            tips[name] = chance.choice(there).id
        entries = [entry(f"e{n}", tips.get(name), chance.choice(("user", "custom")), size=chance.randint(1, 400))]
        if chance.random() < 0.05:
            entries.append(entry(f"f{n}", f"e{n}"))
        elif chance.random() < 0.1:
            entries.clear()
        if entries:
            there += entries
            tips[name] = there[-1].id
        leaf = tips.get(name) if chance.random() < 0.9 else None
        written = meta(name, updated=n, message_count=n, **record) if chance.random() < 0.95 else None
        changes.append(Change(name, written, leaf, tuple(entries), drops, fresh=chance.random() < 0.9))
    return changes


@pytest.mark.parametrize("seed", range(5))
async def test_it_leaves_what_a_transaction_would_have_left(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = {"append": 0, "replace": 0}

    def counted(name: str) -> Callable[..., None]:
        change = getattr(lone, name)

        def count(*args: Any) -> None:
            alone[name] += 1
            change(*args)

        return count

    for name in alone:
        monkeypatch.setattr(lone, name, counted(name))
    one, other = SqliteStore(tmp_path / "one.db", "OFF"), SqliteStore(tmp_path / "other.db", "OFF")
    for store in (one, other):
        await store.open()
    assert other._writing.writer is not None
    monkeypatch.setattr(other._writing.writer, "_alone", lambda *_: False)
    for change in some_changes(random.Random(seed)):
        await put(one, change)
        await put(other, change)
        assert contents(tmp_path / "one.db") == contents(tmp_path / "other.db"), change
    for store in (one, other):
        await store.close()
    assert min(alone.values()) > 10


@pytest.mark.parametrize("refused", ["INSERT ON entry", "UPDATE ON session"])
@pytest.mark.parametrize("parent", ["b", "a"], ids=["at the tip", "as a branch"])
async def test_one_that_fails_leaves_nothing(parent: str, refused: str, store: SqliteStore, tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    await put(store, Change("s", meta("s"), "b", chain("a", "b"), fresh=True))
    with sqlite3.connect(path) as other:
        other.execute(f"CREATE TRIGGER refused AFTER {refused} BEGIN SELECT RAISE(ABORT, 'refused'); END")
        before = contents(path)
        with pytest.raises(StorageError):
            await put(store, Change("s", meta("s", updated=9), "c", (entry("c", parent),), fresh=True))
        assert contents(path) == before
        other.execute("DROP TRIGGER refused")
    other.close()
    await put(store, Change("s", meta("s", updated=9), "d", (entry("d", "b"),), fresh=True))
    assert [one.id for one in (await store.path(PathQuery("s"))).entries] == ["a", "b", "d"]


async def test_an_entry_that_is_hung_elsewhere_is_not_taken_for_a_new_one_or_the_same(store: SqliteStore) -> None:
    await put(store, Change("s", meta("s"), "c", chain("a", "b", "c"), fresh=True))
    await put(store, Change("s", meta("s"), "b", (entry("b", "c"),)))
    assert await store.entry("s", "b") == entry("b", "c")
    await put(store, Change("t", meta("t"), "c", chain("a", "b", "c"), fresh=True))
    await put(store, Change("t", meta("t"), entries=(entry("c", "a"),)))
    assert [one.id for one in (await store.path(PathQuery("t"))).entries] == ["a", "c"]


async def test_what_it_takes_away_is_gone(store: SqliteStore, tmp_path: Path) -> None:
    await put(store, Change("s", meta("s"), "b", chain("a", "b"), fresh=True))
    await put(store, Change("s", meta("s"), None, (entry("c", "b"),), frozenset({Drop.LEAF}), fresh=True))
    await store.close()
    again = SqliteStore(tmp_path / "sessions.db")
    await again.open()
    assert (await again.session("s")).leaf is None
    await again.close()


@pytest.mark.parametrize("order", ["sf", "fs"])
async def test_where_a_path_is_shared_each_goes_on_with_its_own(order: str, store: SqliteStore) -> None:
    ids = {"s": [f"e{n}" for n in range(40)], "f": [Copied.id_at("f_", n) for n in range(40)]}
    await put(store, Change("s", meta("s"), ids["s"][-1], chain(*ids["s"]), fresh=True))
    await put(store, Change("f", meta("f"), ids["f"][-1], copied=Copied("s", ids["s"][-1], "f_", 40)))
    sizes = {"s": 1, "f": 1}
    for name in order:
        for revision in (1, 2):
            again = entry(ids[name][39], ids[name][38], size=9, revision=revision)
            await put(store, Change(name, meta(name, updated=revision), entries=(again,)))
        sizes[name] = 9
        for each, size in sizes.items():
            assert (await store.path(PathQuery(each))).entries[39].body == entry("", size=size).body
    for name in order:
        await put(store, Change(name, meta(name, updated=9), "x", (entry("x", ids[name][39]),), fresh=True))
        await put(store, Change(name, meta(name, updated=9), entries=(entry("x", ids[name][39], revision=1),)))
        entries = (await store.path(PathQuery(name))).entries
        assert [(one.id, one.revision) for one in entries[38:]] == [(ids[name][38], 0), (ids[name][39], 2), ("x", 1)]
