"""An id is any text, compared byte for byte; none leads out of the data directory, and no two share a place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from session_manager.errors import SessionManagerError, StorageError
from tests.faults.conftest import Figure
from tests.faults.load import user
from tests.stage import InProcess

IDS = [
    "../x", "../../etc/passwd", "/etc/passwd", "a/b", "a\\b", ".", "..", "...", " ", "  ", "\n", "a\0b", "a\0", "a",
    "A", "\u00e9", "e\u0301", "%2e", "%2E", "%00", "CON", "nul", "-", "--help", "~", "~root", "$HOME", "`id`", "a'b",
    'a"b', "a;DROP TABLE entry;--", "*", "?", "\U0001f600", "\u202e", "s_" + "0" * 32, "x" * 200, "x" * 201, "ﬀ", "ff",
    "ß", "SS", "İ", "i", "a.jsonl", "sessions.db", "a ", " a",
]  # fmt: skip


async def test_every_id_has_a_place_of_its_own_inside_the_data_directory(
    stage: InProcess, tmp_path: Path, figure: Figure
) -> None:
    outside = tmp_path.parent
    before = {path for path in outside.iterdir() if path != tmp_path}
    taken: list[str] = []
    for id_ in IDS:
        reply = await stage.call("session::ensure", {"session_id": id_, "title": repr(id_)})
        assert reply["created"], id_
        taken.append(id_)
        await stage.call("session::append", {"session_id": id_, "entry_id": id_, "message": user(repr(id_))})
    for id_ in taken:
        meta = (await stage.call("session::get", {"session_id": id_}))["meta"]
        assert (meta["session_id"], meta["title"], meta["message_count"]) == (id_, repr(id_), 1)
        page = await stage.call("session::messages", {"session_id": id_})
        assert page["messages"] == [{"entry_id": id_, "message": user(repr(id_))}]
    listed = await stage.call("session::list", {"limit": 500})
    assert sorted(meta["session_id"] for meta in listed["sessions"]) == sorted(taken)
    assert {path for path in outside.iterdir() if path != tmp_path} == before
    assert not any(os.path.islink(path) for path in tmp_path.rglob("*"))
    for id_ in taken:
        assert (await stage.call("session::delete", {"session_id": id_}))["deleted"]
    assert (await stage.call("session::list", {}))["sessions"] == []
    figure(
        "Ids",
        "`../x`, `a/b`, NUL, `A` beside `a`, composed beside decomposed accents, shell and SQL text … as session and "
        "entry ids, on every store",
        f"{len(IDS)} ids",
        "each its own session; nothing outside the data directory",
    )


async def test_entry_ids_of_one_session_are_told_apart_byte_for_byte(stage: InProcess) -> None:
    await stage.call("session::ensure", {"session_id": "s"})
    ids = [*IDS, "", "x" * 300]
    for id_ in ids:
        reply = await stage.call("session::append", {"session_id": "s", "entry_id": id_, "message": user(repr(id_))})
        assert reply["entry_id"] == id_
    page = await stage.call("session::messages", {"session_id": "s", "limit": 500})
    assert [item["entry_id"] for item in page["messages"]] == ids
    for id_ in ids:
        page = await stage.call("session::messages", {"session_id": "s", "limit": 1, "from_entry_id": id_})
        assert page["messages"][0]["entry_id"] == ids[0]


async def test_a_session_id_of_300_characters_is_a_session_or_a_plain_refusal(stage: InProcess) -> None:
    id_ = "x" * 300
    try:
        await stage.call("session::ensure", {"session_id": id_})
    except StorageError:  # a store whose files are named by session may say no
        assert await stage.call("session::get", {"session_id": id_}) is None
    else:
        assert (await stage.call("session::get", {"session_id": id_}))["meta"]["session_id"] == id_


async def test_the_empty_session_id_is_refused_and_finds_nothing(stage: InProcess) -> None:
    with pytest.raises(SessionManagerError, match="session/invalid_request"):
        await stage.call("session::ensure", {"session_id": ""})
    assert await stage.call("session::get", {"session_id": ""}) is None
