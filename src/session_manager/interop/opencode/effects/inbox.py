"""Input that waits for its delivery, and events that are messages themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from session_manager.interop.opencode.effects.pick import picked
from session_manager.interop.opencode.events import Event, message_of_event
from session_manager.interop.opencode.records import obj, record_id, text

if TYPE_CHECKING:
    from session_manager.interop.opencode.replay import Replay


def enqueued(replay: Replay, event: Event) -> None:
    replay.pending[text(event.data, "inboxID")] = {**obj(event.data, "item"), "created": event.at}


def delivered(replay: Replay, event: Event) -> None:
    id_ = text(event.data, "inboxID")
    item = replay.pending.pop(id_, None)
    if not isinstance(item, dict):
        replay.unknown["session.inbox.delivered of unknown input"] = 1
        return
    # Compactions and moves have events of their own that make their messages.
    if item.get("type") in ("user", "synthetic"):
        replay.put({"id": id_, "time": {"created": event.at}, "type": item["type"], **obj(item, "payload")})


def cancelled(replay: Replay, event: Event) -> None:
    replay.pending.pop(text(event.data, "inboxID"), None)


def delivery_changed(replay: Replay, event: Event) -> None:
    item = replay.pending.get(text(event.data, "inboxID"))
    if isinstance(item, dict):
        item["delivery"] = event.data.get("delivery")


def prompted(replay: Replay, event: Event) -> None:
    id_ = text(event.data, "messageID")
    replay.put({"id": id_, "time": {"created": event.at}, "type": "user", **obj(event.data, "prompt")})
    replay.status = "working"


def told(kind: str, *keys: str) -> Callable[[Replay, Event], None]:
    """An event that is a message: instructions, synthetic text."""

    def handle(replay: Replay, event: Event) -> None:
        if "text" not in event.data:
            return
        replay.put(
            {
                "id": text(event.data, "messageID") or message_of_event(event.id),
                "time": {"created": event.at},
                "type": kind,
                **picked(event.data, *keys),
            }
        )

    return handle


def skill(replay: Replay, event: Event) -> None:
    replay.put(
        {
            "id": message_of_event(event.id),
            "time": {"created": event.at},
            "type": "skill",
            "skill": text(event.data, "id"),
            **picked(event.data, "name", "text"),
        }
    )


def shell_started(replay: Replay, event: Event) -> None:
    if event.early:
        replay.put(
            {
                "id": text(event.data, "messageID") or message_of_event(event.id),
                "time": {"created": event.at},
                "type": "shell",
                "output": "",
                **picked(event.data, "callID", "command"),
            }
        )
        return
    shell = obj(event.data, "shell")
    replay.put(
        {
            "id": message_of_event(event.id),
            "time": {"created": event.at},
            "type": "shell",
            "shellID": text(shell, "id"),
            **picked(shell, "command", "status"),
        }
    )


def shell_ended(replay: Replay, event: Event) -> None:
    shell = obj(event.data, "shell")
    key, value = ("callID", event.data.get("callID")) if event.early else ("shellID", shell.get("id"))
    for record in reversed(replay.records.values()):
        if record.get("type") == "shell" and record.get(key) == value:
            record["time"] = {**obj(record, "time"), "completed": event.at}
            record.update(picked(event.data, "output"))
            record.update(picked(shell, "status", "exit"))
            replay.touched.add(record_id(record))
            return
