"""Bad input is refused whole, with the reason, or kept as it is; never half of it comes in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from session_manager.interop.opencode.exports import export_session
from session_manager.interop.opencode.imports import Existing, plan_import
from session_manager.interop.opencode.sessions import Refused
from session_manager.interop.opencode.sources import read
from session_manager.interop.opencode.targets import StoreTarget
from session_manager.model import SessionMeta
from session_manager.store import Change
from session_manager.stores.memory import MemoryStore
from tests.interop.support import DATA, NOW, Json, bring_in, differences, document, imported, messages, path

EXPORT = (DATA / "samples/v1_tools/export.json").read_bytes()
TRANSFER = (DATA / "synthetic_2.1/all_kinds.transfer.json").read_bytes()
LOG = (DATA / "samples/v1_single/sync_history.json").read_bytes()

INFO = {"id": "ses_1", "title": "T", "time": {"created": 1, "updated": 2}, "location": {"directory": "/p"}}


def user(id_: str, words: Json = "hi", **fields: Json) -> Json:
    return {"id": id_, "type": "user", "time": {"created": 5}, "text": words, **fields}


async def refused(data: bytes) -> str:
    """The reason; and nothing of it came in."""
    store = MemoryStore()
    reason = ""
    try:
        for source in read(data, "test"):
            await bring_in(store, source)
    except Refused as caught:
        reason = str(caught)
    assert reason
    assert await store.metas() == []
    return reason


@pytest.mark.parametrize("whole", [EXPORT, TRANSFER, LOG], ids=["export", "transfer", "log"])
async def test_a_truncated_file_is_refused(whole: bytes) -> None:
    for part in range(1, 20):
        await refused(whole[: len(whole) * part // 20])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b"   \n", "empty"),
        (b"hello", "no JSON"),
        (b"\x00\x01\x02", "no JSON"),
        (b"{}", "no session"),
        (b"[]", "which session"),
        (b"[1,2]", "no objects"),
        (b'[{"a":1}]', "no message list"),
        (b'{"id":"ses_1","title":"x"}', "without its messages"),
        (b'{"data":{"id":"ses_1"}}', "without its messages"),
        (b'{"messages":[]}', "info is missing"),
        (b'{"info":[],"messages":[]}', "info is no object"),
        (b'{"info":{},"messages":[]}', "no id"),
        (b'{"info":{"id":7},"messages":[]}', "no id"),
        (b'{"info":{"id":"ses_1"},"messages":{}}', "messages"),
        (b'{"info":{"id":"ses_1"},"messages":[7]}', "neither generation"),
        (b'{"info":{"id":"ses_1"},"messages":[{"role":"user","content":"x"}]}', "neither generation"),
        (b'{"info":{"id":"ses_1"},"messages":[{"info":{"role":"user"},"parts":[]}]}', "no id"),
        (b'{"info":{"id":"ses_1"},"messages":[{"info":{"id":"m","role":"user"},"parts":{}}]}', "neither generation"),
        (b'[{"id":"msg_1","type":"user","text":"x"}]', "does not name its session"),
        (b'{"info":{"id":"ses_1"},"messages":[],}', "line 1 column"),
        ("﻿[".encode(), "the file"),
        (b'\xff\xfe{"info"', "no JSON"),
    ],
)
async def test_what_is_no_session_is_refused_with_the_reason(data: bytes, why: str) -> None:
    assert why in await refused(data)


def bad_value(value: str) -> bytes:
    good = json.dumps({"info": INFO, "messages": [user("msg_1"), user("msg_2", metadata={"here": "VALUE"})]})
    return good.replace('"VALUE"', value).encode()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ('"\\ud800"', "lone surrogate"),
        ('"ok \\udfff"', "lone surrogate"),
        ('{"\\ud800": 1}', "lone surrogate"),
        ("NaN", "not finite"),
        ("Infinity", "not finite"),
        ("1e999", "not finite"),
        ("1" + "0" * 30, "64 bits"),
        ("[" * 100 + "]" * 100, "96 levels"),
        ("[" * 2000 + "]" * 2000, "levels"),
        ("[" * 100_000 + "]" * 100_000, ""),
    ],
)
async def test_what_cannot_be_carried_is_refused_and_named(value: str, why: str) -> None:
    """The first message is fine, and does not come in either."""
    reason = await refused(bad_value(value))
    assert why in reason
    assert "msg_2" in reason or "message 1" in reason or "the file" in reason or "messages" in reason


async def test_what_cannot_be_carried_is_refused_in_the_record_of_the_session_too() -> None:
    data = json.dumps({"info": {**INFO, "metadata": {"x": 1.5}}, "messages": []}).replace("1.5", "1e999")
    assert "not finite" in await refused(data.encode())


async def test_clashing_ids_are_refused() -> None:
    twice = json.dumps({"info": INFO, "messages": [user("msg_1"), user("msg_1", "other")]})
    assert "two entries would have the id 'msg_1'" in await refused(twice.encode())
    tool = {"type": "tool", "callID": "c", "tool": "t", "id": "prt_1", "state": {"status": "error", "error": "x"}}
    info = {"id": "msg_1", "role": "assistant", "time": {"created": 1, "completed": 2}}
    parts = json.dumps({"info": {"id": "ses_1"}, "messages": [{"info": info, "parts": [tool, tool]}]})
    assert "two entries would have the id 'prt_1'" in await refused(parts.encode())


async def test_a_session_of_our_own_is_not_overwritten() -> None:
    store = MemoryStore()
    own = SessionMeta("ses_1", "mine", "", "idle", 1, 1, 0)
    await store.commit(store, Change("ses_1", meta=own))
    with pytest.raises(Refused, match="did not come from OpenCode"):
        await bring_in(store, document(INFO, [user("msg_1")]))
    assert await store.metas() == [own]
    assert await store.entries("ses_1") == []


async def test_an_older_source_does_not_turn_time_back() -> None:
    new = document({**INFO, "time": {"created": 1, "updated": 9}}, [user("msg_1"), user("msg_2")])
    old = document({**INFO, "time": {"created": 1, "updated": 3}}, [user("msg_1")])
    store, _ = await imported(new)
    plan = await bring_in(store, old)
    assert plan.change is None
    assert "older" in plan.skipped[0]
    # The same moment with fewer messages says nothing new either.
    plan = await bring_in(store, document({**INFO, "time": {"created": 1, "updated": 9}}, [user("msg_1")]))
    assert plan.change is None
    assert len(await messages(store, "ses_1")) == 2


async def test_a_conversation_that_went_on_over_there_continues() -> None:
    store, _ = await imported(document(INFO, [user("msg_1")]))
    later = {**INFO, "title": "Named", "time": {"created": 1, "updated": 3}}
    plan = await bring_in(store, document(later, [user("msg_1"), user("msg_2", "more")]))
    assert [entry.id for entry in plan.added] == ["msg_2"]
    assert [type(emission.event).__name__ for emission in plan.emissions()] == ["MessageAdded", "MetaUpdated"]
    meta = (await store.session("ses_1")).meta
    assert meta is not None
    assert (meta.title, meta.message_count, meta.updated_at) == ("Named", 2, 3)
    assert [m["content"][0]["text"] for m in await messages(store, "ses_1")] == ["hi", "more"]


async def test_a_half_written_answer_is_brought_up_to_date() -> None:
    half = {
        "id": "msg_2",
        "type": "assistant",
        "time": {"created": 6},
        "model": {"id": "m", "providerID": "p"},
        "content": [{"type": "tool", "id": "c", "name": "t", "state": {"status": "running", "input": {}}}],
    }
    done = {
        **half,
        "time": {"created": 6, "completed": 7},
        "finish": "tool-calls",
        "content": [
            {
                "type": "tool",
                "id": "c",
                "name": "t",
                "state": {"status": "completed", "input": {}, "content": [{"type": "text", "text": "x"}]},
            }
        ],
    }
    queued = user("msg_3", "queued")
    store, _ = await imported(document(INFO, [user("msg_1"), half, queued]))
    assert [m["role"] for m in await messages(store, "ses_1")] == ["user", "assistant", "user"]
    plan = await bring_in(store, document(INFO, [user("msg_1"), done, queued]))
    # The result belongs behind its call, although what came later was there first.
    assert [m["role"] for m in await messages(store, "ses_1")] == ["user", "assistant", "function_result", "user"]
    kinds = [type(emission.event).__name__ for emission in plan.emissions()]
    assert kinds == ["MessageAdded", "MessageUpdated", "StatusChanged"] or kinds == ["MessageAdded", "MessageUpdated"]
    export = await export_session(store, "ses_1")
    assert list(differences(export.document["messages"], [user("msg_1"), done, queued])) == []


HOSTILE = [
    "../../etc/passwd",
    "/etc/passwd",
    "a\x00b",
    "\x1b[2J\x1b]0;owned\x07",
    "line\r\nbreak",
    "%2e%2e/",
    "‮gnp.exe",
    "x" * 5000,
    "日本語/../",
    '";drop table entries;--',
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_names_and_texts_are_kept_as_they_are(name: str, tmp_path: Path) -> None:
    records = [user(name, name, files=[{"data": "AAAA", "mime": name, "name": name, "source": {"type": "inline"}}])]
    info = {**INFO, "id": name, "title": name, "metadata": {name: name}}
    store, _ = await imported(document(info, records))
    export = await export_session(store, name)
    assert list(differences(export.document, {"info": info, "messages": records})) == []


async def test_marks_of_our_own_in_a_record_are_only_data() -> None:
    """A record cannot make itself look edited, reach into others, or lose what it says."""
    long = "y" * 400
    records = [
        user("msg_1", long, metadata={"$opencode.ref": [0, "content", 0, "text"], "prefix": "z"}),
        user("msg_2", "short", metadata={"opencode": {"mapped_sha256": "0", "record": {}}}),
        {
            "id": "msg_3",
            "type": "synthetic",
            "time": {"created": 5},
            "text": long,
            "metadata": {"a": {"$opencode.ref": [0]}},
        },
    ]
    info = {**INFO, "metadata": {"opencode": {"session": {"id": "ses_other"}}, "k": 1}}
    store, _ = await imported(document(info, records))
    export = await export_session(store, "ses_1")
    assert list(differences(export.document, {"info": info, "messages": records})) == []
    assert (await bring_in(store, document(info, records))).change is None


async def test_long_texts_are_stored_once() -> None:
    words = "w" * 100_000
    store, _ = await imported(document(INFO, [user("msg_1", words, metadata={"m": 1})]))
    assert sum(len(entry.body) for entry in await store.entries("ses_1")) < 101_000
    export = await export_session(store, "ses_1")
    assert export.document["messages"][0]["text"] == words


async def test_an_import_that_is_cut_off_continues(tmp_path: Path) -> None:
    """Sessions come in one by one; the ones that are in are not looked at twice."""
    store = MemoryStore()
    sources = [document({**INFO, "id": f"ses_{n}"}, [user("msg_1"), user("msg_2")]) for n in range(5)]
    for source in sources[:3]:
        await bring_in(store, source)
    plans = [await bring_in(store, source) for source in sources]
    assert [plan.change is None for plan in plans] == [True, True, True, False, False]


async def test_a_store_that_fails_keeps_nothing_of_the_session() -> None:
    class Failing(MemoryStore):
        def commit(self, view: object, change: Change, durable: object = None, early: object = None) -> Json:
            raise OSError("disk full")

    store = Failing()
    source = document(INFO, [user("msg_1")])
    with pytest.raises(OSError, match="disk full"):
        await StoreTarget(store).write("ses_1", lambda stored: plan_import(source, stored, now=NOW))
    assert await store.metas() == []
    assert await store.entries("ses_1") == []


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
values = st.recursive(
    leaves, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(), v, max_size=4), max_leaves=8
)
KEYS = [
    "type", "text", "role", "parts", "content", "state", "status", "input", "time", "created", "completed", "files",
    "error", "message", "data", "tokens", "cost", "finish", "summary", "output", "metadata", "native", "url", "mime",
]  # fmt: skip
WORDS = ["user", "assistant", "tool", "text", "reasoning", "file", "completed", "error", "compaction", "shell", "idle"]
odd = st.recursive(
    leaves | st.sampled_from(WORDS),
    lambda v: st.lists(v, max_size=4) | st.dictionaries(st.sampled_from(KEYS), v, max_size=6),
    max_leaves=25,
)


@settings(max_examples=80)
@given(first=st.booleans(), kind=st.sampled_from(WORDS), extra=st.dictionaries(st.sampled_from(KEYS), odd, max_size=8))
async def test_whatever_a_record_holds_it_comes_back(*, first: bool, kind: str, extra: Json) -> None:
    """Known kinds with fields of any shape: nothing breaks, nothing is lost."""
    if first:
        extra.pop("parts", None)
        record = {"info": {**extra, "id": "msg_1", "role": kind}, "parts": extra.get("content", [])}
        if not isinstance(record["parts"], list):
            record["parts"] = []
    else:
        record = {**extra, "id": "msg_1", "type": kind}
    try:
        source = document(INFO, [record])
        store, _ = await imported(source)
    except Refused as reason:
        assert "64 bits" in str(reason) or "would have the id" in str(reason)  # noqa: PT017 # the refusal is allowed
        return
    export = await export_session(store, "ses_1")
    assert list(differences(export.document["messages"], [record])) == []
    assert (await bring_in(store, document(INFO, [record]))).change is None
    assert len(await path(store, "ses_1")) >= 1


BIG = """
import json, resource, sys
from session_manager.interop.opencode.imports import Existing, plan_import
from session_manager.interop.opencode.sources import read_file
from pathlib import Path

def used():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

before = used()
[source] = read_file(Path(sys.argv[1]))
plan = plan_import(source, Existing(), now=1)
print(json.dumps({"messages": plan.messages, "mib": used() - before}))
"""


def test_a_hundred_thousand_messages_need_little_more_memory_than_their_file(tmp_path: Path) -> None:
    file = tmp_path / "big.json"
    with file.open("w") as out:
        out.write(json.dumps({"info": INFO, "messages": []})[:-2])
        for number in range(100_000):
            words = "some words of a message " * 12
            if number % 5 == 4:
                record: Json = {
                    "id": f"msg_{number:012x}",
                    "type": "assistant",
                    "time": {"created": number, "completed": number},
                    "model": {"id": "m", "providerID": "p"},
                    "content": [{"type": "text", "text": words}],
                    "finish": "stop",
                }
            else:
                record = user(f"msg_{number:012x}", words)
            out.write(("," if number else "") + json.dumps(record))
        out.write("]}")
    size = file.stat().st_size / 2**20
    # By way of a small process: the most memory that one had begins with what the one had that started it.
    command = ["/bin/sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", BIG, str(file)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=300)
    told = json.loads(done.stdout)
    assert told["messages"] == 100_000
    # The file, the entries as they will be stored (the change is one), and little else.
    assert told["mib"] < 4.5 * size, (told, size)


def test_a_plan_for_nothing_known_asks_for_nothing() -> None:
    plan = plan_import(document(INFO, []), Existing(), now=NOW)
    assert plan.change is not None
    assert plan.change.leaf is None
    assert [type(emission.event).__name__ for emission in plan.emissions()] == ["Created"]
