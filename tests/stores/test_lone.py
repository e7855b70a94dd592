"""An append alone in its batch, which is one statement: it does what a transaction of several would have done."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from session_manager.errors import StorageError
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
    held: dict[str, list[str]] = {"s0": [], "s1": [], "s2": []}
    tips: dict[str, str] = {}
    records: dict[str, Any] = {name: {"status": "idle", "metadata": None} for name in held}
    for n in range(200):
        name = chance.choice(list(held))
        ids, record = held[name], records[name]
        if ids and chance.random() < 0.1:
            replaced = entry(ids[-1], tips.get(name) if tips.get(name) != ids[-1] else None, size=n, revision=n)
            changes.append(Change(name, meta(name, updated=n, **record), entries=(replaced,)))
            continue
        drops: frozenset[Drop] = frozenset()
        if chance.random() < 0.05:
            drops = frozenset(chance.sample((Drop.META, Drop.LEAF, Drop.ENTRIES), chance.randint(1, 3)))
        if Drop.ENTRIES in drops:
            ids.clear()
            tips.pop(name, None)
        if chance.random() < 0.1:
            record["status"] = chance.choice(("idle", "working", "done"))
        if chance.random() < 0.1:
            record["metadata"] = chance.choice(({"a": n}, None))
        if chance.random() < 0.05:
            record["created"] = n
        if ids and chance.random() < 0.1:
            tips[name] = chance.choice(ids)
        entries = [entry(f"e{n}", tips.get(name), chance.choice(("user", "custom")), size=chance.randint(1, 400))]
        if chance.random() < 0.05:
            entries.append(entry(f"f{n}", f"e{n}"))
        elif chance.random() < 0.1:
            entries.clear()
        if entries:
            ids += [one.id for one in entries]
            tips[name] = ids[-1]
        leaf = tips.get(name) if chance.random() < 0.9 else None
        written = meta(name, updated=n, message_count=n, **record) if chance.random() < 0.95 else None
        changes.append(Change(name, written, leaf, tuple(entries), drops, fresh=chance.random() < 0.9))
    return changes


@pytest.mark.parametrize("seed", range(5))
async def test_it_leaves_what_a_transaction_would_have_left(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = 0
    append = lone.append

    def counted(*args: Any) -> None:
        nonlocal alone
        alone += 1
        append(*args)

    monkeypatch.setattr(lone, "append", counted)
    one, other = SqliteStore(tmp_path / "one.db", "OFF"), SqliteStore(tmp_path / "other.db", "OFF")
    for store in (one, other):
        await store.open()
    assert other._writing.writer is not None
    monkeypatch.setattr(other._writing.writer, "_append", lambda *_: False)
    for change in some_changes(random.Random(seed)):
        await put(one, change)
        await put(other, change)
        assert contents(tmp_path / "one.db") == contents(tmp_path / "other.db"), change
    for store in (one, other):
        await store.close()
    assert alone > 10


@pytest.mark.parametrize("refused", ["INSERT ON entry", "UPDATE ON session"])
@pytest.mark.parametrize("parent", ["b", "a"], ids=["at the tip", "as a branch"])
async def test_one_that_fails_leaves_nothing(parent: str, refused: str, tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    store = SqliteStore(path)
    await store.open()
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
    await store.close()


async def test_an_entry_that_is_hung_behind_the_last_one_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "sessions.db")
    await store.open()
    await put(store, Change("s", meta("s"), "c", chain("a", "b", "c"), fresh=True))
    await put(store, Change("s", meta("s"), "b", (entry("b", "c"),)))
    assert await store.entry("s", "b") == entry("b", "c")
    await store.close()


async def test_it_goes_on_behind_a_path_that_is_shared_with_a_source(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "sessions.db")
    await store.open()
    ids = [f"e{n}" for n in range(40)]
    await put(store, Change("s", meta("s"), ids[-1], chain(*ids), fresh=True))
    await put(store, Change("f", meta("f"), Copied.id_at("f_", 39), copied=Copied("s", ids[-1], "f_", 40)))
    page = await store.path(PathQuery("f"))
    await put(store, Change("f", meta("f", updated=2), "x", (entry("x", page.entries[-1].id),), fresh=True))
    await put(store, Change("s", meta("s", updated=2), "y", (entry("y", ids[-1]),), fresh=True))
    assert [one.id for one in (await store.path(PathQuery("f"))).entries] == [one.id for one in page.entries] + ["x"]
    assert [one.id for one in (await store.path(PathQuery("s"))).entries] == [*ids, "y"]
    await store.close()
