"""What events do to the session itself: its record, its place, its status, what is taken back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from session_manager.interop.opencode.effects.pick import picked
from session_manager.interop.opencode.events import Event, message_of_event
from session_manager.interop.opencode.records import is_open, obj, record_id, text, whole
from session_manager.model import Status

if TYPE_CHECKING:
    from session_manager.interop.opencode.replay import Replay


def created(replay: Replay, event: Event) -> None:
    data = event.data
    if "info" in data:
        replay.info = dict(obj(data, "info"))
        return
    replay.info = {
        "id": replay.session_id,
        **picked(data, "parentID", "projectID", "agent", "model"),
        "cost": 0,
        "tokens": {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}},
        "time": {"created": event.at, "updated": event.at},
        **picked(data, "title", "location", "subpath", "metadata", "permissions"),
    }


def updated(replay: Replay, event: Event) -> None:
    if "info" in event.data:
        replay.info = {**obj(event.data, "info"), "id": replay.session_id}


def forked(replay: Replay, event: Event) -> None:
    replay.info["fork"] = {"sessionID": text(event.data, "parentID"), **picked(event.data, "boundary")}
    replay.forked = True


def sets(key: str) -> Callable[[Replay, Event], None]:
    def handle(replay: Replay, event: Event) -> None:
        if key in event.data:
            replay.info[key] = event.data[key]
        if not event.early:
            replay.time()["updated"] = event.at

    return handle


def viewed(replay: Replay, event: Event) -> None:
    idle = whole(event.data, "idle")
    replay.time()["viewed"] = event.at if idle is None else idle


def archived(replay: Replay, event: Event) -> None:
    replay.time()["archived"] = event.at


def unarchived(replay: Replay, event: Event) -> None:
    replay.time().pop("archived", None)


def deleted(replay: Replay, event: Event) -> None:
    replay.deleted = True


def switched(kind: str, key: str) -> Callable[[Replay, Event], None]:
    def handle(replay: Replay, event: Event) -> None:
        data = event.data
        if not event.early and "previous" not in data and key in replay.info:
            data = {**data, "previous": replay.info[key]}
        replay.put(
            {
                "id": text(data, "messageID") or message_of_event(event.id),
                "time": {"created": event.at},
                "type": kind,
                **picked(data, key, "previous"),
            }
        )
        if not event.early and key in data:
            replay.info[key] = data[key]

    return handle


def moved(replay: Replay, event: Event) -> None:
    place = picked(event.data, "location", "projectID", "subpath")
    before = picked(replay.info, "location", "projectID", "subpath")
    replay.put(
        {
            "id": text(event.data, "messageID") or message_of_event(event.id),
            "time": {"created": event.at},
            "type": "location-switched",
            **place,
            **({"previous": before} if before else {}),
        }
    )
    replay.info.pop("subpath", None)
    replay.info.update(place)


def revert_staged(replay: Replay, event: Event) -> None:
    replay.info["revert"] = event.data.get("revert")
    _touch_session_time(replay, event)


def revert_cleared(replay: Replay, event: Event) -> None:
    replay.info.pop("revert", None)
    _touch_session_time(replay, event)


def revert_committed(replay: Replay, event: Event) -> None:
    """2.1 drops the message named and all after it; the early form keeps the one named."""
    to = text(event.data, "to") or text(event.data, "messageID")
    replay.info.pop("revert", None)
    ids = list(replay.records)
    if event.early:
        gone = ids[ids.index(to) + 1 :] if to in replay.records else []
    else:
        gone = [id_ for id_ in ids if id_ >= to]
        replay.pending = {id_: item for id_, item in replay.pending.items() if id_ < to}
    for id_ in gone:
        replay.remove(id_)
    _touch_session_time(replay, event)


def _touch_session_time(replay: Replay, event: Event) -> None:
    if event.at:
        replay.time()["updated"] = event.at


def running(replay: Replay, event: Event) -> None:
    replay.status = "working"


def ended(outcome: str, status: Status) -> Callable[[Replay, Event], None]:
    def handle(replay: Replay, event: Event) -> None:
        replay.status = status
        for record in replay.records.values():
            if record.get("type") == "assistant" and is_open(record):
                record["time"] = {**obj(record, "time"), "completed": event.at}
                replay.touched.add(record_id(record))
        if event.data.get("reason") == "shutdown":
            return
        replay.info["outcome"] = outcome
        replay.time()["idle"] = event.at
        replay.put(
            {
                "id": message_of_event(event.id),
                "time": {"created": event.at},
                "type": "idle",
                "outcome": outcome,
                **picked(event.data, "error"),
            }
        )

    return handle


def usage(replay: Replay, event: Event) -> None:
    replay.spent(event.data)
    replay.put(
        {
            "id": message_of_event(event.id),
            "time": {"created": event.at},
            "type": "usage",
            **picked(event.data, "source", "cost", "tokens"),
        }
    )


def nothing(replay: Replay, event: Event) -> None:
    """Known, and without an effect on the list."""
