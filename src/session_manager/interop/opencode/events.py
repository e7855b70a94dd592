"""One event of OpenCode, whichever of its wires it came over.

The same thing is told in several forms: as a durable event with a place in its session's sequence (history, log, event
streams of the second generation), with the place at the top level and the version in the name (`/sync/history` and
`/sync/replay` of 1.x), or without any (`/event` of 1.x). 1.x calls the events of the second generation
`session.next.…`, with other data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime

from msgspec import Struct

from session_manager.interop.opencode.records import obj, text, whole
from session_manager.model import Json, JsonObject

_VERSION = re.compile(r"\.\d+$")


class Event(Struct, frozen=True):
    id: str
    name: str
    """Without version and `next`: `session.step.ended`."""
    data: JsonObject
    session_id: str
    seq: int | None
    """The place in the session's log; None for what is not durable."""
    at: int
    """When it happened, in epoch milliseconds; 0 when it does not say."""
    early: bool
    """Whether it is of the early second generation."""


def read_event(raw: JsonObject) -> Event | None:
    """An event of any form; None for what is none, or is about no session."""
    type_ = text(raw, "type")
    data = obj(raw, "data") or obj(raw, "properties")
    durable = obj(raw, "durable")
    session_id = (
        text(data, "sessionID")
        or text(durable, "aggregateID")
        or text(raw, "aggregateID")
        or text(raw, "aggregate_id")
        or text(obj(data, "info"), "sessionID")
        or text(obj(data, "part"), "sessionID")
    )
    if not type_ or not session_id:
        return None
    seq = whole(durable, "seq")
    if seq is None:
        seq = whole(raw, "seq")
        type_ = _VERSION.sub("", type_) if seq is not None else type_
    early = type_.startswith("session.next.")
    at = whole(raw, "created")
    if at is None:
        at = _time(data.get("timestamp")) or whole(data, "time") or 0
    name = "session." + type_.removeprefix("session.next.") if early else type_
    return Event(text(raw, "id"), name, data, session_id, seq, at, early)


def wire_of(raw: JsonObject) -> str:
    """Which wire an event came over: `durable` (history, log), `sync` (the log of 1.x), or `live` (not in any log)."""
    if "durable" in raw:
        return "durable"
    return "sync" if "seq" in raw else "live"


def _time(value: Json) -> int | None:
    """Times are milliseconds, or ISO 8601 on the wire of the first generation."""
    if isinstance(value, str):
        try:
            return int(datetime.fromisoformat(value).timestamp() * 1000 + 0.5)
        except ValueError:
            return None
    return whole({"at": value}, "at")


def sse_data(lines: Callable[[], Iterator[str]]) -> Iterator[str]:
    """The data of each event in a text of server-sent events."""
    waiting: list[str] = []
    for line in lines():
        if line.startswith("data:"):
            waiting.append(line[5:].removeprefix(" "))
        elif not line.strip() and waiting:
            yield "\n".join(waiting)
            waiting = []
    if waiting:
        yield "\n".join(waiting)


def message_of_event(event_id: str) -> str:
    """The id that OpenCode gives to a message that an event creates."""
    return "msg_" + event_id.removeprefix("evt_")
