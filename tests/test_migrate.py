"""Migration: everything goes over once, is looked at again, and nothing is lost or written over on the way."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from session_manager import migrate as module
from session_manager.cli import main
from session_manager.errors import StorageError
from session_manager.migrate import Problem, Report, in_parts, migrate, parents_first
from session_manager.model import Entry, SessionMeta, encode
from session_manager.store import Change, Drop, Store, Tell, View
from session_manager.stores import open_source, open_store
from session_manager.stores.bridge import BridgeStore
from session_manager.stores.memory import MemoryStore
from tests.bridged import InProcessMain
from tests.stage import InProcess
from tests.stores.samples import answers, copy_to, expected

Content = dict[str, tuple[SessionMeta | None, str | None, list[Entry]]]


def quiet(phase: str, done: int, total: int) -> None:
    pass


@asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Any]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def content(store: Any) -> Content:
    sessions = {id_: await store.session(id_) for id_ in await store.ids()}
    return {id_: (session.meta, session.leaf, await store.entries(id_)) for id_, session in sessions.items()}


def record(id_: str, **fields: Any) -> SessionMeta:
    told = {"title": "", "description": "", "status": "idle", "created_at": 1, "updated_at": 1, "message_count": 0}
    return SessionMeta(session_id=id_, **{**told, **fields})


def message(id_: str, parent: str | None, text: str = "x", **fields: Any) -> Entry:
    body = {"role": "user", "content": [{"type": "text", "text": text}], "timestamp": 0}
    return Entry(id_, parent, 5, "user", encode(body), **fields)


def sessions(count: int, entries: int, seed: int = 1) -> list[Change]:
    """So many sessions of about so many entries each, every other kind of thing among them: branches, updated messages,
    bookkeeping, origins, drafts, forks, labels, a session without entries and one without a record."""
    chance = random.Random(seed)
    made: list[Change] = []
    for number in range(count):
        id_ = f"s_{chance.getrandbits(128):032x}" if number % 7 else f"../{number} é"
        own: list[Entry] = []
        for n in range(0 if number == 1 else entries + chance.randrange(-entries // 4, entries // 4 + 1)):
            parent = (chance.choice(own) if chance.random() < 0.1 else own[-1]).id if own else None
            origin = b'{"run":{"n":1,"k":[1.0,true,null]}}' if n % 11 == 0 else None
            if n % 13 == 5:
                body = b'{"custom_type":"mark","data":{"b":1,"a":[1.0,null,"\xc3\xa9"]}}'
                own.append(Entry(f"{chance.getrandbits(64):x}", parent, n, None, body, 0, origin))
            else:
                text = "é" * chance.randrange(200)
                own.append(message(f"{chance.getrandbits(64):x}", parent, text, revision=n % 3, origin=origin))
        counted = sum(entry.role is not None for entry in own)
        meta = record(id_, created_at=number, updated_at=number + 9, message_count=counted, title=f"n {number}")
        if number % 3 == 0:
            meta = replace(meta, draft="half a\nthought", metadata={"owner": "ann", "n": {"x": [1, 1.0]}})
        if number % 5 == 4:
            meta = replace(meta, forked_from=made[-1].session_id, status="error", status_reason="why")
        leaf = chance.choice(own).id if own else None
        made.append(Change(id_, None if number == 2 else meta, leaf, tuple(own)))
    return made


async def fill(store: Store, changes: list[Change]) -> None:
    for change in changes:
        await store.commit(store.ahead(), change)


async def run(source: str, target: str, base: Path, *, overwrite: bool = False) -> Report:
    async with opened(open_source(source, base)) as a, opened(open_store(target, base)) as b:
        return await migrate(a, b, quiet, overwrite=overwrite)


async def held(url: str, base: Path) -> Content:
    async with opened(open_store(url, base)) as store:
        return await content(store)


# --- there and back ---


async def there_and_back(base: Path, count: int, entries: int) -> None:
    async with opened(open_store("sqlite:a.db", base)) as store:
        await fill(store, sessions(count, entries))
    before = await held("sqlite:a.db", base)
    total = sum(len(own) for _, _, own in before.values())
    for turn in range(2):
        for source, target in (("sqlite:a.db", "fs:b"), ("fs:b", "sqlite:c.db")):
            report = await run(source, target, base)
            assert (report.sessions, report.entries, report.verified_entries) == (count, total, total)
            assert (report.new, report.there) == ((count, 0) if turn == 0 else (0, count))
            assert report.complete
            assert await held(target, base) == before
    assert await held("sqlite:a.db", base) == before


async def test_there_and_back_twice_nothing_differs(tmp_path: Path) -> None:
    await there_and_back(tmp_path, 40, 20)


@pytest.mark.long
async def test_a_thousand_sessions_there_and_back_twice_do_not_differ(tmp_path: Path) -> None:
    await there_and_back(tmp_path, 1000, 50)


_KILLED = """
import asyncio, sys
from pathlib import Path
from session_manager.migrate import migrate
from session_manager.stores import open_source, open_store

def progress(phase, done, total):
    print(phase, done, total, flush=True)
    if done == int(sys.argv[4]):
        sys.stdin.read()

async def run(source, target, base):
    source, target = open_source(source, base), open_store(target, base)
    await source.open()
    await target.open()
    await migrate(source, target, progress)

asyncio.run(run(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
"""


async def killed_in_the_middle(base: Path, count: int, entries: int, *parts: int) -> None:
    async with opened(open_store("sqlite:a.db", base)) as store:
        await fill(store, sessions(count, entries))
    before = await held("sqlite:a.db", base)
    for source, target in (("sqlite:a.db", "fs:b"), ("fs:b", "sqlite:c.db")):
        for part in parts:
            arguments = [source, target, str(base), str(part)]
            killed = subprocess.Popen(
                [sys.executable, "-c", _KILLED, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            assert killed.stdout is not None
            assert killed.stdin is not None
            while killed.stdout.readline().split()[1] != str(part):
                pass
            killed.kill()
            killed.wait()
            killed.stdout.close()
            killed.stdin.close()
            half = await held(target, base)
            assert part <= len(half) < count
            assert all(half[id_] == before[id_] for id_ in half)
        report = await run(source, target, base)
        assert report.complete
        assert (report.new + report.there, report.new > 0, report.there >= max(parts)) == (count, True, True)
        assert await held(target, base) == before


async def test_what_a_kill_interrupted_is_continued(tmp_path: Path) -> None:
    await killed_in_the_middle(tmp_path, 30, 12, 11)


@pytest.mark.long
async def test_a_thousand_sessions_interrupted_by_kills_are_continued(tmp_path: Path) -> None:
    await killed_in_the_middle(tmp_path, 1000, 50, 100, 400, 900)


@pytest.mark.parametrize("target", ["sqlite:new.db", "fs:new"])
async def test_the_directory_of_an_earlier_worker_answers_the_same_from_any_store(tmp_path: Path, target: str) -> None:
    copy_to(tmp_path / "old")
    before = {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()}
    assert (await run("fs:old", target, tmp_path)).complete
    name, _, path = target.partition(":")
    assert (
        await answers({"name": name, "config": {"path" if name == "sqlite" else "data_dir": path}}, tmp_path)
        == expected()
    )
    after = {path.name: path.read_bytes() for path in (tmp_path / "old").glob("*.jsonl")}
    assert after == before, "the source is not changed"
    if name == "fs":
        assert {path.name for path in (tmp_path / "new").glob("*.jsonl")} == before.keys()


async def test_sessions_go_through_the_store_of_another_instance_both_ways(tmp_path: Path) -> None:
    a, c = MemoryStore(), MemoryStore()
    await fill(a, [change for change in sessions(12, 9) if change.meta is not None])
    async with InProcess({"name": "sqlite", "config": {"path": "main.db"}}, tmp_path) as main:
        for turn in range(2):
            for source, target in ((a, BridgeStore(InProcessMain(main))), (BridgeStore(InProcessMain(main)), c)):
                report = await migrate(source, target, quiet)
                assert ((report.new, report.there)[turn], report.complete) == (11, True)
        assert await content(main.store) == await content(c) == await content(a)


# --- what is there already ---


async def test_a_session_that_went_on_in_the_source_is_brought_up_to_date(tmp_path: Path) -> None:
    a, b = MemoryStore(), MemoryStore()
    await fill(a, sessions(5, 8))
    await migrate(a, b, quiet)
    id_ = (await a.ids())[-1]
    last = (await a.entries(id_))[0]
    changed = replace(last, revision=last.revision + 1, body=message("", None, "new").body)
    more = (message("more", last.id), changed)
    await fill(a, [Change(id_, record(id_, updated_at=99), "more", more), Change("new", record("new"))])
    report = await migrate(a, b, quiet)
    assert (report.updated, report.new, report.there, report.complete) == (1, 1, 4, True)
    assert await content(b) == await content(a)


@pytest.mark.parametrize(
    ("own", "why"),
    [
        (Change("s", entries=(message("theirs", "a"),)), "1 entries that the source's has not"),
        (Change("s", entries=(message("a", None, "y", revision=1),)), "other content"),
        (Change("s", entries=(message("a", None, "y", revision=0),)), "other content"),
        (Change("s", meta=record("s", updated_at=1, draft="theirs")), "neither is newer"),
        (Change("s", meta=record("s", updated_at=2)), "changed by itself"),
        (Change("s", leaf="b"), "neither is newer"),
        (Change("s", drops=frozenset({Drop.LEAF})), "neither is newer"),
    ],
)
async def test_a_session_that_changed_in_the_target_is_left_alone_unless_told(own: Change, why: str) -> None:
    a, b = MemoryStore(), MemoryStore()
    for store in (a, b):
        await fill(store, [Change("s", record("s"), "a", (message("a", None), message("b", "a")))])
    await fill(a, [Change("t", record("t"))])
    await fill(b, [own, Change("u", record("u"))])
    before = await content(b)
    report = await migrate(a, b, quiet)
    assert [problem.session_id for problem in report.skipped] == ["s"]
    assert why in report.skipped[0].why
    assert (report.new, report.only_in_target, report.verified_sessions, report.complete) == (1, 1, 1, False)
    assert (await content(b))["s"] == before["s"]
    report = await migrate(a, b, quiet, overwrite=True)
    assert (report.updated, report.there, report.complete) == (1, 1, True)
    assert {**await content(a), "u": before["u"]} == await content(b)


async def test_the_order_of_keys_is_no_difference_and_the_type_of_a_number_is_one() -> None:
    def made(data: bytes) -> list[Change]:
        origin = b'{"o":%b}' % data
        return [
            Change(
                "s", record("s"), "a", (Entry("a", None, 1, None, b'{"custom_type":"c","data":%b}' % data, 0, origin),)
            )
        ]

    for data, complete in ((b'{"b":[1],"a":2}', True), (b'{"a":2,"b":[1.0]}', False), (b'{"a":2,"b":[true]}', False)):
        a, b = MemoryStore(), MemoryStore()
        await fill(a, made(b'{"a":2,"b":[1]}'))
        await fill(b, made(data))
        assert (await migrate(a, b, quiet)).complete == complete


# --- what cannot go over ---


class Failing(MemoryStore):
    """Takes a number of changes and no more."""

    def __init__(self, room: int, why: str = "the disk is full") -> None:
        super().__init__()
        self.room, self.why = room, why
        self.taken: list[Change] = []

    def commit(self, view: View, change: Change, durable: Tell = None, early: Tell = None) -> Awaitable[int]:
        if len(self.taken) >= self.room:
            raise StorageError(self.why)
        self.taken.append(change)
        return super().commit(view, change, durable, early)


async def test_a_very_large_session_goes_over_in_parts_its_record_last_and_is_continued() -> None:
    count = 2 * module.CHANGE_ENTRIES + 10
    own = [message(f"{count - n:06}", f"{count - n + 1:06}" if n else None) for n in range(count)]
    a, b = MemoryStore(), Failing(2)
    await fill(a, [Change("s", record("s"), own[-1].id, tuple(own))])
    report = await migrate(a, b, quiet)
    assert (report.skipped, report.complete) == ([Problem("s", "session/storage: the disk is full")], False)
    assert (await b.session("s")).meta is None
    assert [len(change.entries) for change in b.taken] == [module.CHANGE_ENTRIES] * 2
    there: set[str | None] = {None}
    for entry in (entry for change in b.taken for entry in change.entries):
        assert entry.parent_id in there
        there.add(entry.id)
    b.room = 9
    report = await migrate(a, b, quiet)
    assert (report.continued, report.complete, len(b.taken)) == (1, True, 3)
    assert await content(b) == await content(a)


async def test_a_session_of_many_bytes_goes_over_in_parts() -> None:
    own = [message(str(n), None, "x" * (module.CHANGE_BYTES // 2 - 200)) for n in range(5)]
    assert [len(part) for part in in_parts(own)] == [2, 2, 1]
    assert list(in_parts([])) == [[]]


def test_parents_come_first_also_where_links_are_broken_or_run_in_a_circle() -> None:
    own = [
        message("a", "c"),
        message("c", "d"),
        message("d", None),
        message("x", "y"),
        message("y", "x"),
        message("q", "?"),
    ]
    ordered = [entry.id for entry in parents_first({entry.id: entry for entry in own})]
    assert ordered[:3] == ["d", "c", "a"]
    assert sorted(ordered) == sorted(entry.id for entry in own)


@pytest.mark.parametrize(
    "odd",
    [
        Entry("a", None, 1, None, b'{"custom_type":"c","data":%b}' % (b"[" * 97 + b"]" * 97)),
        Entry("a", None, 1, None, b'{"custom_type":"c","data":18446744073709551616}'),
        Entry("a", None, 1, "user", b'{"role":"user"}'),
        Entry("a", None, 1, "user", b"{half"),
        Entry("a", None, 1, None, b"[]"),
        Entry("a", None, 1, None, b'{"custom_type":"c","data":"\\ud800"}'),
    ],
)
async def test_what_could_not_be_served_is_refused_and_told(odd: Entry) -> None:
    a, b = MemoryStore(), MemoryStore()
    await fill(a, [Change("fine", record("fine"))])
    a.apply(Change("odd", record("odd"), None, (odd,)))
    report = await migrate(a, b, quiet)
    assert [problem.session_id for problem in report.skipped] == ["odd"]
    assert (await b.ids(), report.complete) == (["fine"], False)


async def test_what_the_source_cannot_read_is_told(tmp_path: Path) -> None:
    directory = copy_to(tmp_path / "old")
    whole = (directory / "con.jsonl").read_bytes()
    (directory / "con.jsonl").write_bytes(whole + whole[:77])
    (directory / "bad.jsonl").write_bytes(b"\xff\n")
    report = await run("fs:old", "sqlite:new.db", tmp_path)
    assert [(problem.session_id, "cannot read" in problem.why) for problem in report.skipped] == [("bad", True)]
    assert {notice.split(":")[0] for notice in report.notices} == {"bad.jsonl", "con.jsonl"}
    assert (report.verified_sessions, report.complete) == (104, False)
    assert (directory / "con.jsonl").read_bytes() == whole + whole[:77]


async def test_a_session_that_the_target_cannot_take_is_skipped_and_the_others_go_over(tmp_path: Path) -> None:
    long = "é" * 50
    async with opened(open_store("sqlite:a.db", tmp_path)) as store:
        await fill(store, [Change(id_, record(id_)) for id_ in ("s", long, "t")])
    report = await run("sqlite:a.db", "fs:b", tmp_path)
    assert [(problem.session_id, "too long" in problem.why) for problem in report.skipped] == [(long, True)]
    assert (report.new, report.complete) == (2, False)


async def test_a_target_that_takes_nothing_any_more_ends_it() -> None:
    a = MemoryStore()
    await fill(a, sessions(50, 2))
    with pytest.raises(StorageError, match="the disk is full"):
        await migrate(a, Failing(20), quiet)


@pytest.mark.parametrize(
    "lose",
    [
        lambda change: replace(change, entries=change.entries[:-1]),
        lambda change: replace(change, entries=(replace(change.entries[0], revision=9), *change.entries[1:])),
        lambda change: replace(change, entries=(replace(change.entries[0], origin=b"{}"), *change.entries[1:])),
        lambda change: replace(change, leaf=None),
        lambda change: replace(change, meta=replace(change.meta, draft="x")),
    ],
)
async def test_a_target_that_loses_something_is_found_out(lose: Callable[[Change], Change]) -> None:
    class Losing(MemoryStore):
        def apply(self, change: Change) -> None:
            super().apply(lose(change) if change.session_id == "s" else change)

    a = MemoryStore()
    await fill(a, [*sessions(6, 8), Change("s", record("s"), "b", (message("a", None), message("b", "a")))])
    report = await migrate(a, Losing(), quiet)
    assert (report.new, report.verified_sessions, report.complete) == (7, 6, False)
    assert [problem.session_id for problem in report.skipped] == ["s"]


# --- the command ---


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["migrate", *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return copy_to(tmp_path / "old")


def test_the_command_says_what_it_did_and_its_status_tells(old: Path) -> None:
    status, out, _ = invoke("--from", "fs:old", "--to", "sqlite:new.db")
    assert (status, out.splitlines()) == (
        0,
        [
            "104 sessions in the source: 104 new, 0 continued, 0 updated, 0 there already, 0 skipped",
            "verified equal: 104 sessions, 265 entries",
            "complete",
        ],
    )
    with (old / "con.jsonl").open("ab") as file:
        file.write(b'{"half')
    status, out, _ = invoke("--from", "fs:old", "--to", "sqlite:new.db")
    assert (status, "con.jsonl: line 67: a change that was cut off" in out) == (3, True)
    assert out.splitlines()[-1] == "complete, but for what was found in the source"
    (old / "bad.jsonl").write_bytes(b"\xff\n")
    status, out, _ = invoke("--from", "fs:old", "--to", "sqlite:new.db")
    assert status == 1
    assert "104 there already, 1 skipped" in out
    assert "  bad: the source cannot read it: session/storage: the file of session 'bad' cannot be read" in out
    assert out.splitlines()[-1] == "not complete"


def test_the_command_reports_as_json(old: Path) -> None:
    status, out, _ = invoke("--from", "fs:old", "--to", "sqlite:new.db", "--json")
    told = json.loads(out)
    assert (status, told["new"], told["complete"]) == (0, 104, True)


@pytest.mark.parametrize(
    ("source", "target", "status", "text"),
    [
        ("fs:none", "sqlite:new.db", 2, "there is no none"),
        ("sqlite:none.db", "fs:new", 2, "there is no none.db"),
        ("fs:old", "fs:old", 2, "the source is the target"),
        ("fs:old", "csv:new", 2, "names no store"),
        ("fs:old", "memory:", 2, "bridge:ws://HOST:PORT"),
        ("fs:old", "fs:", 2, "names no file or directory"),
        ("fs:old", "fs:./old", 2, "the source is the target"),
        ("fs:old", "fs:link", 2, "the source is the target"),
        ("fs:loop", "fs:new", 1, "a link that leads to itself"),
        ("sqlite:empty", "fs:new", 2, "there is nothing in empty"),
        ("sqlite:old/con.jsonl", "fs:new", 1, "sqlite:old/con.jsonl: session/storage"),
        ("fs:old", "sqlite:old/con.jsonl", 1, "sqlite:old/con.jsonl: session/storage"),
        ("fs:old", "sqlite:old/con.jsonl/x.db", 1, "sqlite:old/con.jsonl/x.db: session/storage: the database failed"),
        ("fs:empty", "sqlite:new.db", 1, "fs:empty: session/storage: the data directory failed (Not a directory)"),
        ("fs:" + "x" * 5000, "sqlite:new.db", 1, "File name too long"),
    ],
)
def test_a_store_that_cannot_be_opened_is_told_and_nothing_is_made(
    old: Path, source: str, target: str, status: int, text: str
) -> None:
    (old.parent / "link").symlink_to(old)
    (old.parent / "loop").symlink_to("loop")
    (old.parent / "empty").touch()
    got, _, err = invoke("--from", source, "--to", target)
    assert (got, text in err) == (status, True), err
    assert (old.parent / "empty").stat().st_size == 0
    assert not (old.parent / "none").exists()
    assert not (old.parent / "none.db").exists()
