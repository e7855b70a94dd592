"""The data of a conversation: content blocks, messages, entries and session records.

The wire form is the stored form: these types are read from what callers send, encoded to JSON once, and that JSON is
what the stores keep and what readers get back. Decoding drops unknown keys, refuses every coercion (`true` is not 1,
`1.0` is no integer), and treats a null in an optional field as absence. Optional fields are left out when unset,
except those that the wire always carries (`parent_id`, `details` of a function result, `arguments`, `data`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

Json: TypeAlias = Any
"""Any JSON value, kept as it came: the service never looks inside."""

JsonObject: TypeAlias = dict[str, Any]

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1, extra_json_schema={"format": "int64"})]
Uint64 = Annotated[int, Meta(ge=0, extra_json_schema={"format": "uint64"})]
Uint = Annotated[int, Meta(ge=0, extra_json_schema={"format": "uint"})]

Role = Literal["user", "assistant", "function_result", "custom"]
Status = Annotated[
    Literal["idle", "working", "done", "error"],
    Meta(title="SessionStatus", description="What the session is doing, as its harness last said."),
]
StopReason = Annotated[
    Literal["end", "length", "function_call", "aborted", "error"],
    Meta(title="StopReason", description="Why the assistant stopped, in the terms shared by all providers."),
]
ErrorKind = Annotated[
    Literal["auth_expired", "rate_limited", "context_overflow", "transient", "permanent"],
    Meta(title="ErrorKind"),
]
Timestamp = Annotated[
    int,
    Meta(
        ge=-(2**63),
        le=2**63 - 1,
        description="Milliseconds since the Unix epoch.",
        extra_json_schema={"format": "int64"},
    ),
]


class Value(Struct, gc=False):
    """What holds JSON values and nothing else. Nothing in it can lead back to it, so the garbage collector need not
    look, which with the thousands of a batch is worth a twentieth of the whole."""


# --- content blocks ---


class TextBlock(Value, tag_field="type", tag="text"):
    text: str


class ImageBlock(Value, tag_field="type", tag="image"):
    mime: Annotated[str, Meta(description="Media type of the picture, such as image/png.")]
    data: Annotated[str, Meta(description="The picture in base64; it is not checked.")]


class ThinkingBlock(Value, tag_field="type", tag="thinking", omit_defaults=True):
    text: str
    signature: str | None = None


class FunctionCallBlock(Value, tag_field="type", tag="function_call"):
    id: Annotated[str, Meta(description="The call's id; the result names it.")]
    function_id: Annotated[str, Meta(description="The function that the model wants called.")]
    arguments: Annotated[Json, Meta(description="Arguments as the model gave them, any JSON.")] = None


class FunctionResultBlock(Value, tag_field="type", tag="function_result", omit_defaults=True):
    function_call_id: str
    content: list[ContentBlock]
    is_error: bool | None = None


ContentBlock = TextBlock | ImageBlock | ThinkingBlock | FunctionCallBlock | FunctionResultBlock


# --- messages ---


class Usage(Value, omit_defaults=True):
    input: Uint64 | None = None
    output: Uint64 | None = None
    cache_read: Uint64 | None = None
    cache_write: Uint64 | None = None
    reasoning: Uint64 | None = None
    cost_usd: Annotated[float, Meta(extra_json_schema={"format": "double"})] | None = None


MessageTime = Annotated[
    int,
    Meta(
        ge=-(2**63),
        le=2**63 - 1,
        description="The caller's own time of the message in epoch milliseconds; never rewritten.",
        extra_json_schema={"format": "int64"},
    ),
]


class UserMessage(Value, tag_field="role", tag="user"):
    content: list[ContentBlock]
    timestamp: MessageTime


class AssistantMessage(Value, tag_field="role", tag="assistant", omit_defaults=True):
    content: list[ContentBlock]
    stop_reason: StopReason
    model: str
    provider: str
    timestamp: MessageTime
    native_stop_reason: Annotated[str | None, Meta(description="The provider's own word for why it stopped.")] = None
    error_message: str | None = None
    error_kind: ErrorKind | None = None
    warnings: Annotated[list[str] | None, Meta(description="Notes on the reply that did not stop it.")] = None
    usage: Usage | None = None
    agent: Annotated[str | None, Meta(description="Name of the agent that spoke, where there are several.")] = None


class FunctionResultMessage(Value, tag_field="role", tag="function_result"):
    function_call_id: Annotated[str, Meta(description="The call that this answers.")]
    function_id: str
    content: list[ContentBlock]
    timestamp: MessageTime
    details: Annotated[Json, Meta(description="Anything for programs rather than for the model.")] = None
    is_error: bool = False


class CustomMessage(Value, tag_field="role", tag="custom", omit_defaults=True):
    custom_type: Annotated[str, Meta(description="The application's own name for this kind of message.")]
    content: list[ContentBlock]
    timestamp: MessageTime
    display: str | None = None
    details: Json = None


Message = UserMessage | AssistantMessage | FunctionResultMessage | CustomMessage


class CustomPayload(Value):
    """The body of a bookkeeping entry: part of the chain, not of the conversation."""

    custom_type: Annotated[str, Meta(description="The application's own name for this kind of record.")]
    data: Annotated[Json, Meta(description="The record itself, any JSON.")] = None


# --- entries ---

Revision = Annotated[
    int,
    Meta(ge=0, description="How many times the entry was updated.", extra_json_schema={"format": "uint64"}),
]
StoredOrigin = Annotated[
    JsonObject | UnsetType | None, Meta(description="What the writer said of where the entry comes from.")
]


class MessageEntry(Struct, tag_field="kind", tag="message"):
    """A message in its place in the chain, as the store protocol carries it."""

    id: str
    timestamp: Timestamp
    message: Annotated[Message, Meta(description="The message as stored.")]
    parent_id: str | None = None
    """The entry before this one; null for the first."""
    revision: Revision = 0
    origin: StoredOrigin = UNSET

    def __post_init__(self) -> None:
        if self.origin is None:
            self.origin = UNSET


class CustomEntry(Struct, tag_field="kind", tag="custom"):
    """A bookkeeping record in its place in the chain, as the store protocol carries it."""

    id: str
    timestamp: Timestamp
    custom_type: str
    parent_id: str | None = None
    """The entry before this one; null for the first."""
    revision: Revision = 0
    origin: StoredOrigin = UNSET
    data: Json = None

    def __post_init__(self) -> None:
        if self.origin is None:
            self.origin = UNSET


WireEntry = MessageEntry | CustomEntry


class Entry(Struct, frozen=True, gc=False):
    """An entry as the stores keep it: its place in the chain, and its content as JSON text.

    `body` is the JSON of the message, or of `{custom_type, data}` when `role` is None (a bookkeeping record). Keeping
    the content encoded means that copying, storing and listing an entry never looks inside it.
    """

    id: str
    parent_id: str | None
    timestamp: int
    role: Role | None
    body: bytes
    revision: int = 0
    origin: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes of the content, its origin included."""
        return len(self.body) + (0 if self.origin is None else len(self.origin))

    def message(self) -> Message:
        return decode_message(self.body)

    def outline(self) -> Message:
        """The message, its content left out if that is long."""
        if len(self.body) < 1 << 20:
            return decode_message(self.body)
        return decode_message(encode({**decode_record(self.body), "content": []}))

    def wire(self) -> JsonObject:
        """The entry as the store protocol and `session::get-message` show it, with the stored JSON as it is."""
        entry: JsonObject = {
            "kind": "custom" if self.role is None else "message",
            "id": self.id,
            "parent_id": self.parent_id,
            "timestamp": self.timestamp,
            "revision": self.revision,
        }
        if self.origin is not None:
            entry["origin"] = stored(self.origin)
        if self.role is None:
            entry.update(decode_record(self.body))
        else:
            entry["message"] = stored(self.body)
        return entry


_ROLES: dict[type, Role] = {kind: kind.__struct_config__.tag for kind in get_args(Message)}


def role_of(message: Message) -> Role:
    return _ROLES[type(message)]


def entry_from_wire(wire: WireEntry) -> Entry:
    if isinstance(wire, MessageEntry):
        role: Role | None = role_of(wire.message)
        body = encode(wire.message)
    else:
        role = None
        body = encode(CustomPayload(wire.custom_type, wire.data))
    origin = None if wire.origin is UNSET else encode(wire.origin)
    return Entry(wire.id, wire.parent_id, wire.timestamp, role, body, wire.revision, origin)


# --- session records ---


class SessionMeta(Struct, omit_defaults=True, frozen=True):
    """The record of one session."""

    session_id: str
    title: str
    description: str
    status: Status
    created_at: Timestamp
    updated_at: Timestamp
    message_count: Annotated[
        int,
        Meta(
            ge=0,
            description="Messages on all branches; bookkeeping entries do not count.",
            extra_json_schema={"format": "uint64"},
        ),
    ]
    status_reason: Annotated[str | None, Meta(description="Why the status is what it is; idle never has one.")] = None
    metadata: Annotated[
        JsonObject | None, Meta(description="The application's own labels; lists and bindings filter on them.")
    ] = None
    forked_from: Annotated[str | None, Meta(description="The session that this one was copied from.")] = None
    draft: Annotated[str | None, Meta(description="Text that the person has typed and not sent.")] = None

    def wire(self) -> JsonObject:
        return msgspec.to_builtins(self)  # type: ignore[no-any-return] # a struct becomes a dict


encode = msgspec.json.Encoder().encode
"""JSON bytes of any of these types, as stored and as sent."""

decode = msgspec.json.Decoder().decode
"""Plain values of stored JSON, ready for a reply."""

stored = msgspec.Raw
"""Stored JSON that goes into a reply as it is; stores vouch for it (see `Store`)."""

decode_record = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
"""The fields of a stored message or bookkeeping record, each as it is."""

decode_message = msgspec.json.Decoder(Message).decode
decode_custom = msgspec.json.Decoder(CustomPayload).decode
decode_meta = msgspec.json.Decoder(SessionMeta).decode
