"""Long changes of SQLite: runs of entries that go into the database many at a time."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from session_manager.model import Entry
from session_manager.store import Change, PathQuery
from session_manager.stores.sqlite import SqliteStore, runs
from tests.stores.test_promises import chain, entry, meta, put
from tests.stores.test_sqlite import wrong_places

L = runs.LENGTH


def rows(path: Path) -> list[Any]:
    with sqlite3.connect(path) as db:
        found = db.execute(
            "SELECT id, parent_id, timestamp, role, body, revision, origin, sum, branch, pos FROM entry ORDER BY num"
        ).fetchall()
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()
    return found


def long_chain(parent: str | None, count: int, prefix: str, **same: Any) -> tuple[Entry, ...]:
    chance = random.Random(count)
    made: list[Entry] = []
    for number in range(count):
        role = chance.choice(["user", "assistant", "function_result", "custom", None])
        body = f'{{"n":"{prefix}é{number}"}}'.encode()
        fields = {"timestamp": 7, "revision": 0, "origin": None, **same}
        made.append(Entry(f"{prefix}{number}", parent, role=role, body=body, **fields))  # type: ignore[arg-type] # a role
        parent = made[-1].id
    return tuple(made)


@pytest.mark.parametrize("count", [1, L - 1, L, L + 1, 3 * L, 3 * L + 7])
@pytest.mark.parametrize(
    "same", [{}, {"origin": b'{"by":1}', "timestamp": -5, "revision": 2**64 - 1}], ids=["plain", "with an origin"]
)
@pytest.mark.parametrize("parent", [None, "c", "b", "stray"], ids=["a root", "the tip", "a fork", "no place"])
async def test_entries_at_once_leave_the_rows_that_they_leave_one_by_one(
    count: int, parent: str | None, same: dict[str, Any], tmp_path: Path
) -> None:
    entries = long_chain(parent, count, "n", **same)
    found = []
    for name, changes in (
        ("at-once.db", [entries]),
        ("one-by-one.db", [(one,) for one in entries]),
    ):
        store = SqliteStore(tmp_path / name, "OFF")
        await store.open()
        await put(store, Change("s", meta("s"), "c", chain("a", "b", "c")))
        await put(store, Change("s", entries=(entry("stray", "late"),)), Change("s", entries=(entry("late"),)))
        for some in changes:
            await put(store, Change("s", meta("s"), some[-1].id, some, fresh=True))
        await put(store, Change("s", meta("s"), "z", (entry("z", entries[-1].id),), fresh=True))
        page = await store.path(PathQuery("s"))
        await store.close()
        assert wrong_places(tmp_path / name) == []
        found.append((rows(tmp_path / name), page))
    assert found[0] == found[1]


async def test_a_run_in_the_middle_of_others_changes_keeps_their_order(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "sessions.db", "OFF")
    await store.open()
    first, second = long_chain(None, 5, "a"), long_chain("a4", 2 * L + 1, "b")
    third = long_chain(second[-1].id, L, "c")
    changes = [
        Change("s", meta("s"), first[-1].id, first, fresh=True),
        Change("t", meta("t"), "x", (entry("x"),), fresh=True),
        Change("s", meta("s"), second[-1].id, second, fresh=True),
        Change("s", meta("s"), third[-1].id, third, fresh=True),
        Change("t", meta("t"), "y", (entry("y", "x"),), fresh=True),
    ]
    await asyncio.gather(*(store.commit(store.ahead(), change) for change in changes))
    assert (await store.path(PathQuery("s"))).entries == first + second + third
    assert [one.id for one in (await store.path(PathQuery("t"))).entries] == ["x", "y"]
    await store.close()
    assert wrong_places(tmp_path / "sessions.db") == []


async def test_entries_that_do_not_hang_together_or_are_not_alike_are_no_run(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "sessions.db", "OFF")
    await store.open()
    left, right = long_chain("root", L, "l"), long_chain("root", L, "r")
    await put(store, Change("s", meta("s"), right[-1].id, (entry("root"), *left, *right), fresh=True))
    assert (await store.path(PathQuery("s", left[-1].id))).entries[1:] == left
    assert (await store.path(PathQuery("s"))).entries[1:] == right
    for other in ({"timestamp": 8}, {"revision": 1}, {"origin": b"{}"}):
        name = next(iter(other))
        whole = long_chain(None, L - 1, name)
        whole = (*whole, *long_chain(whole[-1].id, 1, f"last {name}", **other))
        await put(store, Change(name, meta(name), whole[-1].id, whole, fresh=True))
        assert (await store.path(PathQuery(name))).entries == whole
    await store.close()
    assert wrong_places(tmp_path / "sessions.db") == []
