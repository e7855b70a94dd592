"""Locks, descriptors, memory, threads and files return to where they were."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from pathlib import Path

import pytest

from session_manager.errors import Unready
from session_manager.store import EVERYTHING, Change
from session_manager.stores.sqlite import SqliteStore, files, records, writing
from session_manager.stores.sqlite import store as store_module
from tests.contract.scenario import until
from tests.faults.conftest import Figure
from tests.faults.load import service, user


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident() -> int:
    """Bytes of memory that the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def touch(path: Path, sessions: int) -> tuple[int, int]:
    """Uses so many sessions once each, 200 at a time; memory after a tenth of them, and in the end."""
    store = SqliteStore(path, "OFF")
    await store.open()
    to = service(store)

    async def one(n: int) -> None:
        await to.call("session::ensure", {"session_id": f"s{n}", "metadata": {"n": n}})
        await to.call("session::append", {"session_id": f"s{n}", "message": user("x" * 200)})
        await to.call("session::get", {"session_id": f"s{n}"})

    early = 0
    for start in range(0, sessions, 200):
        await asyncio.gather(*(one(n) for n in range(start, min(start + 200, sessions))))
        if not early and start >= sessions // 10:
            gc.collect()
            early = resident()
    gc.collect()
    late = resident()
    assert len(to._locks) == 0
    assert to._running == {}
    assert len(store._records) <= records.MOST
    assert store._commits._by_session == {}
    assert store._writing.writer is not None
    assert len(store._writing.writer._known) <= 10_000
    assert store._writing.writer._staged == {}
    await store.close()
    return early, late


async def test_sessions_touched_once_leave_nothing_behind(tmp_path: Path) -> None:
    await touch(tmp_path / "sessions.db", 2_000)


@pytest.mark.long
async def test_100000_sessions_touched_once_leave_nothing_behind(tmp_path: Path, figure: Figure) -> None:
    early, late = await touch(tmp_path / "sessions.db", 100_000)
    assert late - early < 64 << 20
    figure(
        "100,000 sessions",
        "each made, appended to and read once",
        "100,000",
        f"no lock left; caches at their bounds; memory {early >> 20} MB after a tenth, {late >> 20} MB at the end",
    )


async def open_and_close(path: Path, times: int) -> None:
    for n in range(times):
        store = SqliteStore(path)
        await store.open()
        await store.commit(store.ahead(), Change("s", leaf=str(n)))
        await store.session("s")
        await store.metas()
        await store.close()


async def test_a_store_that_cannot_be_opened_leaves_no_descriptor_and_no_thread(tmp_path: Path) -> None:
    holder = SqliteStore(tmp_path / "sessions.db")
    await holder.open()
    before, threads = descriptors(), threading.active_count()
    for _ in range(20):
        with pytest.raises(Unready):
            await SqliteStore(tmp_path / "sessions.db").open()
    await until(lambda: threading.active_count() <= threads)
    await until(lambda: descriptors() <= before)  # the holder may be making its log longer just now
    await holder.close()


@pytest.mark.parametrize("times", [40, pytest.param(1000, marks=pytest.mark.long)])
async def test_stores_opened_and_closed_leave_no_descriptor_and_no_thread(
    times: int, tmp_path: Path, figure: Figure
) -> None:
    await open_and_close(tmp_path / "sessions.db", 3)
    before = descriptors()
    threads = threading.active_count()
    await open_and_close(tmp_path / "sessions.db", times)
    await until(lambda: threading.active_count() <= threads)
    assert descriptors() <= before
    if times == 1000:
        figure("1,000 connections", "the store opened, used and closed", "1,000", "no descriptor and no thread left")


async def test_updates_of_a_streamed_reply_do_not_pile_up(tmp_path: Path, figure: Figure) -> None:
    store = SqliteStore(tmp_path / "sessions.db")
    await store.open()
    to = service(store)
    await to.call("session::ensure", {"session_id": "s"})
    await to.call("session::append", {"session_id": "s", "entry_id": "e", "message": user("")})
    for n in range(200):
        await to.call(
            "session::update-message",
            {"session_id": "s", "entry_id": "e", "content": [{"type": "text", "text": f"{n} " + "x" * 20_000}]},
        )
    await store.close()
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert size < 300_000
    figure("Streamed reply", "200 updates of one 20 KB message", "200", f"{size // 1000} KB on disk in the end")


async def test_room_that_was_freed_is_used_again(tmp_path: Path, figure: Figure) -> None:
    path = tmp_path / "sessions.db"
    store = SqliteStore(path, "OFF")
    await store.open()
    to = service(store)
    sizes = []
    for n in range(6):
        for m in range(20):
            await to.call("session::ensure", {"session_id": f"{n}.{m}"})
            messages = [user("x" * 5000)] * 20
            await to.call("session::append-many", {"session_id": f"{n}.{m}", "messages": messages})
        for m in range(20):
            await store.commit(store.ahead(), Change(f"{n}.{m}", drops=EVERYTHING))
        await store._writes.run(store._writing.empty_log)
        sizes.append(path.stat().st_size)
    await store.close()
    assert sizes[-1] <= sizes[0] * 1.1, sizes
    figure(
        "Deleted sessions",
        "20 sessions of 100 KB made and deleted, six times over",
        "6 rounds",
        f"the file stays at what it held at most ({sizes[0] >> 10} KB, then {sizes[-1] >> 10} KB)",
    )


async def test_the_log_returns_to_its_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Figure) -> None:
    monkeypatch.setattr(store_module, "IDLE", 0.05)
    store = SqliteStore(tmp_path / "sessions.db")
    await store.open()
    to = service(store)
    await to.call("session::ensure", {"session_id": "s"})
    log, largest = tmp_path / "sessions.db-wal", 0
    for _ in range(60):
        await to.call("session::append-many", {"session_id": "s", "messages": [user("x" * 50_000)] * 20})
        largest = max(largest, log.stat().st_size)
    await until(lambda: log.stat().st_size == files.LOG_BYTES)
    await store.close()
    assert largest < writing.MOST_LOG_BYTES + (16 << 20)
    figure(
        "Write-ahead log",
        "60 MB appended, then two seconds of rest",
        "60 batches",
        f"at most {largest >> 20} MB while writing, {files.LOG_BYTES / (1 << 20):.1f} MB at rest",
    )
