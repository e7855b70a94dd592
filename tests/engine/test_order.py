"""Many appends to one session: every subscriber hears of each, in order, whatever the others do.

A worker that gets no answer within its patience goes on without it, so the order holds where an answer does not take
that long. In one process with the engine, the clients and the test it does now and then, for the threads of a process
take turns; the engine and the subscriber that counts are therefore processes of their own, as they are for users.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.dev.client import peer, unique
from tests.engine.conftest import Connect, Serve, user
from tests.engines import loopback_process, on_both_engines, real_engine
from tests.sdk import call
from tests.wire import clean_environment

APPENDS, AT_ONCE = 2000, 32

ATTEMPTS = 3
"""Other programs may take so much of the machine that an answer needs longer than the patience; not every time."""

CLIENTS = Path(__file__).parent / "clients"


async def append_many(client: Any, session_id: str) -> None:
    """APPENDS calls of `session::append`, AT_ONCE of them on their way at any time."""
    left = iter(range(APPENDS))

    async def some() -> None:
        for number in left:
            await client.trigger_async(
                {"function_id": "session::append", "payload": {"session_id": session_id, "message": user(f"{number}")}}
            )

    async def all_() -> None:
        await asyncio.gather(*[some() for _ in range(AT_ONCE)])

    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(all_(), client._loop))


async def path(client: Any, session_id: str) -> list[str]:
    """The ids of a session's entries, oldest first."""
    ids: list[str] = []
    asked: dict[str, Any] = {"session_id": session_id, "limit": 500}
    while True:
        page = await call(client, "session::messages", asked, timeout_ms=15_000)
        ids += [message["entry_id"] for message in page["messages"]]
        if "next_cursor" not in page:
            return ids
        asked["cursor"] = page["next_cursor"]


@pytest.fixture(scope="module", params=on_both_engines())
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An engine in a process of its own."""
    if request.param == "real":
        with real_engine() as running:
            yield running
    else:
        with loopback_process(tmp_path_factory.mktemp("engine") / "loopback") as engine:
            yield engine.url


class Listener:
    """A subscriber to the messages of a session, in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.heard: list[tuple[str, str]] = []

    async def listen(self, count: int) -> None:
        """Returns when it has heard of so many messages."""
        async with asyncio.timeout(60):
            while len(self.heard) < count:
                entry, parent = (await self._line()).split()
                self.heard.append((entry, parent))

    async def _line(self) -> str:
        assert self._process.stdout is not None
        line = (await self._process.stdout.readline()).decode()
        assert line, "the listener has ended"
        return line


@asynccontextmanager
async def listener(url: str, session_id: str) -> AsyncIterator[Listener]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(CLIENTS / "listener.py"), url, session_id, unique("listener-")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=clean_environment(),
    )
    try:
        made = Listener(process)
        assert (await made._line()).strip() == "bound"
        yield made
    finally:
        process.kill()
        await process.communicate()


@pytest.mark.parametrize("silent", [0, 20])
async def test_two_thousand_appends_are_told_in_order_and_none_is_missing(
    url: str, serve: Serve, connect: Connect, silent: int
) -> None:
    worker, client = serve(url), await connect(url)
    await worker.ready(client)
    async with peer(url) as mute:
        await mute.introduce(unique("mute-"))
        for _ in range(silent):
            function_id = unique("silent::")
            await mute.register(function_id)  # and never answers
            asked = {"trigger_type": "session::message-added", "function_id": function_id, "config": {}}
            await mute.call("engine::register_trigger", asked)
        for attempt in range(ATTEMPTS):
            if await in_order(url, client, f"s{attempt}"):
                break
        else:
            pytest.fail(f"not once in {ATTEMPTS} attempts were all events in order")
        assert len(mute.seen("invokefunction")) >= silent


async def in_order(url: str, client: Any, session_id: str) -> bool:
    """Whether a subscriber heard of all appends in their order; that it heard of each once is checked."""
    await call(client, "session::ensure", {"session_id": session_id})
    async with listener(url, session_id) as subscriber:
        await asyncio.gather(append_many(client, session_id), subscriber.listen(APPENDS))
    stored = await path(client, session_id)
    wanted = list(zip(stored, ["None", *stored], strict=False))
    assert sorted(subscriber.heard) == sorted(wanted)
    return subscriber.heard == wanted
