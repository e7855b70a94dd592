"""Both engines side by side: every function of the engine is asked a great many things, most of them wrong, and the
answers are compared word for word. What differs on purpose is left out here and listed in docs/protocol-notes.md."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.dev.client import Failed, Peer, peer
from tests.engines import NoEngine, loopback_engine, real_engine_process

pytestmark = pytest.mark.engine

FUNCTIONS = (
    "engine::functions::list",
    "engine::functions::info",
    "engine::workers::list",
    "engine::workers::info",
    "engine::triggers::list",
    "engine::triggers::info",
    "engine::registered-triggers::list",
    "engine::registered-triggers::info",
    "engine::register_trigger",
    "engine::unregister_trigger",
    "engine::nope",
    "configuration::list",
    "configuration::get",
    "configuration::schema",
    "configuration::set",
    "configuration::register",
    "configuration::nope",
)

BINDING: dict[str, Any] = {"trigger_type": "own::type", "function_id": "own::function"}


def each(key: str, *values: Any, **beside: Any) -> list[Any]:
    """A question per value of a key."""
    return [{**beside, key: value} for value in values]


QUESTIONS: list[Any] = [
    *(None, "x", 1, True, {}),
    *each("id", 1, None, "", "nope", "UPPER", "own::type", "<binding>"),
    *each("name", 1, None, "", "nope", "asker"),
    *each("namespace", 1, None, "", "default", "elsewhere", name="asker"),
    *each("namespace", 1, None, "", "default", "elsewhere", function_id="own::function"),
    *each("namespace", 1, None, "", "default", "elsewhere", id="own::type"),
    *each("function_id", 1, None, "", "nope", "own::function"),
    *each("function_ids", "x", [], [1], ["nope", "own::function"], ["own::function"] * 33),
    *each("search", 1, None, "", "own", "OWN", "a test's"),
    *each("include_internal", "yes", 1, None, False, True, search="own"),
    *each("prefix", 1, "", "own::", "OWN", "own::function"),
    *each("worker", 1, "", "nope", "asker"),
    *each("workers", "x", [], [1], ["nope", "asker"]),
    *each("status", 1, "connected", "nope"),
    *each("runtime", 1, "test", "nope"),
    *each("trigger_type", 1, "", "nope", "own::type"),
    *each("config", None, 1, "x", [], {}, {"a": [1]}, **BINDING),
    *each("metadata", None, 1, [1], {"m": 1}, config={}, **BINDING),
    *each("trigger_namespace", 1, None, "", "default", "elsewhere", config={}, **BINDING),
    {**BINDING, "config": {}, "id": "given", "namespace": "elsewhere"},
    {"trigger_type": "nobodys", "function_id": "nobodys", "config": {}},
    *each("raw", "x", None, True, id="entry"),
    *each("value", None, 1, {"n": 1}, id="entry"),
    *(
        {"id": id_, "name": "Entry", "description": "An entry.", "schema": schema, **more}
        for id_ in ("entry", "UPPER")
        for schema in (None, 1, {}, {"type": "object"}, {"type": "nonsense"})
        for more in ({}, {"initial_value": {"n": 1}}, {"initial_value": 1}, {"metadata": {"m": 1}})
    ),
    *each("value", None, 1, {"n": 1}, id="entry", more=1),
]

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_CHANGING = ("connected_at_ms", "pid", "os", "version", "active_invocations", "instance_count")

_ENGINES_OWN = ("iii-", "configuration", "engine::")


@asynccontextmanager
async def asker(url: str) -> AsyncIterator[tuple[Peer, str]]:
    """A worker with a function, a trigger type and a binding, that accepts every binding."""
    async with peer(url) as one:
        await one.introduce("asker")
        await one.register("own::function", lambda data: data, description="Returns what it gets.")
        await one.provide("own::type")
        accepting = asyncio.create_task(_accept(one))
        try:
            binding_id = await one.bind("own::type", "own::function", {"x": 1}, metadata={"m": 1})
            await one.settled()
            yield one, binding_id
        finally:
            accepting.cancel()


async def _accept(one: Peer) -> None:
    seen = 0
    while True:
        bound = await one.several(seen + 1, "registertrigger", seconds=60)
        for frame in bound[seen:]:
            await one.acknowledge(frame)
        seen = len(bound)


async def _answers(url: str) -> dict[str, Any]:
    told: dict[str, Any] = {}
    async with asker(url) as (one, binding_id):
        for function_id in FUNCTIONS:
            for number, question in enumerate(QUESTIONS):
                asked = json.loads(json.dumps(question).replace("<binding>", binding_id))
                try:
                    answer = {"result": await one.call(function_id, asked)}
                except Failed as error:
                    answer = {"error": {"code": error.code, "message": error.message}}
                told[f"{function_id} {number}: {json.dumps(question)}"] = _comparable(answer)
    return told


def _comparable(value: Any) -> Any:
    """Without ids and times, and without what belongs to the engine's own workers."""
    if isinstance(value, dict):
        return {key: "…" if key in _CHANGING else _comparable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_comparable(inner) for inner in value if not _is_the_engines(inner)]
    return _UUID.sub("<id>", value) if isinstance(value, str) else value


def _is_the_engines(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    names = (item.get(key) for key in ("worker_name", "name", "id", "function_id"))
    return any(isinstance(name, str) and name.startswith(_ENGINES_OWN) for name in names)


@pytest.fixture
def real_url() -> Iterator[str]:
    """An engine that knows nobody: lists show what others have registered."""
    try:
        with real_engine_process() as engine:
            yield engine.url
    except NoEngine as error:
        pytest.skip(str(error))


async def test_both_engines_answer_alike(real_url: str) -> None:
    with loopback_engine() as url:
        ours = await _answers(url)
    theirs = await _answers(real_url)
    assert {
        question: (ours[question], theirs[question]) for question in ours if ours[question] != theirs[question]
    } == {}
