"""How a worker comes, names itself, comes back, and is refused."""

from __future__ import annotations

import asyncio

import pytest
from websockets.asyncio.client import connect

from tests.dev.client import PATIENCE_S, Failed, eventually, peer, unique


async def test_a_new_connection_is_greeted_with_an_id_and_a_token(url: str) -> None:
    async with peer(url) as one, peer(url) as other:
        assert one.frames[0].keys() == {"type", "worker_id", "reattach_token"}
        assert one.worker_id != other.worker_id


async def test_registrations_wait_for_the_namespace_and_land_in_it(url: str) -> None:
    function, namespace = unique("f::"), unique("ns")
    async with peer(url) as worker, peer(url) as client:
        await worker.register(function, lambda data: "here")
        await worker.settled()
        with pytest.raises(Failed) as early:
            await client.call(function, {}, namespace=namespace)
        assert early.value.message == f"Function {function} not found in namespace {namespace}."
        await worker.introduce(unique("w"), namespace)
        assert await client.call(function, {}, namespace=namespace) == "here"
        with pytest.raises(Failed) as elsewhere:
            await client.call(function, {})
        assert elsewhere.value.code == "function_not_found"
        assert elsewhere.value.message == (
            f"Function {function} not found in namespace default. It is registered in namespace(s): {namespace}."
        )


async def test_buffered_registrations_are_applied_in_order(url: str) -> None:
    function = unique("f::")
    async with peer(url) as worker:
        await worker.register(function)
        await worker.send("unregisterfunction", id=function)
        await worker.introduce(unique("w"))
        with pytest.raises(Failed, match="is not registered"):
            await worker.call("engine::functions::info", {"function_id": function})


async def test_a_worker_that_never_names_itself_ends_up_in_default(hasty_url: str) -> None:
    function = unique("f::")
    async with peer(hasty_url) as worker, peer(hasty_url) as client:
        await worker.register(function, lambda data: "here")

        async def answered() -> bool:
            try:
                return bool(await client.call(function, {}) == "here")
            except Failed:
                return False

        await eventually(answered)
        # Too late for another namespace.
        name = unique("w")
        await worker.claim(name, unique("late"))

        async def namespace() -> str | None:
            rows = (await client.call("engine::workers::list", {"search": name}))["workers"]
            return rows[0]["namespace"] if rows else None

        assert await eventually(namespace) == "default"
        assert await client.call(function, {}) == "here"


async def test_a_second_worker_of_a_name_is_refused_and_its_registrations_vanish(url: str) -> None:
    name, function = unique("w"), unique("f::")
    async with peer(url) as first, peer(url) as second:
        await first.introduce(name)
        await second.register(function)
        await second.claim(name)
        rejected = await second.frame("registrationrejected")
        assert rejected == {
            "type": "registrationrejected",
            "code": "WORKER_NAMESPACE_CONFLICT",
            "namespace": "default",
            "worker_name": name,
            "owner_worker_id": first.worker_id,
        }
        await asyncio.wait_for(second.closed.wait(), PATIENCE_S)
        assert second.close_code == 1005, "closed with a close frame that has no code"
        with pytest.raises(Failed, match="not found"):
            await first.call(function, {})


async def test_one_name_in_two_namespaces_is_no_conflict(url: str) -> None:
    name = unique("w")
    async with peer(url) as first, peer(url) as second:
        await first.introduce(name)
        await second.introduce(name, unique("ns"))
        await second.settled()
        assert not second.seen("registrationrejected")


async def test_a_name_is_free_again_once_its_owner_is_gone(url: str) -> None:
    name = unique("w")
    async with peer(url) as first:
        await first.introduce(name)
        await first.close()
    async with peer(url) as second:
        await second.introduce(name)


async def test_a_blank_namespace_is_refused(url: str) -> None:
    async with peer(url) as worker:
        with pytest.raises(Failed) as refusal:
            await worker.call("engine::workers::register", {"name": unique("w"), "pid": 1, "namespace": " "})
        assert refusal.value.code == "INVALID_NAMESPACE"


async def test_reattaching_with_the_token_retires_the_old_connection(url: str) -> None:
    name, function = unique("w"), unique("f::")
    async with peer(url) as old, peer(url) as new:
        await old.introduce(name)
        await old.register(function, lambda data: "old")
        await old.settled()
        token = old.frames[0]["reattach_token"]
        await new.send("reattach", previous_worker_id=old.worker_id, reattach_token=token)
        await new.register(function, lambda data: "new")
        await new.introduce(name)
        await asyncio.wait_for(old.closed.wait(), PATIENCE_S)
        assert old.close_code == 1006, "dropped without a close frame"
        assert await new.call(function, {}) == "new"
        assert not new.seen("registrationrejected")


@pytest.mark.parametrize("token", ["00000000-0000-0000-0000-000000000000", None])
async def test_reattaching_without_the_right_token_is_ignored(url: str, token: str | None) -> None:
    name = unique("w")
    async with peer(url) as old, peer(url) as new:
        await old.introduce(name)
        await new.send("reattach", previous_worker_id=old.worker_id, reattach_token=token)
        await new.settled()
        await old.settled()
        await new.claim(name)
        rejected = await new.frame("registrationrejected")
        assert rejected["owner_worker_id"] == old.worker_id


async def test_pings_are_answered(url: str) -> None:
    async with peer(url) as worker:
        await worker.ping()
        await worker.send("ping")
        assert await worker.frame("pong") == {"type": "pong"}


async def test_telemetry_is_taken_and_makes_no_worker(url: str) -> None:
    async with connect(f"{url}/otel", proxy=None) as telemetry:
        await telemetry.send(b"OTLP{}")
        await telemetry.send("text is no telemetry")
        await asyncio.wait_for(await telemetry.ping(), PATIENCE_S)
    async with peer(url) as worker:
        await worker.send_raw(b"LOGS{}")
        await worker.settled()
