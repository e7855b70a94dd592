"""A worker's store on a failing disk: python -m tests.faults.disk KIND DIRECTORY CONTROL MODE.

It runs below the shim, and writes the control file that tells the shim what to do. Prints what was seen as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from session_manager import logs
from session_manager.errors import SessionManagerError
from session_manager.store import Change, Store
from tests.faults.load import look, service, store_in, user


class Disk:
    def __init__(self, control: Path) -> None:
        self._control = control

    def behaves(self, mode: str) -> None:
        self._control.write_text(mode.ljust(20) + "\n")


async def failing(store: Store, disk: Disk, mode: str) -> dict[str, Any]:
    to, seen = service(store), dict[str, Any]()
    await to.call("session::ensure", {"session_id": "s"})
    await to.call("session::append", {"session_id": "s", "message": user("before")})
    disk.behaves(mode)
    errors = []
    for function, payload in (
        ("append", {"session_id": "s", "message": user("during " + "x" * 100_000)}),
        ("append-many", {"session_id": "s", "messages": [user("during")] * 3}),
        ("set-meta", {"session_id": "s", "title": "during"}),
        ("create", {}),
        ("fork", {"session_id": "s", "entry_id": (await store.entries("s"))[0].id}),
        ("store::put-meta", {"meta": (await to.call("session::get", {"session_id": "s"}))["meta"]}),
    ):
        try:
            await to.call(f"session::{function}", payload)
        except SessionManagerError as error:
            errors.append(str(error))
        else:
            errors.append(f"{function} was answered")
    seen["errors"] = errors
    page = await to.call("session::messages", {"session_id": "s"})
    seen["read during"] = [item["message"]["content"][0]["text"] for item in page["messages"]]
    seen["listed during"] = len((await to.call("session::list", {}))["sessions"])
    disk.behaves("ok")
    await to.call("session::append", {"session_id": "s", "message": user("after")})
    seen["look"] = await look(store, "s")
    return seen


async def unsynced(store: Store, disk: Disk, mode: str) -> dict[str, Any]:
    """Changes alone, so that no reader has the database open."""
    await store.commit(store.ahead(), Change("s", leaf="before"))
    disk.behaves(mode)
    refused = 0
    for _ in range(3):
        try:
            await store.commit(store.ahead(), Change("s", leaf="during"))
        except SessionManagerError:
            refused += 1
    disk.behaves("ok")
    leaf = (await store.session("s")).leaf
    await store.commit(store.ahead(), Change("other", leaf="after"))
    return {"refused": refused, "leaves": [leaf, (await store.session("s")).leaf, (await store.session("other")).leaf]}


async def slow(store: Store, disk: Disk, mode: str) -> dict[str, Any]:
    to = service(store)
    for session in ("s", "other"):
        await to.call("session::ensure", {"session_id": session})
        await to.call("session::append", {"session_id": session, "message": user("before")})
    disk.behaves(mode)
    started = time.perf_counter()
    writes = [
        asyncio.create_task(to.call("session::append", {"session_id": "s", "message": user(str(n))})) for n in range(8)
    ]
    later = [asyncio.create_task(_after(0.05 * n, to)) for n in range(8)]
    reads: list[float] = []
    while not all(task.done() for task in (*writes, *later)):
        for function in ("messages", "get", "list"):
            begun = time.perf_counter()
            await to.call(f"session::{function}", {} if function == "list" else {"session_id": "other"})
            reads.append(time.perf_counter() - begun)
        await asyncio.sleep(0.002)
    took = time.perf_counter() - started
    await asyncio.gather(*writes, *later)
    reads.sort()
    return {"writes": took, "reads": len(reads), "median": reads[len(reads) // 2], "p99": reads[len(reads) * 99 // 100]}


async def _after(seconds: float, to: Any) -> None:
    await asyncio.sleep(seconds)
    await to.call("session::append", {"session_id": "s", "message": user("late")})


async def main(kind: str, directory: Path, control: Path, mode: str) -> None:
    disk = Disk(control)
    disk.behaves("ok")
    store = store_in(directory, kind)
    await store.open()
    work = {"slow": slow, "flaky": unsynced}.get(mode.split()[0], failing)
    seen = await work(store, disk, mode)
    disk.behaves("ok")
    await store.close()
    if work is failing:
        store = store_in(directory, kind)
        await store.open()
        seen["reopened"] = await look(store, "s")
        seen["sessions"] = len(await store.metas())
        await store.close()
    print(json.dumps(seen))


if __name__ == "__main__":
    logs.configure("error")
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]))
