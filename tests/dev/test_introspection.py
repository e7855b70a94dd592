"""The functions under engine:: that tell who is there and what they offer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dev.client import Failed, peer, unique

WORKER_KEYS = {
    "name",
    "description",
    "version",
    "id",
    "namespace",
    "runtime",
    "os",
    "status",
    "function_count",
    "connected_at_ms",
    "active_invocations",
    "isolation",
    "ip_address",
}


async def test_functions_are_listed_with_their_workers(url: str) -> None:
    prefix, name = unique("f"), unique("w")
    async with peer(url) as worker:
        await worker.introduce(name)
        await worker.register(f"{prefix}::b", description="The second.", metadata={"tag": 1})
        await worker.register(f"{prefix}::a")
        await worker.register(f"{prefix}::hidden", metadata={"internal": True})
        await worker.settled()
        rows = (await worker.call("engine::functions::list", {"prefix": prefix}))["functions"]
        assert rows == [
            {"function_id": f"{prefix}::a", "namespace": "default", "worker_name": name},
            {
                "function_id": f"{prefix}::b",
                "namespace": "default",
                "worker_name": name,
                "description": "The second.",
                "metadata": {"tag": 1},
            },
        ]

        async def ids(**given: Any) -> list[str]:
            rows = await worker.call("engine::functions::list", {"prefix": prefix, **given})
            return [row["function_id"].removeprefix(prefix) for row in rows["functions"]]

        assert await ids(include_internal=True) == ["::a", "::b", "::hidden"]
        assert await ids(worker=name) == ["::a", "::b"]
        assert await ids(worker="other") == []
        assert await ids(worker="other", workers=[name]) == ["::a", "::b"]
        assert await ids(search="SECOND") == ["::b"]
        assert await ids(search="::B") == ["::b"]
        assert await ids(search=None) == ["::a", "::b"]


async def test_the_engines_own_functions_are_listed_only_on_request(url: str) -> None:
    async with peer(url) as worker:
        rows = (await worker.call("engine::functions::list", {}))["functions"]
        ids = [row["function_id"] for row in rows]
        assert ids == sorted(ids)
        assert "configuration::get" in ids
        assert not [function_id for function_id in ids if function_id.startswith("engine::")]
        rows = (await worker.call("engine::functions::list", {"include_internal": True}))["functions"]
        assert "engine::functions::list" in [row["function_id"] for row in rows]


async def test_a_functions_details_carry_its_schemas_and_bindings(url: str) -> None:
    function, name, trigger_type = unique("f::"), unique("w"), unique("t::")
    schema = {"type": "object", "properties": {"b": {}, "a": {"$ref": "#/definitions/x"}}, "definitions": {"x": {}}}
    async with peer(url) as worker:
        await worker.introduce(name)
        await worker.register(
            function, description="What.", request_format=schema, response_format={"type": "null"}, metadata={"m": 1}
        )
        await worker.provide(trigger_type)
        binding = await worker.bind(trigger_type, function, {"c": 1})
        await worker.settled()
        assert await worker.call("engine::functions::info", {"function_id": function}) == {
            "function_id": function,
            "namespace": "default",
            "worker_name": name,
            "description": "What.",
            "request_schema": schema,
            "response_schema": {"type": "null"},
            "metadata": {"m": 1},
            "registered_triggers": [{"id": binding, "trigger_type": trigger_type, "config": {"c": 1}}],
        }


async def test_details_of_several_functions_come_in_one_answer(url: str) -> None:
    function, unknown = unique("f::"), unique("f::")
    async with peer(url) as worker:
        await worker.introduce(unique("w"))
        await worker.register(function)
        await worker.settled()
        given = {"function_ids": [function, unknown, function]}
        found = (await worker.call("engine::functions::info", given))["functions"]
        assert [row.get("error") for row in found] == [None, "not_found"]
        assert found[0]["function_id"] == function


@pytest.mark.parametrize(
    ("function", "data", "code", "message"),
    [
        ("functions::info", {}, "INVALID_ARGUMENTS", "missing field `function_id` (or `function_ids` for a batch)"),
        ("functions::info", {"function_ids": []}, "INVALID_ARGUMENTS", None),
        ("functions::info", {"function_ids": [str(n) for n in range(33)]}, "INVALID_ARGUMENTS", None),
        ("functions::info", {"function_id": "a", "function_ids": ["b"]}, "INVALID_ARGUMENTS", None),
        ("functions::info", {"function_id": "no::such"}, "NOT_FOUND", "Function 'no::such' is not registered."),
        ("workers::info", {"name": "nobody"}, "NOT_FOUND", "Worker 'nobody' is not connected."),
        (
            "triggers::info",
            {"id": "no::such"},
            "NOT_FOUND",
            "Trigger type 'no::such' is not registered in namespace 'default'.",
        ),
        ("registered-triggers::info", {"id": "x"}, "NOT_FOUND", "Registered trigger 'x' was not found."),
        ("triggers::info", {}, "deserialization_error", "missing field `id`"),
        ("functions::list", None, "deserialization_error", "invalid type: null, expected struct FunctionsListInput"),
        (
            "functions::list",
            "x",
            "deserialization_error",
            'invalid type: string "x", expected struct FunctionsListInput',
        ),
        ("functions::list", {"search": 1}, "deserialization_error", "invalid type: integer `1`, expected a string"),
        (
            "functions::list",
            {"include_internal": 1.5},
            "deserialization_error",
            "invalid type: floating point `1.5`, expected a boolean",
        ),
        ("functions::list", {"workers": {}}, "deserialization_error", "invalid type: map, expected a sequence"),
        ("register_trigger", {"function_id": "f"}, "deserialization_error", "missing field `trigger_type`"),
        (
            "unregister_trigger",
            {"id": True},
            "deserialization_error",
            "invalid type: boolean `true`, expected a string",
        ),
    ],
)
async def test_bad_questions_are_refused_with_a_reason(
    url: str, function: str, data: Any, code: str, message: str | None
) -> None:
    function_id = f"engine::{function}"
    async with peer(url) as worker:
        with pytest.raises(Failed) as refusal:
            await worker.call(function_id, data)
        assert refusal.value.code == code
        if code == "deserialization_error":
            message = f"Failed to deserialize input for {function_id}: {message}"
        assert message is None or refusal.value.message == message


async def test_a_function_id_in_two_namespaces_needs_one_named(url: str) -> None:
    function, here, there = unique("f::"), unique("a"), unique("b")
    async with peer(url) as first, peer(url) as second:
        await first.introduce(unique("w"), here)
        await first.register(function)
        await first.settled()
        detail = await second.call("engine::functions::info", {"function_id": function})
        assert detail["namespace"] == here, "a single one is found wherever it is"
        await second.introduce(unique("w"), there)
        await second.register(function)
        await second.settled()
        with pytest.raises(Failed) as ambiguous:
            await first.call("engine::functions::info", {"function_id": function})
        assert f"registered in namespace(s): {here}, {there}" in ambiguous.value.message
        detail = await first.call("engine::functions::info", {"function_id": function, "namespace": there})
        assert detail["namespace"] == there


async def test_workers_are_listed_the_engines_own_among_them(url: str) -> None:
    name, function = unique("w"), unique("f::")
    async with peer(url) as worker, peer(url) as nameless:
        await worker.introduce(name, version="1.2", description=" What\u202e it\x07 is ", os="Linux", isolation="vm")
        await worker.register(function)
        await worker.settled()
        await worker.start(function, {})
        rows = (await nameless.call("engine::workers::list", {}))["workers"]
        names = [row["name"] or row["id"] for row in rows]
        assert names == sorted(names)
        assert {"configuration", "iii-engine-functions"} <= set(names)
        assert nameless.worker_id not in [row["id"] for row in rows], "without a pid it is not shown"
        assert all(row.keys() == WORKER_KEYS for row in rows)
        (row,) = (await nameless.call("engine::workers::list", {"search": name.upper()}))["workers"]
        own = {"connected_at_ms": row["connected_at_ms"], "ip_address": "127.0.0.1"}
        assert row == {
            "name": name,
            "description": "What it is",
            "version": "1.2",
            "id": worker.worker_id,
            "namespace": "default",
            "runtime": "test",
            "os": "Linux",
            "status": "connected",
            "function_count": 1,
            "active_invocations": 1,
            "isolation": "vm",
            **own,
        }
        engine_rows = (await nameless.call("engine::workers::list", {"runtime": "engine"}))["workers"]
        assert {row["status"] for row in engine_rows} == {"available"}
        assert all(row["id"] == row["name"] for row in engine_rows)


async def test_a_workers_details_carry_all_it_offers(url: str) -> None:
    name, function, trigger_type = unique("w"), unique("f::"), unique("t::")
    async with peer(url) as worker, peer(url) as binder:
        await worker.introduce(name)
        await worker.register(function)
        await worker.provide(trigger_type)
        await worker.settled()
        await binder.introduce(unique("w"))
        binding = await binder.bind(trigger_type, function, {"c": "x" * 100})
        await binder.settled()
        found = await worker.call("engine::workers::info", {"name": name})
        assert found["worker"].keys() == WORKER_KEYS | {"pid", "internal"}
        assert found["worker"]["internal"] is False
        assert [row["function_id"] for row in found["functions"]] == [function]
        assert found["trigger_types"] == [
            {"id": trigger_type, "namespace": "default", "worker_name": name, "description": "a test's"}
        ]
        assert found["registered_triggers"] == [
            {
                "id": binding,
                "trigger_type": trigger_type,
                "function_id": function,
                "worker_name": name,
                "config": {"c": "x" * 100},
                "config_summary": '{"c":"' + "x" * 74 + "…",
            }
        ]
        inside = await worker.call("engine::workers::info", {"name": "configuration"})
        assert inside["worker"]["runtime"] == "engine"
        assert [row["id"] for row in inside["trigger_types"]] == ["configuration"]
        assert len(inside["functions"]) == 5


async def test_one_worker_name_in_two_namespaces_needs_one_named(url: str) -> None:
    name, here, there = unique("w"), unique("a"), unique("b")
    async with peer(url) as first, peer(url) as second:
        await first.introduce(name, here)
        found = await first.call("engine::workers::info", {"name": name})
        assert found["worker"]["namespace"] == here
        with pytest.raises(Failed, match="is not connected in the requested namespace"):
            await first.call("engine::workers::info", {"name": name, "namespace": there})
        await second.introduce(name, there)
        with pytest.raises(Failed, match="is ambiguous"):
            await first.call("engine::workers::info", {"name": name})


async def test_trigger_types_are_listed_with_their_schemas_and_number_of_bindings(url: str) -> None:
    trigger_type, name = unique("t::"), unique("w")
    async with peer(url) as worker:
        await worker.introduce(name)
        await worker.provide(trigger_type, trigger_request_format={"type": "object"}, call_request_format={"a": 1})
        await worker.bind(trigger_type, "f", {})
        await worker.settled()
        row = {"id": trigger_type, "namespace": "default", "worker_name": name, "description": "a test's"}
        assert await worker.call("engine::triggers::list", {"prefix": trigger_type}) == {"triggers": [row]}
        assert await worker.call("engine::triggers::info", {"id": trigger_type}) == {
            **row,
            "configuration_schema": {"type": "object"},
            "request_schema": {"a": 1},
            "instance_count": 1,
        }
        shown = [row["id"] for row in (await worker.call("engine::triggers::list", {}))["triggers"]]
        assert shown == sorted(shown)
        assert "configuration" in shown
        assert "engine::workers-available" not in shown
        rows = (await worker.call("engine::triggers::list", {"include_internal": True}))["triggers"]
        assert {"engine::workers-available", "engine::functions-available"} <= {row["id"] for row in rows}


async def test_bindings_are_listed_and_explained(url: str) -> None:
    trigger_type, function, name = unique("t::"), unique("f::"), unique("w")
    async with peer(url) as worker:
        await worker.introduce(name)
        await worker.provide(trigger_type)
        await worker.register(function)
        binding = await worker.bind(trigger_type, function, {"b": 1, "a": 2}, metadata={"m": 1})
        dangling = await worker.bind(trigger_type, "gone::away", None)
        await worker.settled()

        async def ids(**given: Any) -> list[str]:
            rows = await worker.call("engine::registered-triggers::list", given)
            return [row["id"] for row in rows["registered_triggers"]]

        assert await ids(trigger_type=trigger_type) == sorted([binding, dangling])
        assert await ids(function_id=function) == [binding]
        assert await ids(worker=name) == [binding]
        assert await ids(search=trigger_type.upper()) == sorted([binding, dangling])
        found = await worker.call("engine::registered-triggers::info", {"id": binding})
        detail = await worker.call("engine::functions::info", {"function_id": function})
        kind = await worker.call("engine::triggers::info", {"id": trigger_type})
        assert found == {
            "id": binding,
            "trigger_type": trigger_type,
            "function_id": function,
            "worker_name": name,
            "config": {"a": 2, "b": 1},
            "metadata": {"m": 1},
            "function": detail,
            "trigger": kind,
        }
        found = await worker.call("engine::registered-triggers::info", {"id": dangling})
        assert found["function"] is None
        assert found["worker_name"] == "gone"
        assert "metadata" not in found
        assert found["config"] is None
