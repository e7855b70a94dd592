"""A disk that is full, read-only, closed to the worker, broken, slow or gone costs the call, and nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from session_manager.errors import StorageError
from session_manager.stores.sqlite import SqliteStore
from tests.faults import shim
from tests.faults.conftest import Figure
from tests.faults.load import look, service, store_in, user


def on_a_disk(kind: str, tmp_path: Path, library: Path, mode: str) -> dict[str, Any]:
    directory, control = tmp_path / "data", tmp_path / "control"
    directory.mkdir()
    control.touch()
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.disk", kind, str(directory), str(control), mode],
        env=shim.environment(library, directory, control=control),
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


@pytest.mark.parametrize("kind", ["sqlite", "fs"])
@pytest.mark.parametrize("mode", ["full", "readonly", "denied", "io"])
def test_a_failing_disk_costs_the_call_and_nothing_else(
    mode: str, kind: str, tmp_path: Path, library: Path, figure: Figure
) -> None:
    seen = on_a_disk(kind, tmp_path, library, mode)
    assert [error.split(":")[0] for error in seen["errors"]] == ["session/storage"] * len(seen["errors"])
    assert seen["read during"] == ["before"]
    assert seen["listed during"] == 1
    assert seen["look"] == ["", "idle", 2, [["before", 0], ["after", 0]]]
    assert seen["reopened"] == seen["look"]
    assert seen["sessions"] == 1
    names = {
        "full": "Disk full",
        "readonly": "Disk read-only",
        "denied": "Permission denied",
        "io": "Disk broken (EIO)",
    }
    figure(
        names[mode] + (", fs store" if kind == "fs" else ""),
        "the file system calls of the running worker fail from one moment on",
        f"{len(seen['errors'])} kinds of writes",
        "each `session/storage`; reads go on; writes succeed once the disk is back, nothing lost or half done",
    )


@pytest.mark.parametrize("kind", ["sqlite", "fs"])
def test_a_change_whose_sync_failed_is_not_found_later(
    kind: str, tmp_path: Path, library: Path, figure: Figure
) -> None:
    seen = on_a_disk(kind, tmp_path, library, "flaky 100")
    assert seen == {"refused": 3, "leaves": ["before", "before", "after"]}
    figure(
        "Disk broken (EIO when synced)" + (", fs store" if kind == "fs" else ""),
        "the data is written, and every sync of it fails",
        "3 changes",
        "each `session/storage`, and not there afterwards",
    )


@pytest.mark.parametrize("kind", ["sqlite", "fs"])
def test_reads_do_not_wait_for_slow_commits(kind: str, tmp_path: Path, library: Path, figure: Figure) -> None:
    """A sync takes longer than a busy machine keeps a process from its turn."""
    seen = on_a_disk(kind, tmp_path, library, "slow 500")
    assert seen["writes"] > 0.9, "the commits were not slowed down"
    assert seen["reads"] > 20
    assert seen["p99"] < 0.45, seen
    figure(
        "Disk slow" if kind == "sqlite" else "Disk slow, fs store",
        "every fsync takes half a second",
        f"{seen['reads']} reads during {seen['writes']:.1f} s of commits",
        f"median read {seen['median'] * 1000:.1f} ms, 99th percentile {seen['p99'] * 1000:.0f} ms",
    )


@pytest.mark.parametrize("kind", ["sqlite", "fs"])
async def test_a_directory_that_goes_and_comes_back_costs_only_the_calls_meanwhile(
    kind: str, tmp_path: Path, figure: Figure
) -> None:
    there, away = tmp_path / "data", tmp_path / "away"
    store = store_in(there, kind)
    await store.open()
    to = service(store)
    await to.call("session::ensure", {"session_id": "s"})
    await to.call("session::append", {"session_id": "s", "message": user("before")})
    there.rename(away)
    for _ in range(2):
        with pytest.raises(StorageError):
            await to.call("session::append", {"session_id": "s", "message": user("during")})
        if kind == "sqlite":  # the other one has it in memory
            with pytest.raises(StorageError):
                await to.call("session::messages", {"session_id": "s"})
    assert not there.exists(), "a worker makes no new store where it lost one"
    there.mkdir()
    for _ in range(2):
        with pytest.raises(StorageError):
            await to.call("session::create", {})
    shutil.rmtree(there)
    away.rename(there)
    if kind == "sqlite":  # its lock was taken in the directory that stood in for it
        with pytest.raises(StorageError, match="lock file"):
            await to.call("session::create", {})
    await to.call("session::append", {"session_id": "s", "message": user("after")})
    assert await look(store, "s") == ["", "idle", 2, [["before", 0], ["after", 0]]]
    await store.close()
    figure(
        "Disk removed" if kind == "sqlite" else "Disk removed, fs store",
        "the data directory is moved away under the running worker, another one put in its place, and moved back",
        "6 calls meanwhile" if kind == "sqlite" else "4 calls meanwhile",
        "each `session/storage`, none acknowledged into the void; works again without a restart",
    )


@pytest.mark.parametrize("kind", ["sqlite", "fs"])
async def test_a_lock_file_that_is_removed_lets_no_second_process_in_unseen(kind: str, tmp_path: Path) -> None:
    store, other = store_in(tmp_path, kind), store_in(tmp_path, kind)
    await store.open()
    to = service(store)
    await to.call("session::ensure", {"session_id": "s"})
    (lock,) = tmp_path.glob("*.lock")
    lock.unlink()
    with pytest.raises(StorageError, match="lock file"):
        await to.call("session::append", {"session_id": "s", "message": user("1")})
    await to.call("session::append", {"session_id": "s", "message": user("2")})  # it is held again
    with pytest.raises(StorageError, match="in use"):
        await other.open()
    lock.unlink()
    other = store_in(tmp_path, kind)
    await other.open()
    for _ in range(2):
        with pytest.raises(StorageError, match="in use"):
            await to.call("session::append", {"session_id": "s", "message": user("3")})
    await service(other).call("session::append", {"session_id": "s", "message": user("4")})
    await other.close()
    await store.close()
    store = store_in(tmp_path, kind)
    await store.open()
    assert await look(store, "s") == ["", "idle", 2, [["2", 0], ["4", 0]]]
    await store.close()


@pytest.mark.parametrize("name", ["sessions.db-wal", "sessions.db-shm", "sessions.db-*"])
async def test_a_log_removed_under_the_worker_takes_nothing_with_it(name: str, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "sessions.db")
    await store.open()
    to = service(store)
    await to.call("session::ensure", {"session_id": "s"})
    await to.call("session::append", {"session_id": "s", "message": user("before")})
    await to.call("session::messages", {"session_id": "s"})
    for path in tmp_path.glob(name):
        path.unlink()
    answered = ["before"]
    for text in ("1", "2", "3"):
        try:
            await to.call("session::append", {"session_id": "s", "message": user(text)})
        except StorageError:
            continue
        answered.append(text)
    assert len(answered) > 1
    assert [text for text, _ in (await look(store, "s") or [])[3]] == answered
    await store.close()
    again = SqliteStore(tmp_path / "sessions.db")
    await again.open()
    assert [text for text, _ in (await look(again, "s") or [])[3]] == answered
    await again.close()


async def test_another_file_in_place_of_the_database_is_not_written_on_unseen(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    store = SqliteStore(path)
    await store.open()
    to = service(store)
    await to.call("session::ensure", {"session_id": "s"})
    path.rename(tmp_path / "old.db")
    path.write_bytes(b"")
    with pytest.raises(StorageError):
        await to.call("session::append", {"session_id": "s", "message": user("x")})
    await store.close()
