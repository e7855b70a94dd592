"""Imports mean the same on every store, also where they move what is there already."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from session_manager.interop.opencode.exports import export_session
from session_manager.interop.opencode.imports import existing, plan_import
from session_manager.interop.opencode.sessions import SourceSession
from session_manager.interop.opencode.sources import read_file
from session_manager.store import Store
from session_manager.stores import open_store
from session_manager.stores.memory import MemoryStore
from tests.interop.support import DATA, NOW, Json, differences, document, load, path, plain

URLS = ["memory:", "sqlite:{}/store.db", "fs:{}/store"]

INFO = {"id": "ses_1", "title": "T", "time": {"created": 1, "updated": 2}, "location": {"directory": "/p"}}
HALF = {
    "id": "msg_2",
    "type": "assistant",
    "time": {"created": 6},
    "model": {"id": "m", "providerID": "p"},
    "content": [{"type": "tool", "id": "c", "name": "t", "state": {"status": "running", "input": {}}}],
}
DONE = {
    **HALF,
    "time": {"created": 6, "completed": 7},
    "content": [
        {
            "type": "tool",
            "id": "c",
            "name": "t",
            "state": {"status": "completed", "input": {}, "content": [{"type": "text", "text": "x"}]},
        }
    ],
}


def said(number: int) -> Json:
    return {"id": f"msg_{number}", "type": "user", "time": {"created": number}, "text": f"said {number}"}


@pytest.fixture(params=URLS, ids=lambda url: url.partition(":")[0])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    try:
        opened = open_store(request.param.format(tmp_path), tmp_path)
    except ValueError as error:
        pytest.skip(str(error))
    await opened.open()
    yield opened
    await opened.close()


async def bring(store: Store, source: SourceSession) -> None:
    view = store.ahead()
    plan = plan_import(source, await existing(store, source.id), now=NOW)
    if plan.change is not None:
        await store.commit(view, plan.change)


async def test_a_session_that_changes_over_there_is_the_same_on_every_store(store: Store) -> None:
    reference = MemoryStore()
    revert = [
        DATA / f"samples/v1_revert/export.{moment}.json" for moment in ("before", "reverted", "unreverted", "committed")
    ]
    moments: list[SourceSession] = [
        *(read_file(file)[0] for file in revert),
        document(INFO, [said(1), HALF, said(3)]),
        document(INFO, [said(1), DONE, said(3), said(4)]),
        document({**INFO, "time": {"created": 1, "updated": 3}}, [said(1), DONE, said(5)]),
        read_file(DATA / "samples/v2_tools/history.v2.json")[0],
        read_file(DATA / "synthetic_2.1/all_kinds.transfer.json")[0],
    ]
    for moment in moments:
        for place in (store, reference):
            await bring(place, moment)
        session_id = moment.id
        ours = [plain(entry) for entry in await store.entries(session_id)]
        assert list(differences(ours, [plain(entry) for entry in await reference.entries(session_id)])) == []
        assert [e.id for e in await path(store, session_id)] == [e.id for e in await path(reference, session_id)]
        assert await store.session(session_id) == await reference.session(session_id)
    export = await export_session(store, "ses_dd8a000000ffeSyntheticAAAA")
    assert list(differences(export.document, load("synthetic_2.1/all_kinds.transfer.json"))) == []
