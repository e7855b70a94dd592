"""A database belongs to one process: the second one refuses, and says who has it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from session_manager.errors import StorageError
from session_manager.stores.sqlite import SqliteStore
from tests.contract.scenario import until
from tests.faults.conftest import Figure
from tests.faults.load import service, user

HOLD = """
import asyncio, sys
from pathlib import Path
from session_manager.stores.sqlite import SqliteStore
async def main():
    store = SqliteStore(Path(sys.argv[1]))
    await store.open()
    print("open", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def holder(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


@pytest.mark.parametrize("through", ["the same path", "a link"])
async def test_a_second_process_refuses_and_says_who_holds_the_database(
    through: str, tmp_path: Path, figure: Figure
) -> None:
    path = tmp_path / "sessions.db"
    process = holder(path)
    other = path
    if through == "a link":
        other = tmp_path / "link.db"
        other.symlink_to(path)
    try:
        for _ in range(20):
            with pytest.raises(StorageError, match=rf"in use by another process \(pid {process.pid}\)"):
                await SqliteStore(other).open()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    store = SqliteStore(other)
    await store.open()  # the kernel has taken the right back from the one that was killed
    await service(store).call("session::ensure", {"session_id": "s"})
    await store.close()
    if through == "a link":
        figure(
            "Two processes on one file",
            "a second process opens the database of a running one, also through a symbolic link",
            "40 attempts",
            "refused each time, naming the holder's process id; free at once when the holder is killed",
        )


async def test_of_many_that_start_at_once_one_gets_the_database(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    stores = [SqliteStore(path) for _ in range(12)]
    opened = await asyncio.gather(*(store.open() for store in stores), return_exceptions=True)
    assert sum(result is None for result in opened) == 1
    assert all("in use" in str(result) for result in opened if result is not None)
    to = service(stores[opened.index(None)])
    await to.call("session::ensure", {"session_id": "s"})
    await asyncio.gather(
        *(to.call("session::append", {"session_id": "s", "message": user(str(n))}) for n in range(100))
    )
    assert len((await to.call("session::messages", {"session_id": "s", "limit": 500}))["messages"]) == 100
    for store in stores:
        await store.close()


async def test_a_refused_one_disturbs_nothing_of_the_holder(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    store = SqliteStore(path)
    await store.open()
    to = service(store)
    await to.call("session::ensure", {"session_id": "s"})
    await until((tmp_path / "sessions.db.mark").exists)  # it is made a moment after the answer
    before = {entry.name: os.stat(entry).st_ino for entry in tmp_path.iterdir()}
    with pytest.raises(StorageError):
        await SqliteStore(path).open()
    assert {entry.name: os.stat(entry).st_ino for entry in tmp_path.iterdir()} == before
    await to.call("session::append", {"session_id": "s", "message": user("x")})
    await store.close()
