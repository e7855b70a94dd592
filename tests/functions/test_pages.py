"""Pages, by the bytes of what is on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from session_manager.functions import raw
from session_manager.paging import MAX_PAGE_BYTES
from tests.stage import InProcess


def text(size: int) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": "x" * size}], "timestamp": 1}


@pytest.fixture(params=[{"name": "memory"}, {"name": "sqlite", "config": {"path": "s.db"}}], ids=lambda a: a["name"])
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    async with InProcess(request.param, tmp_path) as stage:
        await stage.call("session::ensure", {"session_id": "s"})
        yield stage


async def pages(stage: InProcess, **asked: Any) -> list[list[str]]:
    """The entries of every page."""
    found: list[list[str]] = []
    question = {"session_id": "s", "limit": 500, **asked}
    while True:
        page = await stage.call("session::messages", question)
        found.append([item["entry_id"] for item in page["messages"]])
        if "next_cursor" not in page:
            return found
        question["cursor"] = page["next_cursor"]


async def test_origins_count_as_what_they_are_beside(stage: InProcess) -> None:
    for n in range(9):
        origin = {"notes": "y" * (1 << 20)}
        await stage.call(
            "session::append", {"session_id": "s", "entry_id": f"{n}", "message": text(1), "origin": origin}
        )
    found = await pages(stage)
    assert [len(page) for page in found] == [3, 3, 3]
    assert [id_ for page in found for id_ in page] == [f"{n}" for n in range(9)]


async def test_a_very_big_entry_has_a_page_of_its_own(stage: InProcess) -> None:
    for n, size in enumerate((MAX_PAGE_BYTES - 1000, MAX_PAGE_BYTES + 1000, 1)):
        await stage.call("session::append", {"session_id": "s", "entry_id": f"{n}", "message": text(size)})
    assert await pages(stage) == [["0"], ["1"], ["2"]]


async def test_a_page_for_a_bridge_is_one_that_the_engine_carries(
    stage: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw, "HINTED_BYTES", 2500)
    for n in range(3):
        origin = {"notes": "y" * 1000}
        asked = {"session_id": "s", "entry_id": f"{n}", "message": text(1), "origin": origin}
        await stage.call("session::append", asked)
    hinted = {"session_id": "s", "hint": {"max_bytes": 500}}
    reply = await stage.call("session::store::list-entries", hinted)
    assert [entry["id"] for entry in reply["entries"]] == ["0", "1"]
    assert reply["hinted"]["more"] is True
    whole = await stage.call("session::store::list-entries", {"session_id": "s", "hint": {}})
    assert len(whole["entries"]) == 3, "whoever asks for the whole path gets it"
