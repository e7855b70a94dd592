"""The assistant message that a step writes: its blocks, its tools, its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from session_manager.interop.opencode.effects.pick import picked
from session_manager.interop.opencode.events import Event
from session_manager.interop.opencode.records import Record, is_open, obj, record_id, text, whole
from session_manager.model import JsonObject, decode

if TYPE_CHECKING:
    from session_manager.interop.opencode.replay import Replay


def step_started(replay: Replay, event: Event) -> None:
    data = event.data
    id_ = text(data, "assistantMessageID")
    record = replay.records.get(id_)
    if record is not None:
        record.update(picked(data, "agent", "model"))
        for key in ("retry", "error", "finish", "rawFinish"):
            record.pop(key, None)
        record["time"] = {key: t for key, t in obj(record, "time").items() if key not in ("completed", "streamed")}
        replay.touched.add(id_)
        return
    if not event.early:
        for other in replay.records.values():
            if other.get("type") == "assistant" and is_open(other):
                other["time"] = {**obj(other, "time"), "completed": event.at}
                replay.touched.add(record_id(other))
    started = whole(data, "started")
    record = {
        "id": id_,
        "time": {"created": event.at if started is None else started},
        "type": "assistant",
        **picked(data, "agent", "model"),
        "content": [],
    }
    if "snapshot" in data:
        record["snapshot"] = {"start": data["snapshot"]}
    replay.put(record)


def step_streamed(replay: Replay, event: Event) -> None:
    record = replay.assistant(event)
    if record is not None:
        record["time"] = {**obj(record, "time"), "streamed": event.at}


def step_ended(replay: Replay, event: Event) -> None:
    record = replay.assistant(event)
    if record is None:
        return
    _close(replay, record, event)
    if event.early:
        # The early form tells of no executions: a step that calls no tools is the last one of its turn.
        replay.status = "working" if event.data.get("finish") == "tool-calls" else None
    record.update(picked(event.data, "finish", "rawFinish", "native", "cost", "tokens"))
    if "snapshot" in event.data or "files" in event.data:
        end = {"end": event.data["snapshot"]} if "snapshot" in event.data else {}
        record["snapshot"] = {**obj(record, "snapshot"), **end, **picked(event.data, "files")}


def step_failed(replay: Replay, event: Event) -> None:
    record = replay.assistant(event)
    if record is None:
        return
    _close(replay, record, event)
    if event.early:
        replay.status = None
    record["finish"] = text(event.data, "finish", "error")
    record.update(picked(event.data, "error", "cost", "tokens"))
    record.pop("retry", None)


def _close(replay: Replay, record: Record, event: Event) -> None:
    record["time"] = {**obj(record, "time"), "completed": event.at}
    if not event.early:
        replay.spent(event.data)


def retry(replay: Replay, event: Event) -> None:
    record = replay.assistant(event)
    if record is not None:
        record["retry"] = picked(event.data, "attempt", "at", "error")


def _block_key(event: Event) -> object:
    return event.data.get("textID") or event.data.get("reasoningID") or event.data.get("ordinal")


def text_started(replay: Replay, event: Event) -> None:
    key = _block_key(event)
    block = {"type": "text", "text": "", **({"id": key} if event.early else {})}
    replay.open_block(event, "text", key, block)


def reasoning_started(replay: Replay, event: Event) -> None:
    key = _block_key(event)
    block = {
        "type": "reasoning",
        "text": "",
        **({"id": key} if event.early else {}),
        **picked(event.data, "native", "providerMetadata"),
        "time": {"created": event.at},
    }
    replay.open_block(event, "reasoning", key, block)


def grows(kind: str) -> Callable[[Replay, Event], None]:
    def handle(replay: Replay, event: Event) -> None:
        block = replay.block(event, kind, _block_key(event))
        if block is not None:
            block["text"] = text(block, "text") + text(event.data, "delta")

    return handle


def text_ended(replay: Replay, event: Event) -> None:
    block = replay.block(event, "text", _block_key(event))
    if block is not None:
        block["text"] = text(event.data, "text")


def reasoning_ended(replay: Replay, event: Event) -> None:
    block = replay.block(event, "reasoning", _block_key(event))
    if block is not None:
        block["text"] = text(event.data, "text")
        block.update(picked(event.data, "native", "providerMetadata"))
        block["time"] = {**obj(block, "time"), "completed": event.at}


def input_started(replay: Replay, event: Event) -> None:
    record = replay.assistant(event)
    if record is None:
        return
    record["content"].append(
        {
            "type": "tool",
            "id": text(event.data, "callID") or text(event.data, "id"),
            **picked(event.data, "name"),
            "state": {"status": "pending" if event.early else "streaming", "input": ""},
            "time": {"created": event.at},
        }
    )


def input_grows(replay: Replay, event: Event) -> None:
    tool = replay.tool(event)
    if tool is not None:
        state = obj(tool, "state")
        tool["state"] = {**state, "input": text(state, "input") + text(event.data, "delta")}


def input_ended(replay: Replay, event: Event) -> None:
    tool = replay.tool(event)
    if tool is not None:
        tool["state"] = {**obj(tool, "state"), "input": text(event.data, "text")}


def tool_called(replay: Replay, event: Event) -> None:
    tool = replay.tool(event)
    if tool is None:
        return
    tool.update(picked(event.data, "provider", "executed", "native"))
    state = {"status": "running", **picked(event.data, "input")}
    tool["state"] = {**state, "content": [], "structured": {}} if event.early else {**state, "metadata": {}}
    tool["time"] = {**obj(tool, "time"), "ran": event.at}


def tool_progress(replay: Replay, event: Event) -> None:
    tool = replay.tool(event)
    if tool is not None and obj(tool, "state").get("status") == "running":
        tool["state"] = {**obj(tool, "state"), **picked(event.data, "metadata", "structured", "content")}


def tool_success(replay: Replay, event: Event) -> None:
    tool = replay.tool(event)
    if tool is None:
        return
    before = obj(tool, "state")
    tool["state"] = {
        "status": "completed",
        "input": _input(before),
        **picked(event.data, "content", "metadata", "structured", "result", "outputPaths", "attachments"),
    }
    _tool_done(tool, event)


def tool_failed(replay: Replay, event: Event) -> None:
    tool = replay.tool(event)
    if tool is None:
        return
    before = obj(tool, "state")
    state: JsonObject = {"status": "error", "input": _input(before)}
    if event.early:
        state.update({"content": before.get("content", []), "structured": before.get("structured", {})})
    elif obj(before, "metadata"):
        state["metadata"] = before["metadata"]
    state.update(picked(event.data, "error", "result", "metadata"))
    if event.data.get("content"):
        state["content"] = event.data["content"]
    tool["state"] = state
    _tool_done(tool, event)


def _tool_done(tool: JsonObject, event: Event) -> None:
    tool.update(picked(event.data, "executed", "native"))
    if "provider" in event.data:
        tool["provider"] = {**obj(tool, "provider"), **obj(event.data, "provider")}
    tool["time"] = {**obj(tool, "time"), "completed": event.at}


def _input(state: JsonObject) -> JsonObject:
    """The arguments of a call that ended: an object, also when it never got further than its text."""
    value = state.get("input")
    if isinstance(value, dict):
        return value
    try:
        value = decode(value) if isinstance(value, str) and value else {}
    except Exception:  # whatever is wrong with the text, there are no arguments in it
        value = {}
    return value if isinstance(value, dict) else {}


def content_updated(replay: Replay, event: Event) -> None:
    record = replay.records.get(text(event.data, "messageID"))
    if record is not None and isinstance(event.data.get("content"), list):
        record["content"] = event.data["content"]
        replay.touched.add(record_id(record))
