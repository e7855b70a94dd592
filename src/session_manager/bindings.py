"""Who wants to hear what: the trigger types, the bindings to them, and their filters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from session_manager import door
from session_manager.errors import InvalidRequest, MalformedRequest
from session_manager.events import (
    EVENTS,
    STORE_EVENTS,
    Created,
    Deleted,
    Emission,
    Event,
    MessageAdded,
    MessageUpdated,
    MetaUpdated,
    StatusChanged,
)
from session_manager.filters import canonical, matches
from session_manager.model import JsonObject, Role

MAX_BINDINGS = 100_000

MetadataFilter = Annotated[
    JsonObject | None, Meta(description="Only sessions whose metadata has all of these keys with equal values.")
]
SessionFilter = Annotated[str | None, Meta(description="Only this session.")]
RolesFilter = Annotated[
    list[Role] | None, Meta(description="Only messages of these roles; bookkeeping records have none.")
]


class CreatedConfig(Struct, forbid_unknown_fields=True):
    metadata: MetadataFilter = None


class MessageConfig(Struct, forbid_unknown_fields=True):
    session_id: SessionFilter = None
    roles: RolesFilter = None
    metadata: MetadataFilter = None


class SessionConfig(Struct, forbid_unknown_fields=True):
    session_id: SessionFilter = None
    metadata: MetadataFilter = None


class AnyConfig(Struct):
    """The internal feed takes any configuration and filters nothing."""


class TriggerType(Struct, frozen=True):
    id: str
    config: type[Struct]
    description: str
    event: type[Event] | None = None
    """What subscribers receive; None for the internal feed of envelopes."""


def _type(event: type[Event], config: type[Struct], description: str) -> TriggerType:
    return TriggerType(event.trigger_type, config, description, event)


TRIGGER_TYPES: tuple[TriggerType, ...] = (
    _type(Created, CreatedConfig, "Fires when a session comes into being: by create, ensure or fork."),
    _type(MessageAdded, MessageConfig, "Fires for every message or bookkeeping record added by append or append-many."),
    _type(MessageUpdated, MessageConfig, "Fires when update-message replaced a message; carries it whole."),
    _type(StatusChanged, SessionConfig, "Fires when set-status changed the status or the reason of a session."),
    _type(MetaUpdated, SessionConfig, "Fires when set-meta wrote the title, description or metadata of a session."),
    _type(Deleted, SessionConfig, "Fires when a session was removed; filters see the metadata it had."),
    TriggerType(STORE_EVENTS, AnyConfig, "Internal feed of every event, for instances that share this store."),
)  # fmt: skip

_CONFIGS = {trigger_type.id: trigger_type.config for trigger_type in TRIGGER_TYPES}


class Binding(Struct, frozen=True):
    """One registration of a subscriber's function; each is a delivery of its own."""

    id: str
    trigger_type: str
    function_id: str
    namespace: str = "default"
    extra: JsonObject | None = None
    """What the subscriber wants passed along with each delivery."""
    session_id: str | None = None
    roles: frozenset[Role] | None = None
    metadata: JsonObject | None = None

    def wants(self, emission: Emission) -> bool:
        event = emission.event
        return (
            (self.session_id is None or self.session_id == event.session_id)
            and (self.roles is None or event.role() in self.roles)
            and matches(self.metadata, emission.metadata)
        )


def binding(
    id_: str,
    trigger_type: str,
    function_id: str,
    config: Any,
    namespace: str = "default",
    extra: JsonObject | None = None,
) -> Binding:
    """A binding from what the subscriber registered. Raises MalformedRequest when the configuration is refused."""
    if trigger_type == STORE_EVENTS:
        return Binding(id_, trigger_type, function_id, namespace, extra)
    try:
        door.check(config)
        read = msgspec.convert({} if config is None else config, _CONFIGS[trigger_type])
    except (msgspec.ValidationError, MalformedRequest) as error:
        wrong = error if isinstance(error, MalformedRequest) else MalformedRequest.of(error)
        raise MalformedRequest(f"the configuration of a {trigger_type} trigger: {wrong.why}") from None
    roles = getattr(read, "roles", None)
    return Binding(
        id_,
        trigger_type,
        function_id,
        namespace,
        extra,
        getattr(read, "session_id", None),
        None if roles is None else frozenset(roles),
        getattr(read, "metadata", None),
    )


class BindingTable:
    """All bindings, filed under what they ask for, so that those for other sessions cost an event nothing."""

    def __init__(self) -> None:
        self._bindings: dict[str, Binding] = {}
        self._filed: dict[tuple[Any, ...], dict[str, Binding]] = {}
        self._asked: dict[str, dict[str, int]] = {}
        """The labels that bindings are filed under, by trigger type, with the number of their files: an event has none
        but these of its session's labels encoded, which may be many and big."""

    def __len__(self) -> int:
        return len(self._bindings)

    def add(self, binding: Binding) -> None:
        """Adds a binding, or replaces the one of the same id. Raises InvalidRequest when there are too many."""
        if self.remove(binding.id) is None and len(self._bindings) >= MAX_BINDINGS:
            raise InvalidRequest(f"there are {MAX_BINDINGS} bindings, and there may be no more")
        self._bindings[binding.id] = binding
        file = _file(binding)
        if file not in self._filed and len(file) == LABELLED:
            asked = self._asked.setdefault(binding.trigger_type, {})
            asked[file[1]] = asked.get(file[1], 0) + 1
        self._filed.setdefault(file, {})[binding.id] = binding

    def remove(self, id_: str) -> Binding | None:
        binding = self._bindings.pop(id_, None)
        if binding is not None:
            file = _file(binding)
            del self._filed[file][id_]
            if not self._filed[file]:
                del self._filed[file]
                if len(file) == LABELLED:
                    self._no_longer_asked(binding.trigger_type, file[1])
        return binding

    def _no_longer_asked(self, trigger_type: str, key: str) -> None:
        asked = self._asked[trigger_type]
        asked[key] -= 1
        if not asked[key]:
            del asked[key]

    def ids(self) -> set[str]:
        return set(self._bindings)

    def matching(self, emission: Emission) -> Iterator[Binding]:
        """The subscribers of one event, in no particular order."""
        if not self._filed:
            return
        kind = emission.event.trigger_type
        files: list[Any] = [(kind,), (kind, emission.event.session_id)]
        asked, metadata = self._asked.get(kind), emission.metadata
        if asked and metadata:
            few, many = (asked, metadata) if len(asked) < len(metadata) else (metadata, asked)
            files += [(kind, key, canonical(metadata[key])) for key in few if key in many]
        for file in files:
            for binding in self._filed.get(file, {}).values():
                if binding.wants(emission):
                    yield binding

    def relays(self) -> list[Binding]:
        """The other instances that want every event."""
        return list(self._filed.get((STORE_EVENTS,), {}).values())


LABELLED = 3
"""Parts of the name of a file for a label."""


def _file(binding: Binding) -> tuple[Any, ...]:
    """Where a binding is filed: under its session, else under the first label it asks for, else under its type."""
    if binding.session_id is not None:
        return (binding.trigger_type, binding.session_id)
    for key, value in (binding.metadata or {}).items():
        return (binding.trigger_type, key, canonical(value))
    return (binding.trigger_type,)


assert set(EVENTS) < set(_CONFIGS)
