"""What is particular to the SQLite store: its index of the chain, its files, failures that stay with their cause."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from session_manager.errors import BrokenPath, StorageError
from session_manager.model import Entry
from session_manager.store import EVERYTHING, Change, Drop, Found, ListQuery, PathQuery
from session_manager.stores.memory import MemoryStore
from session_manager.stores.sqlite import SqliteStore, files, paths, writing
from session_manager.stores.sqlite import store as store_module
from session_manager.stores.sqlite.inspect import Held, Inspection
from session_manager.stores.sqlite.runs import LENGTH
from session_manager.stores.sqlite.schema import APPLICATION_ID, STEPS
from tests.contract.scenario import until
from tests.stores.test_promises import chain, entry, meta, put


def places(path: Path) -> dict[str, tuple[int | None, int | None]]:
    with sqlite3.connect(path) as db:
        found = {id_: (branch, pos) for id_, branch, pos in db.execute("SELECT id, branch, pos FROM entry")}
    db.close()
    return found


def wrong_places(path: Path) -> list[str]:
    inspection = Inspection(path)
    found = [text for held in inspection.sessions() if isinstance(held, Held) for text in held.index]
    inspection.close()
    return found


async def test_a_chain_is_one_branch_and_a_fork_in_it_another(store: SqliteStore, tmp_path: Path) -> None:
    await put(store, Change("s", meta("s"), "c", chain("a", "b", "c")), Change("s", entries=(entry("d", "c"),)))
    await put(store, Change("s", entries=(entry("x", "b"), entry("y", "x"))))
    assert places(tmp_path / "sessions.db") == {
        "a": (0, 0), "b": (0, 1), "c": (0, 2), "d": (0, 3), "x": (1, 2), "y": (1, 3),
    }  # fmt: skip


async def test_an_entry_whose_parent_is_missing_has_no_place_and_is_walked(store: SqliteStore, tmp_path: Path) -> None:
    await put(store, Change("s", meta("s"), "c", (entry("c", "b"),)), Change("s", entries=(entry("b", "a"),)))
    await put(store, Change("s", entries=(entry("a"),)))
    assert places(tmp_path / "sessions.db") == {"c": (None, None), "b": (None, None), "a": (0, 0)}
    page = await store.path(PathQuery("s"))
    assert [one.id for one in page.entries] == ["a", "b", "c"]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("held", [False, True], ids=["from disk", "from memory"])
async def test_the_index_answers_as_the_chain_does(
    seed: int, held: bool, store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random trees, re-parenting, parents that come late, circles, deletions: every query as in the memory store."""
    monkeypatch.setattr(paths, "PATIENCE", 0 if held else 10**9)
    chance, memory = random.Random(seed), MemoryStore()
    ids = [f"e{n}" for n in range(14)]
    for _ in range(80):
        kind = chance.random()
        new = entry(chance.choice(ids), chance.choice([None, *ids, "late"]), chance.choice(["user", "user", None]))
        if kind < 0.75:
            changes = [Change("s", meta("s"), new.id, (new,))]
        elif kind < 0.9:
            start = chance.choice([None, *ids])
            some = chance.sample(ids, 4)
            linked = tuple(entry(id_, parent) for parent, id_ in zip((start, *some), some, strict=False))
            changes = [Change("s", meta("s"), some[-1], linked)]
        elif kind < 0.95:
            changes = [Change("s", drops=frozenset({Drop.ENTRIES})), Change("s", meta("s"), new.id, (new,))]
        else:
            changes = [Change("s", drops=EVERYTHING), Change("s", meta("s"), new.id, (new,))]
        for change in changes:
            await memory.commit(memory.ahead(), change)
        await asyncio.gather(*(store.commit(store.ahead(), change) for change in changes))
        for leaf in (None, *chance.sample(ids, 4)):
            for query in (
                PathQuery("s", leaf),
                PathQuery("s", leaf, include_custom=False, limit=2),
                PathQuery(
                    "s", leaf, roles=frozenset({"user"}), include_custom=False, after=chance.choice(ids), limit=1
                ),
            ):
                assert await asked(store, query) == await asked(memory, query), query
    assert wrong_places(tmp_path / "sessions.db") == []


async def asked(store: Any, query: PathQuery) -> Any:
    try:
        page = await store.path(query)
    except BrokenPath:
        return "broken"
    return page if page.found is Found.PATH else page.found


async def test_an_error_that_somebody_keeps_does_not_keep_the_past(store: SqliteStore, tmp_path: Path) -> None:
    await put(store, Change("s", meta("s"), "b", chain("a", "b")))
    await put(store, Change("t", meta("t"), "e", chain("a", "b", "c", "d", "e")))
    with sqlite3.connect(tmp_path / "sessions.db") as db:
        db.execute("UPDATE entry SET parent_id = 'e' WHERE id = 'c'")
    db.close()
    kept: list[BaseException] = []
    try:
        await store.path(PathQuery("t"))  # it fails with rows left to be read
    except BrokenPath as error:
        kept.append(error)
    assert len(kept) == 1
    await put(store, Change("s", leaf="x", entries=(entry("x", "b"),)))
    page = await store.path(PathQuery("s", limit=None))
    assert [one.id for one in page.entries] == ["a", "b", "x"]


async def test_a_read_begun_before_a_change_is_not_remembered_after_it(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(store, Change("s", meta("s", title="old")))
    store._records.clear()
    read, begun, arrive = store._short_reads.run, asyncio.Event(), asyncio.Event()

    async def late(*what: Any) -> Any:
        found = await read(*what)
        begun.set()
        await arrive.wait()
        return found

    monkeypatch.setattr(store._short_reads, "run", late)
    reading = asyncio.ensure_future(store.session("s"))
    await begun.wait()
    monkeypatch.setattr(store._short_reads, "run", read)
    await put(store, Change("s", meta("s", title="new")))
    arrive.set()
    await reading
    assert (await store.session("s")).meta == meta("s", title="new")


async def test_what_one_change_does_to_a_batch_does_not_concern_other_sessions(store: SqliteStore) -> None:
    await put(store, *(Change(f"s{n}", meta(f"s{n}")) for n in range(4)))
    view = store.ahead()
    bad = Change("s0", leaf="x", entries=(Entry("x", None, 0, "user", 5),))  # type: ignore[arg-type] # no body at all
    changes = [
        Change("s1", meta("s1", title="new")),
        bad,
        Change("s2", leaf="a", entries=chain("a")),
        Change("s0", meta("s0", title="behind the bad one")),
    ]
    commits = [store._commits.add(view.epoch, change) for change in changes[:1]]  # type: ignore[attr-defined]
    for change in changes[1:]:
        queued = store._commits
        done = asyncio.get_running_loop().create_future()
        from session_manager.stores.pending import _Queued

        item = _Queued(change, 0, None, None, [done])
        queued._queue.append(item)
        queued._by_session.setdefault(change.session_id, []).append(item)
        commits.append(done)
    results = await asyncio.gather(*commits, return_exceptions=True)
    assert [isinstance(result, int) for result in results] == [True, False, True, False]
    assert all(isinstance(result, StorageError) for result in (results[1], results[3]))
    assert (await store.session("s1")).meta == meta("s1", title="new")
    assert (await store.session("s0")).meta == meta("s0")
    assert [one.id for one in await store.entries("s2")] == ["a"]
    with pytest.raises(StorageError, match="try again"):
        await store.commit(view, Change("s0", meta("s0", title="decided before the failure")))
    await store.commit(view, Change("s3", meta("s3", title="decided before it too, on another session")))
    await put(store, Change("s0", meta("s0", title="decided after it")))


async def test_the_log_is_copied_and_shortened_when_nothing_is_written(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "IDLE", 1.0)
    log = tmp_path / "sessions.db-wal"
    await until(lambda: log.stat().st_size == files.LOG_BYTES)
    await put(store, Change("s", entries=tuple(entry(f"x{n}", None, size=30_000) for n in range(300))))
    assert log.stat().st_size > files.LOG_BYTES
    await until(lambda: log.stat().st_size == files.LOG_BYTES)
    await put(store, Change("s", meta("s")))
    assert log.read_bytes()[: 1 << 20].rstrip(b"\0") != b"", "and is written from its start again"
    alone = tmp_path / "alone.db"
    alone.write_bytes((tmp_path / "sessions.db").read_bytes())
    database = sqlite3.connect(alone)
    database.execute("PRAGMA journal_mode = DELETE")
    assert database.execute("SELECT count(*) FROM entry").fetchone() == (300,), "the database file has it all"
    database.close()


async def test_what_was_acknowledged_is_noted_soon_and_once_for_many(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[int] = []
    mark, keep = files.Mark(tmp_path / "sessions.db"), files.Mark.set

    def note(mark: files.Mark, number: int) -> None:
        noted.append(number)
        keep(mark, number)

    monkeypatch.setattr(files.Mark, "set", note)
    monkeypatch.setattr(store_module, "NOTING", 0.2)
    await put(store, *[Change("s", meta("s"), entries=(entry(f"x{n}"),)) for n in range(100)])
    await until(lambda: mark.read() == 100)
    assert len(noted) < 50
    await put(store, Change("s", meta("s")))
    await store.close()
    assert mark.read() == 101


async def test_a_commit_makes_no_file_longer(store: SqliteStore, tmp_path: Path) -> None:
    log = tmp_path / "sessions.db-wal"
    await until(lambda: log.stat().st_size == files.LOG_BYTES)
    for n in range(400):
        await put(store, Change("s", meta("s"), entries=(entry(f"x{n}", None),)))
        assert log.stat().st_size == files.LOG_BYTES


async def test_what_is_written_before_the_log_has_its_length_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "SOON", 3600.0)
    store, log = SqliteStore(tmp_path / "sessions.db"), tmp_path / "sessions.db-wal"
    await store.open()
    await put(store, Change("s", meta("s"), "a", chain("a")))
    assert log.stat().st_size < files.LOG_BYTES, "the first change waits for nothing"
    await store._writes.run(store._writing.lengthen_log)
    assert log.stat().st_size == files.LOG_BYTES
    await put(store, Change("s", meta("s"), "b", (entry("b", "a"),)))
    after = tmp_path / "after"
    after.mkdir()
    for file in (tmp_path / "sessions.db", log):  # as a kill would leave them
        (after / file.name).write_bytes(file.read_bytes())
    other = SqliteStore(after / "sessions.db")
    await other.open()
    assert [one.id for one in (await other.path(PathQuery("s"))).entries] == ["a", "b"]
    await other.close()
    await store.close()


async def test_nobody_writes_to_the_log_while_it_is_made_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have taken the database unseen; zeros would cover what it writes."""
    monkeypatch.setattr(store_module, "SOON", 3600.0)
    store = SqliteStore(tmp_path / "sessions.db")
    await store.open()
    fstat, refused = os.fstat, list[str]()

    def meanwhile(fd: int) -> os.stat_result:
        told = fstat(fd)
        with closing(sqlite3.connect(tmp_path / "sessions.db", timeout=0)) as other:
            try:
                other.execute("UPDATE sequence SET last = 7")
                other.commit()
            except sqlite3.OperationalError as error:
                refused.append(str(error))
        return told

    monkeypatch.setattr(os, "fstat", meanwhile)
    await store._writes.run(store._writing.lengthen_log)
    monkeypatch.undo()
    assert refused == ["database is locked"]
    await store.close()


async def test_a_log_that_is_not_ours_any_more_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "SOON", 3600.0)
    path, log = tmp_path / "sessions.db", tmp_path / "sessions.db-wal"
    store = SqliteStore(path)
    await store.open()
    log.rename(tmp_path / "gone")
    log.write_bytes(b"of another database")
    await store._writes.run(store._writing.lengthen_log)
    assert log.read_bytes() == b"of another database"
    log.unlink()
    (tmp_path / "gone").rename(log)
    store._writing._let_go()
    length = log.stat().st_size if log.exists() else None
    store._writing.lengthen_log()
    assert (log.stat().st_size if log.exists() else None) == length
    await store.close()


async def test_the_log_stays_bounded_under_readers_that_never_pause(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "CHECKPOINT_PAGES", 50)
    monkeypatch.setattr(files, "LOG_BYTES", 1 << 20)
    monkeypatch.setattr(writing, "MOST_LOG_BYTES", 2 << 20)
    monkeypatch.setattr(writing, "WEIGHED", 1)
    monkeypatch.setattr(writing, "LOG_PAUSE", 0.0)
    await put(store, Change("s", meta("s"), "a", chain("a")))
    stop = False

    async def read() -> None:
        while not stop:
            await store.path(PathQuery("s"))
            await store.sessions(ListQuery(metadata={"a": 1}))

    readers = [asyncio.create_task(read()) for _ in range(8)]
    log, largest = tmp_path / "sessions.db-wal", 0
    for n in range(300):
        await put(store, Change("s", entries=(entry(f"x{n}", "a", size=30_000),)))
        largest = max(largest, log.stat().st_size)
    stop = True
    await asyncio.gather(*readers)
    assert largest < 4 << 20


async def test_a_fresh_database_and_one_migrated_step_by_step_are_equal(tmp_path: Path) -> None:
    schemas = []
    for name, rounds in (("fresh", [len(STEPS)]), ("steps", range(1, len(STEPS) + 1))):
        path = tmp_path / name
        files.prepare(path)
        connection = files.connect(path, "FULL")
        version = 0
        for upto in rounds:
            files.migrate(connection, version, STEPS[:upto])
            version = upto
        schemas.append(connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall())
        connection.close()
    assert schemas[0] == schemas[1]


@pytest.mark.parametrize("seed", range(5))
async def test_the_database_knows_the_number_of_its_last_commit_whatever_that_did(seed: int, tmp_path: Path) -> None:
    path, chance = tmp_path / "sessions.db", random.Random(seed)
    store = SqliteStore(path)
    await store.open()
    for n in range(60):
        ids = [f"e{n}-{i}" for i in range(chance.randrange(3))]
        changes = {
            "append": Change("s", leaf=f"e{n}", entries=(entry(f"e{n}"),), fresh=True),
            "run": Change("s", entries=chain(*(f"r{n}-{i}" for i in range(LENGTH))), fresh=True),
            "update": Change(f"t{chance.randrange(3)}", entries=(entry("same", revision=n),)),
            "many": Change(f"t{chance.randrange(3)}", meta=meta("t"), entries=tuple(entry(id_) for id_ in ids)),
            "leaf": Change("s", leaf="e0"),
            "delete": Change(chance.choice(["s", "t0", "t1"]), drops=EVERYTHING),
        }
        several = [changes[kind] for kind in chance.sample(list(changes), chance.choice([1, 1, 3]))]
        last = (await asyncio.gather(*[put(store, change) for change in several]))[-1][0]
        inspection = Inspection(path)
        assert (inspection.last, inspection.lost_commits()) == (last, 0), several
        inspection.close()
    await store.close()


async def test_a_migration_that_is_cut_off_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    files.prepare(path)
    connection = files.connect(path, "FULL")
    with pytest.raises(sqlite3.Error):
        files.migrate(connection, 0, (STEPS[0], "CREATE TABLE more (a); CREATE NONSENSE;"))
    connection.close()
    assert files.version_of(path) == 0
    store = SqliteStore(path)
    await store.open()
    await store.close()


async def test_a_file_of_a_newer_program_or_of_another_one_is_not_touched(tmp_path: Path) -> None:
    for name, statements, told in (
        (
            "newer.db",
            f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 99; CREATE TABLE t (a);",
            "newer",
        ),
        ("other.db", "CREATE TABLE t (a);", "not one of session-manager"),
    ):
        path = tmp_path / name
        with sqlite3.connect(path) as db:
            db.executescript(statements)
        db.close()
        before = path.read_bytes()
        with pytest.raises(StorageError, match=told):
            await SqliteStore(path).open()
        assert path.read_bytes() == before


async def test_a_version_that_only_the_log_tells_is_told(tmp_path: Path) -> None:
    path, copy = tmp_path / "sessions.db", tmp_path / "copy.db"
    store = SqliteStore(path)
    await store.open()
    await store.close()
    newer = sqlite3.connect(path)
    newer.execute(f"PRAGMA user_version = {len(STEPS) + 1}")
    for suffix in ("", "-wal"):  # as a kill would leave them
        Path(f"{copy}{suffix}").write_bytes(Path(f"{path}{suffix}").read_bytes())
    newer.close()
    assert files.tells_version(copy.read_bytes()[: files.HEADER], tmp_path / "elsewhere"), "the file is as it was"
    with pytest.raises(StorageError, match="newer"):
        await SqliteStore(copy).open()


async def test_too_much_that_waits_is_refused_and_not_piled_up(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from session_manager.stores import pending

    monkeypatch.setattr(pending, "WAITING", 10)
    commits = [asyncio.ensure_future(store.commit(store.ahead(), Change(f"s{n}", meta(f"s{n}")))) for n in range(40)]
    results = await asyncio.gather(*commits, return_exceptions=True)
    refused = [result for result in results if isinstance(result, StorageError)]
    assert len(refused) == 29  # the first one is at work already
    assert all("try again" in str(error) for error in refused)
    assert len(await store.metas()) == 11
    await put(store, Change("s", meta("s")))


async def test_who_hears_early_of_a_change_finds_it_in_the_file(store: SqliteStore, tmp_path: Path) -> None:
    found: list[object] = []

    def look() -> None:
        with closing(sqlite3.connect(tmp_path / "sessions.db")) as database:
            found.extend(database.execute("SELECT id FROM session").fetchall())

    await store.commit(store.ahead(), Change("s", meta("s")), early=look)
    assert found == [("s",)]
