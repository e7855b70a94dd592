"""An unmodified Python SDK as worker, as client, as provider and as binder."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from iii import TriggerAction
from iii.errors import InvocationError, RegistrationRejectedError
from iii.iii import III
from iii.iii_constants import ReconnectionConfig
from iii.triggers import TriggerConfig, TriggerHandler

from tests.dev.client import eventually, unique
from tests.dev.conftest import Place
from tests.sdk import call, close_client, open_client


class Provider(TriggerHandler[Any]):
    """Keeps the bindings of a type, and refuses some."""

    def __init__(self) -> None:
        self.bindings: dict[str, TriggerConfig[Any]] = {}

    async def register_trigger(self, config: TriggerConfig[Any]) -> None:
        if config.config.get("refuse"):
            raise ValueError("session/invalid_filter: refused")
        self.bindings[config.id] = config

    async def unregister_trigger(self, config: TriggerConfig[Any]) -> None:
        self.bindings.pop(config.id, None)


@pytest.fixture
async def workers() -> AsyncIterator[list[III]]:
    """SDK clients to be shut down at the end."""
    opened: list[III] = []
    yield opened
    for worker in opened:
        await close_client(worker)


async def connected(workers: list[III], url: str, name: str | None = None, **options: Any) -> III:
    """An SDK client whose name the engine knows."""
    worker = await open_client(url, name or unique("w"), **options)
    workers.append(worker)
    await eventually(lambda: worker.worker_id)
    await call(worker, "engine::unregister_trigger", {"id": "none"})
    return worker


async def reachable(client: III, function_id: str) -> None:
    """Return when a call reaches the function."""

    async def known() -> bool:
        try:
            await call(client, "engine::functions::info", {"function_id": function_id})
        except InvocationError:
            return False
        return True

    await eventually(known)


async def echo(data: Any) -> Any:
    return data


async def fail(data: Any) -> Any:
    raise ValueError("bad thing")


async def test_functions_are_called_and_fail_through_the_engine(url: str, workers: list[III]) -> None:
    worker, client = await connected(workers, url), await connected(workers, url)
    name = unique("f")
    worker.register_function(f"{name}::echo", echo, description="Echo.", metadata={"m": 1})
    worker.register_function(f"{name}::fail", fail)
    await reachable(client, f"{name}::fail")
    assert await call(client, f"{name}::echo", {"b": [1, None], "a": "é"}) == {
        "_caller_worker_id": client.worker_id,
        "a": "é",
        "b": [1, None],
    }
    with pytest.raises(InvocationError) as failed:
        await call(client, f"{name}::fail", {})
    assert (failed.value.code, failed.value.message) == ("invocation_failed", "bad thing")
    with pytest.raises(InvocationError) as missing:
        await call(client, f"{name}::missing", {})
    assert missing.value.code == "function_not_found"


async def test_bindings_reach_an_sdk_provider_and_are_refused_by_it(
    url: str, workers: list[III], caplog: pytest.LogCaptureFixture
) -> None:
    worker, client = await connected(workers, url), await connected(workers, url)
    trigger_type, sink = unique("t::"), unique("sink::")
    provider, events = Provider(), []

    async def take(event: Any, metadata: Any = None) -> None:
        events.append((event["n"], metadata))

    client.register_function(sink, take)
    worker.register_trigger_type({"id": trigger_type, "description": "a test's"}, provider)
    await call(worker, "engine::unregister_trigger", {"id": "none"})
    owned = client.register_trigger(
        {"type": trigger_type, "function_id": sink, "config": {"n": 1}, "metadata": {"m": 1}}
    )
    with caplog.at_level(logging.ERROR, "iii.iii"):
        client.register_trigger({"type": trigger_type, "function_id": sink, "config": {"refuse": True}})
        given = {"trigger_type": trigger_type, "function_id": sink, "config": {"refuse": True}}
        with pytest.raises(InvocationError) as refused:
            await call(client, "engine::register_trigger", given)
        assert refused.value.code == "trigger_registration_failed"
        assert refused.value.message == "trigger_registration_failed: session/invalid_filter: refused"
        await eventually(lambda: "Trigger registration failed for" in caplog.text)
    made = await call(client, "engine::register_trigger", {**given, "config": {}})
    assert len(provider.bindings) == 2
    (binding,) = [known for known in provider.bindings.values() if known.config == {"n": 1}]
    assert (binding.function_id, binding.namespace, binding.metadata) == (sink, None, {"m": 1})
    for n in range(20):
        request = {"payload": {"n": n}, "namespace": "default", "metadata": binding.metadata}
        await call(worker, binding.function_id, **request)
    assert events == [(n, {"m": 1}) for n in range(20)]
    await call(worker, sink, {"n": 20}, namespace="default", action=TriggerAction.Void())
    await eventually(lambda: len(events) == 21)
    owned.unregister()
    assert await call(client, "engine::unregister_trigger", made) == {"removed": True}
    await eventually(lambda: not provider.bindings)


async def test_a_second_client_of_a_name_is_told_and_gives_up(
    url: str, workers: list[III], caplog: pytest.LogCaptureFixture
) -> None:
    name = unique("w")
    await connected(workers, url, name)
    with caplog.at_level(logging.CRITICAL, "iii.iii"):
        second = await open_client(url, name)
        workers.append(second)
        await eventually(lambda: second.get_connection_state() == "failed")
    with pytest.raises(RegistrationRejectedError) as rejected:
        await call(second, "engine::workers::list", {})
    assert rejected.value.code == "WORKER_NAMESPACE_CONFLICT"


async def test_a_client_in_a_namespace_calls_and_binds_there(url: str, workers: list[III]) -> None:
    namespace, name = unique("ns"), unique("f")
    worker = await connected(workers, url, namespace=namespace)
    client = await connected(workers, url, namespace=namespace)
    outsider = await connected(workers, url)
    provider = Provider()
    worker.register_function(f"{name}::echo", echo)
    worker.register_trigger_type({"id": name, "description": "a test's"}, provider)
    await reachable(client, f"{name}::echo")
    assert (await call(client, f"{name}::echo", {"n": 1}))["n"] == 1
    with pytest.raises(InvocationError, match="It is registered in namespace"):
        await call(outsider, f"{name}::echo", {})
    client.register_trigger({"type": name, "function_id": "f", "config": {}})
    outsider.register_trigger(
        {"type": name, "function_id": "f", "config": {}, "namespace": "default", "trigger_namespace": namespace}
    )
    await eventually(lambda: len(provider.bindings) == 2)
    assert {known.namespace for known in provider.bindings.values()} == {namespace, None}


async def test_messages_of_17_and_60_megabytes_pass_and_70_are_refused(url: str, workers: list[III]) -> None:
    worker, client = await connected(workers, url), await connected(workers, url)
    function = unique("f::")

    async def length(data: Any) -> Any:
        return {"length": len(data["text"]), "text": data["text"][: data["back"]]}

    worker.register_function(function, length)
    await reachable(client, function)
    for size, back in ((17_000_000, 17_000_000), (60_000_000, 0)):
        answer = await call(client, function, {"text": "x" * size, "back": back}, timeout_ms=30_000)
        assert (answer["length"], len(answer["text"])) == (size, back)
    with pytest.raises(InvocationError) as refused:
        await call(client, function, {"text": "x" * 70_000_000, "back": 0}, timeout_ms=30_000)
    assert refused.value.code == "payload_too_large"
    assert (await call(client, function, {"text": "", "back": 0}))["length"] == 0


async def test_after_a_restart_clients_come_back_with_all_they_had(place: Place, workers: list[III]) -> None:
    quick = ReconnectionConfig(initial_delay_ms=50, max_delay_ms=100)
    worker = await connected(workers, place.url, reconnection_config=quick)
    client = await connected(workers, place.url, reconnection_config=quick)
    trigger_type, function = unique("t::"), unique("f::")
    provider = Provider()
    worker.register_function(function, echo)
    worker.register_trigger_type({"id": trigger_type, "description": "a test's"}, provider)
    await reachable(client, function)
    client.register_trigger({"type": trigger_type, "function_id": function, "config": {"n": 1}})
    await eventually(lambda: provider.bindings)
    (before,) = provider.bindings
    provider.bindings.clear()
    await asyncio.to_thread(place.restart)
    await eventually(lambda: provider.bindings)
    assert list(provider.bindings) == [before]
    await reachable(client, function)
    assert (await call(client, function, {"n": 1}))["n"] == 1
