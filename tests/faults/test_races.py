"""Calls that race end as if they had come one after another."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest

from session_manager.errors import SessionManagerError
from session_manager.events import STORE_EVENTS
from session_manager.store import Session
from tests.faults.conftest import Figure
from tests.faults.load import user
from tests.stage import InProcess


async def listen(stage: InProcess) -> list[tuple[str, Any]]:
    """Every event in the order in which it was told: the feed is one lane per session."""
    heard: list[tuple[str, Any]] = []
    await stage.bind(STORE_EVENTS, {}, lambda envelope: heard.append((envelope["trigger_type"], envelope["payload"])))
    return heard


async def at_once(*calls: Any) -> list[Any]:
    return list(await asyncio.gather(*calls, return_exceptions=True))


async def test_50_ensures_of_one_id_make_one_session_and_one_event(stage: InProcess, figure: Figure) -> None:
    heard = await listen(stage)
    replies = await at_once(*(stage.call("session::ensure", {"session_id": "s", "title": str(n)}) for n in range(50)))
    await stage.settle()
    assert sum(reply["created"] for reply in replies) == 1
    assert len({str(reply["meta"]) for reply in replies}) == 1
    assert [kind for kind, _ in heard] == ["session::created"]
    figure("Races: ensure", "50 concurrent ensures of one id, on every store", "50", "one session, one created event")


async def test_20_appends_of_one_entry_id_make_one_entry_one_event_and_one_answer(
    stage: InProcess, figure: Figure
) -> None:
    heard = await listen(stage)
    await stage.call("session::ensure", {"session_id": "s"})
    replies = await at_once(
        *(
            stage.call("session::append", {"session_id": "s", "entry_id": "e", "message": user(str(n))})
            for n in range(20)
        )
    )
    await stage.settle()
    assert len({str(sorted(reply.items())) for reply in replies}) == 1
    assert (await stage.call("session::get", {"session_id": "s"}))["meta"]["message_count"] == 1
    assert [kind for kind, _ in heard] == ["session::created", "session::message-added"]
    figure("Races: append", "20 concurrent appends of one entry id", "20", "one entry, one event, the same reply")


async def test_of_two_updates_with_one_expected_revision_one_wins(stage: InProcess) -> None:
    await stage.call("session::ensure", {"session_id": "s"})
    await stage.call("session::append", {"session_id": "s", "entry_id": "e", "message": user("x")})
    for revision in range(10):
        replies = await at_once(
            *(
                stage.call(
                    "session::update-message",
                    {
                        "session_id": "s",
                        "entry_id": "e",
                        "content": [{"type": "text", "text": str(n)}],
                        "expected_revision": revision,
                    },
                )
                for n in range(2)
            )
        )
        assert sorted(str(reply) for reply in replies) == sorted(
            str({"updated": won, "revision": revision + 1}) for won in (True, False)
        )


async def test_an_append_that_races_a_delete_revives_nothing_and_leaves_no_orphan(
    stage: InProcess, figure: Figure
) -> None:
    heard = await listen(stage)
    for n in range(30):
        session = f"s{n}"
        await stage.call("session::ensure", {"session_id": session})
        calls = [stage.call("session::append", {"session_id": session, "message": user(str(m))}) for m in range(6)]
        calls.insert(n % 7, stage.call("session::delete", {"session_id": session}))
        results = await at_once(*calls)
        assert all(isinstance(result, dict) or "session/not_found" in str(result) for result in results)
        await stage.settle()
        kinds = [kind for kind, payload in heard if payload["session_id"] == session]
        assert kinds[-1] == "session::deleted"
        assert kinds.count("session::message-added") == sum(
            isinstance(result, dict) and "entry_id" in result for result in results
        )
        assert await stage.call("session::get", {"session_id": session}) is None
        assert await stage.store.entries(session) == []
        assert await stage.store.session(session) == Session()
    figure(
        "Races: delete",
        "6 appends and a delete of one session at once",
        "30 rounds",
        "no session revived, no orphan left, no event behind `deleted`",
    )


async def test_a_branch_switch_that_races_an_append_equals_one_of_the_two_orders(stage: InProcess) -> None:
    for n in range(20):
        session = f"s{n}"
        await stage.call("session::ensure", {"session_id": session})
        for id_ in ("a", "b", "c"):
            await stage.call("session::append", {"session_id": session, "entry_id": id_, "message": user(id_)})
        calls = [
            stage.call("session::set-active-leaf", {"session_id": session, "entry_id": "a"}),
            stage.call("session::append", {"session_id": session, "entry_id": "d", "message": user("d")}),
        ]
        _, appended = await at_once(*(calls if n % 2 else reversed(calls)))
        page = await stage.call("session::messages", {"session_id": session})
        path = [item["entry_id"] for item in page["messages"]]
        assert path in (["a", "d"], ["a"])
        if path == ["a"]:
            page = await stage.call("session::messages", {"session_id": session, "from_entry_id": "d"})
            assert [item["entry_id"] for item in page["messages"]] == ["a", "b", "c", "d"]
        assert isinstance(appended, dict)


@pytest.mark.parametrize("callers", [4])
async def test_400_appends_of_several_callers_are_one_chain(callers: int, stage: InProcess) -> None:
    await stage.call("session::ensure", {"session_id": "s"})

    async def caller(name: int) -> None:
        for n in range(100):
            await stage.call("session::append", {"session_id": "s", "message": user(f"{name}.{n}")})

    await asyncio.gather(*(caller(name) for name in range(callers)))
    page = await stage.call("session::messages", {"session_id": "s", "limit": 500})
    texts = [item["message"]["content"][0]["text"] for item in page["messages"]]
    assert sorted(texts) == sorted(f"{name}.{n}" for name in range(callers) for n in range(100))
    for name in range(callers):
        own = [text for text in texts if text.startswith(f"{name}.")]
        assert own == [f"{name}.{n}" for n in range(100)]


async def test_an_append_behind_an_update_in_flight_keeps_both(stage: InProcess) -> None:
    await stage.call("session::ensure", {"session_id": "s"})
    await stage.call("session::append", {"session_id": "s", "entry_id": "e", "message": user("0")})
    results = await at_once(
        *(
            stage.call(
                "session::update-message",
                {"session_id": "s", "entry_id": "e", "content": [{"type": "text", "text": str(n)}]},
            )
            if n % 2
            else stage.call("session::append", {"session_id": "s", "message": user(str(n))})
            for n in range(1, 41)
        )
    )
    assert not [result for result in results if isinstance(result, SessionManagerError)]
    entry = (await stage.call("session::get-message", {"session_id": "s", "entry_id": "e"}))["entry"]
    assert entry["revision"] == 20
    assert (await stage.call("session::get", {"session_id": "s"}))["meta"]["message_count"] == 21


async def test_events_of_updates_shuffled_and_doubled_still_end_in_what_is_stored(stage: InProcess) -> None:
    heard: list[dict[str, Any]] = []
    for kind in ("session::message-added", "session::message-updated"):
        await stage.bind(kind, {}, heard.append)
    await stage.call("session::ensure", {"session_id": "s"})
    await stage.call("session::append", {"session_id": "s", "entry_id": "e", "message": user("0")})
    await at_once(
        *(
            stage.call(
                "session::update-message", {"session_id": "s", "entry_id": "e", "content": user(str(n))["content"]}
            )
            for n in range(1, 201)
        )
    )
    await stage.settle()
    doubled = heard * 2
    random.Random(1).shuffle(doubled)
    believed = max(doubled, key=lambda event: event.get("revision", 0))
    entry = (await stage.call("session::get-message", {"session_id": "s", "entry_id": "e"}))["entry"]
    assert (believed["revision"], believed["message"]) == (entry["revision"], entry["message"]) == (200, user("200"))


async def test_a_list_read_while_sessions_are_deleted_repeats_none_and_skips_no_other(stage: InProcess) -> None:
    ids = [f"s{n:04}" for n in range(1200)]
    for start in range(0, len(ids), 200):
        await at_once(*(stage.call("session::ensure", {"session_id": id_}) for id_ in ids[start : start + 200]))
    doomed = set(ids[::3])
    for order in ("created_asc", "created_desc", "updated_desc"):
        going = iter([id_ for number, id_ in enumerate(sorted(doomed)) if number % 3 == len(order) % 3])
        seen: list[str] = []
        request: dict[str, Any] = {"order": order, "limit": 50}
        while True:
            page = await stage.call("session::list", request)
            seen += [meta["session_id"] for meta in page["sessions"]]
            await at_once(*(stage.call("session::delete", {"session_id": id_}) for id_ in itertools.islice(going, 12)))
            if "next_cursor" not in page:
                break
            request["cursor"] = page["next_cursor"]
        assert len(seen) == len(set(seen))
        assert set(ids) - doomed <= set(seen)
