"""The configuration entry: set, edited by hand, spoilt and repaired, and on an engine that has forgotten its schema."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import yaml
from iii.errors import InvocationError
from iii.iii import III

from tests.dev.client import eventually, unique
from tests.engine.conftest import SQLITE, Connect, Place, Serve, Sink
from tests.sdk import call
from tests.wire import WorkerProcess

VALUE: dict[str, Any] = {**SQLITE, "default_list_limit": 50, "max_list_limit": 500}


async def page_length(client: III) -> int:
    """How many sessions a page has when the caller names no limit."""
    return len((await call(client, "session::list", {}))["sessions"])


async def set_again(client: III, worker: WorkerProcess, **changes: Any) -> None:
    """The same, once the engine has the schema back."""

    async def can_be_set() -> bool:
        try:
            await set_value(client, worker, **changes)
        except InvocationError as error:
            if error.code == "SCHEMA_UNAVAILABLE":
                return False
            raise
        return True

    await eventually(can_be_set, 10)


async def in_force(client: III, limit: int) -> None:
    async def there() -> bool:
        return await page_length(client) == limit

    await eventually(there, 10)


async def with_sessions(worker: WorkerProcess, client: III) -> None:
    await worker.ready(client)
    for number in range(9):
        await call(client, "session::ensure", {"session_id": f"s{number}"})


async def set_value(client: III, worker: WorkerProcess, **changes: Any) -> Any:
    return await call(client, "configuration::set", {"id": worker.config_id, "value": {**VALUE, **changes}})


async def test_a_value_that_is_set_is_in_force_without_a_restart(url: str, serve: Serve, connect: Connect) -> None:
    worker, client = serve(url, value=VALUE), await connect(url)
    await with_sessions(worker, client)
    await set_value(client, worker, default_list_limit=4)
    await in_force(client, 4)
    for bad in ({"default_list_limit": -1}, {"nobody": "knows"}, {"adapter": {"name": "paper"}}):
        with pytest.raises(InvocationError) as refused:
            await set_value(client, worker, **bad)
        assert refused.value.code == "SCHEMA_INVALID"
    assert await page_length(client) == 4
    status = await call(client, "session::config-status", {})
    assert status == {"last_outcome": "applied", "last_error": None, "rejected_reloads": 0}


async def test_another_name_of_the_own_engine_is_no_main_instance(url: str, serve: Serve, connect: Connect) -> None:
    worker, client = serve(url, value=VALUE), await connect(url)
    await with_sessions(worker, client)
    alias = url.replace("127.0.0.1", "localhost")
    assert alias != url
    await set_value(client, worker, adapter={"name": "bridge", "config": {"url": alias}})

    async def rejected() -> bool:
        return bool((await call(client, "session::config-status", {}))["last_outcome"] == "rejected")

    await eventually(rejected, 10)
    assert await page_length(client) == 9, "the own store still answers"


async def test_another_database_takes_over_while_calls_run(url: str, serve: Serve, connect: Connect) -> None:
    worker, client = serve(url, value=VALUE), await connect(url)
    await with_sessions(worker, client)
    created, deleted = Sink(client, "session::created"), Sink(client, "session::deleted")
    await created.bind_by_function({})
    await deleted.bind_by_function({})
    other = {"name": "sqlite", "config": {"path": "other.db"}}

    async def read_on() -> None:
        while not moved.is_set():
            await call(client, "session::get", {"session_id": "s0"})
            await call(client, "session::set-draft", {"session_id": "s0", "draft": "x"})

    moved = asyncio.Event()
    reading = asyncio.ensure_future(read_on())
    await set_value(client, worker, adapter=other)
    await eventually(lambda: len(deleted.events) == 9 or reading.done())
    moved.set()
    with pytest.raises(InvocationError, match="session/not_found"):
        await reading  # the draft's session is in the other database
    await eventually(lambda: len(deleted.events) == 9)
    assert await page_length(client) == 0
    await set_value(client, worker)
    await in_force(client, 9)
    await eventually(lambda: {event["session_id"] for event in created.events} == {f"s{n}" for n in range(9)})
    blocked = {"name": "sqlite", "config": {"path": "/proc/no/such/sessions.db"}}
    await set_value(client, worker, adapter=blocked)

    async def rejected() -> bool:
        status = await call(client, "session::config-status", {})
        return bool(status["last_outcome"] == "rejected" and status["rejected_reloads"] == 1)

    await eventually(rejected, 10)
    assert await page_length(client) == 9


async def test_a_hand_edit_counts_and_a_spoilt_file_changes_nothing(
    place: Place, serve: Serve, connect: Connect
) -> None:
    id_ = unique("sm-")
    worker, client = serve(place.url, value=VALUE, config_id=id_), await connect(place.url)
    await with_sessions(worker, client)
    file = place.file(id_)
    entry = yaml.safe_load(file.read_text())
    entry["value"]["default_list_limit"] = 3
    file.write_text(yaml.safe_dump(entry))
    await in_force(client, 3)

    events = Sink(client, "configuration")
    events.bind({"configuration_id": id_})
    file.write_text("}{ not: yaml: at all")
    await eventually(lambda: [event["event_type"] for event in events.events] == ["configuration:deleted"], 10)
    assert await page_length(client) == 3
    with pytest.raises(InvocationError) as refused:
        await set_value(client, worker, default_list_limit=5)
    assert refused.value.code in ("NOT_REGISTERED", "NOT_FOUND")

    entry["value"]["default_list_limit"] = 6
    file.write_text(yaml.safe_dump(entry))
    await in_force(client, 6)
    await set_again(client, worker, default_list_limit=7)
    await in_force(client, 7)
    assert worker.process is not None
    assert worker.process.poll() is None


async def test_an_engine_that_forgot_the_schema_is_given_it_again(place: Place, serve: Serve, connect: Connect) -> None:
    worker, client = serve(place.url, value=VALUE), await connect(place.url)
    await with_sessions(worker, client)
    await set_value(client, worker, default_list_limit=4)
    await in_force(client, 4)
    await asyncio.to_thread(place.restart)
    await worker.ready(client)
    await set_again(client, worker, default_list_limit=5)
    await in_force(client, 5)
    schema = (await call(client, "configuration::schema", {"id": worker.config_id}))["schema"]
    assert schema["definitions"]["Adapter"]["oneOf"]


async def test_a_value_stored_earlier_beats_the_seed(url: str, serve: Serve, connect: Connect) -> None:
    id_ = unique("sm-")
    first, client = serve(url, value={**VALUE, "default_list_limit": 2}, config_id=id_), await connect(url)
    await with_sessions(first, client)
    await in_force(client, 2)
    assert first.stop() == 0
    told = "the seed configuration is not used: one is stored"
    assert told not in first.said()
    second = serve(url, value={**VALUE, "default_list_limit": 8}, config_id=id_)
    await second.ready(client)
    assert await page_length(client) == 2
    assert second.said().count(told) == 1
