"""The fs store: what is acknowledged is on disk, what was cut off is told, and nothing is written over."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from session_manager.errors import StorageError
from session_manager.model import SessionMeta
from session_manager.store import EVERYTHING, Change, Drop, ListQuery, PathQuery, Session
from session_manager.stores.fs import FsStore
from session_manager.stores.fs.files import LOCK, TORN, WORTH
from session_manager.stores.fs.lines import change_lines
from session_manager.stores.memory import Kept, MemoryStore
from tests.stores.test_fs_lines import CHANGES, entry, entry_line, line, meta, meta_line, note


@asynccontextmanager
async def opened(path: Path, **options: bool) -> AsyncIterator[FsStore]:
    store = FsStore(path, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def put(store: FsStore, *changes: Change) -> None:
    await asyncio.gather(*[store.commit(store.ahead(), change) for change in changes])


async def kept(store: FsStore, id_: str = "s") -> Kept:
    session = await store.session(id_)
    return Kept(session.meta, session.leaf, {entry.id: entry for entry in await store.entries(id_)})


def after(changes: list[Change]) -> Kept:
    state = Kept()
    for change in changes:
        state.apply(change)
    return state


# --- what is written ---


async def test_what_was_acknowledged_is_there_after_a_start(tmp_path: Path) -> None:
    async with opened(tmp_path / "new" / "data") as store:
        await put(store, *CHANGES)
        assert await kept(store) == after(CHANGES)
    async with opened(tmp_path / "new" / "data") as store:
        assert await kept(store) == after(CHANGES)
        assert store.notices == ()


async def test_files_and_directory_are_private(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as store:
        await put(store, CHANGES[0])
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "data").iterdir()} == {0o600}


async def test_no_change_of_a_session_overtakes_another_and_sessions_share_batches(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        changes = [Change(f"s{n % 20}", meta(f"s{n % 20}", updated_at=n)) for n in range(400)]
        numbers = await asyncio.gather(*[store.commit(store.ahead(), change) for change in changes])
        assert numbers == sorted(numbers)
    async with opened(tmp_path) as store:
        assert sorted(record.updated_at for record in await store.metas()) == list(range(380, 400))
        assert await store.commit(store.ahead(), CHANGES[0]) > max(numbers)


async def test_a_deleted_session_leaves_no_file_and_begins_anew(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await put(store, *CHANGES, Change("s", drops=EVERYTHING))
        assert await kept(store) == Kept()
        assert not list(tmp_path.glob("*.jsonl*"))
        await put(store, CHANGES[1], Change("s", drops=EVERYTHING), CHANGES[0], Change("t", drops=EVERYTHING))
        assert await kept(store) == after(CHANGES[:1])
    async with opened(tmp_path) as store:
        assert await kept(store) == after(CHANGES[:1])


async def test_raw_removals_leave_the_rest_and_at_last_no_file(tmp_path: Path) -> None:
    for drop, rest in (
        (Drop.ENTRIES, {"meta", "leaf"}),
        (Drop.META, {"leaf"}),
        (Drop.LEAF, set[str]()),
    ):
        async with opened(tmp_path) as store:
            if drop is Drop.ENTRIES:
                await put(store, *CHANGES)
            await put(store, Change("s", drops=frozenset({drop})))
        types = [
            json.loads(line)["type"] for path in tmp_path.glob("*.jsonl") for line in path.read_bytes().splitlines()
        ]
        assert set(types) == rest
        assert len(list(tmp_path.glob("*.jsonl*"))) == (1 if rest else 0)


async def test_random_changes_come_out_as_in_memory_through_restarts(tmp_path: Path) -> None:
    chance = random.Random(4)
    model = MemoryStore()

    def change() -> Change:
        id_ = chance.choice(["a", "b", "é/.."])
        drops = frozenset(drop for drop in Drop if chance.random() < 0.05)
        put_meta = meta(id_, updated_at=chance.randrange(99)) if chance.random() < 0.7 else None
        leaf = chance.choice(["x", "y", None])
        entries = [chance.choice([entry, note])(chance.choice("xyz"), chance.choice(["x", None])) for _ in range(2)]
        return Change(id_, put_meta, leaf, tuple(entries[: chance.randrange(3)]), drops)

    for _ in range(30):
        async with opened(tmp_path) as store:
            for _ in range(4):
                batch = [change() for _ in range(chance.randrange(6))]
                await put(store, *batch)
                for made in batch:
                    model.apply(made)
            for id_ in ("a", "b", "é/.."):
                assert await store.session(id_) == await model.session(id_)
                assert await store.entries(id_) == await model.entries(id_)
            assert await store.ids() == await model.ids()
            assert await store.metas() == await model.metas()


# --- what was cut off ---


async def test_a_change_cut_at_any_byte_is_told_set_aside_and_does_not_harm_the_next(tmp_path: Path) -> None:
    before, last = change_lines(CHANGES[0]), change_lines(CHANGES[1])
    file = tmp_path / "s.jsonl"
    for cut in range(1, len(last) - 1):
        file.write_bytes(before + last[:cut])
        (tmp_path / TORN).unlink(missing_ok=True)
        async with opened(tmp_path) as store:
            assert await kept(store) == after(CHANGES[:1])
            assert [text.startswith("s.jsonl: ") for text in store.notices] == [True]
            assert file.read_bytes() == before + last[:cut]
            await put(store, CHANGES[4])
        told = json.loads((tmp_path / TORN).read_text())
        assert (told["file"], told["offset"]) == ("s.jsonl", len(before))
        if "text" in told:
            assert told["text"].encode() == last[:cut]
        assert file.read_bytes() == before + change_lines(CHANGES[4])


async def test_a_last_line_that_lacks_only_its_end_counts_and_is_ended(tmp_path: Path) -> None:
    whole = b"".join(map(change_lines, CHANGES[:3]))
    (tmp_path / "s.jsonl").write_bytes(whole[:-1])
    async with opened(tmp_path) as store:
        assert await kept(store) == after(CHANGES[:3])
        assert not store.notices
        await put(store, CHANGES[3])
    assert (tmp_path / "s.jsonl").read_bytes() == whole + change_lines(CHANGES[3])
    assert not (tmp_path / TORN).exists()


async def test_a_torn_line_of_an_earlier_version_is_set_aside_when_the_session_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_bytes(meta_line() + entry_line("a")[:-9])
    async with opened(tmp_path) as store:
        await put(store, Change("s", drops=EVERYTHING))
    assert not list(tmp_path.glob("*.jsonl"))
    assert json.loads((tmp_path / TORN).read_text())["text"].encode() == entry_line("a")[:-9]


# --- what is found ---


async def test_a_session_whose_file_is_not_utf_8_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_bytes(meta_line(id_="bad") + b"\xff\n")
    (tmp_path / "s.jsonl").write_bytes(meta_line())
    async with opened(tmp_path) as store:
        assert await store.metas() == [meta()]
        assert await store.ids() == ["bad", "s"]
        reads = (
            lambda: store.session("bad"),
            lambda: store.entry("bad", "a"),
            lambda: store.entries("bad"),
            lambda: store.path(PathQuery("bad")),
            lambda: store.commit(store.ahead(), Change("bad", leaf="a")),
            lambda: store.commit(store.ahead(), Change("bad", drops=EVERYTHING)),
        )
        for read in reads:
            with pytest.raises(StorageError, match="'bad' cannot be read"):
                await read()
        await put(store, Change("s", leaf="a"))
        assert [text.split(":")[0] for text in store.notices] == ["bad.jsonl"]
    assert (tmp_path / "bad.jsonl").read_bytes() == meta_line(id_="bad") + b"\xff\n"


async def test_only_files_with_the_name_of_a_session_are_sessions(tmp_path: Path) -> None:
    for name in ("x.jsonl.tmp", "x.txt", "%zz.jsonl", "%6B.jsonl", "k.jsonl", "%c3%a9.jsonl"):
        (tmp_path / name).write_bytes(meta_line(id_="k"))
    (tmp_path / "attachments.jsonl").mkdir()
    async with opened(tmp_path) as store:
        assert await store.ids() == ["k", "é"]
        assert sorted(text.split(":")[0] for text in store.notices) == [
            "%6B.jsonl",
            "%c3%a9.jsonl",
            "%zz.jsonl",
            "attachments.jsonl",
        ]
        await put(store, Change("é", leaf="a"))
    assert (tmp_path / "x.jsonl.tmp").exists()
    assert not (tmp_path / "%C3%A9.jsonl").exists(), "a session is written where it was found"


async def test_a_record_that_names_another_session_is_told_and_shown_under_its_files_name(tmp_path: Path) -> None:
    (tmp_path / "k.jsonl").write_bytes(meta_line(id_="other"))
    async with opened(tmp_path) as store:
        assert await store.metas() == [meta("k")]
        assert (await store.session("k")).meta == meta("k")
        assert await store.session("other") == Session()
        assert "'other'" in store.notices[0]


async def test_entries_without_a_record_are_not_listed_and_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_bytes(entry_line("a"))
    async with opened(tmp_path) as store:
        assert (await store.metas(), await store.ids()) == ([], ["s"])
        assert (await store.sessions(ListQuery())).metas == ()
        assert await store.session("s") == Session()
        assert await store.entry("s", "a") is not None


# --- compaction ---


async def test_a_file_with_more_dead_lines_than_live_ones_is_written_anew_when_it_is_opened(tmp_path: Path) -> None:
    live = line({"type": "of a later version"}) + meta_line()
    dead = entry_line("a", {"type": "text", "text": "x" * 1000})
    for count, anew in ((WORTH // len(dead), False), (WORTH // len(dead) + 3, True)):
        data = live + dead * count + entry_line("a")
        (tmp_path / "s.jsonl").write_bytes(data)
        async with opened(tmp_path, read_only=True) as store:
            before = await kept(store)
        assert (tmp_path / "s.jsonl").read_bytes() == data
        async with opened(tmp_path) as store:
            assert await kept(store) == before
            assert (tmp_path / "s.jsonl").read_bytes() == (live + entry_line("a") if anew else data)
            await put(store, Change("s", leaf="a"))
    async with opened(tmp_path) as store:
        assert (await kept(store)).leaf == "a"
    assert not list(tmp_path.glob("*.tmp"))


async def test_a_reply_that_is_updated_hundreds_of_times_does_not_stay_on_disk_hundreds_of_times(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as store:
        for n in range(400):
            await put(store, Change("s", meta(updated_at=n), "a", (entry("a", text="x" * 1000, revision=n),)))
        assert (await kept(store)).entries["a"].revision == 399
    assert (tmp_path / "s.jsonl").stat().st_size < 3 * WORTH
    async with opened(tmp_path) as store:
        assert (await kept(store)).entries["a"].revision == 399


async def test_temporary_files_of_an_end_without_warning_are_swept_away(tmp_path: Path) -> None:
    (tmp_path / "~1.jsonl.tmp").write_bytes(b"half")
    async with opened(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


# --- who may write, and what ---


async def test_a_directory_belongs_to_one_store_at_a_time(tmp_path: Path) -> None:
    async with opened(tmp_path):
        with pytest.raises(StorageError, match=f"in use by another process .pid {os.getpid()}."):
            await FsStore(tmp_path).open()
    async with opened(tmp_path):
        pass


async def test_a_directory_that_cannot_be_made_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="the data directory failed"):
        await FsStore(tmp_path / "file" / "data").open()


async def test_an_id_too_long_for_a_file_name_is_refused_alone(tmp_path: Path) -> None:
    longest = "é" * 41 + "abc"
    async with opened(tmp_path) as store:
        await put(store, Change(longest, meta(longest)))
        other = store.commit(store.ahead(), CHANGES[0])
        with pytest.raises(StorageError, match="too long"):
            await store.commit(store.ahead(), Change(longest + "d", meta(longest + "d")))
        await other
        assert await store.ids() == ["s", longest]
        with pytest.raises(StorageError, match="too long"):
            await store.commit(store.ahead(), Change("x" * 300, meta("x" * 300)))


async def test_no_two_ids_share_a_file(tmp_path: Path) -> None:
    """As on a disk that takes names for one when they differ only by case."""
    async with opened(tmp_path) as store:
        await put(store, CHANGES[0])
        os.link(tmp_path / "s.jsonl", tmp_path / "S.jsonl")
        for change in (Change("S", meta("S")), Change("S", meta("S"), drops=EVERYTHING)):
            other = store.commit(store.ahead(), Change("other", meta("other")))
            with pytest.raises(StorageError, match="differ only by case"):
                await store.commit(store.ahead(), change)
            await other
        assert await store.ids() == ["other", "s"]
    assert (tmp_path / "s.jsonl").read_bytes() == change_lines(CHANGES[0])


async def test_a_file_that_another_program_changed_is_not_written_on(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await put(store, CHANGES[0])
        for foreign in (change_lines(CHANGES[0]) + line({"type": "leaf", "entry_id": "theirs"}), b""):
            (tmp_path / "s.jsonl").write_bytes(foreign)
            for change in (Change("s", leaf="ours"), Change("s", drops=frozenset({Drop.LEAF}))):
                with pytest.raises(StorageError, match="changed by another program"):
                    await store.commit(store.ahead(), change)
            assert (tmp_path / "s.jsonl").read_bytes() == foreign


async def test_a_store_opened_for_reading_takes_no_change(tmp_path: Path) -> None:
    async with opened(tmp_path, read_only=True) as store:
        with pytest.raises(StorageError, match="reading only"):
            await store.commit(store.ahead(), CHANGES[0])


# --- a failing disk ---


@contextmanager
def full_at(size: int) -> Iterator[None]:
    """No file can grow beyond so many bytes: writes behind it fail, in the middle of a line too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


async def test_a_change_that_the_disk_does_not_take_is_undone_and_harms_no_other(tmp_path: Path) -> None:
    big = Change("s", entries=(entry("big", text="x" * 9000),))
    new = Change("new", meta("new"), "big", (entry("big", text="x" * 9000),))
    anew = Change("s", entries=big.entries, drops=frozenset({Drop.LEAF}))
    async with opened(tmp_path) as store:
        await put(store, *CHANGES)
        before = (tmp_path / "s.jsonl").read_bytes()
        with full_at(8000):
            for change in (big, new, anew):
                other = store.commit(store.ahead(), Change("other", meta("other")))
                with pytest.raises(StorageError, match="File too large"):
                    await store.commit(store.ahead(), change)
                await other
        assert await kept(store) == after(CHANGES)
        assert (tmp_path / "s.jsonl").read_bytes() == before
        assert {path.name for path in tmp_path.glob("*.jsonl*")} == {"s.jsonl", "other.jsonl"}
        await put(store, big, new)
    async with opened(tmp_path) as store:
        assert await kept(store) == after([*CHANGES, big])
        assert await kept(store, "new") == after([new])
        assert store.notices == ()


async def test_what_was_decided_on_a_change_that_failed_fails_with_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        with full_at(8000):
            view = store.ahead()
            first = asyncio.ensure_future(store.commit(view, Change("s", entries=(entry("a", text="x" * 9000),))))
            second = asyncio.ensure_future(store.commit(store.ahead(), Change("s", leaf="a")))
            for waiting in (first, second, asyncio.ensure_future(store.settled(view, "s"))):
                with pytest.raises(StorageError):
                    await waiting
        assert await kept(store) == Kept()


# --- kill -9 ---

_WRITER = """
import asyncio, sys
from pathlib import Path
from session_manager.store import Change
from session_manager.stores.fs import FsStore
from tests.stores.test_fs_lines import entry, meta

async def run(path, first):
    store = FsStore(path)
    await store.open()
    async def write(session):
        parent, n = None, first
        while True:
            id_ = f"{n:09}"
            change = Change(session, meta(session, message_count=n), id_, (entry(id_, parent, "x" * 3000),))
            await store.commit(store.ahead(), change)
            print(session, id_, flush=True)
            parent, n = id_, n + 1
    await asyncio.gather(*[write(f"s{number}") for number in range(4)])

asyncio.run(run(Path(sys.argv[1]), int(sys.argv[2])))
"""


async def test_after_a_kill_everything_acknowledged_is_there_and_nothing_half(tmp_path: Path) -> None:
    acknowledged: set[tuple[str, str]] = set()
    for turn in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path), str(turn * 1000)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        for _ in range(30 + 7 * turn):
            session, id_ = writer.stdout.readline().split()
            acknowledged.add((session, id_))
        writer.kill()
        rest = writer.stdout.read().splitlines(keepends=True)
        acknowledged.update((line.split()[0], line.split()[1]) for line in rest if line.endswith("\n"))
        writer.wait()
        writer.stdout.close()
        async with opened(tmp_path) as store:
            for number in range(4):
                found = await kept(store, f"s{number}")
                assert {id_ for session, id_ in acknowledged if session == f"s{number}"} <= found.entries.keys()
                newest = max(found.entries)
                assert isinstance(found.meta, SessionMeta)
                assert (found.leaf, found.meta.message_count) == (newest, int(newest)), "an append is one"


async def test_many_sessions_at_once_take_few_descriptors(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with opened(tmp_path) as store:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 200, before[1]))
        try:
            await put(store, *(Change(f"s{n}", leaf="x") for n in range(1000)))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert len(await store.ids()) == 1000
