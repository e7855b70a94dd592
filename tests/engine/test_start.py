"""How soon a worker is there, and in how much memory, does not depend on what it keeps."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

import pytest
from iii.errors import InvocationError
from iii.iii import III

from session_manager.model import Entry, SessionMeta, encode
from session_manager.store import Change
from session_manager.stores.sqlite import SqliteStore
from tests.engine.conftest import Connect, Serve
from tests.sdk import call
from tests.wire import WorkerProcess

SESSIONS, ENTRIES = 100_000, 5
STARTS = 5


async def _fill(path: Path) -> None:
    """A database of many sessions, as a worker would have written it."""
    store = SqliteStore(path, "OFF")
    await store.open()
    body = encode({"role": "user", "content": [{"type": "text", "text": "x" * 200}], "timestamp": 1})
    for first in range(0, SESSIONS, 500):
        changes = [_conversation(number, body) for number in range(first, first + 500)]
        await asyncio.gather(*(store.commit(store.ahead(), change) for change in changes))
    await store.close()


def _conversation(number: int, body: bytes) -> Change:
    id_, at = f"s_{number:032x}", 1767225600000 + number
    ids = [f"e_{number:016x}{place:016x}" for place in range(ENTRIES)]
    entries = tuple(
        Entry(entry, parent, at, "user", body) for entry, parent in zip(ids, [None, *ids[:-1]], strict=True)
    )
    meta = SessionMeta(id_, f"Session {number}", "", "idle", at, at, ENTRIES, metadata={"owner": f"u{number % 100}"})
    return Change(id_, meta, ids[-1], entries, fresh=True)


async def _start(client: III, worker: WorkerProcess) -> float:
    """Starts the worker; seconds until it has answered from the disk."""
    began = time.monotonic()
    worker.start()
    while True:
        try:
            await call(client, "session::list", {"limit": 50})
        except InvocationError as error:
            if error.code != "function_not_found":
                raise
            await asyncio.sleep(0.005)
        else:
            return time.monotonic() - began


def _resident(worker: WorkerProcess) -> float:
    """The most memory that the process had at a time, in MB."""
    assert worker.process is not None
    status = Path(f"/proc/{worker.process.pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


@pytest.mark.long
async def test_with_100_000_sessions_on_disk_it_is_there_as_soon_as_with_none(
    url: str, serve: Serve, connect: Connect, tmp_path: Path
) -> None:
    await _fill(tmp_path / "many" / "sessions.db")
    client = await connect(url)
    workers: dict[str, WorkerProcess] = {}
    for kind in ("none", "many"):  # the first start is not counted: it finds nothing in the disk's cache
        workers[kind] = serve(url, directory=kind)
        await workers[kind].ready(client)
        page = await call(client, "session::list", {"limit": 50})
        assert len(page["sessions"]) == (50 if kind == "many" else 0)
        assert workers[kind].stop() == 0
    took: dict[str, list[float]] = {kind: [] for kind in workers}
    memory: dict[str, float] = {}
    for _ in range(STARTS):
        for kind, worker in workers.items():
            took[kind].append(await _start(client, worker))
            memory[kind] = _resident(worker)
            assert worker.stop() == 0
    for kind, times in took.items():
        print(f"{kind}: {statistics.median(times):.2f} s until the first answer (median), {memory[kind]:.0f} MB")
    # The quickest of each: other programs spoil some starts.
    assert min(took["many"]) < min(took["none"]) + 0.3
    assert memory["many"] < min(150, memory["none"] + 30)
