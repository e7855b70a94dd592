"""Trigger types and bindings: who is told what, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.dev.client import PATIENCE_S, Failed, Peer, eventually, peer, unique

REFUSAL = {"code": "trigger_registration_failed", "message": "session/invalid_filter: no"}


async def listed(asker: Peer, trigger_type: str) -> list[str]:
    """The ids of the live bindings of a type."""
    rows = await asker.call("engine::registered-triggers::list", {"trigger_type": trigger_type})
    return [row["id"] for row in rows["registered_triggers"]]


async def introduced(one: Peer, namespace: str | None = None) -> Peer:
    await one.introduce(unique("w"), namespace)
    return one


@asynccontextmanager
async def provided(url: str) -> AsyncIterator[tuple[Peer, Peer, str]]:
    """A worker that provides a trigger type, another one, and the type."""
    trigger_type = unique("t::")
    async with peer(url) as provider, peer(url) as binder:
        await introduced(provider)
        await introduced(binder)
        await provider.provide(trigger_type)
        await provider.settled()
        yield provider, binder, trigger_type


async def test_a_binding_reaches_the_provider_of_its_type(url: str) -> None:
    async with provided(url) as (provider, binder, trigger_type):
        for config in ({"b": 1, "a": [None]}, None, "text", [1]):
            binding = await binder.bind(trigger_type, "some::function", config, metadata={"m": 1})
            assert await provider.frame("registertrigger", id=binding) == {
                "type": "registertrigger",
                "id": binding,
                "trigger_type": trigger_type,
                "function_id": "some::function",
                "config": config,
                "metadata": {"m": 1},
            }
        bare = await binder.bind(trigger_type, "some::function", {})
        assert "metadata" not in await provider.frame("registertrigger", id=bare)
        assert not binder.seen("triggerregistrationresult")


async def test_a_rejection_is_forwarded_and_the_binding_parked_and_offered_again(url: str) -> None:
    async with provided(url) as (provider, binder, trigger_type):
        binding = await binder.bind(trigger_type, "some::function", {})
        bound = await provider.frame("registertrigger", id=binding)
        assert await listed(binder, trigger_type) == [binding], "live until its provider objects"
        await provider.acknowledge(bound, REFUSAL)
        assert await binder.frame("triggerregistrationresult") == {
            "type": "triggerregistrationresult",
            "id": binding,
            "trigger_type": trigger_type,
            "function_id": "some::function",
            "error": REFUSAL,
        }
        assert await listed(binder, trigger_type) == []
        await provider.provide(trigger_type)
        await provider.several(2, "registertrigger", id=binding)
        assert await listed(binder, trigger_type) == [binding]


async def test_only_the_providers_word_counts(url: str) -> None:
    trigger_type = unique("t::")
    async with peer(url) as provider, peer(url) as binder, peer(url) as stranger:
        await introduced(provider)
        await introduced(binder)
        await provider.provide(trigger_type)
        await provider.settled()
        binding = await binder.bind(trigger_type, "some::function", {})
        bound = await provider.frame("registertrigger", id=binding)
        await stranger.acknowledge(bound, REFUSAL)
        await stranger.settled()
        assert await listed(binder, trigger_type) == [binding]
        assert not binder.seen("triggerregistrationresult")


async def test_a_binding_by_function_waits_for_the_providers_word(url: str) -> None:
    trigger_type = unique("t::")
    async with peer(url) as provider, peer(url) as binder:
        await introduced(provider)
        await provider.provide(trigger_type)
        await provider.settled()
        given = {"trigger_type": trigger_type, "function_id": "f", "config": {"a": 1}, "metadata": [1]}
        call = await binder.start("engine::register_trigger", given)
        bound = await provider.frame("registertrigger", trigger_type=trigger_type)
        assert bound == {"type": "registertrigger", "id": bound["id"], **given}
        await binder.settled()
        assert not binder.seen("invocationresult", invocation_id=call)
        await provider.acknowledge(bound)
        assert (await binder.result(call))["result"] == {"id": bound["id"]}
        assert await listed(binder, trigger_type) == [bound["id"]]


async def test_a_rejected_binding_by_function_fails_at_once_and_is_forgotten(url: str) -> None:
    trigger_type = unique("t::")
    async with peer(url) as provider, peer(url) as binder:
        await introduced(provider)
        await provider.provide(trigger_type)
        await provider.settled()
        call = await binder.start("engine::register_trigger", {"trigger_type": trigger_type, "function_id": "f"})
        bound = await provider.frame("registertrigger", trigger_type=trigger_type)
        assert bound["config"] is None
        await provider.acknowledge(bound, REFUSAL)
        assert (await binder.result(call))["error"] == {
            "code": "trigger_registration_failed",
            "message": f"{REFUSAL['code']}: {REFUSAL['message']}",
        }
        await provider.provide(trigger_type)
        await provider.settled()
        assert len(provider.seen("registertrigger")) == 1


@pytest.mark.long
async def test_a_provider_that_says_nothing_for_ten_seconds_has_accepted(url: str) -> None:
    trigger_type = unique("t::")
    async with peer(url) as provider, peer(url) as binder:
        await introduced(provider)
        await provider.provide(trigger_type)
        await provider.settled()
        call = await binder.start("engine::register_trigger", {"trigger_type": trigger_type, "function_id": "f"})
        frame = await binder.result(call, 12)
        bound = provider.seen("registertrigger")[0]
        assert frame["result"] == {"id": bound["id"]}
        await provider.acknowledge(bound, REFUSAL)
        await provider.settled()
        assert await listed(binder, trigger_type) == [], "a late rejection parks it"


async def test_a_binding_to_an_unknown_type_is_parked_until_the_type_comes(url: str) -> None:
    trigger_type = unique("t::")
    async with peer(url) as provider, peer(url) as binder:
        await introduced(provider)
        await introduced(binder)
        owned = await binder.bind(trigger_type, "f", {})
        made = await binder.call("engine::register_trigger", {"trigger_type": trigger_type, "function_id": "f"})
        assert await listed(binder, trigger_type) == []
        await provider.provide(trigger_type)
        told = await provider.several(2, "registertrigger")
        assert {frame["id"] for frame in told} == {owned, made["id"]}
        assert await listed(binder, trigger_type) == sorted([owned, made["id"]])


async def test_registering_a_type_again_replays_every_binding_in_any_order(url: str) -> None:
    async with provided(url) as (provider, binder, trigger_type):
        bindings = [await binder.bind(trigger_type, f"f::{n}", {}) for n in range(40)]
        told = await provider.several(40, "registertrigger")
        assert [frame["id"] for frame in told] == bindings, "from one binder they come in order"
        await provider.provide(trigger_type)
        again = (await provider.several(80, "registertrigger"))[40:]
        assert sorted(frame["id"] for frame in again) == sorted(bindings)
        assert [frame["id"] for frame in again] != bindings


async def test_the_last_to_register_a_type_owns_it_and_the_former_owner_hears_nothing(url: str) -> None:
    trigger_type = unique("t::")
    async with peer(url) as former, peer(url) as owner, peer(url) as binder:
        for one in (former, owner, binder):
            await introduced(one)
        await former.provide(trigger_type)
        await former.settled()
        binding = await binder.bind(trigger_type, "f", {})
        bound = await former.frame("registertrigger", id=binding)
        before = len(former.frames)
        await owner.provide(trigger_type)
        await owner.frame("registertrigger", id=binding)
        await former.acknowledge(bound, REFUSAL)
        await former.settled()
        assert await listed(binder, trigger_type) == [binding]
        await binder.send("unregistertrigger", id=binding, trigger_type=trigger_type)
        await owner.frame("unregistertrigger", id=binding)
        former.cut()
        await former.closed.wait()
        assert [frame["type"] for frame in former.frames[before:]] == ["invocationresult"]
        assert (await binder.call("engine::triggers::info", {"id": trigger_type}))["id"] == trigger_type


async def test_unbinding_is_told_to_the_provider_and_anybody_may_do_it(url: str) -> None:
    trigger_type = unique("t::")
    async with peer(url) as provider, peer(url) as binder, peer(url) as stranger:
        for one in (provider, binder):
            await introduced(one)
        # Unregistering is a registration too: it waits for a connection to have a namespace.
        await introduced(stranger)
        await provider.provide(trigger_type)
        await provider.settled()
        first = await binder.bind(trigger_type, "f", {})
        second = await binder.bind(trigger_type, "f", {})
        await binder.settled()
        await stranger.send("unregistertrigger", id=first)
        assert await provider.frame("unregistertrigger") == {
            "type": "unregistertrigger",
            "id": first,
            "trigger_type": trigger_type,
        }
        assert await stranger.call("engine::unregister_trigger", {"id": second}) == {"removed": True}
        await provider.frame("unregistertrigger", id=second)
        assert await stranger.call("engine::unregister_trigger", {"id": second}) == {"removed": False}
        assert await listed(binder, trigger_type) == []


async def test_a_binder_that_leaves_takes_its_own_bindings_with_it(url: str) -> None:
    trigger_type = unique("t::")
    async with peer(url) as provider:
        await introduced(provider)
        await provider.provide(trigger_type)
        await provider.settled()
        async with peer(url) as binder:
            await introduced(binder)
            owned = [await binder.bind(trigger_type, "f", {}) for _ in range(3)]
            await provider.several(3, "registertrigger")
            call = await binder.start("engine::register_trigger", {"trigger_type": trigger_type, "function_id": "f"})
            bound = (await provider.several(4, "registertrigger"))[-1]
            await provider.acknowledge(bound)
            await binder.result(call)
            binder.cut()
            gone = await provider.several(3, "unregistertrigger")
        assert sorted(frame["id"] for frame in gone) == sorted(owned)
        assert await listed(provider, trigger_type) == [bound["id"]], "nobody owns one made by function"


async def test_when_a_provider_leaves_the_bindings_of_others_are_parked(url: str) -> None:
    trigger_type = unique("t::")
    async with peer(url) as binder:
        await introduced(binder)
        async with peer(url) as provider:
            await introduced(provider)
            await provider.provide(trigger_type)
            await provider.settled()
            kept = await binder.bind(trigger_type, "f", {"n": 1})
            removed = await binder.bind(trigger_type, "f", {"n": 2})
            own = await provider.bind(trigger_type, "f", {})
            await provider.several(3, "registertrigger")

        async def none() -> bool:
            return not await listed(binder, trigger_type)

        await eventually(none)
        with pytest.raises(Failed, match="is not registered in namespace 'default'"):
            await binder.call("engine::triggers::info", {"id": trigger_type})
        assert await binder.call("engine::unregister_trigger", {"id": removed}) == {"removed": True}
        async with peer(url) as successor:
            await introduced(successor)
            await successor.provide(trigger_type)
            told = await successor.frame("registertrigger")
            await successor.settled()
            assert told["id"] == kept
            assert len(successor.seen("registertrigger")) == 1
            assert await successor.call("engine::unregister_trigger", {"id": own}) == {"removed": False}
            assert not successor.seen("unregistertrigger"), "what went meanwhile is not announced"


async def test_a_binding_is_updated_by_registering_its_id_again(url: str) -> None:
    async with provided(url) as (provider, binder, trigger_type):
        binding = await binder.bind(trigger_type, "f", {"n": 1})
        await binder.send("registertrigger", id=binding, trigger_type=trigger_type, function_id="g", config={"n": 2})
        told = await provider.several(2, "registertrigger", id=binding)
        assert [frame["config"] for frame in told] == [{"n": 1}, {"n": 2}]
        assert not provider.seen("unregistertrigger")
        rows = await binder.call("engine::registered-triggers::list", {"trigger_type": trigger_type})
        assert [row["function_id"] for row in rows["registered_triggers"]] == ["g"]


async def test_a_provider_at_home_is_preferred_to_the_one_in_default(url: str) -> None:
    trigger_type, home = unique("t::"), unique("ns")
    async with peer(url) as general, peer(url) as local, peer(url) as binder:
        await introduced(general)
        await introduced(local, home)
        await introduced(binder, home)
        await general.provide(trigger_type)
        await general.settled()
        # Without a provider at home it falls to the one in default ...
        binding = await binder.bind(trigger_type, "f", {}, namespace=home)
        settled = await general.frame("registertrigger", id=binding)
        assert settled["namespace"] == home
        assert "trigger_namespace" not in settled
        strict = await binder.bind(trigger_type, "f", {}, trigger_namespace="default")
        await general.frame("registertrigger", id=strict)
        # ... until home has one, which takes it over ...
        await local.provide(trigger_type)
        moved = await local.frame("registertrigger", id=binding)
        assert moved["trigger_namespace"] == home
        await general.frame("unregistertrigger", id=binding)
        assert not local.seen("registertrigger", id=strict), "named, so never moved"
        # ... and when that one leaves, it goes back.
        local.cut()
        await general.several(2, "registertrigger", id=binding)


async def test_a_named_provider_namespace_is_strict(url: str) -> None:
    trigger_type, namespace = unique("t::"), unique("ns")
    async with peer(url) as general, peer(url) as other, peer(url) as binder:
        await introduced(general)
        await introduced(other)
        await introduced(binder)
        await general.provide(trigger_type)
        await general.settled()
        binding = await binder.bind(trigger_type, "f", {}, trigger_namespace=namespace)
        await binder.settled()
        assert not general.seen("registertrigger")
        await other.provide(trigger_type, namespace=namespace)
        told = await other.frame("registertrigger", id=binding)
        assert told["trigger_namespace"] == namespace
        assert "namespace" not in told, "the target is in default unless the binder says otherwise"


async def test_a_binding_by_function_looks_for_its_provider_and_its_target_in_default(url: str) -> None:
    trigger_type, namespace = unique("t::"), unique("ns")
    async with peer(url) as provider, peer(url) as binder:
        await introduced(provider, namespace)
        await introduced(binder, namespace)
        await provider.provide(trigger_type)
        await provider.settled()
        given = {"trigger_type": trigger_type, "function_id": "f", "namespace": namespace}
        parked = await binder.call("engine::register_trigger", given)
        assert not provider.seen("registertrigger")
        assert await binder.call("engine::unregister_trigger", {"id": parked["id"]}) == {"removed": True}
        call = await binder.start("engine::register_trigger", {**given, "trigger_namespace": namespace})
        bound = await provider.frame("registertrigger")
        assert "namespace" not in bound
        await provider.acknowledge(bound)
        assert (await binder.result(call))["result"] == {"id": bound["id"]}


@pytest.mark.parametrize("field", ["namespace", "trigger_namespace"])
async def test_a_blank_namespace_in_a_binding_is_refused(url: str, field: str) -> None:
    blank: dict[str, Any] = {field: " "}
    async with peer(url) as binder:
        await introduced(binder)
        binding = await binder.bind(unique("t::"), "f", {}, **blank)
        refused = await binder.frame("triggerregistrationresult", id=binding)
        assert refused["error"]["code"] == "INVALID_NAMESPACE"
        assert f"`{field}` is empty" in refused["error"]["message"]


async def test_comings_and_goings_of_workers_are_events(url: str) -> None:
    sink = unique("sink::")
    async with peer(url) as watcher:
        await introduced(watcher)
        await watcher.register(sink, lambda event: None)
        await watcher.settled()
        await watcher.bind("engine::workers-available", sink, {}, metadata={"m": 1})
        await watcher.settled()
        async with peer(url) as visitor:
            await introduced(visitor)
            visitor_id = visitor.worker_id

        def events() -> list[str]:
            told = watcher.seen("invokefunction", function_id=sink)
            return [frame["data"]["event"] for frame in told if frame["data"]["worker_id"] == visitor_id]

        await eventually(lambda: len(events()) == 3)
        assert set(events()) == {"worker_connected", "worker_metadata_updated", "worker_disconnected"}
        told = watcher.seen("invokefunction", function_id=sink)[0]
        assert told["data"].keys() == {"event", "worker_id"}
        assert told["metadata"] == {"m": 1}


@pytest.mark.long
async def test_a_change_of_functions_is_an_event_some_seconds_later(url: str) -> None:
    sink = unique("sink::")
    async with peer(url) as watcher:
        await introduced(watcher)
        await watcher.register(sink, lambda event: None)
        await watcher.settled()
        await watcher.bind("engine::functions-available", sink, {})
        await watcher.register(unique("f::"))
        told = await watcher.frame("invokefunction", 8, function_id=sink)
        assert told["data"]["event"] == "functions_changed"
        assert sink in [row["function_id"] for row in told["data"]["functions"]]


async def test_provider_and_binder_may_be_one_worker(url: str) -> None:
    trigger_type = unique("t::")
    async with peer(url) as worker:
        await worker.provide(trigger_type)
        binding = await worker.bind(trigger_type, "f", {})
        await introduced(worker)
        bound = await worker.frame("registertrigger", id=binding)
        await worker.acknowledge(bound, REFUSAL)
        await worker.frame("triggerregistrationresult", id=binding)
        await asyncio.wait_for(worker.settled(), PATIENCE_S)
