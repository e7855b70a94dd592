"""Reading a server of 1.x once: both of its engines are asked, and what it cannot list comes from its log."""

from __future__ import annotations

from typing import cast

from session_manager.interop.opencode.client import Server
from session_manager.interop.opencode.exports import export_session
from session_manager.interop.opencode.servers import read_session
from tests.interop.support import Json, differences, imported, load


class Recorded:
    """What a 1.18 server answered, recorded."""

    is_1x = True
    url = "http://127.0.0.1:1"
    version = "1.18.34"

    def __init__(self, info: Json, first: Json, second: Json, log: Json = None) -> None:
        self._info, self._first, self._second, self._log = info, first, second, log or []

    async def info_1x(self, session_id: str) -> Json:
        return self._info

    async def info(self, session_id: str) -> Json:
        return {"id": session_id, "title": "T", "location": {"directory": "/p"}}

    async def messages_1x(self, session_id: str) -> Json:
        return self._first

    async def messages(self, session_id: str) -> Json:
        return self._second

    async def history_1x(self, known: dict[str, int]) -> Json:
        return self._log

    def server(self) -> Server:
        return cast("Server", self)


async def test_a_session_that_the_server_refuses_to_list_comes_from_its_log() -> None:
    """1.18 answers 400 for a session whose messages asked for structured output."""
    assert load("samples/v1_structured/messages.v1.json")["status"] == 400
    wanted = load("samples/v1_structured/export.json")
    log = load("samples/v1_structured/sync_history.json") + load("samples/v1_single/sync_history.json")
    source = await read_session(Recorded(wanted["info"], None, [], log).server(), wanted["info"]["id"])
    assert any("log" in warning for warning in source.warnings)
    store, _ = await imported(source)
    assert list(differences((await export_session(store, source.id)).document, wanted)) == []


async def test_a_session_of_the_second_engine_is_not_taken_for_empty() -> None:
    """Its export of the first engine is empty, without an error."""
    assert load("samples/v2_tools/export.json")["messages"] == []
    listed = load("samples/v2_tools/messages.v2.json")["data"]
    info = {**load("samples/v2_tools/export.json")["info"], "metadata": {"k": 1}}
    source = await read_session(Recorded(info, [], listed).server(), info["id"])
    assert source.generation == "v2"
    store, _ = await imported(source)
    export = await export_session(store, source.id)
    assert list(differences(export.document["messages"], listed)) == []
    # Only the first engine shows the metadata.
    assert export.document["info"]["metadata"] == {"k": 1}


async def test_a_session_that_both_engines_know_comes_whole_and_with_a_warning() -> None:
    first = load("samples/v1_single/export.json")
    second = load("samples/v2_single/messages.v2.json")["data"]
    source = await read_session(Recorded(first["info"], first["messages"], second).server(), first["info"]["id"])
    assert any("both generations" in warning for warning in source.warnings)
    store, _ = await imported(source)
    ids = [entry.id for entry in await store.entries(source.id)]
    assert {record["info"]["id"] for record in first["messages"]} <= set(ids)
    assert {record["id"] for record in second} <= set(ids)
