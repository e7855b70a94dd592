"""Kills the worker of an engine again and again, on one database: python -m tests.faults.served ENGINE DIRECTORY KILLS
SEED, where ENGINE is `loopback` or `real`.

The engine, the worker (`session-manager serve`) and its callers, which are here, are processes of their own. What the
callers were told is looked for through the worker that was started again. Prints what was seen as one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from iii.errors import InvocationError
from iii.iii import III

from session_manager.clock import RandomIds, SystemClock
from session_manager.doctor.check import check
from session_manager.errors import SessionManagerError
from tests.bridge.topology import Engine
from tests.contract.scenario import until
from tests.engines import loopback_process, real_engine_process
from tests.faults.load import LEAST, Look, Told, check_store, problems, run, titled
from tests.sdk import close_client, open_client
from tests.wire import WorkerProcess, worker_process

CONFIGURATION = {"adapter": {"name": "sqlite", "config": {"path": "sessions.db", "synchronous": "FULL"}}}


class Remote:
    """The worker, as a caller with the SDK has it. On the client's event loop."""

    def __init__(self, client: III) -> None:
        self._client = client

    async def call(self, function_id: str, payload: Any) -> Any:
        try:
            return await self._client.trigger_async(
                {"function_id": function_id, "payload": payload, "timeout_ms": 10_000}
            )
        except InvocationError as error:
            raise SessionManagerError(str(error)) from None

    async def look(self, session: str) -> Look:
        """The same as `load.look`, asked for over the wire."""
        got = await self.call("session::get", {"session_id": session})
        if got is None:
            return None
        path: list[Any] = []
        asked: dict[str, Any] = {"session_id": session, "limit": 500}
        while True:
            page = await self.call("session::messages", asked)
            path += page["messages"]
            if "next_cursor" not in page:
                break
            asked["cursor"] = page["next_cursor"]
        entries = (await self.call("session::store::list-entries", {"session_id": session}))["entries"]
        revisions = {entry["id"]: entry["revision"] for entry in entries}
        shown = [[item["message"]["content"][0]["text"], revisions[item["entry_id"]]] for item in path]
        meta = got["meta"]
        return [titled(meta["title"], meta.get("draft")), meta["status"], meta["message_count"], shown]


def engine(kind: str, directory: Path) -> AbstractContextManager[Engine]:
    return loopback_process(directory) if kind == "loopback" else real_engine_process()


class Callers:
    """Everybody who calls, over one connection."""

    def __init__(self, client: III) -> None:
        self._client, self._to, self.told = client, Remote(client), Told()

    async def here(self, work: Coroutine[Any, Any, Any]) -> Any:
        """On the client's event loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._client._loop))

    def say(self, what: dict[str, Any]) -> None:
        self.told.take([json.dumps(what).encode()])

    async def load(self, name: str, seed: int, over: threading.Event) -> None:
        await run(self._to, self.say, name, seed, over=over.is_set)

    async def look_for_what_was_told(self) -> list[str]:
        found = await problems(self._to.look, (), self.told, recent=True)
        self.told.recent.clear()
        return found


async def kill_again_and_again(
    worker: WorkerProcess, client: III, kills: int, moments: random.Random
) -> dict[str, Any]:
    callers, wrong, early = Callers(client), list[str](), 0
    await worker.ready(client)
    done = 0
    while done < kills and not wrong:
        over = threading.Event()
        loading = asyncio.ensure_future(callers.here(callers.load(f"r{done}", done, over)))
        await asyncio.sleep(0.1 + moments.uniform(0.0, 0.6))
        if done == 0:
            await until(lambda: callers.told.acknowledged > LEAST, 60)
        worker.kill()
        over.set()
        await loading  # each call that was on its way is answered, or fails
        worker.start()
        done += 1
        if moments.random() < 0.25 and done < kills:  # and once more, while it opens the database
            await asyncio.sleep(moments.uniform(0.2, 1.2))
            worker.kill()
            worker.start()
            done, early = done + 1, early + 1
        await worker.ready(client)
        wrong += await callers.here(callers.look_for_what_was_told())
    worker.kill()
    wrong += await check_store(worker.directory, "sqlite", callers.told)
    report = await check(f"sqlite:{worker.directory / 'sessions.db'}", SystemClock(), RandomIds())
    wrong += [f"{finding.kind}: {finding.text}" for finding in report.findings]
    return {"kills": done, "early": early, "acknowledged": callers.told.acknowledged, "problems": wrong[:5]}


async def main(kind: str, directory: Path, kills: int, seed: int) -> None:
    with (
        engine(kind, directory / "engine") as running,
        worker_process(running.url, directory / "worker", value=CONFIGURATION) as worker,
    ):
        client = await open_client(running.url, "callers")
        try:
            print(json.dumps(await kill_again_and_again(worker, client, kills, random.Random(seed))))
        finally:
            await close_client(client)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
