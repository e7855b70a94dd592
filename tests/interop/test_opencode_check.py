"""A look for damage, and its repair, know where an import left the active leaf."""

from __future__ import annotations

from pathlib import Path

import pytest

from session_manager.clock import RandomIds, SystemClock
from session_manager.doctor.check import Report, check
from session_manager.interop.opencode.sessions import SourceSession
from session_manager.interop.opencode.sources import read_file
from session_manager.model import Entry, encode
from session_manager.store import Change, Drop
from session_manager.stores import open_store
from tests.interop.support import DATA, Json, bring_in, document, load

REVERTED = load("samples/v1_revert/export.reverted.json")


def all_taken_back() -> SourceSession:
    first = REVERTED["messages"][0]["info"]["id"]
    return document({**REVERTED["info"], "revert": {"messageID": first}}, REVERTED["messages"])


def in_part_taken_back() -> SourceSession:
    return document(REVERTED["info"], REVERTED["messages"])


@pytest.fixture(params=["sqlite", "fs"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}:{tmp_path / 'store'}"


async def brought_in(url: str, source: SourceSession, *more: Change) -> str | None:
    """Imports and makes changes; gives the active leaf that the import left."""
    store = open_store(url, Path.cwd())
    await store.open()
    await bring_in(store, source)
    leaf = (await store.session(source.id)).leaf
    for change in more:
        await store.commit(store.ahead(), change)
    await store.close()
    return leaf


async def leaf_of(url: str, session_id: str) -> str | None:
    store = open_store(url, Path.cwd())
    await store.open()
    leaf = (await store.session(session_id)).leaf
    await store.close()
    return leaf


async def examined(url: str, *, repair: bool = False) -> Report:
    return await check(url, SystemClock(), RandomIds(), repair=repair)


def lost(source: SourceSession) -> Change:
    return Change(source.id, drops=frozenset({Drop.LEAF}))


def gone(source: SourceSession) -> Change:
    return Change(source.id, leaf="nobody")


async def test_a_conversation_that_was_taken_back_whole_is_sound(url: str) -> None:
    source = all_taken_back()
    assert await brought_in(url, source) is None
    assert (await examined(url)).findings == []
    report = await examined(url, repair=True)
    assert (report.findings, report.backup) == ([], None)
    assert await leaf_of(url, source.id) is None


@pytest.mark.parametrize("taken_back", [all_taken_back, in_part_taken_back])
@pytest.mark.parametrize("harm", [lost, gone])
async def test_a_leaf_that_is_lost_is_put_where_the_import_left_it(url: str, taken_back: Json, harm: Json) -> None:
    source = taken_back()
    leaf = await brought_in(url, source, harm(source))
    found = {finding.kind for finding in (await examined(url)).findings}
    assert found == (set() if (leaf, harm) == (None, lost) else {"leaf-missing" if harm is lost else "leaf-gone"})
    assert (await examined(url, repair=True)).healthy
    assert await leaf_of(url, source.id) == leaf
    assert (await examined(url)).findings == []


async def test_where_somebody_went_on_the_newest_entry_counts_and_not_the_import(url: str) -> None:
    source = all_taken_back()
    body = encode({"role": "user", "content": [{"type": "text", "text": "again"}], "timestamp": 1})
    own = Entry("own", None, 2_000_000_000_000, "user", body)
    await brought_in(url, source, Change(source.id, leaf="own", entries=(own,)), lost(source))
    assert "leaf-missing" in {finding.kind for finding in (await examined(url)).findings}
    await examined(url, repair=True)
    assert await leaf_of(url, source.id) == "own"


async def test_the_log_that_is_kept_beside_a_conversation_is_no_end_of_it(url: str) -> None:
    """Also where the record, and what it says of the import, is gone as well."""
    [source] = read_file(DATA / "samples/v2_tools/history.v2.json")
    leaf = await brought_in(url, source, Change(source.id, drops=frozenset({Drop.META, Drop.LEAF})))
    for _ in range(2):  # a record first, then what it lacks
        await examined(url, repair=True)
    assert await leaf_of(url, source.id) == leaf
