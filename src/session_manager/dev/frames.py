"""The engine's frames.

One struct per frame a worker may send; several travel both ways. `decode` takes the bytes of a text frame as the engine
does: it refuses what the engine drops without a word and changes what the engine changes. `encode` writes what leaves
the engine, object keys sorted.
"""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import msgspec

from session_manager.dev import numbers

DEFAULT_NAMESPACE = "default"

#: Most levels of arrays and objects in one frame, the frame itself included.
MAX_DEPTH = 127


class Undecodable(ValueError):
    """A frame the engine cannot read. It is logged and forgotten; the connection lives on."""


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a call or a binding failed."""

    code: str
    message: str
    stacktrace: str | None = None


class VoidAction(msgspec.Struct, frozen=True, tag_field="type", tag="void"):
    """Call and forget: no result frame ever comes back."""


class EnqueueAction(msgspec.Struct, frozen=True, tag_field="type", tag="enqueue"):
    """Hand the call to a queue worker."""

    queue: str


class Frame(msgspec.Struct, omit_defaults=True, tag_field="type", tag=str.lower):
    """A frame: an object whose `type` is the lower-case name of its struct."""


class InvokeFunction(Frame):
    """A call on its way to the engine, or a delivery on its way to a worker."""

    function_id: str
    data: Any
    invocation_id: str | None = None
    action: VoidAction | EnqueueAction | None = None
    metadata: Any = None
    namespace: str | None = None
    traceparent: str | None = None
    baggage: str | None = None


class InvocationResult(Frame):
    """The answer to a call; a null result carries neither `result` nor `error`."""

    invocation_id: str
    function_id: str
    result: Any = None
    error: ErrorBody | None = None
    traceparent: str | None = None
    baggage: str | None = None


class RegisterFunction(Frame):
    id: str
    description: str | None = None
    request_format: Any = None
    response_format: Any = None
    metadata: Any = None


class UnregisterFunction(Frame):
    id: str


class RegisterTriggerType(Frame):
    id: str
    description: str
    trigger_request_format: Any = None
    call_request_format: Any = None
    namespace: str | None = None


class RegisterTrigger(Frame):
    """A binding: from its owner to the engine, and from the engine to the provider of its type."""

    id: str
    trigger_type: str
    function_id: str
    config: Any
    metadata: Any = None
    namespace: str | None = None
    trigger_namespace: str | None = None


class UnregisterTrigger(Frame):
    id: str
    trigger_type: str | None = None


class TriggerRegistrationResult(Frame):
    """A provider's word on a binding; one with an error travels on to the binding's owner."""

    id: str
    trigger_type: str
    function_id: str
    error: ErrorBody | None = None


class Reattach(Frame):
    """A worker's first frame on a new connection: retire my old one."""

    previous_worker_id: str
    reattach_token: str | None = None


class RegisterService(Frame):
    """Known and of no consequence."""

    id: str


class Ping(Frame):
    pass


class Pong(Frame):
    pass


class WorkerRegistered(Frame):
    """The engine's first frame on every connection."""

    worker_id: str
    reattach_token: str | None = None


class RegistrationRejected(Frame):
    code: str
    namespace: str
    owner_worker_id: str
    worker_name: str | None = None
    function_id: str | None = None


Inbound = (
    InvokeFunction
    | InvocationResult
    | RegisterFunction
    | UnregisterFunction
    | RegisterTriggerType
    | RegisterTrigger
    | UnregisterTrigger
    | TriggerRegistrationResult
    | Reattach
    | RegisterService
    | Ping
    | Pong
)

_decoder: msgspec.json.Decoder[Inbound] = msgspec.json.Decoder(Inbound, float_hook=numbers.double)
_encoder = msgspec.json.Encoder(order="sorted")

# What msgspec reads otherwise than the engine: a minus zero, and integers that may be too long for 64 bits. Both are
# rare, so they are looked for in the text; a match inside a string only costs the slow path.
_MINUS_ZERO = re.compile(rb"-0(?=[,\]}\s])")
_LONG_INTEGER = re.compile(rb"[0-9]{19,}(?=[,\]}\s])")
_ANY_DIGIT = bytes.maketrans(b"123456789", b"000000000")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def decode(raw: bytes) -> Inbound:
    """The frame in `raw`, its values as the engine holds them.

    Raises Undecodable for text that is no JSON to the engine (lone surrogates, NaN, numbers beyond doubles, more than
    127 levels), for unknown types and for missing or mistyped fields.
    """
    try:
        frame = _decoder.decode(raw)
        if _has_unusual_numbers(raw):
            frame = msgspec.convert(json.loads(raw, parse_int=numbers.integer, parse_float=numbers.double), Inbound)
    except (ValueError, RecursionError) as error:
        raise Undecodable(str(error)) from error
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and _depth(frame) > MAX_DEPTH:
        raise Undecodable(f"more than {MAX_DEPTH} levels")
    if isinstance(frame, InvokeFunction | InvocationResult) and frame.invocation_id is not None:
        return _with_canonical_id(frame, frame.invocation_id)
    return frame


def encode(frame: Frame) -> bytes:
    """The text of a frame the engine sends."""
    return _encoder.encode(frame)


def encode_value(value: Any) -> bytes:
    """The text of any JSON value, as the engine writes it."""
    return _encoder.encode(value)


def blank(namespace: str | None) -> bool:
    """Whether a namespace was named and left empty."""
    return namespace is not None and not namespace.strip()


def _has_unusual_numbers(raw: bytes) -> bool:
    if b"-0" in raw and _MINUS_ZERO.search(raw):
        return True
    return b"0" * 19 in raw.translate(_ANY_DIGIT) and _LONG_INTEGER.search(raw) is not None


def _with_canonical_id(frame: Inbound, invocation_id: str) -> Inbound:
    if _UUID.fullmatch(invocation_id):
        return frame
    try:
        canonical = str(uuid.UUID(invocation_id))
    except ValueError as error:
        raise Undecodable(f"{invocation_id!r} is no UUID") from error
    return msgspec.structs.replace(frame, invocation_id=canonical)


def _depth(frame: Inbound) -> int:
    """Levels of arrays and objects in a frame, itself included."""
    level: list[Any] = [getattr(frame, name) for name in frame.__struct_fields__]
    level = [value for value in level if isinstance(value, dict | list)]
    depth = 1
    while level:
        depth += 1
        level = [
            child
            for value in level
            for child in (value.values() if type(value) is dict else value)
            if type(child) is dict or type(child) is list
        ]
    return depth
