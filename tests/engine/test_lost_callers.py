"""Callers whose connections go away in the middle of a call: it is wholly done or not done at all."""

from __future__ import annotations

import asyncio
from typing import Any

from iii.iii import III

from tests.dev.client import eventually, unique
from tests.engine.conftest import QUICK, Connect, Serve, user
from tests.sdk import call, close_client, open_client

CALLERS = 25


async def lost(url: str, number: int) -> None:
    """A caller that sends three calls, each on a session of its own, and is gone some thousandths of a second later."""
    client = await open_client(url, unique("caller-"), reconnection_config=QUICK)
    try:
        await eventually(lambda: client.worker_id)
        batch = [user(f"{number}.{n}") for n in range(5)]
        calls = [
            asyncio.ensure_future(call(client, f"session::{function}", payload))
            for function, payload in (
                ("append", {"session_id": f"one-{number}", "message": user(str(number))}),
                ("append-many", {"session_id": f"many-{number}", "messages": batch}),
                ("fork", {"session_id": "origin", "entry_id": "c"}),
            )
        ]
        await asyncio.sleep(number % 10 / 1000)
    finally:
        await close_client(client)
    for one in calls:
        one.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def texts(client: III, session_id: str) -> list[str]:
    """Of the session's path, the record agreeing with it."""
    meta = (await call(client, "session::get", {"session_id": session_id}))["meta"]
    page: dict[str, Any] = await call(client, "session::messages", {"session_id": session_id})
    found = [item["message"]["content"][0]["text"] for item in page["messages"]]
    assert meta["message_count"] == len(found), session_id
    return found


async def test_calls_of_callers_that_are_gone_are_whole_or_absent(url: str, serve: Serve, connect: Connect) -> None:
    worker, client = serve(url), await connect(url)
    await worker.ready(client)
    await call(client, "session::ensure", {"session_id": "origin"})
    for id_ in ("a", "b", "c"):
        await call(client, "session::append", {"session_id": "origin", "entry_id": id_, "message": user(id_)})
    for number in range(CALLERS):
        for kind in ("one", "many"):
            await call(client, "session::ensure", {"session_id": f"{kind}-{number}"})
    await asyncio.gather(*(lost(url, number) for number in range(CALLERS)))
    stored = 0
    for number in range(CALLERS):
        before = await texts(client, f"one-{number}"), await texts(client, f"many-{number}")
        assert before[0] in ([], [str(number)])
        assert before[1] in ([], [f"{number}.{n}" for n in range(5)])
        stored += len(before[0]) + bool(before[1])
        for kind in ("one", "many"):
            await call(client, "session::append", {"session_id": f"{kind}-{number}", "message": user("next")})
            assert (await texts(client, f"{kind}-{number}"))[-1] == "next"
    assert stored, "some of the calls came before their callers were gone"
    forks = [
        meta["session_id"]
        for meta in (await call(client, "session::list", {"limit": 500}))["sessions"]
        if meta.get("forked_from") == "origin"
    ]
    assert len(forks) <= CALLERS
    for fork in forks:
        assert await texts(client, fork) == ["a", "b", "c"]
