"""What OpenCode's records become."""

from __future__ import annotations

import json

import pytest

from session_manager.interop.opencode.events import read_event
from session_manager.interop.opencode.imports import existing
from session_manager.interop.opencode.replay import Gap, Replay
from session_manager.interop.opencode.sources import read, read_file
from session_manager.model import decode_message
from session_manager.stores.memory import MemoryStore
from tests.interop.support import DATA, Json, bring_in, differences, document, imported, load, messages, path, planned

V1 = {
    "id": "ses_1",
    "slug": "s",
    "title": "T",
    "version": "1.18.34",
    "directory": "/p",
    "time": {"created": 1, "updated": 2},
}
V2 = {"id": "ses_2", "title": "T", "time": {"created": 1, "updated": 2}, "location": {"directory": "/p"}}


def v1_user(id_: str, *parts: Json, at: int = 10) -> Json:
    return {
        "info": {"id": id_, "sessionID": "ses_1", "role": "user", "time": {"created": at}, "agent": "build"},
        "parts": [{"id": f"prt_{id_}_{n}", **part} for n, part in enumerate(parts)],
    }


def v1_assistant(id_: str, *parts: Json, at: int = 20, **info: Json) -> Json:
    return {
        "info": {
            "id": id_,
            "sessionID": "ses_1",
            "role": "assistant",
            "time": {"created": at, "completed": at + 5},
            "modelID": "m",
            "providerID": "p",
            "tokens": {"input": 388, "output": 20, "reasoning": 40, "cache": {"read": 512, "write": 0}},
            "cost": 0.5,
            "finish": "stop",
            **info,
        },
        "parts": [{"id": f"prt_{id_}_{n}", **part} for n, part in enumerate(parts)],
    }


def v2_assistant(id_: str, *content: Json, **fields: Json) -> Json:
    return {
        "id": id_,
        "type": "assistant",
        "time": {"created": 20, "completed": 25},
        "agent": "build",
        "model": {"id": "m", "providerID": "p"},
        "content": list(content),
        "finish": "stop",
        "cost": 0,
        "tokens": {"input": 1, "output": 2, "reasoning": 0, "cache": {"read": 0, "write": 0}},
        **fields,
    }


async def shown(info: Json, *records: Json) -> list[Json]:
    store, _ = await imported(document(info, list(records)))
    return await messages(store, info["id"])


async def test_an_assistant_keeps_model_usage_and_the_order_of_its_blocks() -> None:
    [message, result] = await shown(
        V1,
        v1_assistant(
            "msg_a",
            {"type": "step-start"},
            {"type": "reasoning", "text": "hm", "metadata": {"anthropic": {"signature": "c2ln"}}},
            {"type": "text", "text": "first"},
            {
                "type": "tool",
                "callID": "c1",
                "tool": "bash",
                "state": {
                    "status": "completed",
                    "input": {"command": "ls"},
                    "output": "out",
                    "title": "ls",
                    "metadata": {"exit": 3},
                    "time": {"start": 21, "end": 22},
                },
            },
            {"type": "text", "text": "second"},
            finish="tool-calls",
        ),
    )
    assert message == {
        "role": "assistant",
        "content": [
            {"type": "thinking", "text": "hm", "signature": "c2ln"},
            {"type": "text", "text": "first"},
            {"type": "function_call", "id": "c1", "function_id": "bash", "arguments": {"command": "ls"}},
            {"type": "text", "text": "second"},
        ],
        "stop_reason": "function_call",
        "model": "m",
        "provider": "p",
        "timestamp": 20,
        "native_stop_reason": "tool-calls",
        "usage": {"input": 388, "output": 20, "reasoning": 40, "cache_read": 512, "cache_write": 0, "cost_usd": 0.5},
        "agent": "opencode",
    }
    # A command that ended with 3 did run: OpenCode calls that completed.
    assert result == {
        "role": "function_result",
        "function_call_id": "c1",
        "function_id": "bash",
        "content": [{"type": "text", "text": "out"}],
        "timestamp": 22,
        "details": {"title": "ls", "metadata": {"exit": 3}, "time": {"start": 21, "end": 22}},
        "is_error": False,
    }


async def test_pictures_are_images_and_other_files_a_line_of_text() -> None:
    [message] = await shown(
        V1,
        v1_user(
            "msg_u",
            {"type": "text", "text": "look"},
            {"type": "file", "mime": "image/png", "url": "data:image/png;base64,iVBO", "filename": "a.png"},
            {"type": "file", "mime": "text/plain", "url": "file:///etc/passwd", "filename": "passwd"},
        ),
    )
    assert message["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image", "mime": "image/png", "data": "iVBO"},
        {"type": "text", "text": "[attachment: passwd, text/plain]"},
    ]


async def test_what_opencode_wrote_itself_is_not_shown_as_the_persons_words() -> None:
    asides = {"type": "text", "text": "Called the Read tool", "synthetic": True}
    [user, custom] = await shown(V1, v1_user("msg_u", {"type": "text", "text": "mine"}, asides))
    assert user["content"] == [{"type": "text", "text": "mine"}]
    assert (custom["role"], custom["custom_type"], custom["display"]) == (
        "custom",
        "opencode.synthetic",
        "Called the Read tool",
    )
    [alone] = await shown(V1, v1_user("msg_u", asides))
    assert (alone["role"], alone["content"]) == ("custom", [{"type": "text", "text": "Called the Read tool"}])


@pytest.mark.parametrize(
    ("finish", "error", "stop", "kind"),
    [
        ("stop", None, "end", None),
        ("length", None, "length", None),
        ("length", {"name": "MessageOutputLengthError", "data": {}}, "length", None),
        ("tool-calls", None, "function_call", None),
        ("content-filter", {"name": "ContentFilterError", "data": {"message": "no"}}, "error", "permanent"),
        ("unknown", None, "end", None),
        (None, {"name": "MessageAbortedError", "data": {"message": "stop"}}, "aborted", None),
        (None, {"name": "ProviderAuthError", "data": {"message": "key"}}, "error", "auth_expired"),
        (None, {"name": "APIError", "data": {"message": "x", "statusCode": 401}}, "error", "auth_expired"),
        (None, {"name": "APIError", "data": {"message": "x", "statusCode": 403}}, "error", "auth_expired"),
        (None, {"name": "APIError", "data": {"message": "x", "statusCode": 429}}, "error", "rate_limited"),
        (None, {"name": "APIError", "data": {"message": "x", "statusCode": 503}}, "error", "transient"),
        (None, {"name": "APIError", "data": {"message": "x", "statusCode": 408}}, "error", "transient"),
        (None, {"name": "APIError", "data": {"message": "x", "isRetryable": True}}, "error", "transient"),
        (None, {"name": "APIError", "data": {"message": "x", "statusCode": 400}}, "error", "permanent"),
        (None, {"name": "ContextOverflowError", "data": {"message": "x"}}, "error", "context_overflow"),
        (None, {"name": "StructuredOutputError", "data": {"message": "x"}}, "error", "permanent"),
        (None, {"name": "UnknownError", "data": {"message": "x"}}, "error", "permanent"),
        (None, {"name": "NewError", "data": {"message": "x"}}, "error", "permanent"),
        (None, None, "aborted", None),
    ],
)
async def test_stop_reason_and_error_kind_of_the_first_generation(
    finish: str | None, error: Json, stop: str, kind: str | None
) -> None:
    record = v1_assistant("msg_a", {"type": "text", "text": "x"})
    record["info"].pop("finish")
    record["info"].update({"finish": finish} if finish else {}, **({"error": error} if error else {}))
    [message] = await shown(V1, record)
    assert (message["stop_reason"], message.get("error_kind")) == (stop, kind)
    assert ("warnings" in message) == (finish == "unknown" or (finish is None and error is None))


@pytest.mark.parametrize(
    ("error", "stop", "kind"),
    [
        ({"type": "provider.auth", "message": "x"}, "error", "auth_expired"),
        ({"type": "provider.rate-limit", "message": "x"}, "error", "rate_limited"),
        ({"type": "provider.context-overflow", "message": "x"}, "error", "context_overflow"),
        ({"type": "provider.transport", "message": "x"}, "error", "transient"),
        ({"type": "provider.timeout", "message": "x"}, "error", "transient"),
        ({"type": "provider.internal", "message": "x"}, "error", "transient"),
        ({"type": "provider.quota", "message": "x"}, "error", "permanent"),
        ({"type": "something.new", "message": "x"}, "error", "permanent"),
        ({"type": "aborted", "message": "x"}, "aborted", None),
        ({"type": "unknown", "message": "Provider turn interrupted"}, "aborted", None),
        ({"type": "unknown", "message": "Provider request failed with HTTP 401: {}"}, "error", "auth_expired"),
        ({"type": "unknown", "message": "Provider request failed with HTTP 429: {}"}, "error", "rate_limited"),
        ({"type": "unknown", "message": "Provider request failed with HTTP 502: {}"}, "error", "transient"),
        ({"type": "unknown", "message": "Failed to read OpenAI stream"}, "error", "transient"),
        ({"type": "unknown", "message": 'HTTP 400: {"code":"context_length_exceeded"}'}, "error", "context_overflow"),
        ({"type": "unknown", "message": "boom"}, "error", "permanent"),
    ],
)
async def test_stop_reason_and_error_kind_of_the_second_generation(error: Json, stop: str, kind: str | None) -> None:
    [message] = await shown(V2, v2_assistant("msg_a", {"type": "text", "text": "x"}, finish="error", error=error))
    assert (message["stop_reason"], message.get("error_kind")) == (stop, kind)
    assert message["error_message"] == error["message"]


@pytest.mark.parametrize(
    ("sample", "kind"),
    [
        ("v1_err_400", "permanent"),
        ("v1_err_auth", "auth_expired"),
        ("v1_err_context", "context_overflow"),
        ("v2_err_400", "permanent"),
    ],
)
async def test_recorded_errors_have_their_kind(sample: str, kind: str) -> None:
    if sample.startswith("v1"):
        [source] = read_file(DATA / f"samples/{sample}/export.json")
    else:
        info = load(f"samples/{sample}/session.v2.json")["data"]
        source = document(info, load(f"samples/{sample}/messages.v2.json")["data"])
    kinds = {message.get("error_kind") for message in await shown_of(source)}
    assert kind in kinds


async def shown_of(source: Json) -> list[Json]:
    store, _ = await imported(source)
    return await messages(store, source.id)


async def test_cost_that_the_early_form_does_not_know_is_left_out() -> None:
    early = v2_assistant("msg_a", {"type": "text", "id": "text-0", "text": "x"})
    [message] = await shown(V2, early)
    assert "cost_usd" not in message["usage"]
    [message] = await shown(V2, v2_assistant("msg_a", {"type": "text", "text": "x"}))
    assert message["usage"]["cost_usd"] == 0


async def test_a_tool_that_answers_with_data_only_has_its_json_as_text() -> None:
    store, _ = await imported(
        document(load("samples/v2_tools/session.v2.json")["data"], load("samples/v2_tools/messages.v2.json")["data"])
    )
    results = [m for m in await messages(store, "ses_dd89fa1a7ffeI819nZ1hXYh43w") if m["role"] == "function_result"]
    assert "A file to read" in results[0]["content"][0]["text"]
    assert [result["is_error"] for result in results if result["function_id"] == "no_such_tool"] == [True]


async def test_a_tool_that_never_ended_has_an_answer_once_the_message_is_settled() -> None:
    running = {"type": "tool", "callID": "c", "tool": "bash", "state": {"status": "running", "input": {}, "time": {}}}
    [_, result] = await shown(V1, v1_assistant("msg_a", running))
    assert result["is_error"] is True
    assert result["details"] == {"synthesized": True}
    open_ = v1_assistant("msg_a", running)
    del open_["info"]["time"]["completed"], open_["info"]["finish"]
    assert [m["role"] for m in await shown(V1, open_)] == ["assistant"]
    # A later assistant message shows that it will not go on.
    later = await shown(V1, open_, v1_assistant("msg_b", at=30))
    assert [m["role"] for m in later] == ["assistant", "function_result", "assistant"]


async def test_call_ids_may_repeat() -> None:
    tool = {
        "type": "tool",
        "id": "call_0",
        "name": "bash",
        "state": {"status": "completed", "input": {}, "content": [{"type": "text", "text": "x"}]},
    }
    store, _ = await imported(document(V2, [v2_assistant("msg_a", tool, tool), v2_assistant("msg_b", tool)]))
    ids = [entry.id for entry in await path(store, "ses_2") if entry.role == "function_result"]
    assert ids == ["msg_a/call_0", "msg_a/call_0/2", "msg_b/call_0"]


async def test_all_kinds_of_the_second_generation_have_their_place() -> None:
    [source] = read_file(DATA / "synthetic_2.1/all_kinds.transfer.json")
    plan = planned(source)
    kinds = [
        (entry.role or "entry", json.loads(entry.body).get("custom_type"))
        for entry in plan.added
        if "/" not in entry.id
    ]
    assert kinds == [
        ("user", None),
        ("custom", "opencode.system"),
        ("assistant", None),
        ("entry", "opencode.agent_switched"),
        ("entry", "opencode.model_switched"),
        ("entry", "opencode.location_switched"),
        ("custom", "opencode.synthetic"),
        ("custom", "opencode.skill"),
        ("custom", "opencode.shell"),
        ("assistant", None),
        ("entry", "opencode.compaction"),
        ("entry", "opencode.compaction"),
        ("entry", "opencode.compaction"),
        ("entry", "opencode.idle"),
        ("entry", "opencode.idle"),
        ("entry", "opencode.idle"),
    ]
    shell = next(e for e in plan.added if b"opencode.shell" in e.body)
    assert json.loads(shell.body)["content"] == [{"type": "text", "text": "$ echo out; exit 2\nout\n"}]


async def test_unknown_kinds_and_fields_are_kept_as_they_came() -> None:
    records = [
        {"id": "msg_x", "type": "hologram", "time": {"created": 5}, "beam": {"deep": [1, 2.0, None]}},
        {**v2_assistant("msg_a", {"type": "smell", "notes": ["rose"]}), "future": {"n": 1}},
        {"id": "msg_u", "type": "user", "time": {"created": 6, "felt": 7}, "text": "hi"},
    ]
    store, plan = await imported(document(V2, records))
    from session_manager.interop.opencode.exports import export_session

    assert list(differences((await export_session(store, "ses_2")).document["messages"], records)) == []
    assert any("hologram" in line for line in plan.lossy)


async def test_compactions_are_bookkeeping() -> None:
    [source] = read_file(DATA / "samples/v1_compact/export.json")
    store, _ = await imported(source)
    entries = [e for e in await path(store, source.id) if e.role is None and b'"opencode.compaction"' in e.body]
    states = [json.loads(entry.body)["data"] for entry in entries]
    assert [state["status"] for state in states[:2]] == ["started", "completed"]
    assert states[1]["summary"].startswith("## Goal")
    assert states[1]["usage"]["input"] == 2000


async def test_a_staged_revert_is_kept_off_the_active_path() -> None:
    [source] = read_file(DATA / "samples/v1_revert/export.reverted.json")
    store, plan = await imported(source)
    words = json.dumps(await messages(store, source.id))
    assert "Make one" in words
    assert "Make two" not in words
    assert any(b"Make two" in entry.body for entry in await store.entries(source.id))
    assert plan.messages == 9


async def test_the_second_generation_hides_what_follows_the_message_named() -> None:
    info = load("samples/v2_revert/session.v2.staged.json")["data"]
    store, _ = await imported(document(info, load("samples/v2_revert/messages.v2.staged.json")["data"]))
    words = json.dumps(await messages(store, info["id"]))
    assert "Make two" in words
    assert "Wrote two" not in words


async def test_a_revert_that_is_taken_back_or_committed_moves_the_active_path() -> None:
    store = MemoryStore()
    for moment, last in [("before", 9), ("reverted", 3), ("unreverted", 9), ("committed", 5)]:
        [source] = read_file(DATA / f"samples/v1_revert/export.{moment}.json")
        await bring_in(store, source)
        shown_ids = [e.id for e in await path(store, source.id) if e.id.startswith("msg_") and "/" not in e.id]
        assert len(shown_ids) == last, moment
    # What was removed over there is still here, on a branch of its own.
    assert any(b"Make two" in entry.body for entry in await store.entries(source.id))


async def test_a_conversation_that_was_taken_back_whole_is_off_the_path_until_it_is_back() -> None:
    store = MemoryStore()
    talk = [v1_user("msg_1", {"type": "text", "text": "hi"}), v1_assistant("msg_2", {"type": "text", "text": "ho"})]
    for updated, revert, shown in [(2, {}, 2), (3, {"revert": {"messageID": "msg_1"}}, 0), (4, {}, 2)]:
        source = document({**V1, "time": {"created": 1, "updated": updated}, **revert}, talk)
        plan = await bring_in(store, source)
        assert plan.skipped == []
        assert len(await messages(store, source.id)) == shown
    assert (await bring_in(store, source)).change is None


async def test_a_subagents_session_keeps_its_parent_and_is_no_fork() -> None:
    [source] = read_file(DATA / "samples/v1_subagent/export.child0.json")
    store, _ = await imported(source)
    meta = (await store.session(source.id)).meta
    assert meta is not None
    assert meta.metadata is not None
    assert meta.metadata["opencode"]["parent_id"] == "ses_dd8a2de2dffei4phlirHoRSvRn"
    assert meta.forked_from is None


async def test_a_fork_that_says_so_is_one() -> None:
    [source] = read_file(DATA / "synthetic_2.1/all_kinds.transfer.json")
    store, _ = await imported(source)
    meta = (await store.session(source.id)).meta
    assert meta is not None
    assert meta.metadata is not None
    assert meta.forked_from == "ses_dd8a000002ffeSyntheticCCCC"
    assert meta.metadata["opencode"]["fork_boundary"]["type"] == "before"
    assert meta.metadata["store"] == {"k": [1, None]}


@pytest.mark.parametrize(
    ("outcome", "status"), [("succeeded", "done"), ("failed", "error"), ("interrupted", "idle"), (None, "done")]
)
async def test_status_is_the_outcome_or_the_last_assistants(outcome: str | None, status: str) -> None:
    info = {**V2, **({"outcome": outcome} if outcome else {})}
    plan = planned(document(info, [v2_assistant("msg_a", {"type": "text", "text": "x"})]))
    assert plan.change is not None
    assert plan.change.meta is not None
    assert plan.change.meta.status == status


async def test_the_record_of_a_session_is_kept_and_labels_are_added() -> None:
    [source] = read_file(DATA / "samples/v1_meta/export.json")
    store = MemoryStore()
    await bring_in(store, source, {"owner": "ann"})
    meta = (await store.session(source.id)).meta
    assert meta is not None
    assert meta.metadata is not None
    assert meta.metadata["owner"] == "ann"
    assert meta.metadata["opencode"]["generation"] == "v1"
    assert meta.metadata["opencode"]["session"] == load("samples/v1_meta/export.json")["info"]
    assert meta.title == source.info["title"]
    assert (meta.created_at, meta.updated_at) == (source.info["time"]["created"], source.info["time"]["updated"])


async def test_messages_of_both_engines_in_one_session_are_put_in_order_of_time_with_a_warning() -> None:
    records = [
        v1_user("msg_1", {"type": "text", "text": "first"}, at=10),
        {"id": "msg_2", "type": "user", "time": {"created": 30}, "text": "second"},
    ]
    source = document(V1, records)
    assert any("both generations" in warning for warning in source.warnings)
    store, _ = await imported(source)
    from session_manager.interop.opencode.exports import export_session

    assert [m["content"][0]["text"] for m in await messages(store, "ses_1")] == ["first", "second"]
    assert (await export_session(store, "ses_1")).document["messages"][0] == records[0]


async def test_unusual_characters_survive() -> None:
    for sample in ("v1_long", "v2_long"):
        if sample == "v1_long":
            [source] = read_file(DATA / "samples/v1_long/export.json")
        else:
            info = load("samples/v2_long/session.v2.json")["data"]
            source = document(info, load("samples/v2_long/messages.v2.json")["data"])
        words = json.dumps(await shown_of(source), ensure_ascii=False)
        for sign in ("\u2028", "\u200d", "世"):
            assert sign in words, (sample, sign)


def test_every_message_decodes_as_the_model_reads_it() -> None:
    for sample in DATA.glob("samples/v1_*/export.json"):
        [source] = read_file(sample)
        for entry in planned(source).added:
            if entry.role is not None:
                decode_message(entry.body)


# --- events ---


def test_the_whole_set_of_durable_events_is_understood() -> None:
    events = [event for raw in load("synthetic_2.1/all_events.json") if (event := read_event(raw)) is not None]
    assert len(events) == 54
    assert len({event.name for event in events}) == 47
    replay = Replay(events[0].session_id)
    for event in events:
        assert replay.apply(event)
    assert replay.unknown == {}
    assert replay.deleted
    assert replay.info["title"] == "All kinds 世界"
    assert replay.info["outcome"] == "succeeded"
    # All events again do nothing: each has its place in the log.
    before = json.dumps(replay.list())
    assert not any(replay.apply(event) for event in events)
    assert json.dumps(replay.list()) == before


def test_a_gap_in_a_log_is_noticed() -> None:
    events = [event for raw in load("synthetic_2.1/all_events.json") if (event := read_event(raw)) is not None]
    replay = Replay(events[0].session_id)
    replay.apply(events[0])
    with pytest.raises(Gap, match="after 0 comes 2"):
        replay.apply(events[2])


def test_a_replay_that_starts_from_known_records_comes_to_the_same_end() -> None:
    events = [e for raw in load("samples/v2_tools/history.v2.json")["data"] if (e := read_event(raw)) is not None]
    wanted = load("samples/v2_tools/messages.v2.json")["data"]
    for cut in range(0, len(events), 7):
        first = Replay(events[0].session_id)
        for event in events[:cut]:
            first.apply(event)
        second = Replay(events[0].session_id, first.info, first.list(), first.seq, first.pending)
        for event in events:
            second.apply(event)
        assert list(differences(second.list(), wanted)) == []


async def test_a_log_read_after_the_list_changes_no_entry() -> None:
    [source] = read_file(DATA / "samples/v1_tools/export.json")
    store, _ = await imported(source)
    [log] = read_file(DATA / "samples/v1_tools/sync_history.json")
    plan = await bring_in(store, log)
    assert [entry.id for entry in plan.added if "/log/" not in entry.id] == []
    assert plan.updated == []


async def test_usage_outside_of_messages_is_kept_so_that_sums_match() -> None:
    events = load("synthetic_2.1/all_events.json")[:28]
    [source] = read(json.dumps(events).encode(), "test")
    store, _ = await imported(source)
    entries = (await existing(store, source.id)).entries.values()
    [usage] = [json.loads(e.body)["data"] for e in entries if b'"opencode.usage"' in e.body]
    assert (usage["source"], usage["cost"]) == ("title", 1e-05)
