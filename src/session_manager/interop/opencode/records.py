"""OpenCode's records as they come: plain JSON, read leniently, never changed.

A record is one element of a message list. The two generations of OpenCode have records of different shape:

* `v1`: `{"info": {id, role, time, …}, "parts": [{id, type, …}, …]}`, the form of `opencode export`;
* `v2` (of 1.x servers) and `2.1`: `{id, type, time, …}`, eleven kinds in 2.1.

What is not understood in a record is never an error: the mapping takes what it recognises and keeps the whole.
Source of the shapes: sessions recorded with OpenCode 1.18.34, and the types of opencode-python-sdk (server API 2.1).
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from session_manager.model import JsonObject

Record: TypeAlias = JsonObject

Generation = Literal["v1", "v2", "2.1"]
"""`v1`: messages with parts. `v2`: the early second engine inside 1.x. `2.1`: the second engine as released."""


def is_v1(record: Record) -> bool:
    return "info" in record


def info_of(record: Record) -> JsonObject:
    """Where the record keeps its id, its time and the like."""
    return obj(record, "info") if is_v1(record) else record


def record_id(record: Record) -> str:
    return text(info_of(record), "id")


def created(record: Record) -> int | None:
    return whole(obj(info_of(record), "time"), "created")


def is_assistant(record: Record) -> bool:
    info = info_of(record)
    return (info.get("role") if is_v1(record) else info.get("type")) == "assistant"


def is_open(record: Record) -> bool:
    """Whether an assistant record may still go on: nothing in it says that it ended."""
    info = info_of(record)
    return is_assistant(record) and not obj(info, "error") and "completed" not in obj(info, "time")


def generation_of(record: Record) -> Generation:
    """The generation whose shape the record has. A record that both second engines could have written counts as 2.1."""
    if is_v1(record):
        return "v1"
    kind = record.get("type")
    if kind == "assistant":
        for block in objects(record, "content"):
            if block.get("type") in ("text", "reasoning") and "id" in block:
                return "v2"
            state = obj(block, "state")
            if "provider" in block or "structured" in state or state.get("status") == "pending":
                return "v2"
    elif kind == "user":
        if any("uri" in file for file in objects(record, "files")):
            return "v2"
        if any("source" in agent for agent in objects(record, "agents")):
            return "v2"
    elif kind == "compaction":
        return "v2" if "status" not in record else "2.1"
    elif kind == "shell":
        return "v2" if "callID" in record else "2.1"
    return "2.1"


# --- lenient reading ---


def obj(at: JsonObject, key: str) -> JsonObject:
    """The object at `key`; an empty one when there is none."""
    value = at.get(key)
    return value if isinstance(value, dict) else {}


def objects(at: JsonObject, key: str) -> list[JsonObject]:
    """The objects of the list at `key`; what is no object is passed over."""
    value = at.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text(at: JsonObject, key: str, default: str = "") -> str:
    value = at.get(key)
    return value if isinstance(value, str) else default


def whole(at: JsonObject, key: str) -> int | None:
    """The integer at `key`, also when it was written as a float; None when it is none, or beyond 64 bits."""
    value: Any = at.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = int(value)
    except (OverflowError, ValueError):
        return None
    return number if number == value and -(2**63) <= number < 2**63 else None


def first_time(at: JsonObject, *keys: str) -> int | None:
    """The first of the times that is set."""
    return next((found for key in keys if (found := whole(at, key)) is not None), None)
