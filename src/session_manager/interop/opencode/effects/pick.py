"""A helper of the effects."""

from __future__ import annotations

from session_manager.model import JsonObject


def picked(data: JsonObject, *keys: str) -> JsonObject:
    """What is there of these fields, as it is."""
    return {key: data[key] for key in keys if key in data}
