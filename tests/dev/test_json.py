"""What the engine does to JSON on the way, and what it drops without a word."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.dev.client import PATIENCE_S, Peer, peer, unique


@pytest.fixture
async def pair(url: str) -> AsyncIterator[tuple[Peer, str]]:
    """A client, and a function that nobody answers for it: its deliveries are looked at."""
    function = unique("f::")
    async with peer(url) as worker:
        await worker.introduce(unique("w"))
        await worker.register(function, lambda data: data)
        await worker.settled()
        yield worker, function


async def through(worker: Peer, function: str, text: str) -> str:
    """The JSON text `text` after one passage through the engine."""
    invocation = str(uuid.uuid4())
    await worker.send_raw(
        f'{{"type":"invokefunction","invocation_id":"{invocation}","function_id":"{function}","data":{text}}}'
    )
    delivery = await worker.frame("invokefunction", invocation_id=invocation)
    return json.dumps(delivery["data"], ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize(
    ("sent", "arrives"),
    [
        ("-0", "-0.0"),
        ("[-0, -0.0]", "[-0.0,-0.0]"),
        ("1e2", "100.0"),
        ("1.0", "1.0"),
        ("1", "1"),
        ("true", "true"),
        ("9223372036854775809", "9223372036854775809"),
        ("18446744073709551615", "18446744073709551615"),
        ("18446744073709551616", "1.8446744073709552e+19"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("-9223372036854775809", "-9.223372036854776e+18"),
        ("1e308", "1e+308"),
        ("1e-400", "0.0"),
        ("0.30000000000000004", "0.30000000000000004"),
        # A double need not survive: the engine rounds twice.
        ("1.8000000000000003", "1.8000000000000005"),
        ("0.38120423768821243", "0.3812042376882124"),
        ('[{"b":1,"a":2,"B":3,"é":4}]', '[{"B":3,"a":2,"b":1,"é":4}]'),
        ('[{"a":1,"a":2}]', '[{"a":2}]'),
        ('"\\u0000 \\ud83d\\ude00 \\u2028 é"', '"\\u0000 😀 \u2028 é"'),
        ('["-0, ", "12345678901234567890123 "]', '["-0, ","12345678901234567890123 "]'),
        (" [ 1 ,\t2\n] ", "[1,2]"),
    ],
)
async def test_values_arrive_as_the_engine_reads_them(pair: tuple[Peer, str], sent: str, arrives: str) -> None:
    assert await through(*pair, sent) == arrives


async def test_126_levels_of_data_arrive(pair: tuple[Peer, str]) -> None:
    deep = "[" * 126 + "]" * 126
    assert await through(*pair, deep) == deep
    assert await through(*pair, '{"a":' * 126 + "1" + "}" * 126)
    wide = f"[{','.join(['[1]'] * 300)}]"
    assert await through(*pair, wide) == wide


@pytest.mark.parametrize(
    "swallowed",
    [
        '"\\ud800"',
        '"\\udc00 tail"',
        '{"\\ud800":1}',
        "NaN",
        "[Infinity]",
        "-Infinity",
        "1e309",
        "[-1e309]",
        "9" * 400,
        "01",
        "1.",
        "[1,]",
        "{'a':1}",
        '"\x01"',
        "[" * 127 + "]" * 127,
        "[" * 5000 + "]" * 5000,
        '{"a":' * 127 + "1" + "}" * 127,
    ],
    ids=lambda text: text[:12],
)
async def test_a_frame_the_engine_cannot_read_is_dropped_without_a_word(pair: tuple[Peer, str], swallowed: str) -> None:
    worker, function = pair
    await worker.send_raw(
        f'{{"type":"invokefunction","invocation_id":"{uuid.uuid4()}","function_id":"{function}","data":{swallowed}}}'
    )
    await worker.settled()
    assert not worker.seen("invokefunction")
    assert len(worker.seen("invocationresult", function_id=function)) == 0


async def test_an_answer_the_engine_cannot_read_leaves_the_caller_waiting(url: str) -> None:
    function = unique("f::")
    async with peer(url) as worker, peer(url) as client:
        await worker.introduce(unique("w"))
        await worker.register(function)
        await worker.settled()
        invocation = await client.start(function, {})
        delivery = await worker.frame("invokefunction", invocation_id=invocation)
        head = f'{{"type":"invocationresult","invocation_id":"{invocation}","function_id":"{function}","result":'
        await worker.send_raw(head + "NaN}")
        await worker.send_raw(head + "[" * 127 + "]" * 127 + "}")
        await worker.settled()
        assert not client.seen("invocationresult", invocation_id=invocation)
        await worker.answer(delivery, result="readable")
        assert (await client.result(invocation))["result"] == "readable"


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "  ",
        "no json",
        "null",
        "[]",
        "{}",
        '{"type":"nobody::knows"}',
        '{"type":"invokefunction","function_id":"engine::functions::list"}',
        '{"type":"invokefunction","data":{}}',
        '{"type":"invokefunction","function_id":"engine::functions::list","data":{},"invocation_id":"7"}',
        '{"type":"invokefunction","function_id":1,"data":{}}',
        '{"type":"invokefunction","function_id":"x","data":{},"action":{"type":"later"}}',
        '{"type":"registerfunction"}',
        '{"type":"registertriggertype","id":"x"}',
        '{"type":"registertrigger","id":"x","trigger_type":"t","function_id":"f"}',
        '{"type":"invocationresult","function_id":"f"}',
        '{"type":"observe","id":"x"}',
        '{"type":"unregistertriggertype","id":"x"}',
    ],
)
async def test_incomplete_and_unknown_frames_are_ignored(url: str, frame: str) -> None:
    async with peer(url) as worker:
        await worker.introduce(unique("w"))
        before = len(worker.frames)
        await worker.send_raw(frame)
        await worker.settled()
        assert len(worker.frames) == before + 1


async def test_unknown_keys_are_ignored(url: str) -> None:
    async with peer(url) as worker:
        await worker.introduce(unique("w"), features=["observe.v1"])
        await worker.register(unique("f::"), observe={"delivery": "owner"}, invocation=None)
        assert await worker.call("engine::unregister_trigger", {"id": "x", "more": 1}, caller={"a": 1}) == {
            "removed": False
        }


@pytest.mark.parametrize("excess", ["message", "frame"])
async def test_a_message_beyond_64_or_a_frame_beyond_16_mebibytes_cuts_the_connection(url: str, excess: str) -> None:
    function = unique("f::")
    async with peer(url) as client:
        await client.introduce(unique("w"))
        text = "x" * ((65 if excess == "message" else 17) << 20)
        message: Any = json.dumps({"type": "invokefunction", "function_id": function, "data": text})
        if excess == "message":
            message = [message[at : at + (1 << 20)] for at in range(0, len(message), 1 << 20)]
        sending = asyncio.ensure_future(client.send_raw(message))
        await asyncio.wait_for(client.closed.wait(), PATIENCE_S)
        assert client.close_code == 1006
        await asyncio.wait([sending])
        sending.exception()


async def test_text_that_is_no_unicode_cuts_the_connection(url: str) -> None:
    async with peer(url) as client:
        await client.send_at_once([b'{"type":"ping","x":"\xff"}'])
        await asyncio.wait_for(client.closed.wait(), PATIENCE_S)
        assert client.close_code == 1006
