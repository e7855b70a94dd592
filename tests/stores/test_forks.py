"""Forks that share rows: whatever happens to them and to where they come from, they read like copies."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from session_manager.clock import RandomIds, SystemClock
from session_manager.doctor.check import check
from session_manager.errors import BrokenPath, SessionNotFound, StorageError
from session_manager.model import Entry
from session_manager.store import EVERYTHING, Change, Copied, Drop, Extent, Found, PathQuery, Store
from session_manager.stores.memory import MemoryStore
from session_manager.stores.sqlite import SqliteStore, forks
from session_manager.stores.sqlite.inspect import Held, Inspection
from session_manager.stores.sqlite.writer import Writer
from tests.stage import InProcess
from tests.stores.test_promises import chain, entry, meta, put


@pytest.fixture(autouse=True)
def _everything_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "SHARED_FROM", 1)


def rows_of(path: Path, table: str) -> int:
    with sqlite3.connect(path) as db:
        count: int = db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    db.close()
    return count


def prefix(number: int) -> str:
    return f"e_{number:024x}"


async def fork(store: Store, of: str, at: str, to: str, number: int = 1) -> None:
    """Makes `to` a fork of `of`, which the store must share."""
    extent = await store.extent(of, at)
    assert extent is not None
    copied = Copied(of, at, prefix(number), extent.entries)
    leaf = copied.id_at(copied.prefix, extent.entries - 1)
    await put(store, Change(to, meta(to, message_count=extent.messages), leaf, copied=copied, fresh=True))


async def texts(store: Store, session: str, **query: Any) -> list[str]:
    """The bodies of a path, and that its ids are what the ids of copies are."""
    page = await store.path(PathQuery(session, **query))
    assert page.found is Found.PATH
    return [one.body.decode() for one in page.entries]


async def test_a_fork_adds_no_rows_and_reads_like_a_copy(store: SqliteStore, tmp_path: Path) -> None:
    own = chain(*(f"e{n}" for n in range(20)))
    await put(store, Change("s", meta("s"), "e19", own))
    before = rows_of(tmp_path / "sessions.db", "entry")
    await fork(store, "s", "e9", "f")
    assert rows_of(tmp_path / "sessions.db", "entry") == before
    page = await store.path(PathQuery("f"))
    ids = [f"{prefix(1)}{n:08x}" for n in range(10)]
    assert [one.id for one in page.entries] == ids
    assert [one.parent_id for one in page.entries] == [None, *ids[:-1]]
    assert [one.body for one in page.entries] == [one.body for one in own[:10]]
    assert await store.entries("f") == list(page.entries)
    assert [await store.entry("f", id_) for id_ in ids] == list(page.entries)
    for other in (
        "e9",
        f"{prefix(1)}{10:08x}",
        f"{prefix(1)}0000000A",
        f"{prefix(1)}9",
        prefix(1),
        f"{prefix(2)}00000001",
        f"{prefix(1)}-0000001",
    ):
        assert await store.entry("f", other) is None


async def test_what_a_source_changes_its_forks_do_not_see(store: SqliteStore) -> None:
    await put(store, Change("s", meta("s"), "c", chain("a", "b", "c")))
    await fork(store, "s", "b", "f", 1)
    await fork(store, "f", f"{prefix(1)}00000001", "g", 2)
    was = await texts(store, "f")
    await put(store, Change("s", entries=(entry("b", "a", revision=1, size=50),)))
    assert await texts(store, "f") == was == await texts(store, "g")
    assert (await texts(store, "s"))[1] not in was
    await put(store, Change("f", entries=(entry(f"{prefix(1)}00000000", revision=4, size=70),)))
    assert await texts(store, "g") == was
    assert (await texts(store, "f"))[0] not in was
    assert (await store.entry("f", f"{prefix(1)}00000000")) == entry(f"{prefix(1)}00000000", revision=4, size=70)


async def test_forks_outlive_their_source_and_take_what_is_left_with_them(store: SqliteStore, tmp_path: Path) -> None:
    await put(store, Change("s", meta("s", metadata={"a": 1}), "e9", chain(*(f"e{n}" for n in range(10)))))
    await put(store, Change("s", entries=(entry("side", "e3"), entry("stray", "nowhere"))))
    await fork(store, "s", "e5", "f", 1)
    await fork(store, "s", "e2", "g", 2)
    was = await texts(store, "f"), await texts(store, "g")
    await put(store, Change("s", drops=EVERYTHING))
    assert await store.ids() == ["f", "g"]
    path = tmp_path / "sessions.db"
    assert rows_of(path, "entry") == 6, "nobody needs the others"
    assert (await texts(store, "f"), await texts(store, "g")) == was
    await put(store, Change("s", meta("s"), "new", (entry("new"),)))
    assert (await texts(store, "f"), await texts(store, "g")) == was
    assert [one.id for one in await store.entries("s")] == ["new"]
    await put(store, Change("f", drops=EVERYTHING))
    assert rows_of(path, "entry") == 4, "three of the fork that is left, and the new one"
    await put(store, Change("g", drops=EVERYTHING), Change("s", drops=EVERYTHING))
    assert [rows_of(path, table) for table in ("entry", "branch", "fork", "session", "label")] == [0] * 5


async def test_nothing_is_kept_for_forks_of_a_fork_that_is_gone_but_what_they_share(
    store: SqliteStore, tmp_path: Path
) -> None:
    await put(store, Change("s", meta("s"), "e9", chain(*(f"e{n}" for n in range(10)))))
    await fork(store, "s", "e9", "f", 1)
    await put(store, Change("f", entries=(entry(f"{prefix(1)}00000000", revision=1),)))
    await fork(store, "f", f"{prefix(1)}00000002", "g", 2)
    was = await texts(store, "g")
    await put(store, Change("f", drops=EVERYTHING))
    await put(store, Change("s", entries=(entry("e7", "e6", revision=1),)))
    assert rows_of(tmp_path / "sessions.db", "entry") == 11
    await put(store, Change("s", drops=EVERYTHING))
    assert rows_of(tmp_path / "sessions.db", "entry") == 4
    assert await texts(store, "g") == was


async def test_a_source_that_loses_its_entries_keeps_its_record(store: SqliteStore) -> None:
    await put(store, Change("s", meta("s", metadata={"a": 1}), "b", chain("a", "b")))
    await fork(store, "s", "b", "f")
    was = await texts(store, "f")
    await put(store, Change("s", drops=frozenset({Drop.ENTRIES})))
    assert (await store.session("s")).meta == meta("s", metadata={"a": 1})
    assert await store.entries("s") == []
    await put(store, Change("s", leaf="c", entries=(entry("c"),)))
    assert [one.id for one in await store.entries("s")] == ["c"]
    assert await texts(store, "f") == was


async def test_only_what_a_fork_shares_is_kept_for_it(store: SqliteStore, tmp_path: Path) -> None:
    await put(store, Change("s", meta("s"), "c", (*chain("a", "b", "c"), entry("side", "a"), entry("more", "side"))))
    await fork(store, "s", "b", "f")
    for id_, parent in (("c", "b"), ("side", "a"), ("more", "side")):
        await put(store, Change("s", entries=(entry(id_, parent, revision=1),)))
    assert rows_of(tmp_path / "sessions.db", "entry") == 5
    for revision in range(1, 4):
        await put(store, Change("s", entries=(entry("b", "a", revision=revision),)))
    assert rows_of(tmp_path / "sessions.db", "entry") == 6, "once is enough"


async def test_a_fork_that_was_opened_again_goes_on_behind_what_it_shares(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    store = SqliteStore(path)
    await store.open()
    await put(store, Change("s", meta("s"), "d", chain("a", "b", "c", "d")))
    await fork(store, "s", "d", "f")
    await put(store, Change("f", entries=(entry(f"{prefix(1)}00000001", f"{prefix(1)}00000000", revision=1),)))
    for tail, under in (("x", f"{prefix(1)}00000001"), ("y", f"{prefix(1)}00000003")):
        await store.close()
        store = SqliteStore(path)
        await store.open()
        await put(store, Change("f", leaf=tail, entries=(entry(tail, under),)))
    assert [one.id for one in (await store.path(PathQuery("f", leaf="x"))).entries][-2:] == [
        f"{prefix(1)}00000001",
        "x",
    ]
    assert [one.id for one in (await store.path(PathQuery("f"))).entries] == [
        *(f"{prefix(1)}0000000{n}" for n in range(4)), "y",
    ]  # fmt: skip
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT branch, pos FROM entry WHERE id = 'y'").fetchone() == (0, 4)
    db.close()
    await store.close()


@pytest.mark.parametrize("where", ["source", "fork"])
async def test_an_entry_hung_elsewhere_leaves_the_others_as_they_were(store: SqliteStore, where: str) -> None:
    await put(store, Change("s", meta("s"), "c", chain("a", "b", "c")))
    await fork(store, "s", "c", "f", 1)
    await put(store, Change("f", leaf="own", entries=(entry("own", f"{prefix(1)}00000002"),)))
    await fork(store, "f", "own", "g", 2)
    was = {session: await texts(store, session) for session in "sfg"}
    if where == "source":
        await put(store, Change("s", entries=(entry("c", "a"),)))
        assert [one.id for one in (await store.path(PathQuery("s"))).entries] == ["a", "c"]
    else:
        await put(store, Change("f", entries=(entry("own", f"{prefix(1)}00000000"),)))
        assert [one.id for one in (await store.path(PathQuery("f"))).entries] == [f"{prefix(1)}00000000", "own"]
    for session in {"source": "fg", "fork": "sg"}[where]:
        assert await texts(store, session) == was[session]
    await put(store, Change("f", entries=(entry("own", f"{prefix(1)}00000001"),)))
    await put(store, Change("f", entries=(entry(f"{prefix(1)}00000000", revision=1, size=9),)))
    assert await texts(store, "g") == was["g"]


async def test_an_entry_hung_elsewhere_costs_one_copy_however_many_forks_there_are(
    store: SqliteStore, tmp_path: Path
) -> None:
    await put(store, Change("s", meta("s"), "e9", chain(*(f"e{n}" for n in range(10)))))
    for number in range(20):
        await fork(store, "s", "e9", f"f{number}", number)
    was = await texts(store, "f7")
    await put(store, Change("s", entries=(entry("e9", "e3"),)))
    assert rows_of(tmp_path / "sessions.db", "entry") == 20
    assert [one.id for one in (await store.path(PathQuery("s"))).entries] == ["e0", "e1", "e2", "e3", "e9"]
    assert [await texts(store, f"f{number}") for number in range(20)] == [was] * 20


async def test_forks_of_many_branches_do_not_walk_each_of_their_paths(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each branch leaves the one before it, and each has a fork."""
    own = [entry("a0"), entry("b0", "a0")]
    for n in range(1, 60):
        own += [entry(f"a{n}", f"a{n - 1}"), entry(f"b{n}", f"a{n}")]
    await put(store, Change("s", meta("s"), "b59", tuple(own)))
    for n in range(60):
        await fork(store, "s", f"b{n}", f"f{n}", n)
    was = [await texts(store, f"f{n}") for n in range(60)]
    starts = []
    start_of = forks._start

    def counted(db: sqlite3.Connection, session: int, branch: int) -> tuple[int | None, int]:
        starts.append(branch)
        return start_of(db, session, branch)

    monkeypatch.setattr(forks, "_start", counted)
    for id_, kept in (("a0", 60), ("a30", 30), ("b59", 1)):
        before = rows_of(tmp_path / "sessions.db", "entry")
        old = await store.entry("s", id_)
        assert old is not None
        await put(store, Change("s", entries=(replace(old, revision=1, body=entry("x", size=30).body),)))
        assert rows_of(tmp_path / "sessions.db", "entry") == before + kept
    assert len(starts) < 3 * 130
    starts.clear()
    await put(store, Change("s", drops=EVERYTHING))
    assert len(starts) < 130
    assert [await texts(store, f"f{n}") for n in range(60)] == was
    for n in range(30, 60):
        await put(store, Change(f"f{n}", drops=EVERYTHING))
    assert [await texts(store, f"f{n}") for n in range(30)] == was[:30]
    assert rows_of(tmp_path / "sessions.db", "entry") == 60 + 30


async def test_a_page_of_a_fork_does_not_pay_for_all_its_rows(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other of them is its own: the path is as many stretches."""
    await put(store, Change("s", meta("s"), "e3999", chain(*(f"e{n}" for n in range(4000)))))
    await fork(store, "s", "e3999", "f")
    ids = [f"{prefix(1)}{n:08x}" for n in range(4000)]
    changed = [entry(ids[n], ids[n - 1] if n else None, revision=1, size=2) for n in range(0, 4000, 2)]
    await put(store, Change("f", entries=tuple(changed)))
    whole = (await store.path(PathQuery("f"))).entries
    assert [one.id for one in whole] == ids
    assert [one for one in whole if len(one.body) > len(whole[1].body)] == [replace(one, revision=1) for one in changed]
    looked_up = []
    own_rows = forks._own_rows

    def counted(db: sqlite3.Connection, session: int, first: int, last: int) -> list[forks.Stretch]:
        looked_up.append(last - first + 1)
        return own_rows(db, session, first, last)

    monkeypatch.setattr(forks, "_own_rows", counted)
    for start in (0, 1, 126, 127, 128, 383, 384, 3990):
        page = await store.path(PathQuery("f", after=None if start == 0 else ids[start - 1], limit=5))
        assert [one.id for one in page.entries] == ids[start : start + 5]
        assert tuple(page.entries) == whole[start : start + 5]
    assert sum(looked_up) < 8 * 300


async def test_a_person_who_looks_at_one_session_does_not_wait_for_all_forks(
    store: SqliteStore, tmp_path: Path
) -> None:
    await put(store, Change("s", meta("s"), "e99", chain(*(f"e{n}" for n in range(100)))))
    for number in range(40):
        await fork(store, "s", "e99", f"f{number}", number)
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 100

    with sqlite3.connect(tmp_path / "sessions.db") as db:
        db.set_progress_handler(step, 100)
        shown = db.execute("SELECT entry_id FROM conversation WHERE session_id = 'f7'").fetchall()
    db.close()
    assert shown == [(f"{prefix(7)}{n:08x}",) for n in range(100)]
    assert steps < 50_000, "it takes 11,400, and looking at the entries of all forks took 259,500"


async def test_a_fork_of_what_has_changed_meanwhile_is_refused_alone(store: SqliteStore) -> None:
    await put(store, Change("s", meta("s"), "b", chain("a", "b")))
    copied = Copied("s", "b", prefix(1), 2)
    await put(store, Change("s", drops=EVERYTHING))
    at_work = store.commit(store.ahead(), Change("t", meta("t")))
    refused = Change("f", meta("f"), f"{prefix(1)}00000001", copied=copied, fresh=True)
    batch = [
        store.commit(store.ahead(), change) for change in (Change("u", meta("u")), refused, Change("v", meta("v")))
    ]
    await at_work
    await batch[0]
    with pytest.raises(StorageError, match="try again"):
        await batch[1]
    await batch[2]
    assert await store.ids() == ["t", "u", "v"]
    await put(store, Change("s", meta("s"), "b", (entry("b"),)))  # of the same name, and no such path
    with pytest.raises(StorageError, match="try again"):
        await put(store, refused)
    assert await store.ids() == ["s", "t", "u", "v"]


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_fork_of_what_changes_meanwhile_is_decided_anew(
    deleted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with InProcess({"name": "sqlite", "config": {"path": str(tmp_path / "sessions.db")}}, tmp_path) as stage:
        store = stage.store
        await put(store, Change("s", meta("s"), "b", chain("a", "b")))
        extent, calls = store.extent, 0

        async def told_and_changed(session_id: str, entry_id: str) -> Extent | None:
            nonlocal calls
            calls += 1
            found = await extent(session_id, entry_id)
            if calls == 1:
                change = Change("s", drops=EVERYTHING) if deleted else Change("s", entries=(entry("b"),))
                await put(store, change)
            return found

        monkeypatch.setattr(store, "extent", told_and_changed)
        if deleted:
            with pytest.raises(SessionNotFound):
                await stage.call("session::fork", {"session_id": "s", "entry_id": "b"})
        else:
            forked = await stage.call("session::fork", {"session_id": "s", "entry_id": "b"})
            page = await store.path(PathQuery(forked["session_id"]))
            assert [one.parent_id for one in page.entries] == [None]
            assert forked["meta"]["message_count"] == 1
        assert calls == 2


async def test_what_was_kept_of_a_batch_is_told_where_the_disk_then_fails(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(store, Change("s", meta("s"), "b", chain("a", "b")))
    change = Writer._change

    def full(self: Writer, one: Change, seq: int) -> None:
        if one.session_id == "v":
            raise sqlite3.OperationalError("database or disk is full")
        change(self, one, seq)

    monkeypatch.setattr(Writer, "_change", full)
    refused = Change("f", meta("f"), copied=Copied("s", "gone", prefix(1), 2), fresh=True)
    changes = [Change("t", meta("t")), Change("u", meta("u")), refused, Change("v", meta("v")), Change("w", meta("w"))]
    outcomes = await asyncio.gather(*(store.commit(store.ahead(), one) for one in changes), return_exceptions=True)
    assert [isinstance(one, StorageError) for one in outcomes] == [False, False, True, True, True]
    assert await store.ids() == ["s", "t", "u"]
    await put(store, Change("w", meta("w")))
    assert await store.ids() == ["s", "t", "u", "w"]


async def test_a_path_of_a_fork_that_has_no_places_is_walked_into_what_it_shares(store: SqliteStore) -> None:
    await put(store, Change("s", meta("s"), "c", (*chain("a", "b"), entry("c", "b", None))))
    await fork(store, "s", "c", "f")
    shared = [f"{prefix(1)}0000000{n}" for n in range(3)]
    await put(store, Change("f", entries=(entry("late", "gap"),)), Change("f", entries=(entry("gap", shared[2]),)))
    page = await store.path(PathQuery("f", leaf="late"))
    assert [one.id for one in page.entries] == [*shared, "gap", "late"]
    assert list(page.entries[:3]) == [await store.entry("f", id_) for id_ in shared]
    page = await store.path(PathQuery("f", leaf="late", include_custom=False, after=shared[1], limit=1))
    assert ([one.id for one in page.entries], page.more) == (["gap"], True)


async def test_forks_of_forks_are_copied_at_some_depth(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "DEEPEST", 3)
    await put(store, Change("f0", meta("f0"), "b", chain("a", "b")))
    at = "b"
    for n in range(1, 4):
        await fork(store, f"f{n - 1}", at, f"f{n}", n)
        last = f"{prefix(n)}{n:08x}"
        at = f"own{n}"
        await put(store, Change(f"f{n}", leaf=at, entries=(entry(at, last),)))
    assert await store.extent("f3", at) is None
    assert await store.extent("f2", "own2") is not None
    flat = await store.extent("f2", f"{prefix(2)}00000001")
    assert flat is not None
    assert flat.entries == 2


async def test_a_fork_has_a_greater_number_than_its_source(store: SqliteStore, tmp_path: Path) -> None:
    """Else a new session could be given the number under which the rows are that the fork shares."""
    await put(store, Change("f", leaf="soon"), Change("s", meta("s"), "b", chain("a", "b")))
    await fork(store, "s", "b", "f")
    was = await texts(store, "f")
    await put(store, Change("s", drops=EVERYTHING), Change("new", meta("new"), "a", (entry("a", size=9),)))
    assert await texts(store, "f") == was
    assert [one.id for one in await store.entries("new")] == ["a"]


async def test_a_fork_that_leads_to_itself_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    store = SqliteStore(path)
    await store.open()
    await put(store, Change("s", meta("s", message_count=2), "b", chain("a", "b")))
    await fork(store, "s", "b", "f")
    with sqlite3.connect(path) as db:
        db.execute("UPDATE fork SET source = session")
    db.close()
    with pytest.raises(StorageError, match="damaged"):
        await store.path(PathQuery("f"))
    await store.close()
    report = await check(f"sqlite:{path}", SystemClock(), RandomIds())
    assert {(one.kind, one.session_id) for one in report.findings} == {("session-unreadable", "f")}
    store = SqliteStore(path)
    await store.open()
    with pytest.raises(StorageError, match="damaged"):
        await put(store, Change("f", entries=(entry(f"{prefix(1)}00000001", "gone"),)))
    await put(store, Change("s", leaf="c", entries=(entry("c", "b"),)))
    await put(store, Change("f", drops=EVERYTHING))
    await store.close()
    assert [rows_of(path, table) for table in ("session", "fork")] == [1, 0]


async def test_damage_at_the_source_is_told_by_the_fork(store: SqliteStore, tmp_path: Path) -> None:
    await put(store, Change("s", meta("s"), "c", chain("a", "b", "c")))
    await fork(store, "s", "c", "f")
    with sqlite3.connect(tmp_path / "sessions.db") as db:
        db.execute("UPDATE entry SET body = 'x' WHERE id = 'b'")
    db.close()
    with pytest.raises(StorageError, match="damaged"):
        await store.path(PathQuery("f"))
    with pytest.raises(StorageError, match="damaged"):
        await store.entry("f", f"{prefix(1)}00000001")
    await put(store, Change("s", entries=(entry("b", "a", revision=1),)))
    with pytest.raises(StorageError, match="damaged"):
        await store.entry("f", f"{prefix(1)}00000001")  # what it was given to keep is no sounder
    with sqlite3.connect(tmp_path / "sessions.db") as db:
        db.execute("DELETE FROM entry WHERE id = 'a'")
    db.close()
    with pytest.raises(BrokenPath):
        await store.path(PathQuery("f"))
    assert await store.extent("s", "c") is None


class Pair:
    """The same done to a store that shares and to one that copies."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.chance = path, random.Random(seed)
        self.memory, self.sqlite = MemoryStore(), SqliteStore(path)
        self.number = 0
        self.forks = 0

    async def sessions(self) -> list[str]:
        return await self.memory.ids()

    def fresh(self) -> int:
        self.number += 1
        return self.number

    async def do(self, *changes: Change) -> None:
        for change in changes:
            await put(self.memory, change)
        await asyncio.gather(*(put(self.sqlite, change) for change in changes))

    async def some(self) -> tuple[str, Entry]:
        session = self.chance.choice([id_ for id_ in await self.sessions() if await self.memory.entries(id_)])
        return session, self.chance.choice(await self.memory.entries(session))

    async def append(self) -> None:
        session, parent = await self.some()
        ids = [f"n{self.fresh()}" for _ in range(self.chance.choice([1, 1, 3]))]
        added = chain(*ids)
        added = (replace(added[0], parent_id=parent.id), *added[1:])
        role = self.chance.choice(["user", None])
        added = (*added[:-1], replace(added[-1], role=role))
        await self.do(Change(session, leaf=ids[-1], entries=added, fresh=True))

    async def update(self) -> None:
        session, old = await self.some()
        body = entry("x", size=self.fresh()).body
        await self.do(Change(session, entries=(replace(old, body=body, revision=old.revision + 1),)))

    async def update_and_append(self) -> None:
        session, old = await self.some()
        new = f"n{self.fresh()}"
        body = entry("x", size=self.fresh()).body
        await self.do(
            Change(session, entries=(replace(old, body=body, role=self.chance.choice([None, "user"])),)),
            Change(session, leaf=new, entries=(entry(new, old.id),), fresh=True),
        )

    async def rehang(self) -> None:
        session, old = await self.some()
        parent = self.chance.choice([None, *(one.id for one in await self.memory.entries(session))])
        if parent != old.id:
            await self.do(Change(session, entries=(replace(old, parent_id=parent),)))

    async def orphan(self) -> None:
        """An entry that is there before its parent."""
        session, under = await self.some()
        late, gap = f"n{self.fresh()}", f"n{self.fresh()}"
        await self.do(Change(session, leaf=late, entries=(entry(late, gap),)))
        await self.do(Change(session, entries=(entry(gap, under.id),)))

    async def root(self) -> None:
        session, _ = await self.some()
        await self.do(Change(session, entries=(entry(f"n{self.fresh()}"),)))

    async def drop(self) -> None:
        session, _ = await self.some()
        drops = self.chance.choice([EVERYTHING, EVERYTHING, frozenset({Drop.ENTRIES})])
        await self.do(Change(session, drops=drops))

    async def again(self) -> None:
        session, id_ = f"s{self.chance.randrange(3)}", f"n{self.fresh()}"
        await self.do(Change(session, meta(session, metadata={"n": self.number}), id_, (entry(id_),)))

    async def fork(self) -> None:
        session, last = await self.some()
        prefix_ = prefix(self.fresh())
        try:
            page = await self.memory.path(PathQuery(session, leaf=last.id))
        except BrokenPath:
            return
        if page.found is not Found.PATH:
            return
        to = f"f{self.number}"
        copied = Copied(session, last.id, prefix_, len(page.entries))
        ids = [copied.id_at(copied.prefix, n) for n in range(len(page.entries))]
        copies = tuple(
            replace(one, id=id_, parent_id=parent, revision=0)
            for one, id_, parent in zip(page.entries, ids, [None, *ids], strict=False)
        )
        whole = Change(to, meta(to), ids[-1], copies, fresh=True)
        await put(self.memory, whole)
        extent = await self.sqlite.extent(session, last.id)
        if extent is not None:
            self.forks += 1
            assert extent.entries == len(copies)
            assert extent.messages == sum(one.role is not None for one in copies)
            whole = Change(to, meta(to), ids[-1], copied=copied, fresh=True)
        await put(self.sqlite, whole)

    async def reopen(self) -> None:
        await self.sqlite.close()
        self.sqlite = SqliteStore(self.path)
        await self.sqlite.open()

    async def compare(self) -> None:
        assert await self.sqlite.ids() == await self.memory.ids()
        for session in await self.memory.ids():
            entries = await self.memory.entries(session)
            assert await self.sqlite.entries(session) == entries, session
            for one in self.chance.sample(entries, min(3, len(entries))):
                assert await self.sqlite.entry(session, one.id) == one
            for _ in range(4):
                await self.compare_path(session, entries)

    async def compare_path(self, session: str, entries: list[Entry]) -> None:
        ids = [one.id for one in entries]
        query = PathQuery(
            session,
            leaf=self.chance.choice([None, "gone", *ids]),
            after=self.chance.choice([None, None, *ids]),
            limit=self.chance.choice([None, 1, 2, 5]),
            roles=self.chance.choice([None, None, frozenset({"user"})]),  # type: ignore[arg-type] # of the roles
            include_custom=self.chance.random() < 0.5,
            max_bytes=self.chance.choice([None, 200]),
        )
        assert await _answer(self.sqlite, query) == await _answer(self.memory, query), query


async def _answer(store: Store, query: PathQuery) -> Any:
    try:
        page = await store.path(query)
    except BrokenPath:
        return "broken"
    return page if page.found is Found.PATH else page.found


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_happens_forks_read_like_copies_and_nothing_is_left_behind(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "DEEPEST", 4)
    path = tmp_path / "sessions.db"
    pair = Pair(path, seed)
    await pair.sqlite.open()
    steps = [pair.append, pair.update, pair.update_and_append, pair.fork, pair.drop, pair.reopen, pair.again, pair.root]
    weights = [6, 4, 3, 6, 1, 1, 1, 0.5]
    if seed % 3 == 0:
        steps, weights = [*steps, pair.rehang], [*weights, 2]
    if seed % 3 == 1:
        steps, weights = [*steps, pair.orphan], [*weights, 2]
    for _ in range(3):
        await pair.again()
    for _ in range(80):
        await pair.chance.choices(steps, weights)[0]()
        await pair.again()
        await pair.compare()
    assert pair.forks > 5
    inspection = Inspection(path)
    assert (inspection.strays(), inspection.lost_commits()) == (0, 0)
    for held in inspection.sessions():
        assert isinstance(held, Held)
        assert held.index == [], held.session_id
        assert sorted(row.id for row in held.rows) == sorted(
            one.id for one in await pair.memory.entries(held.session_id)
        )
    inspection.close()
    with sqlite3.connect(path) as db:
        shown = db.execute("SELECT session_id, entry_id, parent_id, revision, body FROM conversation").fetchall()
    db.close()
    kept = [(id_, one) for id_ in await pair.memory.ids() for one in await pair.memory.entries(id_)]
    assert sorted(shown, key=lambda row: row[:2]) == [
        (id_, one.id, one.parent_id, one.revision, one.body.decode()) for id_, one in kept
    ]
    ids = await pair.memory.ids()
    pair.chance.shuffle(ids)
    for session in ids:
        await pair.do(Change(session, drops=EVERYTHING))
    assert [rows_of(path, table) for table in ("entry", "branch", "fork", "session", "label")] == [0] * 5
    await pair.sqlite.close()


async def test_a_database_from_before_there_were_shared_rows_is_examined_as_it_is_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    store = SqliteStore(path)
    await store.open()
    await put(store, Change("s", meta("s"), "b", chain("a", "b")))
    await store.close()
    with sqlite3.connect(path) as db:
        db.executescript("DROP VIEW conversation; DROP TABLE fork; PRAGMA user_version = 2;")
        db.execute("CREATE VIEW conversation AS SELECT 1")
    db.close()
    before = path.read_bytes()
    inspection = Inspection(path)
    assert [held.index for held in inspection.sessions() if isinstance(held, Held)] == [[]]
    assert inspection.strays() == 0
    inspection.close()
    assert path.read_bytes() == before
    store = SqliteStore(path)
    await store.open()
    await fork(store, "s", "b", "f")
    assert await texts(store, "f") == await texts(store, "s")
    await store.close()
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM conversation").fetchone() == (4,)
    db.close()


async def test_the_doctor_copies_forks_before_it_forgets_what_they_rest_on(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    store = SqliteStore(path)
    await store.open()
    await put(store, Change("s", meta("s", message_count=3), "c", chain("a", "b", "c")))
    await fork(store, "s", "b", "f")
    was = await texts(store, "f"), await texts(store, "s")
    await store.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE entry SET pos = 7 WHERE id = 'c'")
    db.close()
    report = await check(f"sqlite:{path}", SystemClock(), RandomIds(), repair=True)
    assert [(one.kind, one.session_id) for one in report.findings] == [("index-wrong", "s")]
    assert report.healthy
    store = SqliteStore(path)
    await store.open()
    assert (await texts(store, "f"), await texts(store, "s")) == was
    await store.close()
    assert rows_of(path, "fork") == 0


@pytest.mark.parametrize("wrong", ["DELETE FROM label", "UPDATE session SET status = 'error'"])
@pytest.mark.parametrize("whose", ["s", "f"])
async def test_the_doctor_leaves_forks_alone_where_no_path_is_wrong(tmp_path: Path, wrong: str, whose: str) -> None:
    path = tmp_path / "sessions.db"
    store = SqliteStore(path)
    await store.open()
    await put(store, Change("s", meta("s", message_count=3, metadata={"a": 1}), "c", chain("a", "b", "c")))
    await fork(store, "s", "b", "f")
    await put(store, Change("f", meta("f", message_count=2, metadata={"a": 1})))
    was = await texts(store, "f"), await texts(store, "s")
    await store.close()
    before = rows_of(path, "entry"), rows_of(path, "branch"), rows_of(path, "fork"), rows_of(path, "label")
    number = "(SELECT num FROM session WHERE id = ?)"
    column = "session" if "label" in wrong else "num"
    with sqlite3.connect(path) as db:
        db.execute(f"{wrong} WHERE {column} = {number}", (whose,))
    db.close()
    report = await check(f"sqlite:{path}", SystemClock(), RandomIds(), repair=True)
    assert [(one.kind, one.session_id) for one in report.findings] == [("index-wrong", whose)]
    assert report.healthy
    after = rows_of(path, "entry"), rows_of(path, "branch"), rows_of(path, "fork"), rows_of(path, "label")
    assert after == before
    assert (await check(f"sqlite:{path}", SystemClock(), RandomIds())).findings == []
    store = SqliteStore(path)
    await store.open()
    assert (await texts(store, "f"), await texts(store, "s")) == was
    await store.close()


async def test_the_doctor_leaves_an_index_alone_without_which_a_fork_would_be_lost(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    store = SqliteStore(path)
    await store.open()
    await put(store, Change("s", meta("s", message_count=3), "c", chain("a", "b", "c")))
    await fork(store, "s", "b", "f")
    await store.close()
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM branch WHERE session = 1")
    db.close()
    report = await check(f"sqlite:{path}", SystemClock(), RandomIds(), repair=True)
    assert not report.healthy
    assert {(one.kind, one.session_id) for one in report.findings} == {
        ("index-wrong", "s"),
        ("session-unreadable", "f"),
    }
    assert rows_of(path, "fork") == 1
