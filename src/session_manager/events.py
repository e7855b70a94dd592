"""The events that changes cause, in the shape that subscribers receive, and the envelope that carries them between
instances. Source of the shapes: the behaviour of session-manager 1.0.17."""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec import Struct

from session_manager.model import (
    CustomPayload,
    Int64,
    Json,
    JsonObject,
    Message,
    Role,
    Status,
    Uint64,
    role_of,
)


class Event(Struct, omit_defaults=True):
    """What all events share: they belong to one session."""

    trigger_type: ClassVar[str]

    session_id: str

    def payload(self) -> JsonObject:
        return msgspec.to_builtins(self)  # type: ignore[no-any-return] # a struct becomes a dict

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


class MessageAdded(Event):
    trigger_type = "session::message-added"

    entry_id: str
    timestamp: Int64
    parent_id: str | None = None
    message: Message | None = None
    custom: CustomPayload | None = None
    origin: JsonObject | None = None

    def payload(self) -> JsonObject:
        payload = super().payload()
        payload.setdefault("parent_id", None)
        return payload

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


class MetaUpdated(Event):
    trigger_type = "session::meta-updated"

    title: str
    description: str
    timestamp: Int64
    metadata: JsonObject | None = None


class Deleted(Event):
    trigger_type = "session::deleted"

    timestamp: Int64


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


class Emission(Struct):
    """An event and the metadata that the session had at that moment (for a deletion: before it)."""

    event: Event
    metadata: JsonObject | None

    def envelope(self) -> JsonObject:
        envelope: JsonObject = {"trigger_type": self.event.trigger_type, "payload": self.event.payload()}
        if self.metadata is not None:
            envelope["session_metadata"] = self.metadata
        return envelope


def open_envelope(envelope: Envelope) -> Emission | None:
    """The event in an envelope; None when its type is not one of the six or its payload is not of that type."""
    event_type = EVENTS.get(envelope.trigger_type)
    if event_type is None:
        return None
    try:
        return Emission(msgspec.convert(envelope.payload, event_type), envelope.session_metadata)
    except msgspec.ValidationError:
        return None
