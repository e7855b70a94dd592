"""Compactions: running, then completed or failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from session_manager.interop.opencode.effects.pick import picked
from session_manager.interop.opencode.events import Event, message_of_event
from session_manager.interop.opencode.records import Record, record_id, text

if TYPE_CHECKING:
    from session_manager.interop.opencode.replay import Replay


def compaction_started(replay: Replay, event: Event) -> None:
    if event.early:
        # The early form shows a compaction once it has ended.
        return
    replay.put(
        {
            "type": "compaction",
            "id": text(event.data, "inputID") or message_of_event(event.id),
            "time": {"created": event.at},
            "status": "running",
            **picked(event.data, "reason"),
            "summary": "",
        }
    )


def _running_compaction(replay: Replay, event: Event) -> Record | None:
    for record in reversed(replay.records.values()):
        if record.get("type") == "compaction" and record.get("status") == "running":
            replay.touched.add(record_id(record))
            return record
    return None


def compaction_grows(replay: Replay, event: Event) -> None:
    record = _running_compaction(replay, event)
    if record is not None:
        record["summary"] = text(record, "summary") + text(event.data, "text")


def compaction_ended(replay: Replay, event: Event) -> None:
    data = event.data
    if event.early:
        replay.put(
            {
                "type": "compaction",
                **picked(data, "reason"),
                "summary": text(data, "text"),
                **picked(data, "recent"),
                "id": text(data, "messageID"),
                "time": {"created": event.at},
            }
        )
        return
    record = _running_compaction(replay, event)
    if record is not None:
        record.update({"status": "completed", "summary": text(data, "text")})
        record.update(picked(data, "reason", "model", "native", "cost", "tokens"))
        replay.spent(data)


def compaction_failed(replay: Replay, event: Event) -> None:
    record = _running_compaction(replay, event)
    if record is not None:
        record.pop("summary", None)
        record["status"] = "failed"
        record.update(picked(event.data, "reason", "error", "cost", "tokens"))
        replay.spent(event.data)
