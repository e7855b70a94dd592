"""How many statements a call costs, and how many transactions calls at the same time."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from session_manager.stores.sqlite import SqliteStore, paths
from session_manager.stores.sqlite.runs import LENGTH
from tests.contract.scenario import until
from tests.perf.watch import ALONE, Watched, user, verbs


async def test_an_append_alone_is_one_statement(watched: Watched) -> None:
    session, _ = await watched.session(entries=3)
    await watched.call("session::append", {"session_id": session, "message": user()})
    with watched.statements() as seen:
        await watched.call("session::append", {"session_id": session, "message": user()})
    assert verbs(seen) == ["INSERT"], seen


async def test_appends_beside_an_append_are_one_transaction_of_few_statements(watched: Watched) -> None:
    sessions = [(await watched.session(entries=3))[0] for _ in range(3)]
    append = [{"session_id": session, "message": user()} for session in sessions]
    with watched.statements() as seen:
        await asyncio.gather(*(watched.call("session::append", payload) for payload in append))
    assert verbs(seen)[:2] == ["INSERT", "BEGIN"], "the first finds nobody else"
    assert verbs(seen)[-1] == "COMMIT"
    assert len(seen) <= 1 + 8, seen


async def test_an_append_under_a_named_parent_reads_two_rows_more(watched: Watched) -> None:
    session, ids = await watched.session(entries=3)
    append = {"session_id": session, "message": user(), "parent_id": ids[-1]}
    with watched.statements() as seen:
        await watched.call("session::append", append)
    assert len(seen) <= 12, seen


async def test_appends_at_the_same_time_share_a_transaction(watched: Watched) -> None:
    sessions = [(await watched.session(entries=1))[0] for _ in range(64)]
    with watched.statements() as seen:
        await asyncio.gather(
            *(watched.call("session::append", {"session_id": session, "message": user()}) for session in sessions)
        )
    assert verbs(seen).count("INSERT") == 64
    assert verbs(seen).count("BEGIN") <= 4, "each call paid for a commit of its own"


async def test_a_batch_costs_its_rows_and_little_else(watched: Watched) -> None:
    session, _ = await watched.session()
    with watched.statements() as seen:
        await watched.call("session::append-many", {"session_id": session, "messages": [user()] * 1000})
    assert verbs(seen).count("INSERT") <= 1000 / LENGTH + 3, "the rows went in one by one"
    assert len([verb for verb in verbs(seen) if verb != "INSERT"]) <= 16, verbs(seen)


async def test_an_update_of_a_streamed_reply_replaces_one_row(watched: Watched) -> None:
    session, ids = await watched.session(entries=1)
    update = {"session_id": session, "entry_id": ids[0], "content": user("more")["content"]}
    await watched.call("session::update-message", update)
    with watched.statements() as seen:
        for _ in range(20):
            await watched.call("session::update-message", update)
    assert verbs(seen) == ["SELECT", "INSERT"] * 20, seen[:10]
    assert all(alone.startswith(ALONE) for alone in seen[1::2])


async def test_a_page_is_one_snapshot_of_few_statements(watched: Watched) -> None:
    session, ids = await watched.session(entries=300)
    page = {"session_id": session, "limit": 50, "after_entry_id": ids[100]}
    await watched.call("session::messages", page)
    with watched.statements() as seen:
        reply = await watched.call("session::messages", page)
    assert len(reply["messages"]) == 50
    assert len(seen) <= 8, seen


async def test_what_is_read_again_and_again_is_not_read_from_disk(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "PATIENCE", 2)
    session, ids = await watched.session(entries=300)
    page = {"session_id": session, "limit": 50, "after_entry_id": ids[100]}
    from_disk = await watched.call("session::messages", page)
    await watched.call("session::messages", page)
    await until(lambda: session in watched.service.runtime.store._paths)  # type: ignore[attr-defined]
    await watched.call("session::append", {"session_id": session, "message": user()})
    with watched.statements() as seen:
        assert await watched.call("session::messages", page) == from_disk
        assert (await watched.call("session::get-message", {"session_id": session, "entry_id": ids[0]}))["entry"]
    assert seen == []
    with watched.statements() as seen:
        update = {"session_id": session, "entry_id": ids[0], "content": user("more")["content"]}
        await watched.call("session::update-message", update)
    assert verbs(seen)[0] == "BEGIN", "an update read what is at hand"


async def test_a_list_is_one_snapshot_of_few_statements(watched: Watched) -> None:
    for number in range(60):
        await watched.session(metadata={"owner": f"u{number % 3}", "app": "a"})
    for query in ({}, {"status": "idle"}, {"metadata": {"owner": "u1"}}, {"order": "created_asc"}):
        await watched.call("session::list", query)
        with watched.statements() as seen:
            await watched.call("session::list", query)
        assert len(seen) <= 7, (query, seen)


async def test_a_record_at_hand_is_not_read_again(watched: Watched) -> None:
    session, _ = await watched.session(entries=1)
    with watched.statements() as seen:
        await watched.call("session::get", {"session_id": session})
        await watched.call("session::ensure", {"session_id": session})
    assert seen == []


async def test_a_record_from_the_disk_is_one_statement(watched: Watched) -> None:
    session, _ = await watched.session(entries=1)
    await watched.restart()
    await watched.call("session::get", {"session_id": "another"})
    with watched.statements() as seen:
        assert await watched.call("session::get", {"session_id": session}) is not None
    assert len(seen) == 1, seen


async def test_opening_a_file_again_takes_one_connection_and_no_sync(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    await watched.session(entries=3)
    await watched.store.close()
    connected, synced = list[Any](), list[int]()
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def seen(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connected.append(args)
        return connect(*args, **kwargs)

    monkeypatch.setattr(sqlite3, "connect", seen)
    monkeypatch.setattr(os, "fsync", synced.append)
    again = SqliteStore(watched.file)
    await again.open()
    assert (len(connected), synced) == (1, [])
    await again.close()


async def test_a_fork_of_a_short_path_inserts_what_it_copies_in_one_transaction(watched: Watched) -> None:
    session, ids = await watched.session(entries=60)
    with watched.statements() as seen:
        await watched.call("session::fork", {"session_id": session, "entry_id": ids[-1]})
    assert verbs(seen).count("BEGIN") <= 3, "two to read, one to write"
    assert len(seen) <= 60 + 25, verbs(seen)


async def test_a_fork_of_a_long_path_is_a_few_statements(watched: Watched) -> None:
    session, ids = await watched.session(entries=1_000)
    with watched.statements() as seen:
        await watched.call("session::fork", {"session_id": session, "entry_id": ids[-1]})
    assert len(seen) <= 25, verbs(seen)
    assert not any("INSERT INTO entry " in statement for statement in seen)


async def test_a_page_of_a_fork_reads_a_few_rows_more_than_one_of_its_source(watched: Watched) -> None:
    session, ids = await watched.session(entries=1_000)
    fork = await watched.call("session::fork", {"session_id": session, "entry_id": ids[-1]})
    counts = []
    for session_id in (session, fork["session_id"]):
        with watched.statements() as seen:
            reply = await watched.call("session::messages", {"session_id": session_id, "limit": 50})
        assert len(reply["messages"]) == 50
        counts.append(len(seen))
    assert counts[1] <= counts[0] + 4, counts


async def test_updates_of_what_forks_share_give_them_their_own_once(watched: Watched) -> None:
    session, ids = await watched.session(entries=300)
    for _ in range(10):
        await watched.call("session::fork", {"session_id": session, "entry_id": ids[-1]})
    update = {"session_id": session, "entry_id": ids[-1], "content": []}
    counts = []
    for _ in range(3):
        with watched.statements() as seen:
            await watched.call("session::update-message", update)
        counts.append(sum("INSERT INTO entry" in statement for statement in seen))
    assert counts == [10, 0, 0]
    assert len(seen) <= 12, verbs(seen)
