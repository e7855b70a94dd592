"""Many appends to one session: every subscriber hears of each, in order, whatever the others do.

A worker that gets no answer within its patience goes on without it, so the order holds on a machine that is not starved
of CPU; the loopback engine, which shuffles harder than the real one, is therefore left to the long tests.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.dev.client import eventually, peer, unique
from tests.engine.conftest import REAL_OR_LONG, Connect, Serve, Sink, user
from tests.sdk import call

APPENDS, AT_ONCE = 2000, 32


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


@pytest.mark.parametrize("url", REAL_OR_LONG, indirect=True)
@pytest.mark.parametrize("silent", [0, 20])
async def test_two_thousand_appends_are_told_in_order_and_none_is_missing(
    url: str, serve: Serve, connect: Connect, silent: int
) -> None:
    worker, client, subscriber = serve(url), await connect(url), await connect(url)
    await worker.ready(client)
    await call(client, "session::ensure", {"session_id": "s"})
    async with peer(url) as mute:
        await mute.introduce(unique("mute-"))
        for _ in range(silent):
            function_id = unique("silent::")
            await mute.register(function_id)  # and never answers
            asked = {"trigger_type": "session::message-added", "function_id": function_id, "config": {}}
            await mute.call("engine::register_trigger", asked)
        sink = Sink(subscriber)
        await sink.bind_by_function({"session_id": "s"})
        await append_many(client, "s")
        await eventually(lambda: len(sink.events) >= APPENDS, 30)
        assert len(mute.seen("invokefunction")) >= silent
    heard = [event["entry_id"] for event in sink.events]
    assert heard == await path(client, "s")
    for before, after in zip(sink.events, sink.events[1:], strict=False):
        assert after["parent_id"] == before["entry_id"]
