"""What may come in: values that the engine can carry back.

The engine silently drops a frame that holds a lone surrogate, NaN, an infinity or more than 127 levels of nesting, and
turns integers beyond 64 bits into floats. A stored value of that kind would make its own reads hang, so every door
(functions, raw store writes, imports, migrations) checks with `check` before anything else looks at the request.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

from session_manager.errors import MalformedRequest

MAX_LEVELS = 96
"""Levels of nesting of one opaque value (arguments, details, data, metadata, origin): the value itself is the first."""

MAX_REQUEST_LEVELS = 108
"""Levels of a whole request. Replies and events wrap what is stored in a few more, still below the engine's 126."""

OPAQUE = frozenset({"arguments", "details", "data", "metadata", "origin", "session_metadata"})
"""Fields that hold any JSON value; inside them a field of such a name is just data."""

INT_MIN, INT_MAX = -(2**63), 2**64 - 1


class _Refused(Exception):
    def __init__(self, why: str) -> None:
        self.why = why
        self.path: list[str] = []


def check(payload: Any) -> None:
    """Raises MalformedRequest, naming the field, when `payload` holds what cannot be carried."""
    try:
        _walk(payload, MAX_REQUEST_LEVELS, typed=True)
    except _Refused as refused:
        where = "".join(reversed(refused.path)).removeprefix(".")
        raise MalformedRequest(f"{refused.why} - at `{where}`" if where else refused.why) from None


def check_value(value: Any, field: str) -> None:
    """The same for one opaque value that did not come in a request."""
    check({"data": value} if field == "data" else {"metadata": value})


def _walk(value: Any, room: int, *, typed: bool) -> None:
    kind = type(value)
    if kind is str:
        _text(value)
    elif kind is dict:
        if room <= 0:
            raise _too_deep()
        for key, inner in value.items():
            try:
                if type(key) is not str:
                    raise _Refused("a key is no text")
                _text(key)
                inner_kind = type(inner)
                if inner_kind is str:
                    if not inner.isascii():
                        _text(inner)
                elif inner_kind is not bool and inner is not None:
                    if typed and key in OPAQUE:
                        _walk(inner, min(room - 1, MAX_LEVELS), typed=False)
                    else:
                        _walk(inner, room - 1, typed=typed)
            except _Refused as refused:
                refused.path.append(f".{_shown(key)}")
                raise
    elif kind is list or kind is tuple:
        if room <= 0:
            raise _too_deep()
        for index, inner in enumerate(value):
            try:
                _walk(inner, room - 1, typed=typed)
            except _Refused as refused:
                refused.path.append(f"[{index}]")
                raise
    elif kind is int:
        if not INT_MIN <= value <= INT_MAX:
            raise _Refused("the integer does not fit in 64 bits")
    elif kind is float:
        if not isfinite(value):
            raise _Refused("the number is not finite")
    elif kind is not bool and value is not None:
        raise _Refused("the value is not JSON")


def _text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _Refused("the text holds a lone surrogate, which is no character") from None


def _too_deep() -> _Refused:
    return _Refused(f"values may nest at most {MAX_LEVELS} levels deep")


def _shown(key: object) -> str:
    return str(key).encode("utf-8", "backslashreplace").decode()[:40]
