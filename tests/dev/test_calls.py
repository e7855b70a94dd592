"""Calls, deliveries and answers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dev.client import Failed, Frame, eventually, peer, unique


def same(data: Any) -> Any:
    return data


async def test_a_call_reaches_the_function_and_its_answer_the_caller(url: str) -> None:
    function = unique("f::")
    async with peer(url) as worker, peer(url) as client:
        await worker.introduce(unique("w"))
        await worker.register(function, lambda data: {"twice": data["n"] * 2})
        await worker.settled()
        invocation = await client.start(function, {"n": 4})
        assert await client.result(invocation) == {
            "type": "invocationresult",
            "invocation_id": invocation,
            "function_id": function,
            "result": {"twice": 8},
        }
        delivery = await worker.frame("invokefunction", function_id=function)
        assert delivery == {
            "type": "invokefunction",
            "invocation_id": invocation,
            "function_id": function,
            "data": {"n": 4, "_caller_worker_id": client.worker_id},
        }


async def test_a_null_result_has_neither_result_nor_error(url: str) -> None:
    function = unique("f::")
    async with peer(url) as worker, peer(url) as client:
        await worker.introduce(unique("w"))
        await worker.register(function, lambda data: None)
        await worker.settled()
        frame = await client.result(await client.start(function, {}))
        assert frame.keys() == {"type", "invocation_id", "function_id"}


@pytest.mark.parametrize("data", [None, [], [{"a": 1}], "text", 7, True])
async def test_only_objects_get_the_callers_id(url: str, data: Any) -> None:
    function = unique("f::")
    async with peer(url) as worker, peer(url) as client:
        await worker.introduce(unique("w"))
        await worker.register(function, same)
        await worker.settled()
        assert await client.call(function, data) == data


async def test_the_callers_id_cannot_be_forged(url: str) -> None:
    function = unique("f::")
    async with peer(url) as worker, peer(url) as client:
        await worker.introduce(unique("w"))
        await worker.register(function, same)
        await worker.settled()
        assert await client.call(function, {"_caller_worker_id": "me"}) == {"_caller_worker_id": client.worker_id}


async def test_a_void_call_is_delivered_with_an_id_and_never_answered(url: str) -> None:
    function = unique("f::")
    async with peer(url) as worker, peer(url) as client:
        await worker.introduce(unique("w"))
        await worker.register(function, same)
        await worker.settled()
        await client.send("invokefunction", function_id=function, data={}, action={"type": "void"})
        with_id = await client.start(function, {"n": 2}, action={"type": "void"})
        deliveries = await worker.several(2, "invokefunction", function_id=function)
        assert all(delivery["invocation_id"] and "action" not in delivery for delivery in deliveries)
        await client.call(function, {})
        assert not client.seen("invocationresult", invocation_id=with_id)
        assert len(client.seen("invocationresult")) == 1


async def test_an_error_comes_back_as_the_worker_sent_it(url: str) -> None:
    function = unique("f::")
    async with peer(url) as worker, peer(url) as client:
        await worker.introduce(unique("w"))
        await worker.register(function)
        await worker.settled()
        for error in (
            {"code": "session/not_found", "message": "session/not_found: s_1"},
            {"code": "invocation_failed", "message": "", "stacktrace": "line 1\nline 2"},
        ):
            invocation = await client.start(function, {})
            delivery = await worker.frame("invokefunction", invocation_id=invocation)
            await worker.answer(delivery, error=error, result={"ignored": True})
            frame = await client.result(invocation)
            assert frame["error"] == error
            assert "result" not in frame


async def test_only_the_first_answer_counts(url: str) -> None:
    function = unique("f::")
    async with peer(url) as worker, peer(url) as client:
        await worker.introduce(unique("w"))
        await worker.register(function)
        await worker.settled()
        invocation = await client.start(function, {})
        delivery = await worker.frame("invokefunction", invocation_id=invocation)
        await worker.answer(delivery, error={"code": "mine", "message": "first"})
        await worker.answer(delivery, result=None)
        await client.result(invocation)
        await worker.settled()
        await client.settled()
        assert [frame["error"]["code"] for frame in client.seen("invocationresult", invocation_id=invocation)] == [
            "mine"
        ]


async def test_metadata_travels_beside_the_data(url: str) -> None:
    function = unique("f::")
    async with peer(url) as worker, peer(url) as client:
        await worker.introduce(unique("w"))
        await worker.register(function, same)
        await worker.settled()
        await client.call(function, {}, metadata={"why": [1]})
        delivery = await worker.frame("invokefunction", function_id=function)
        assert delivery["metadata"] == {"why": [1]}
        assert "namespace" not in delivery


async def test_calls_are_routed_by_namespace_and_id(url: str) -> None:
    function, here, there = unique("f::"), unique("a"), unique("b")
    async with peer(url) as first, peer(url) as second, peer(url) as client:
        await first.introduce(unique("w"), here)
        await second.introduce(unique("w"), there)
        await first.register(function, lambda data: "first")
        await second.register(function, lambda data: "second")
        await first.settled()
        await second.settled()
        assert await client.call(function, {}, namespace=here) == "first"
        assert await client.call(function, {}, namespace=there) == "second"
        # A caller's own namespace plays no part.
        with pytest.raises(Failed) as miss:
            await first.call(function, {})
        places = ", ".join(sorted([here, there]))
        assert miss.value.message == (
            f"Function {function} not found in namespace default. It is registered in namespace(s): {places}."
        )


async def test_a_blank_namespace_is_answered(url: str) -> None:
    async with peer(url) as client:
        for blank in ("", "  "):
            with pytest.raises(Failed) as refusal:
                await client.call("engine::functions::list", {}, namespace=blank)
            assert refusal.value.code == "INVALID_NAMESPACE"
            assert "`namespace` is empty" in refusal.value.message


async def test_enqueueing_fails_without_a_queue_worker(url: str) -> None:
    async with peer(url) as client:
        with pytest.raises(Failed) as refusal:
            await client.call(unique("f::"), {}, action={"type": "enqueue", "queue": "q"})
        assert refusal.value.code == "enqueue_error"


async def test_calls_on_a_worker_that_dies_are_stopped(url: str) -> None:
    function = unique("f::")
    async with peer(url) as worker, peer(url) as client:
        await worker.introduce(unique("w"))
        await worker.register(function)
        await worker.settled()
        waiting = [await client.start(function, {"n": n}) for n in range(3)]
        await worker.several(3, "invokefunction", function_id=function)
        worker.cut()
        for invocation in waiting:
            frame = await client.result(invocation)
            assert frame["error"] == {"code": "invocation_stopped", "message": "Invocation stopped"}
        with pytest.raises(Failed) as gone:
            await client.call(function, {})
        assert gone.value.code == "function_not_found"


async def test_an_answer_for_a_caller_that_is_gone_is_dropped(url: str) -> None:
    function = unique("f::")
    async with peer(url) as worker, peer(url) as client:
        await worker.introduce(unique("w"))
        await worker.register(function)
        await worker.settled()
        async with peer(url) as hasty:
            await hasty.start(function, {})
            delivery = await worker.frame("invokefunction", function_id=function)
        await worker.answer(delivery, result=1)
        await worker.settled()
        await client.settled()


async def test_an_unregistered_function_is_gone(url: str) -> None:
    function = unique("f::")
    async with peer(url) as worker, peer(url) as other:
        await worker.introduce(unique("w"))
        await worker.register(function, same)
        await other.introduce(unique("w"))
        await worker.settled()
        await other.send("unregisterfunction", id=function)
        await other.settled()
        assert await other.call(function, 1) == 1, "nobody unregisters another's function"
        await worker.send("unregisterfunction", id=function)
        await worker.settled()
        with pytest.raises(Failed) as gone:
            await other.call(function, {})
        assert gone.value.code == "function_not_found"


async def test_registering_again_replaces_ones_own_function(url: str) -> None:
    function = unique("f::")
    async with peer(url) as worker:
        await worker.introduce(unique("w"))
        await worker.register(function, description="one")
        await worker.register(function, description="two")
        detail = await worker.call("engine::functions::info", {"function_id": function})
        assert detail["description"] == "two"
        assert not worker.seen("registrationrejected")


async def test_a_function_has_one_owner_and_a_refused_worker_is_not_promoted(url: str) -> None:
    function, trigger_type = unique("f::"), unique("t::")
    async with peer(url) as client, peer(url) as second:
        await second.introduce(unique("w"))
        async with peer(url) as first:
            await first.introduce(unique("w"))
            await first.register(function, lambda data: "first")
            await first.settled()
            await second.register(function, lambda data: "second")
            await second.provide(trigger_type)
            assert await second.frame("registrationrejected") == {
                "type": "registrationrejected",
                "code": "FUNCTION_NAMESPACE_CONFLICT",
                "namespace": "default",
                "function_id": function,
                "owner_worker_id": first.worker_id,
            }
            assert await client.call(function, {}) == "first"
            # The connection lives on, and trigger types know no conflict.
            assert (await second.call("engine::triggers::info", {"id": trigger_type}))["id"] == trigger_type

        async def gone() -> bool:
            try:
                await client.call(function, {})
            except Failed:
                return True
            return False

        await eventually(gone)
        await second.settled()
        with pytest.raises(Failed):
            await client.call(function, {})
        await second.register(function)
        await second.settled()
        assert await client.call(function, {}) == "second"


async def test_the_engines_own_ids_are_reserved_outside_default(url: str) -> None:
    namespace = unique("ns")
    async with peer(url) as worker:
        await worker.introduce(unique("w"), namespace)
        await worker.register("engine::mine")
        rejected = await worker.frame("registrationrejected")
        assert rejected["code"] == "FUNCTION_NAMESPACE_CONFLICT"
        assert rejected["owner_worker_id"] == ""


async def test_a_burst_arrives_whole_but_not_in_order(url: str) -> None:
    function = unique("f::")
    async with peer(url) as worker, peer(url) as client:
        await worker.introduce(unique("w"))
        await worker.register(function)
        await worker.settled()
        for attempt in range(1, 11):
            head = f'{{"type":"invokefunction","function_id":"{function}","action":{{"type":"void"}},"data":'
            await client.send_at_once([f'{head}{{"n":{n}}}}}'.encode() for n in range(500)])
            deliveries = await worker.several(500 * attempt, "invokefunction", function_id=function)
            arrived = [delivery["data"]["n"] for delivery in deliveries[-500:]]
            assert sorted(arrived) == list(range(500))
            if arrived != list(range(500)):
                return
        pytest.fail("ten bursts arrived in order")


async def test_awaited_calls_one_at_a_time_keep_their_order(url: str) -> None:
    function = unique("f::")
    async with peer(url) as worker, peer(url) as client:
        await worker.introduce(unique("w"))
        await worker.register(function, same)
        await worker.settled()
        for n in range(200):
            await client.call(function, {"n": n})
        arrived = [delivery["data"]["n"] for delivery in worker.seen("invokefunction", function_id=function)]
        assert arrived == list(range(200))


async def test_a_worker_that_stops_reading_holds_nobody_up_and_misses_nothing(url: str) -> None:
    sink, count = unique("sink::"), 3000
    async with peer(url) as slow, peer(url) as caller:
        await slow.introduce(unique("slow-"))
        await slow.register(sink)
        await slow.settled()
        slow.stop_reading()
        for number in range(count):
            await caller.send(
                "invokefunction", function_id=sink, data={"n": number, "x": "x" * 1000}, action={"type": "void"}
            )
        for _ in range(20):  # the sender notices nothing, and is answered as ever
            await caller.call("engine::unregister_trigger", {"id": "none"})
        assert not slow.seen("invokefunction")
        slow.read_on()
        arrived = await slow.several(count, "invokefunction")
        assert sorted(frame["data"]["n"] for frame in arrived) == list(range(count))


async def test_a_worker_may_call_while_it_is_called(url: str) -> None:
    outer, inner = unique("outer::"), unique("inner::")
    async with peer(url) as worker, peer(url) as client:
        await worker.introduce(unique("w"))
        await worker.register(outer)
        await worker.register(inner, lambda data: "inner")
        await worker.settled()
        invocation = await client.start(outer, {})
        delivery = await worker.frame("invokefunction", invocation_id=invocation)
        await worker.answer(delivery, result=await worker.call(inner, {}))
        frame: Frame = await client.result(invocation)
        assert frame["result"] == "inner"
