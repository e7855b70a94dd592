"""Frames of calls as the engine's protocol has them: read and written with msgspec, the JSON inside as it is."""

from __future__ import annotations

import uuid

import msgspec
from msgspec import Raw, Struct

from session_manager.model import JsonObject, encode

FRAME_BYTES, MESSAGE_BYTES = 16 << 20, 64 << 20
"""What the engine takes as one frame, and as one message in several frames."""

FAREWELL = 1.0
"""Seconds that a farewell may take; the end of the worker must not wait for an engine that hangs."""


class Frame(Struct):
    type: str
    invocation_id: str | None = None
    function_id: str | None = None
    data: Raw = Raw(b"null")
    result: Raw = Raw(b"null")
    error: Raw = Raw(b"null")

    def code(self) -> str | None:
        """The error code of an answer."""
        problem = _read_error(self.error)
        return None if problem is None else problem.code


class _Error(Struct):
    code: str = "unknown"


_read_error = msgspec.json.Decoder(_Error | None).decode


def new_id() -> str:
    """An invocation's id as the engine writes it back."""
    return str(uuid.uuid4())


def invocation(invocation_id: str, function_id: str, namespace: str, payload: bytes, more: JsonObject | None) -> bytes:
    """A call with JSON that is already encoded; `more` are further keys of the frame."""
    head: JsonObject = {
        "type": "invokefunction",
        "invocation_id": invocation_id,
        "function_id": function_id,
        "namespace": namespace,
    }
    if more:
        head |= more
    return encode(head)[:-1] + b',"data":' + payload + b"}"


def answer_head(frame: Frame) -> bytes:
    """The beginning of the answer to a call: `result` or `failure` follows."""
    return b'{"type":"invocationresult","invocation_id":%b,"function_id":%b,' % (
        encode(frame.invocation_id),
        encode(frame.function_id),
    )


def result(value: bytes) -> bytes:
    return b'"result":' + value + b"}"


def failure(code: str, message: str) -> bytes:
    return b'"error":' + encode({"code": code, "message": message}) + b"}"
