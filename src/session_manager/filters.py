"""Equality of metadata, and of what lists and bindings ask of it."""

from __future__ import annotations

from typing import Any

import msgspec

from session_manager.model import JsonObject

_canonical = msgspec.json.Encoder(order="sorted").encode


def canonical(value: Any) -> bytes:
    """JSON text that two values share exactly when they are equal deeply and in type (`true`, `1`, `1.0` and `"1"` are
    four values; the order of keys does not matter)."""
    return _canonical(value)


def matches(wanted: JsonObject | None, metadata: JsonObject | None) -> bool:
    """Whether `metadata` has every key of `wanted` with an equal value. Nothing wanted matches everything."""
    if not wanted:
        return True
    if metadata is None:
        return False
    return all(key in metadata and canonical(value) == canonical(metadata[key]) for key, value in wanted.items())
