"""Events of a session, to its message list: what the server does with them, done again. Pure.

A replay starts empty or from records that are known already, takes events in order, and holds the session record and
the records as a message list would show them at that moment. Both generations are understood, also in one log. An
event that was seen already does nothing; an event behind a gap is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

from session_manager.interop.opencode.effects import HANDLERS
from session_manager.interop.opencode.events import Event
from session_manager.interop.opencode.records import (
    Record,
    created,
    is_v1,
    obj,
    objects,
    record_id,
    text,
    whole,
)
from session_manager.model import JsonObject, Status


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
        self.early = False
        """Whether the second generation's records are of the early form."""
        self.unknown: dict[str, int] = {}
        """Names of events that mean nothing to us, and how many of them came."""
        self.touched: set[str] = set()
        """Ids of records that changed since this was last emptied."""
        self._blocks: dict[tuple[str, str, object], int] = {}

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
        self.early = self.early or event.early
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
