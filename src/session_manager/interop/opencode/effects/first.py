"""The first generation tells whole objects; the last one counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from session_manager.interop.opencode.events import Event
from session_manager.interop.opencode.records import is_v1, obj, record_id, text

if TYPE_CHECKING:
    from session_manager.interop.opencode.replay import Replay


def message_updated(replay: Replay, event: Event) -> None:
    info = obj(event.data, "info")
    record = replay.records.get(text(info, "id"))
    replay.put({"info": info, "parts": record["parts"] if record is not None and is_v1(record) else []})


def message_removed(replay: Replay, event: Event) -> None:
    replay.remove(text(event.data, "messageID"))


def part_updated(replay: Replay, event: Event) -> None:
    part = obj(event.data, "part")
    record = replay.records.get(text(part, "messageID"))
    if record is None or not is_v1(record):
        return
    parts = [other for other in record["parts"] if other.get("id") != part.get("id")]
    record["parts"] = sorted([*parts, part], key=lambda other: text(other, "id"))
    replay.touched.add(record_id(record))


def part_removed(replay: Replay, event: Event) -> None:
    record = replay.records.get(text(event.data, "messageID"))
    if record is not None and is_v1(record):
        record["parts"] = [part for part in record["parts"] if part.get("id") != event.data.get("partID")]
        replay.touched.add(record_id(record))


def part_grows(replay: Replay, event: Event) -> None:
    record = replay.records.get(text(event.data, "messageID"))
    field = text(event.data, "field")
    if record is None or not is_v1(record) or field != "text":
        return
    for part in record["parts"]:
        if part.get("id") == event.data.get("partID"):
            part["text"] = text(part, "text") + text(event.data, "delta")
            replay.touched.add(record_id(record))


def status(replay: Replay, event: Event) -> None:
    kind = obj(event.data, "status").get("type")
    replay.status = "working" if kind in ("busy", "retry") else None
