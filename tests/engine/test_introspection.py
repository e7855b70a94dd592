"""What a console shows: functions and trigger types exactly as their schemas are checked in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from iii.iii import III

from session_manager.bindings import TRIGGER_TYPES
from session_manager.functions import FUNCTIONS
from tests.dev.client import eventually
from tests.engine.conftest import Connect, Serve
from tests.sdk import call

SCHEMAS = Path(__file__).parents[2] / "schemas"


def checked_in(kind: str, id_: str) -> Any:
    return json.loads((SCHEMAS / kind / f"{id_.removeprefix('session::').replace('::', '.')}.json").read_text())


async def test_functions_are_shown_as_checked_in(url: str, serve: Serve, connect: Connect) -> None:
    worker, client = serve(url), await connect(url)
    await worker.ready(client)
    listed = (await call(client, "engine::functions::list", {"prefix": "session::"}))["functions"]
    for function in FUNCTIONS:
        file = checked_in("functions", function.id)
        told = await call(client, "engine::functions::info", {"function_id": function.id})
        assert told["description"] == file["description"]
        assert told["request_schema"] == file["request_schema"]
        assert told["response_schema"] == file["response_schema"]
        assert told.get("metadata") == file["metadata"]
        assert told["worker_name"] == "session-manager"
        hidden = function.metadata.get("internal", False)
        assert (function.id in [one["function_id"] for one in listed]) is not hidden


async def test_trigger_types_are_shown_as_checked_in(url: str, serve: Serve, connect: Connect) -> None:
    worker, client = serve(url), await connect(url)
    await worker.ready(client)
    for trigger_type in TRIGGER_TYPES:
        file = checked_in("triggers", trigger_type.id)
        told = await call(client, "engine::triggers::info", {"id": trigger_type.id})
        assert told["description"] == file["description"]
        assert told["configuration_schema"] == file["config_schema"]
        assert told.get("request_schema") == file.get("payload_schema")
        assert told["worker_name"] == "session-manager"


async def hears_of_configurations(client: III) -> bool:
    info = await call(client, "engine::workers::info", {"name": "session-manager"})
    on_change = [one for one in info["registered_triggers"] if one["function_id"] == "session::on-config-change"]
    return [one["trigger_type"] for one in on_change] == ["configuration"]


async def test_the_worker_is_shown_with_all_it_serves(url: str, serve: Serve, connect: Connect) -> None:
    worker, client = serve(url), await connect(url)
    await worker.ready(client)
    info = await call(client, "engine::workers::info", {"name": "session-manager"})
    assert info["worker"]["description"].startswith("Conversation database")
    assert info["worker"]["runtime"] == "python"
    assert worker.process is not None
    assert info["worker"]["pid"] == worker.process.pid
    assert {one["id"] for one in info["trigger_types"]} == {one.id for one in TRIGGER_TYPES}
    await eventually(lambda: hears_of_configurations(client))  # the engine does not take up frames in their order
    other = await call(client, "engine::workers::info", {"name": "session-manager-deliveries"})
    assert other["functions"] == other["trigger_types"] == []
