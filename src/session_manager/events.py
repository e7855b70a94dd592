"""The events that changes cause, in the shape that subscribers receive, and the envelope that carries them between
instances. Source of the shapes: the behaviour of session-manager 1.0.17."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

import msgspec
from msgspec import Struct

from session_manager.model import (
    CustomPayload,
    Entry,
    Int64,
    Json,
    JsonObject,
    Message,
    Role,
    SessionMeta,
    Status,
    Uint64,
    Value,
    decode,
    decode_custom,
    encode,
    role_of,
)


class Event(Value, omit_defaults=True):
    """What all events share: they belong to one session."""

    trigger_type: ClassVar[str]

    session_id: str

    def payload(self) -> bytes:
        """JSON of what subscribers receive."""
        return encode(self)

    def role(self) -> Role | None:
        """The role of the event's message, for events that carry one."""
        return None


class Created(Event):
    trigger_type = "session::created"

    title: str
    description: str
    status: Status
    created_at: Int64
    forked_from: str | None = None

    @classmethod
    def of(cls, meta: SessionMeta) -> Created:
        return cls(meta.session_id, meta.title, meta.description, meta.status, meta.created_at, meta.forked_from)


class MessageAdded(Event):
    trigger_type = "session::message-added"

    entry_id: str
    timestamp: Int64
    parent_id: str | None
    """Without a default, because it is on the wire even when null."""
    message: Message | None = None
    custom: CustomPayload | None = None
    origin: JsonObject | None = None

    def role(self) -> Role | None:
        return None if self.message is None else role_of(self.message)


class MessageUpdated(Event):
    trigger_type = "session::message-updated"

    entry_id: str
    message: Message
    revision: Uint64
    timestamp: Int64
    origin: JsonObject | None = None

    def role(self) -> Role | None:
        return role_of(self.message)


class StatusChanged(Event):
    trigger_type = "session::status-changed"

    status: Status
    previous_status: Status
    timestamp: Int64
    status_reason: str | None = None

    @classmethod
    def of(cls, meta: SessionMeta, previous: Status) -> StatusChanged:
        return cls(meta.session_id, meta.status, previous, meta.updated_at, meta.status_reason)


class MetaUpdated(Event):
    trigger_type = "session::meta-updated"

    title: str
    description: str
    timestamp: Int64
    metadata: JsonObject | None = None

    @classmethod
    def of(cls, meta: SessionMeta) -> MetaUpdated:
        return cls(meta.session_id, meta.title, meta.description, meta.updated_at, meta.metadata)


class Deleted(Event):
    trigger_type = "session::deleted"

    timestamp: Int64


def entry_event(session_id: str, entry: Entry) -> MessageAdded | MessageUpdated:
    """A stored entry as the event that brings a subscriber up to date: as updated where it was, else as added."""
    origin = None if entry.origin is None else decode(entry.origin)
    if entry.role is not None and entry.revision > 0:
        return MessageUpdated(session_id, entry.id, entry.message(), entry.revision, entry.timestamp, origin)
    return MessageAdded(
        session_id=session_id,
        entry_id=entry.id,
        timestamp=entry.timestamp,
        parent_id=entry.parent_id,
        message=None if entry.role is None else entry.message(),
        custom=decode_custom(entry.body) if entry.role is None else None,
        origin=origin,
    )


EVENTS: dict[str, type[Event]] = {
    event.trigger_type: event for event in (Created, MessageAdded, MessageUpdated, StatusChanged, MetaUpdated, Deleted)
}

STORE_EVENTS = "session::store::events"
"""The internal trigger type: every event of the instance, in an envelope, unfiltered."""


class Envelope(Struct, omit_defaults=True):
    """An event on its way between instances, with what filters need to know of the session."""

    trigger_type: str
    payload: Json
    session_metadata: JsonObject | None = None


class Emission(Struct, frozen=True, gc=False):
    """An event and the metadata that the session had at that moment (for a deletion: before it)."""

    event: Event
    metadata: JsonObject | None
    ready: bytes | None = None
    """JSON of the event, if it was made already."""

    def payload(self) -> bytes:
        """JSON of what subscribers receive."""
        return self.event.payload() if self.ready is None else self.ready

    def envelope(self, payload: bytes) -> bytes:
        """JSON of the event as it goes to other instances, `payload` being the JSON of the event."""
        return encode(Envelope(self.event.trigger_type, msgspec.Raw(payload), self.metadata))


PORTION, PORTION_BYTES = 500, 4 << 20
"""Most events, and bytes of JSON but for the first, that are told at one go where there may be any number."""


def portions(emissions: Iterable[Emission]) -> Iterator[list[Emission]]:
    """The same events, encoded, no more at a time than are told at one go."""
    portion: list[Emission] = []
    size = 0
    for emission in emissions:
        payload = emission.payload()
        if portion and (len(portion) == PORTION or size + len(payload) > PORTION_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(Emission(emission.event, emission.metadata, payload))
        size += len(payload)
    if portion:
        yield portion


def open_envelope(envelope: Envelope) -> Emission | None:
    """The event in an envelope; None when its type is not one of the six or its payload is not of that type."""
    event_type = EVENTS.get(envelope.trigger_type)
    payload = envelope.payload
    if event_type is None:
        return None
    if event_type is MessageAdded and isinstance(payload, dict):
        payload = {"parent_id": None, **payload}
    try:
        return Emission(msgspec.convert(payload, event_type), envelope.session_metadata)
    except msgspec.ValidationError:
        return None
