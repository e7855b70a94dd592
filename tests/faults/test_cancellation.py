"""A caller that goes away in the middle of a call leaves it wholly done or not done at all."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from session_manager.locks import SessionLocks
from tests.faults.conftest import Figure
from tests.faults.load import user
from tests.stage import InProcess


async def cut_off(call: Any, after: int) -> bool:
    """Runs a call for so many turns of the event loop, then cancels it; whether it was answered before."""
    task: asyncio.Future[Any] = asyncio.ensure_future(call)
    for _ in range(after):
        if task.done():
            break
        await asyncio.sleep(0)
    answered = task.done()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return answered


async def shows(stage: InProcess, session: str) -> tuple[int, list[str]]:
    """The count and the texts of a session, its record and its path agreeing."""
    meta = (await stage.call("session::get", {"session_id": session}))["meta"]
    page = await stage.call("session::messages", {"session_id": session, "limit": 500})
    texts = [item["message"]["content"][0]["text"] for item in page["messages"]]
    assert meta["message_count"] == len(texts), "half of a call was stored"
    return meta["message_count"], texts


async def test_an_append_cut_off_at_any_point_is_whole_or_absent(stage: InProcess, figure: Figure) -> None:
    told: list[str] = []
    await stage.bind("session::message-added", {}, lambda event: told.append(event["message"]["content"][0]["text"]))
    await stage.call("session::ensure", {"session_id": "s"})
    texts: list[str] = []
    rounds = stored = 0
    for after in [*range(25), *range(25)]:
        rounds += 1
        text = f"cut {rounds}"
        answered = await cut_off(stage.call("session::append", {"session_id": "s", "message": user(text)}), after)
        await stage.call("session::append", {"session_id": "s", "message": user(f"next {rounds}")})
        _, seen = await shows(stage, "s")
        assert seen[: len(texts)] == texts
        assert seen[len(texts) :] in ([f"next {rounds}"], [text, f"next {rounds}"])
        assert text in seen or not answered
        stored += text in seen
        texts = seen
    assert 0 < stored < rounds, "the points of cancellation lie on both sides of the commit"
    await stage.settle()
    assert told == texts, "what is stored is told, whether or not anybody waited for it"
    figure(
        "Cancellation",
        "append, append-many and fork cancelled after 0 to 24 turns of the event loop, on every store",
        "50 + 50 + 50",
        "each wholly stored or wholly absent; the next call on the session works",
    )


async def test_a_batch_cut_off_at_any_point_is_whole_or_absent(stage: InProcess) -> None:
    await stage.call("session::ensure", {"session_id": "s"})
    texts: list[str] = []
    for after in [*range(25), *range(25)]:
        batch = [f"{len(texts)} {after} {n}" for n in range(5)]
        messages = [user(text) for text in batch]
        await cut_off(stage.call("session::append-many", {"session_id": "s", "messages": messages}), after)
        await stage.call("session::append", {"session_id": "s", "message": user("next")})
        _, seen = await shows(stage, "s")
        assert seen in ([*texts, "next"], [*texts, *batch, "next"])
        texts = seen


async def test_a_fork_cut_off_at_any_point_is_whole_or_absent(stage: InProcess) -> None:
    await stage.call("session::ensure", {"session_id": "s"})
    for id_ in ("a", "b", "c"):
        await stage.call("session::append", {"session_id": "s", "entry_id": id_, "message": user(id_)})
    known = {"s"}
    for after in [*range(25), *range(25)]:
        await cut_off(stage.call("session::fork", {"session_id": "s", "entry_id": "c"}), after)
        await stage.call("session::set-meta", {"session_id": "s", "title": "next"})
        listed = await stage.call("session::list", {"limit": 500})
        for session in {meta["session_id"] for meta in listed["sessions"]} - known:
            known.add(session)
            assert await shows(stage, session) == (3, ["a", "b", "c"])


async def test_a_cancelled_waiter_passes_its_turn_on(stage: InProcess) -> None:
    await stage.call("session::ensure", {"session_id": "s"})
    tasks = [
        asyncio.ensure_future(stage.call("session::append", {"session_id": "s", "message": user(str(n))}))
        for n in range(40)
    ]
    await asyncio.sleep(0)
    for task in tasks[1::2]:
        task.cancel()
    done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
    assert all(isinstance(result, dict) for result in done[::2])
    count, texts = await shows(stage, "s")
    assert [text for text in texts if int(text) % 2 == 0] == [str(n) for n in range(0, 40, 2)]
    assert count >= 20


async def test_a_waiter_cancelled_in_the_moment_of_its_turn_passes_it_on() -> None:
    locks = SessionLocks()
    done: list[str] = []

    async def hold(name: str) -> None:
        async with locks.hold("s"):
            done.append(name)

    first = locks.hold("s")
    await first.__aenter__()
    second, third = asyncio.ensure_future(hold("second")), asyncio.ensure_future(hold("third"))
    await asyncio.sleep(0)
    await first.__aexit__(None, None, None)  # the second one has its turn now, and is not yet running
    second.cancel()
    await asyncio.wait_for(third, 60)
    assert done == ["third"]
    assert len(locks) == 0
