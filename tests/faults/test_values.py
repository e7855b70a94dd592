"""Any value is either kept exactly or refused at the door, alike in every store; big ones hold nobody up."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from session_manager import door
from session_manager.bindings import binding
from session_manager.errors import MalformedRequest
from session_manager.functions import FUNCTIONS
from session_manager.hub import Hub
from session_manager.store import Store
from session_manager.stores.fs import FsStore
from session_manager.stores.memory import MemoryStore
from session_manager.stores.sqlite import SqliteStore
from tests.faults.conftest import Figure
from tests.faults.load import service, user
from tests.stage import InProcess


def nested(levels: int, inner: Any = None) -> Any:
    value: Any = inner
    for n in range(levels):
        value = {"a": value} if n % 2 else [value]
    return value


PLANES = "".join(
    chr(plane << 16 | low) for plane in range(17) for low in (0x41, 0x3042, 0xFFFD) if plane < 3 or plane > 13
)

KEPT: dict[str, Any] = {
    "one": 1,
    "one as a double": 1.0,
    "true": True,
    "minus zero": -0.0,
    "a sum": 0.1 + 0.2,
    "1e308": 1e308,
    "the least double": 5e-324,
    "2^64-1": 2**64 - 1,
    "2^63+1": 2**63 + 1,
    "-2^63": -(2**63),
    "NUL": "a\0b",
    "a NUL key": {"\0": "\0"},
    "all planes": PLANES,
    "combining": "e\u0301 \u00e9",
    "no character of any kind": "\ufffe\uffff\U0010ffff",
    "line separators": "\u2028\u2029\u0085",
    "quotes": '"\\/\b\f\n\r\t\x7f',
    "96 levels": nested(95, []),
    "empty object": {},
    "null": None,
    "an empty key": {"": 1},
    "keys": {"b": 1, "a": 2, "B": 3},
    "reserved names": {"data": {"data": {"id": "x", "$ref": "#", "arguments": None}}},
}

REFUSED: dict[str, Any] = {
    "2^64": 2**64,
    "-2^63-1": -(2**63) - 1,
    "10^400": 10**400,
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "no number": math.nan,
    "a lone surrogate": "\ud800",
    "a lone low surrogate": "a\udfffb",
    "a surrogate in a key": {"\udc00": 1},
    "97 levels": nested(96, []),
    "500 levels": nested(500),
}


def same(a: Any, b: Any) -> bool:
    """Equal in type and in sign too."""
    return repr(a) == repr(b) or (
        isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    )


def places(value: Any) -> dict[str, dict[str, Any]]:
    """Requests that hold the value, by where."""
    result = {"role": "function_result", "function_call_id": "c", "function_id": "f", "content": [], "timestamp": 0}
    call = {"type": "function_call", "id": "c", "function_id": "f", "arguments": value}
    return {
        "details": {"message": {**result, "details": value}},
        "arguments": {"message": {**user("x"), "content": [call]}},
        "data": {"custom": {"custom_type": "c", "data": value}},
        "origin": {"message": user("x"), "origin": {"value": value}},
    }


def held(entry: dict[str, Any], place: str) -> Any:
    if place == "details":
        return entry["message"]["details"]
    if place == "arguments":
        return entry["message"]["content"][0]["arguments"]
    return entry["data"] if place == "data" else entry["origin"]["value"]


async def test_values_are_kept_exactly(stage: InProcess, figure: Figure) -> None:
    await stage.call("session::ensure", {"session_id": "s"})
    tried = 0
    for name, value in KEPT.items():
        for place, request in places(value).items():
            if place == "origin" and name == "96 levels":
                continue  # the origin is a level of its own
            reply = await stage.call("session::append", {"session_id": "s", **request})
            entry = (await stage.call("session::get-message", {"session_id": "s", "entry_id": reply["entry_id"]}))[
                "entry"
            ]
            assert same(held(entry, place), value), (name, place)
            tried += 1
    metadata = {name: value for name, value in KEPT.items() if name != "96 levels"}
    await stage.call("session::set-meta", {"session_id": "s", "metadata": metadata})
    meta = (await stage.call("session::get", {"session_id": "s"}))["meta"]
    assert same(meta["metadata"], metadata)
    figure(
        "Values kept",
        "1, 1.0, true, -0.0, 1e308, 64-bit bounds, NUL, all planes, 96 levels … in arguments, details, data, origin "
        "and metadata, on every store",
        f"{tried + len(metadata)} each",
        "read back equal in value and in type",
    )


async def test_values_that_cannot_be_carried_are_refused_at_the_door(stage: InProcess, figure: Figure) -> None:
    await stage.call("session::ensure", {"session_id": "s"})
    tried = 0
    for name, value in REFUSED.items():
        for request in places(value).values():
            for function in ("append", "update-message", "store::put-entry"):
                with pytest.raises(MalformedRequest, match=r"malformed request: .* - at `"):
                    await stage.service.call(f"session::{function}", {"session_id": "s", "entry_id": "e", **request})
                tried += 1
        with pytest.raises(MalformedRequest):
            await stage.service.call("session::set-meta", {"session_id": "s", "metadata": {name: value}})
        with pytest.raises(MalformedRequest):
            await stage.service.call("session::ensure", {"session_id": "t", "title": value, "metadata": {"": value}})
    assert (await stage.call("session::list", {}))["sessions"][0]["message_count"] == 0
    assert await stage.call("session::get", {"session_id": "t"}) is None
    figure(
        "Values refused",
        "integers beyond 64 bits, NaN, infinities, lone surrogates, 97 and 500 levels, in the same places",
        f"{tried} each",
        "refused before anything looks at them, naming the field; nothing written",
    )


PLAIN = {"type": "text", "text": "a"}


@pytest.mark.parametrize(
    ("blocks", "where"),
    [
        ([{"type": "text", "text": "\ud800"}], "messages[1].content[0].text"),
        ([PLAIN, {"type": "text", "text": "é\udfff"}], "messages[1].content[1].text"),
        ([PLAIN, {"type": "text", "text": "a", "\ud800": 1}], "messages[1].content[1]"),
        ([PLAIN, {"type": "text", "text": math.nan}], "messages[1].content[1].text"),
        ([PLAIN] * 20 + [{"type": "text", "text": "\ud800"}], "messages[1].content[20].text"),
        ([PLAIN, {"type": "text", "text": "é" * 200_000 + "\ud800"}], "messages[1].content[1].text"),
        ([PLAIN, {"arguments": nested(94, {"content": [PLAIN]})}], "messages[1].content[1].arguments.a[0]"),
    ],
    ids=["text", "the second text", "a key", "a number", "the last of many", "a long text", "levels"],
)
async def test_what_cannot_be_carried_is_found_among_plain_texts(blocks: list[Any], where: str) -> None:
    message = user("fine")
    with pytest.raises(MalformedRequest) as refused:
        door.check({"session_id": "s", "messages": [message, {**message, "content": blocks}, message]})
    assert where in str(refused.value)
    fits = {"arguments": nested(93, {"content": [PLAIN]})}
    door.check({"session_id": "s", "messages": [message, {**message, "content": [PLAIN, *user("ä" * 300)["content"]]}]})
    door.check({"session_id": "s", "messages": [{**message, "content": [PLAIN, fits]}]})


async def test_duplicate_keys_keep_the_last_as_on_the_wire(stage: InProcess) -> None:
    payload = json.loads('{"session_id":"s","metadata":{"a":1,"a":{"b":2,"b":3}}}')
    await stage.call("session::ensure", payload)
    assert (await stage.call("session::get", {"session_id": "s"}))["meta"]["metadata"] == {"a": {"b": 3}}


@pytest.mark.parametrize(("name", "text"), [("8 MB", "x" * 8_000_000), ("60 MB", "tool output " * 5_000_000)])
async def test_a_big_message_is_kept_exactly(name: str, text: str, tmp_path: Path) -> None:
    stores: tuple[Store, ...] = (MemoryStore(), SqliteStore(tmp_path / "sessions.db"), FsStore(tmp_path / "fs"))
    for store in stores:
        await store.open()
        to = service(store)
        await to.call("session::ensure", {"session_id": "s"})
        await to.call("session::append", {"session_id": "s", "entry_id": "e", "message": user(text)})
        reply = await to.call("session::messages", {"session_id": "s"})
        assert reply["messages"][0]["message"]["content"][0]["text"] == text
        reply = await to.call(
            "session::update-message", {"session_id": "s", "entry_id": "e", "content": user(text + "!")["content"]}
        )
        assert reply == {"updated": True, "revision": 1}
        entry = (await to.call("session::get-message", {"session_id": "s", "entry_id": "e"}))["entry"]
        assert entry["message"] == user(text + "!")
        await store.close()


async def test_a_message_of_8_mb_is_kept_exactly_everywhere(stage: InProcess) -> None:
    message = user("漢字 \0 \U0001f600 output\n" * 320_000)
    await stage.call("session::ensure", {"session_id": "s"})
    await stage.call("session::append", {"session_id": "s", "entry_id": "e", "message": message})
    page = await stage.call("session::messages", {"session_id": "s"})
    assert page["messages"] == [{"entry_id": "e", "message": message}]


BIG: dict[str, Any] = {
    "8 MB of text": {"message": user("tool output\n" * 650_000)},
    "50 MB of text": {"message": user("tool output\n" * 4_150_000)},
    "50 MB of Chinese": {"message": user("漢字" * 8_300_000)},
    "a million values": {"custom": {"custom_type": "c", "data": [{"a": n} for n in range(500_000)]}},
    "10,000 messages": {"messages": [user("x" * 100)] * 10_000},
}


STALL, UNITS, ATTEMPTS = 0.075, 4, 4
"""Seconds: 50 ms, and room for a machine whose caches others use as well; on a slower machine as many units of work as
that is here. One that others keep busy may take a thread's processor away in a way that counts as the thread's time;
then it is measured again, for what is ours is there each time."""


def unit() -> float:
    """CPU seconds that some work takes here and now: a tenth of the biggest body through JSON and back, and a short
    loop."""

    def once() -> float:
        began = time.thread_time()
        msgspec.json.decode(msgspec.json.encode("tool output\n" * 400_000))
        sum(len(str(n)) for n in range(20_000))
        return time.thread_time() - began

    return min(once() for _ in range(5))


async def busiest(call: Any) -> tuple[float, float, Any]:
    """How long the event loop was at work in one go at most, in CPU seconds, how long the call took, and its reply.

    CPU time, because on a busy machine the clock also counts what others do.
    """
    worst, done = 0.0, False
    gc.collect()
    gc.freeze()  # what earlier tests left in memory is not this worker's to look through

    async def watch() -> None:
        nonlocal worst
        last = time.thread_time()
        while not done:
            await asyncio.sleep(0)
            now = time.thread_time()
            worst, last = max(worst, now - last), now

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    started = time.perf_counter()
    reply = await call
    took = time.perf_counter() - started
    done = True
    await watching
    gc.unfreeze()
    return worst, took, reply


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if "Chinese" in name else []) for name in BIG]
)
async def test_no_big_request_holds_up_the_others(name: str, tmp_path: Path, figure: Figure) -> None:
    from session_manager.bindings import BindingTable, binding

    table = BindingTable()
    for kind in ("session::message-added", "session::message-updated"):
        table.add(binding(kind, kind, "test::receive", {}))
    functions = {function.id: function for function in FUNCTIONS}
    store: Store = SqliteStore(tmp_path / "sessions.db")
    await store.open()
    to = service(store, Hub(table, lambda parcels: None).publish)
    await to.call("session::ensure", {"session_id": "s"})
    request = BIG[name]
    function = "append-many" if "messages" in request else "append"
    for _ in range(ATTEMPTS):
        stalls: dict[str, float] = {}
        stalls["write"], _, reply = await busiest(
            to.answer(functions[f"session::{function}"], {"session_id": "s", **request})
        )
        stalls["read"], _, _ = await busiest(
            to.answer(functions["session::messages"], {"session_id": "s", "include_custom": True})
        )
        if "message" in request:
            update = {"session_id": "s", "entry_id": reply.entry_id, "content": request["message"]["content"]}
            stalls["update"], _, _ = await busiest(to.answer(functions["session::update-message"], update))
        allowed = max(STALL, UNITS * unit())
        if max(stalls.values()) < allowed:
            break
    await store.close()
    assert max(stalls.values()) < allowed, (stalls, allowed)
    figure(
        f"Big body: {name}",
        "CPU time that the event loop spends on it in one go, door to events, a subscriber bound",
        ", ".join(stalls),
        ", ".join(f"{seconds * 1000:.0f} ms" for seconds in stalls.values()),
    )


async def test_limits_are_enforced_with_errors_that_name_the_field(
    stage: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.call("session::ensure", {"session_id": "s"})
    long_id = "i" * (door.MAX_ID + 1)
    messages = [user("x")] * (door.MAX_BATCH + 1)
    for function, payload, field in (
        ("ensure", {"session_id": long_id}, "session_id"),
        ("append", {"session_id": "s", "entry_id": long_id, "message": user("x")}, "entry_id"),
        ("append", {"session_id": "s", "parent_id": long_id, "message": user("x")}, "parent_id"),
        ("append-many", {"session_id": "s", "messages": messages}, "messages"),
        ("set-meta", {"session_id": "s", "title": "t" * (door.MAX_RECORD + 1)}, "title"),
        ("set-draft", {"session_id": "s", "draft": "t" * (door.MAX_RECORD + 1)}, "draft"),
        ("set-meta", {"session_id": "s", "metadata": {"a": "t" * door.MAX_RECORD}}, "metadata"),
        ("set-meta", {"session_id": "s", "metadata": {str(n): "t" * 900 for n in range(5000)}}, "metadata"),
        ("set-meta", {"session_id": "s", "metadata": {f"{n:\1>200}": "\1" * 200 for n in range(1800)}}, "metadata"),
    ):
        with pytest.raises(MalformedRequest, match=f"at `{field}`"):
            await stage.service.call(f"session::{function}", payload)
    with pytest.raises(MalformedRequest, match=r"at most .* bytes as JSON"):
        await stage.service.call("session::append", {"session_id": "s", "message": user("x" * door.MAX_BODY)})
    deep = nested(door.MAX_REQUEST_LEVELS)  # of a key that nobody knows, yet it must be walked
    with pytest.raises(MalformedRequest, match="at `unknown"):
        await stage.service.call("session::append", {"session_id": "s", "message": user("x"), "unknown": deep})
    monkeypatch.setattr(door, "MAX_CHANGE", 10_000)
    several = [user("x" * 3000)] * 4
    with pytest.raises(MalformedRequest, match="one call may add at most 10000 bytes as JSON"):
        await stage.service.call("session::append-many", {"session_id": "s", "messages": several})
    assert await stage.call("session::messages", {"session_id": "s"}) == {"messages": []}
    await stage.call("session::append-many", {"session_id": "s", "messages": several[:3]})
    await stage.call("session::append", {"session_id": "s", "entry_id": "i" * 300, "message": user("x")})


async def test_what_is_too_long_is_ignored_under_a_key_that_the_function_does_not_know(stage: InProcess) -> None:
    long_id, long_text = "i" * (door.MAX_ID + 1), "t" * (door.MAX_RECORD + 1)
    await stage.call("session::ensure", {"session_id": "s", "id": long_id, "messages": [0] * (door.MAX_BATCH + 1)})
    await stage.call("session::get", {"session_id": "s", "metadata": {"a": long_text}, "meta": {"title": long_text}})
    append = {"session_id": "s", "entry_id": "e", "message": user("x")}
    await stage.call("session::append", {**append, "title": long_text, "entry": {"id": long_id}})
    entry = {"kind": "custom", "id": "c", "timestamp": 1, "custom_type": "t", "session_id": long_id, "title": long_text}
    await stage.call("session::store::put-entry", {"session_id": "s", "entry": entry})
    assert (await stage.call("session::get", {"session_id": "s"}))["meta"]["message_count"] == 1


TEXT = "message.content[0].text"


@pytest.mark.parametrize(
    ("function", "payload", "field"),
    [
        ("list", {"limit": "x"}, "limit"),
        ("list", {"limit": 2**64}, "limit"),
        ("append", {"session_id": "s", "message": {**user("x"), "role": "a - at `$.role`"}}, "message.role"),
        ("append", {"session_id": "s", "message": {**user("x"), "content": [{"type": "text", "text": 5}]}}, TEXT),
        (
            "append",
            {"session_id": "s", "message": {**user("x"), "content": [{"type": "text", "text": "\ud800"}]}},
            TEXT,
        ),
        ("append-many", {"session_id": "s", "messages": [user("x"), {"role": "user"}]}, "messages[1]"),
    ],
)
async def test_a_field_is_named_in_one_way_whoever_finds_that_it_is_wrong(
    stage: InProcess, function: str, payload: Any, field: str
) -> None:
    with pytest.raises(MalformedRequest) as refused:
        await stage.service.call(f"session::{function}", payload)
    assert str(refused.value).endswith(f" - at `{field}`")


@pytest.mark.parametrize(("config", "field"), [({"session_id": 5}, "session_id"), ({"roles": "\ud800"}, "roles")])
def test_the_field_of_a_binding_is_named_in_the_same_way(config: Any, field: str) -> None:
    with pytest.raises(MalformedRequest) as refused:
        binding("b", "session::message-added", "f", config)
    said = str(refused.value)
    assert said.startswith("malformed request: the configuration of a session::message-added trigger: ")
    assert said.endswith(f" - at `{field}`")
    assert said.count("malformed request") == 1
