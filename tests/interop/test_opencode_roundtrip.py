"""Recorded sessions come in and go out as they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from session_manager.interop.opencode.exports import export_log
from session_manager.interop.opencode.sources import read, read_file
from session_manager.stores.memory import MemoryStore
from tests.interop.support import DATA, bring_in, differences, document, files, imported, load, name, plain, taken_out

DOCUMENTS = files("samples/*/export*.json") + files("synthetic_2.1/*.transfer.json")
LISTS_1 = [path for path in files("samples/*/messages.v1*.json") if path.read_bytes()[:1] == b"["]
LISTS_2 = [path for path in files("samples/*/messages.v2*.json") if "pages" not in path.name]
LOGS = [
    path
    for path in files("samples/*/history.v2*.json")
    + files("samples/*/sync_history*.json")
    + files("synthetic_2.1/all_events.json")
    if path.stat().st_size > 100
]


def test_the_recordings_are_there() -> None:
    assert len(DOCUMENTS) >= 50
    assert len(LISTS_2) >= 20
    assert len(LOGS) >= 50


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
async def test_a_document_comes_back_as_it_was(path: Path) -> None:
    [source] = read_file(path)
    store, _ = await imported(source)
    export = await taken_out(store, source.id)
    assert list(differences(export.document, json.loads(path.read_bytes()))) == []
    assert export.rendered == 0
    assert export.notes == []


@pytest.mark.parametrize("path", LISTS_1, ids=name)
async def test_a_list_of_the_first_generation_comes_back_as_it_was(path: Path) -> None:
    wanted = json.loads(path.read_bytes())
    if not wanted:
        pytest.skip("an empty list names no session")
    [source] = read_file(path)
    store, _ = await imported(source)
    export = await taken_out(store, source.id)
    assert list(differences(export.document["messages"], wanted)) == []


@pytest.mark.parametrize("path", LISTS_2, ids=name)
async def test_a_list_of_the_second_generation_comes_back_as_it_was(path: Path) -> None:
    wanted = json.loads(path.read_bytes())["data"]
    info = json.loads(path.with_name(path.name.replace("messages", "session")).read_bytes())["data"]
    [source] = read_file(path, info["id"])
    store, _ = await imported(source)
    assert list(differences((await taken_out(store, info["id"])).document["messages"], wanted)) == []
    with_info = document(info, wanted)
    store, _ = await imported(with_info)
    assert list(differences((await taken_out(store, info["id"])).document, {"info": info, "messages": wanted})) == []


@pytest.mark.parametrize("path", LOGS, ids=name)
async def test_a_log_comes_back_as_it_was(path: Path) -> None:
    raw = json.loads(path.read_bytes())
    events = raw["data"] if isinstance(raw, dict) else raw
    [source] = read_file(path)
    store, _ = await imported(source)
    assert list(differences(await export_log(store, source.id), events)) == []


@pytest.mark.parametrize("path", DOCUMENTS + LOGS, ids=name)
async def test_importing_twice_changes_nothing_and_tells_nothing(path: Path) -> None:
    [source] = read_file(path)
    store, first = await imported(source)
    assert first.change is not None
    [source] = read_file(path)
    second = await bring_in(store, source)
    assert second.change is None
    assert list(second.emissions()) == []
    assert (second.added, second.updated) == ([], [])


FIRST_LOGS = [path for path in LOGS if path.name.startswith("sync_history") and path.parent.name.startswith("v1_")]
SECOND_LOGS = [path for path in LOGS if path.name.startswith("history.v2")]
MIXED_WIRES = [path for path in LOGS if path.name.startswith("sync_history") and path.parent.name.startswith("v2_")]


async def entries_of(source_path: Path, wanted: Path, key: str) -> None:
    [from_log] = read_file(source_path)
    records = json.loads(wanted.read_bytes())[key]
    from_list = document({**from_log.info}, records)
    from_list.generation = from_log.generation
    one, _ = await imported(from_log)
    other, _ = await imported(from_list)
    told = [plain(entry) for entry in await one.entries(from_log.id) if "/log/" not in entry.id]
    assert list(differences(told, [plain(entry) for entry in await other.entries(from_log.id)])) == []


@pytest.mark.parametrize("path", FIRST_LOGS, ids=name)
async def test_a_log_of_the_first_generation_gives_the_entries_of_the_list(path: Path) -> None:
    await entries_of(path, path.with_name(path.name.replace("sync_history", "export")), "messages")


@pytest.mark.parametrize("path", SECOND_LOGS, ids=name)
async def test_a_log_of_the_second_generation_gives_the_entries_of_the_list(path: Path) -> None:
    await entries_of(path, path.with_name(path.name.replace("history", "messages")), "data")


@pytest.mark.parametrize("path", MIXED_WIRES, ids=name)
async def test_the_sync_log_gives_the_same_entries_as_the_history(path: Path) -> None:
    await entries_of(path, path.with_name(path.name.replace("sync_history", "messages.v2")), "data")


def test_a_recorded_stream_is_a_log_too() -> None:
    """The live stream of 1.x holds the same durable events as the history, among others."""
    [source] = [s for s in read_file(DATA / "samples/v2_tools/events.v2.sse") if s.id.startswith("ses_dd89fa1a")]
    wanted = load("samples/v2_tools/messages.v2.json")["data"]
    assert list(differences(list(source.records()), wanted)) == []


def test_events_one_per_line_are_a_log() -> None:
    events = load("samples/v2_single/history.v2.json")["data"]
    [source] = read(b"\n".join(json.dumps(event).encode() for event in events), "test")
    wanted = load("samples/v2_single/messages.v2.json")["data"]
    assert list(differences(list(source.records()), wanted)) == []


async def test_forks_and_their_source_live_in_one_store() -> None:
    """A fork repeats call ids and times; nothing of it collides with where it came from."""
    store = MemoryStore()
    for part in ("source", "fork", "fork_whole"):
        [source] = read_file(DATA / f"samples/v1_fork/export.{part}.json")
        await bring_in(store, source)
    for part in ("source", "fork", "fork_whole"):
        wanted = load(f"samples/v1_fork/export.{part}.json")
        export = await taken_out(store, wanted["info"]["id"])
        assert list(differences(export.document, wanted)) == []
