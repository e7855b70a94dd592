"""Events of a session, to its message list: what the server does with them, done again. Pure.

A replay starts empty or from records that are known already, takes events in order, and holds the session record and
the records as a message list would show them at that moment. Both generations are understood, also in one log. An
event that was seen already does nothing; an event behind a gap is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

from session_manager.interop.opencode.events import Event, message_of_event
from session_manager.interop.opencode.records import (
    Record,
    created,
    is_open,
    is_v1,
    obj,
    objects,
    record_id,
    text,
    whole,
)
from session_manager.model import JsonObject, Status, decode


class Gap(Exception):
    """An event is missing between the last one taken and this one."""

    def __init__(self, session_id: str, after: int, seq: int) -> None:
        super().__init__(f"the log of {session_id} has a gap: after {after} comes {seq}")


class Replay:
    def __init__(
        self,
        session_id: str,
        info: JsonObject | None = None,
        records: Iterable[Record] = (),
        seq: int | None = None,
        pending: JsonObject | None = None,
    ) -> None:
        self.session_id = session_id
        self.info: JsonObject = dict(info) if info else {"id": session_id}
        self.records: dict[str, Record] = {record_id(record): copy.deepcopy(record) for record in records}
        self.seq = seq
        """The place of the last durable event taken; None before the first."""
        self.pending: JsonObject = copy.deepcopy(pending) if pending else {}
        """Input that waits for its delivery: inbox id -> item."""
        self.status: Status | None = None
        """What the last execution event said; None when none did."""
        self.deleted = False
        self.forked = False
        """Whether the session began as a fork, so that records from before are not in its own log."""
        self.unknown: dict[str, int] = {}
        """Names of events that mean nothing to us, and how many of them came."""
        self.touched: set[str] = set()
        """Ids of records that changed since this was last emptied."""
        self._blocks: dict[tuple[str, str, object], int] = {}

    @property
    def early(self) -> bool:
        """Whether the second generation's records are of the early form."""
        return self._early

    _early = False

    def list(self) -> list[Record]:
        """The records in the order of the message list."""
        records = list(self.records.values())
        if any(is_v1(record) for record in records):
            records.sort(key=lambda record: (created(record) or 0, record_id(record)))
        return records

    def apply(self, event: Event) -> bool:
        """Takes an event; False when it was taken before. Raises Gap when one before it is missing."""
        if event.session_id != self.session_id:
            return False
        if event.seq is not None:
            if self.seq is not None and event.seq <= self.seq:
                return False
            # A session's history may leave out its first event, which only creates it.
            expected = 1 if self.seq is None else self.seq + 1
            if event.seq > expected:
                raise Gap(self.session_id, expected - 1, event.seq)
            self.seq = event.seq
        self._early = self._early or event.early
        handler = HANDLERS.get(event.name)
        if handler is None:
            self.unknown[event.name] = self.unknown.get(event.name, 0) + 1
        else:
            handler(self, event)
        return True

    # --- helpers of the handlers ---

    def put(self, record: Record) -> None:
        id_ = record_id(record)
        if id_:
            self.records[id_] = record
            self.touched.add(id_)

    def remove(self, id_: str) -> None:
        if self.records.pop(id_, None) is not None:
            self.touched.add(id_)

    def assistant(self, event: Event) -> Record | None:
        record = self.records.get(text(event.data, "assistantMessageID"))
        if record is not None:
            self.touched.add(record_id(record))
        return record

    def block(self, event: Event, kind: str, key: object) -> JsonObject | None:
        """The block that an event of text or reasoning is about: the one opened under that key, else the last."""
        record = self.assistant(event)
        if record is None:
            return None
        content = objects(record, "content")
        index = self._blocks.get((record_id(record), kind, key))
        if index is not None and index < len(content) and content[index].get("type") == kind:
            return content[index]
        if event.early:
            return next((b for b in content if b.get("type") == kind and b.get("id") == key), None)
        return next((b for b in reversed(content) if b.get("type") == kind), None)

    def open_block(self, event: Event, kind: str, key: object, block: JsonObject) -> None:
        record = self.assistant(event)
        if record is not None:
            self._blocks[record_id(record), kind, key] = len(record["content"])
            record["content"].append(block)

    def tool(self, event: Event) -> JsonObject | None:
        record = self.assistant(event)
        call = text(event.data, "callID") or text(event.data, "id")
        if record is None:
            return None
        found = [b for b in objects(record, "content") if b.get("type") == "tool" and b.get("id") == call]
        return found[-1] if found else None

    def spent(self, data: JsonObject) -> None:
        """Adds to the session's running sums, which 2.1 keeps and the early form does not."""
        cost = data.get("cost")
        if isinstance(cost, int | float) and not isinstance(cost, bool):
            self.info["cost"] = self.info.get("cost", 0) + cost
        used = obj(data, "tokens")
        if used:
            sums = copy.deepcopy(obj(self.info, "tokens"))
            for key in ("input", "output", "reasoning"):
                sums[key] = (whole(sums, key) or 0) + (whole(used, key) or 0)
            cache, more = obj(sums, "cache"), obj(used, "cache")
            sums["cache"] = {key: (whole(cache, key) or 0) + (whole(more, key) or 0) for key in ("read", "write")}
            self.info["tokens"] = sums

    def time(self) -> JsonObject:
        """The session's times, to be changed."""
        self.info["time"] = dict(obj(self.info, "time"))
        return self.info["time"]  # type: ignore[no-any-return] # it was just put there


def _picked(data: JsonObject, *keys: str) -> JsonObject:
    return {key: data[key] for key in keys if key in data}


# --- the session ---


def _created(replay: Replay, event: Event) -> None:
    data = event.data
    if "info" in data:
        replay.info = dict(obj(data, "info"))
        return
    replay.info = {
        "id": replay.session_id,
        **_picked(data, "parentID", "projectID", "agent", "model"),
        "cost": 0,
        "tokens": {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}},
        "time": {"created": event.at, "updated": event.at},
        **_picked(data, "title", "location", "subpath", "metadata", "permissions"),
    }


def _updated(replay: Replay, event: Event) -> None:
    if "info" in event.data:
        replay.info = {**obj(event.data, "info"), "id": replay.session_id}


def _forked(replay: Replay, event: Event) -> None:
    replay.info["fork"] = {"sessionID": text(event.data, "parentID"), **_picked(event.data, "boundary")}
    replay.forked = True


def _sets(key: str) -> Callable[[Replay, Event], None]:
    def handle(replay: Replay, event: Event) -> None:
        if key in event.data:
            replay.info[key] = event.data[key]
        if not event.early:
            replay.time()["updated"] = event.at

    return handle


def _viewed(replay: Replay, event: Event) -> None:
    idle = whole(event.data, "idle")
    replay.time()["viewed"] = event.at if idle is None else idle


def _archived(replay: Replay, event: Event) -> None:
    replay.time()["archived"] = event.at


def _unarchived(replay: Replay, event: Event) -> None:
    replay.time().pop("archived", None)


def _deleted(replay: Replay, event: Event) -> None:
    replay.deleted = True


def _switched(kind: str, key: str) -> Callable[[Replay, Event], None]:
    def handle(replay: Replay, event: Event) -> None:
        data = event.data
        if not event.early and "previous" not in data and key in replay.info:
            data = {**data, "previous": replay.info[key]}
        replay.put(
            {
                "id": text(data, "messageID") or message_of_event(event.id),
                "time": {"created": event.at},
                "type": kind,
                **_picked(data, key, "previous"),
            }
        )
        if not event.early and key in data:
            replay.info[key] = data[key]

    return handle


def _moved(replay: Replay, event: Event) -> None:
    place = _picked(event.data, "location", "projectID", "subpath")
    before = _picked(replay.info, "location", "projectID", "subpath")
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


def _revert_staged(replay: Replay, event: Event) -> None:
    replay.info["revert"] = event.data.get("revert")
    _touch_session_time(replay, event)


def _revert_cleared(replay: Replay, event: Event) -> None:
    replay.info.pop("revert", None)
    _touch_session_time(replay, event)


def _revert_committed(replay: Replay, event: Event) -> None:
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


def _running(replay: Replay, event: Event) -> None:
    replay.status = "working"


def _ended(outcome: str, status: Status) -> Callable[[Replay, Event], None]:
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
                **_picked(event.data, "error"),
            }
        )

    return handle


def _usage(replay: Replay, event: Event) -> None:
    replay.spent(event.data)
    replay.put(
        {
            "id": message_of_event(event.id),
            "time": {"created": event.at},
            "type": "usage",
            **_picked(event.data, "source", "cost", "tokens"),
        }
    )


def _nothing(replay: Replay, event: Event) -> None:
    """Known, and without an effect on the list."""


# --- input ---


def _enqueued(replay: Replay, event: Event) -> None:
    replay.pending[text(event.data, "inboxID")] = {**obj(event.data, "item"), "created": event.at}


def _delivered(replay: Replay, event: Event) -> None:
    id_ = text(event.data, "inboxID")
    item = replay.pending.pop(id_, None)
    if not isinstance(item, dict):
        replay.unknown["session.inbox.delivered of unknown input"] = 1
        return
    # Compactions and moves have events of their own that make their messages.
    if item.get("type") in ("user", "synthetic"):
        replay.put({"id": id_, "time": {"created": event.at}, "type": item["type"], **obj(item, "payload")})


def _cancelled(replay: Replay, event: Event) -> None:
    replay.pending.pop(text(event.data, "inboxID"), None)


def _delivery_changed(replay: Replay, event: Event) -> None:
    item = replay.pending.get(text(event.data, "inboxID"))
    if isinstance(item, dict):
        item["delivery"] = event.data.get("delivery")


def _prompted(replay: Replay, event: Event) -> None:
    id_ = text(event.data, "messageID")
    replay.put({"id": id_, "time": {"created": event.at}, "type": "user", **obj(event.data, "prompt")})
    replay.status = "working"


def _told(kind: str, *keys: str) -> Callable[[Replay, Event], None]:
    """An event that is a message: instructions, synthetic text."""

    def handle(replay: Replay, event: Event) -> None:
        if "text" not in event.data:
            return
        replay.put(
            {
                "id": text(event.data, "messageID") or message_of_event(event.id),
                "time": {"created": event.at},
                "type": kind,
                **_picked(event.data, *keys),
            }
        )

    return handle


def _skill(replay: Replay, event: Event) -> None:
    replay.put(
        {
            "id": message_of_event(event.id),
            "time": {"created": event.at},
            "type": "skill",
            "skill": text(event.data, "id"),
            **_picked(event.data, "name", "text"),
        }
    )


def _shell_started(replay: Replay, event: Event) -> None:
    if event.early:
        replay.put(
            {
                "id": text(event.data, "messageID") or message_of_event(event.id),
                "time": {"created": event.at},
                "type": "shell",
                "output": "",
                **_picked(event.data, "callID", "command"),
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
            **_picked(shell, "command", "status"),
        }
    )


def _shell_ended(replay: Replay, event: Event) -> None:
    shell = obj(event.data, "shell")
    key, value = ("callID", event.data.get("callID")) if event.early else ("shellID", shell.get("id"))
    for record in reversed(replay.records.values()):
        if record.get("type") == "shell" and record.get(key) == value:
            record["time"] = {**obj(record, "time"), "completed": event.at}
            record.update(_picked(event.data, "output"))
            record.update(_picked(shell, "status", "exit"))
            replay.touched.add(record_id(record))
            return


# --- the assistant ---


def _step_started(replay: Replay, event: Event) -> None:
    data = event.data
    id_ = text(data, "assistantMessageID")
    record = replay.records.get(id_)
    if record is not None:
        record.update(_picked(data, "agent", "model"))
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
        **_picked(data, "agent", "model"),
        "content": [],
    }
    if "snapshot" in data:
        record["snapshot"] = {"start": data["snapshot"]}
    replay.put(record)


def _step_streamed(replay: Replay, event: Event) -> None:
    record = replay.assistant(event)
    if record is not None:
        record["time"] = {**obj(record, "time"), "streamed": event.at}


def _step_ended(replay: Replay, event: Event) -> None:
    record = replay.assistant(event)
    if record is None:
        return
    _close(replay, record, event)
    if event.early:
        # The early form tells of no executions: a step that calls no tools is the last one of its turn.
        replay.status = "working" if event.data.get("finish") == "tool-calls" else None
    record.update(_picked(event.data, "finish", "rawFinish", "native", "cost", "tokens"))
    if "snapshot" in event.data or "files" in event.data:
        end = {"end": event.data["snapshot"]} if "snapshot" in event.data else {}
        record["snapshot"] = {**obj(record, "snapshot"), **end, **_picked(event.data, "files")}


def _step_failed(replay: Replay, event: Event) -> None:
    record = replay.assistant(event)
    if record is None:
        return
    _close(replay, record, event)
    if event.early:
        replay.status = None
    record["finish"] = text(event.data, "finish", "error")
    record.update(_picked(event.data, "error", "cost", "tokens"))
    record.pop("retry", None)


def _close(replay: Replay, record: Record, event: Event) -> None:
    record["time"] = {**obj(record, "time"), "completed": event.at}
    if not event.early:
        replay.spent(event.data)


def _retry(replay: Replay, event: Event) -> None:
    record = replay.assistant(event)
    if record is not None:
        record["retry"] = _picked(event.data, "attempt", "at", "error")


def _block_key(event: Event) -> object:
    return event.data.get("textID") or event.data.get("reasoningID") or event.data.get("ordinal")


def _text_started(replay: Replay, event: Event) -> None:
    key = _block_key(event)
    block = {"type": "text", "text": "", **({"id": key} if event.early else {})}
    replay.open_block(event, "text", key, block)


def _reasoning_started(replay: Replay, event: Event) -> None:
    key = _block_key(event)
    block = {
        "type": "reasoning",
        "text": "",
        **({"id": key} if event.early else {}),
        **_picked(event.data, "native", "providerMetadata"),
        "time": {"created": event.at},
    }
    replay.open_block(event, "reasoning", key, block)


def _grows(kind: str) -> Callable[[Replay, Event], None]:
    def handle(replay: Replay, event: Event) -> None:
        block = replay.block(event, kind, _block_key(event))
        if block is not None:
            block["text"] = text(block, "text") + text(event.data, "delta")

    return handle


def _text_ended(replay: Replay, event: Event) -> None:
    block = replay.block(event, "text", _block_key(event))
    if block is not None:
        block["text"] = text(event.data, "text")


def _reasoning_ended(replay: Replay, event: Event) -> None:
    block = replay.block(event, "reasoning", _block_key(event))
    if block is not None:
        block["text"] = text(event.data, "text")
        block.update(_picked(event.data, "native", "providerMetadata"))
        block["time"] = {**obj(block, "time"), "completed": event.at}


def _input_started(replay: Replay, event: Event) -> None:
    record = replay.assistant(event)
    if record is None:
        return
    record["content"].append(
        {
            "type": "tool",
            "id": text(event.data, "callID") or text(event.data, "id"),
            **_picked(event.data, "name"),
            "state": {"status": "pending" if event.early else "streaming", "input": ""},
            "time": {"created": event.at},
        }
    )


def _input_grows(replay: Replay, event: Event) -> None:
    tool = replay.tool(event)
    if tool is not None:
        state = obj(tool, "state")
        tool["state"] = {**state, "input": text(state, "input") + text(event.data, "delta")}


def _input_ended(replay: Replay, event: Event) -> None:
    tool = replay.tool(event)
    if tool is not None:
        tool["state"] = {**obj(tool, "state"), "input": text(event.data, "text")}


def _tool_called(replay: Replay, event: Event) -> None:
    tool = replay.tool(event)
    if tool is None:
        return
    tool.update(_picked(event.data, "provider", "executed", "native"))
    state = {"status": "running", **_picked(event.data, "input")}
    tool["state"] = {**state, "content": [], "structured": {}} if event.early else {**state, "metadata": {}}
    tool["time"] = {**obj(tool, "time"), "ran": event.at}


def _tool_progress(replay: Replay, event: Event) -> None:
    tool = replay.tool(event)
    if tool is not None and obj(tool, "state").get("status") == "running":
        tool["state"] = {**obj(tool, "state"), **_picked(event.data, "metadata", "structured", "content")}


def _tool_success(replay: Replay, event: Event) -> None:
    tool = replay.tool(event)
    if tool is None:
        return
    before = obj(tool, "state")
    tool["state"] = {
        "status": "completed",
        "input": _input(before),
        **_picked(event.data, "content", "metadata", "structured", "result", "outputPaths", "attachments"),
    }
    _tool_done(tool, event)


def _tool_failed(replay: Replay, event: Event) -> None:
    tool = replay.tool(event)
    if tool is None:
        return
    before = obj(tool, "state")
    state: JsonObject = {"status": "error", "input": _input(before)}
    if event.early:
        state.update({"content": before.get("content", []), "structured": before.get("structured", {})})
    elif obj(before, "metadata"):
        state["metadata"] = before["metadata"]
    state.update(_picked(event.data, "error", "result", "metadata"))
    if event.data.get("content"):
        state["content"] = event.data["content"]
    tool["state"] = state
    _tool_done(tool, event)


def _tool_done(tool: JsonObject, event: Event) -> None:
    tool.update(_picked(event.data, "executed", "native"))
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


def _content_updated(replay: Replay, event: Event) -> None:
    record = replay.records.get(text(event.data, "messageID"))
    if record is not None and isinstance(event.data.get("content"), list):
        record["content"] = event.data["content"]
        replay.touched.add(record_id(record))


# --- compaction ---


def _compaction_started(replay: Replay, event: Event) -> None:
    if event.early:
        # The early form shows a compaction once it has ended.
        return
    replay.put(
        {
            "type": "compaction",
            "id": text(event.data, "inputID") or message_of_event(event.id),
            "time": {"created": event.at},
            "status": "running",
            **_picked(event.data, "reason"),
            "summary": "",
        }
    )


def _running_compaction(replay: Replay, event: Event) -> Record | None:
    for record in reversed(replay.records.values()):
        if record.get("type") == "compaction" and record.get("status") == "running":
            replay.touched.add(record_id(record))
            return record
    return None


def _compaction_grows(replay: Replay, event: Event) -> None:
    record = _running_compaction(replay, event)
    if record is not None:
        record["summary"] = text(record, "summary") + text(event.data, "text")


def _compaction_ended(replay: Replay, event: Event) -> None:
    data = event.data
    if event.early:
        replay.put(
            {
                "type": "compaction",
                **_picked(data, "reason"),
                "summary": text(data, "text"),
                **_picked(data, "recent"),
                "id": text(data, "messageID"),
                "time": {"created": event.at},
            }
        )
        return
    record = _running_compaction(replay, event)
    if record is not None:
        record.update({"status": "completed", "summary": text(data, "text")})
        record.update(_picked(data, "reason", "model", "native", "cost", "tokens"))
        replay.spent(data)


def _compaction_failed(replay: Replay, event: Event) -> None:
    record = _running_compaction(replay, event)
    if record is not None:
        record.pop("summary", None)
        record["status"] = "failed"
        record.update(_picked(event.data, "reason", "error", "cost", "tokens"))
        replay.spent(event.data)


# --- the first generation: whole objects, the last one counts ---


def _message_updated(replay: Replay, event: Event) -> None:
    info = obj(event.data, "info")
    record = replay.records.get(text(info, "id"))
    replay.put({"info": info, "parts": record["parts"] if record is not None and is_v1(record) else []})


def _message_removed(replay: Replay, event: Event) -> None:
    replay.remove(text(event.data, "messageID"))


def _part_updated(replay: Replay, event: Event) -> None:
    part = obj(event.data, "part")
    record = replay.records.get(text(part, "messageID"))
    if record is None or not is_v1(record):
        return
    parts = [other for other in record["parts"] if other.get("id") != part.get("id")]
    record["parts"] = sorted([*parts, part], key=lambda other: text(other, "id"))
    replay.touched.add(record_id(record))


def _part_removed(replay: Replay, event: Event) -> None:
    record = replay.records.get(text(event.data, "messageID"))
    if record is not None and is_v1(record):
        record["parts"] = [part for part in record["parts"] if part.get("id") != event.data.get("partID")]
        replay.touched.add(record_id(record))


def _part_grows(replay: Replay, event: Event) -> None:
    record = replay.records.get(text(event.data, "messageID"))
    field = text(event.data, "field")
    if record is None or not is_v1(record) or field != "text":
        return
    for part in record["parts"]:
        if part.get("id") == event.data.get("partID"):
            part["text"] = text(part, "text") + text(event.data, "delta")
            replay.touched.add(record_id(record))


def _status(replay: Replay, event: Event) -> None:
    kind = obj(event.data, "status").get("type")
    replay.status = "working" if kind in ("busy", "retry") else None


HANDLERS: dict[str, Callable[[Replay, Event], None]] = {
    "session.created": _created,
    "session.updated": _updated,
    "session.forked": _forked,
    "session.renamed": _sets("title"),
    "session.metadata.updated": _sets("metadata"),
    "session.permissions": _sets("permissions"),
    "session.agent.selected": _switched("agent-switched", "agent"),
    "session.agent.switched": _switched("agent-switched", "agent"),
    "session.model.selected": _switched("model-switched", "model"),
    "session.model.switched": _switched("model-switched", "model"),
    "session.moved": _moved,
    "session.viewed": _viewed,
    "session.archived": _archived,
    "session.unarchived": _unarchived,
    "session.deleted": _deleted,
    "session.inbox.enqueued": _enqueued,
    "session.inbox.delivered": _delivered,
    "session.inbox.cancelled": _cancelled,
    "session.inbox.delivery.changed": _delivery_changed,
    "session.prompt.admitted": _nothing,
    "session.prompted": _prompted,
    "session.execution.started": _running,
    "session.execution.succeeded": _ended("succeeded", "done"),
    "session.execution.failed": _ended("failed", "error"),
    "session.execution.interrupted": _ended("interrupted", "idle"),
    "session.instructions.updated": _told("system", "text", "description"),
    "session.context.updated": _told("system", "text", "description"),
    "session.synthetic": _told("synthetic", "text", "description", "metadata"),
    "session.skill.activated": _skill,
    "session.shell.started": _shell_started,
    "session.shell.ended": _shell_ended,
    "session.step.started": _step_started,
    "session.step.streamed": _step_streamed,
    "session.step.ended": _step_ended,
    "session.step.failed": _step_failed,
    "session.text.started": _text_started,
    "session.text.delta": _grows("text"),
    "session.text.ended": _text_ended,
    "session.reasoning.started": _reasoning_started,
    "session.reasoning.delta": _grows("reasoning"),
    "session.reasoning.ended": _reasoning_ended,
    "session.tool.input.started": _input_started,
    "session.tool.input.delta": _input_grows,
    "session.tool.input.ended": _input_ended,
    "session.tool.called": _tool_called,
    "session.tool.progress": _tool_progress,
    "session.tool.success": _tool_success,
    "session.tool.failed": _tool_failed,
    "session.retry.scheduled": _retry,
    "session.retried": _retry,
    "session.compaction.started": _compaction_started,
    "session.compaction.delta": _compaction_grows,
    "session.compaction.ended": _compaction_ended,
    "session.compaction.failed": _compaction_failed,
    "session.revert.staged": _revert_staged,
    "session.revert.cleared": _revert_cleared,
    "session.revert.committed": _revert_committed,
    "session.usage.recorded": _usage,
    "session.usage.updated": _nothing,
    "session.idle": _nothing,
    "session.diff": _nothing,
    "session.error": _nothing,
    "session.status": _status,
    "session.message.content.updated": _content_updated,
    "message.updated": _message_updated,
    "message.removed": _message_removed,
    "message.part.updated": _part_updated,
    "message.part.removed": _part_removed,
    "message.part.delta": _part_grows,
}
"""What each event does, by its name."""
