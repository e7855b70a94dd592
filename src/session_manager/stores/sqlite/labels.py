"""Labels: what lists find sessions by that have something in their metadata."""

from __future__ import annotations

import hashlib
from typing import Any

from session_manager.filters import canonical
from session_manager.model import JsonObject, encode


def digest(key: str, value: Any) -> bytes:
    """What `label` holds of one top-level key of a session's metadata."""
    return hashlib.blake2b(encode(key) + canonical(value), digest_size=12).digest()


def digests(metadata: JsonObject | None) -> frozenset[bytes]:
    return frozenset(digest(key, value) for key, value in (metadata or {}).items())
