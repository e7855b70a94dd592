"""Requests that are too big to be encoded in one go without holding up everybody else.

What is heavy in them, long texts and wide values, is turned into JSON piece by piece and put back as `msgspec.Raw`,
which encodes to itself. The rules notice nothing: they pass content on and never look inside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import Any, get_args

import msgspec
from msgspec import Raw, Struct

from session_manager.events import MessageAdded, MessageUpdated
from session_manager.model import Message, encode

LONG = 100_000
"""A text of more characters is encoded in pieces."""

PIECE = 2 << 20
"""Characters encoded in one go, which takes some milliseconds."""

MANY = 2_000
"""Values in a list or object, as far as it is looked into, that are encoded in one go."""

HEAVY = ("message", "messages", "custom", "content", "details", "entry", "origin")
"""The fields of requests that hold content; what is in the others is looked at by rules, and bounded."""


async def lightened(request: Struct, *, long_texts: bool) -> Struct:
    """The request, with what is heavy in it already encoded. Without long texts, it has many values."""
    changed: dict[str, Any] = {}
    for name in HEAVY:
        value = getattr(request, name, None)
        if value is not None:
            changed[name] = await _lighter(value, long_texts)
    return msgspec.structs.replace(request, **changed) if changed else request


async def _lighter(value: Any, long_texts: bool) -> Any:
    """A typed value with its heavy parts encoded; its own type stays, for rules ask for it."""
    if isinstance(value, Struct):
        fields: dict[str, Any] = {}
        for name in value.__struct_fields__:
            inner = getattr(value, name)
            if (type(inner) is str and len(inner) > LONG) or (inner and isinstance(inner, Struct | list | dict)):
                fields[name] = await _lighter(inner, long_texts)
        return msgspec.structs.replace(value, **fields) if fields else value
    if type(value) is list and value and isinstance(value[0], Struct):
        items: list[Any] = []
        for index, item in enumerate(value, 1):
            items.append(await _lighter(item, long_texts))
            if index % MANY == 0:
                await asyncio.sleep(0)
        if isinstance(value[0], get_args(Message)):
            return items
        return Raw(await _joined(_list(items)))
    return Raw(await _joined(_pieces(value, 4 if long_texts else 2, long_texts)))


async def body(message: Message) -> bytes:
    """The JSON of a message that may have been lightened."""
    content: Any = message.content
    return await _around(message, "content", content) if type(content) is Raw else encode(message)


async def payload(event: MessageAdded | MessageUpdated, body: bytes) -> bytes | None:
    """The JSON of an event, made here if its message's JSON, `body`, is long."""
    return await _around(event, "message", body) if len(body) > PIECE and event.message is not None else None


async def _around(value: Struct, field: str, content: Raw | bytes) -> bytes:
    """The JSON of a value, with that of one field given."""
    return await _joined(_parts(value, field, content))


def _parts(value: Struct, field: str, content: Raw | bytes) -> list[bytes | memoryview]:
    hole = b'"%b":[-7]' % field.encode()  # which no such field can be
    head, _, tail = encode(msgspec.structs.replace(value, **{field: Raw(b"[-7]")})).partition(hole)
    return [head + hole[:-4], memoryview(content), tail]


async def _joined(pieces: Iterable[bytes | memoryview]) -> bytes:
    """All pieces in one, without ever copying more than a few megabytes at a time."""
    whole, work = BytesIO(), 0
    for piece in pieces:
        for start in range(0, len(piece), PIECE):
            part = piece[start : start + PIECE]
            whole.write(part)
            work += len(part)
            if work > PIECE:
                work = 0
                await asyncio.sleep(0)
        work += 200
    return whole.getvalue()


def _list(items: list[Any]) -> Iterator[bytes | memoryview]:
    """The JSON of blocks of content."""
    mark = b"["
    for item in items:
        yield mark
        long = next((name for name in item.__struct_fields__ if _is_long(getattr(item, name))), None)
        if long is None:
            yield encode(item)
        else:
            yield from _parts(item, long, getattr(item, long))
        mark = b","
    yield b"]"


def _is_long(value: Any) -> bool:
    return type(value) is Raw and len(memoryview(value)) > LONG


def _pieces(value: Any, levels: int, long_texts: bool) -> Iterator[bytes]:
    """The JSON of a plain value in pieces, looking so many levels into it for what is long."""
    kind = type(value)
    if kind is str and len(value) > LONG:
        yield b'"'
        for start in range(0, len(value), PIECE):
            yield encode(value[start : start + PIECE])[1:-1]
        yield b'"'
    elif kind is dict and levels and len(value) > 0 and (long_texts or len(value) <= MANY):
        mark = b"{"
        for key, inner in value.items():
            yield mark + encode(key) + b":"
            yield from _pieces(inner, levels - 1, long_texts)
            mark = b","
        yield b"}"
    elif kind is list and levels and value and long_texts:
        mark = b"["
        for inner in value:
            yield mark
            yield from _pieces(inner, levels - 1, long_texts)
            mark = b","
        yield b"]"
    elif kind is list and len(value) > MANY:
        mark = b"["
        for start in range(0, len(value), MANY):
            yield mark
            yield encode(value[start : start + MANY])[1:-1]
            mark = b","
        yield b"]"
    else:
        yield encode(value)
