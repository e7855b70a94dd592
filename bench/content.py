"""What everybody stores: the same texts, of the same length, in the same order."""

from __future__ import annotations

from typing import Any

TEXT = 250
"""Characters of a message, about 300 bytes as JSON."""

_WORDS = "the session keeps what was said and gives it back in order whenever an agent asks for the newest part of it "

OWNERS, WORKING, AT_LEAST = 1000, 100, 60
"""One session in so many belongs to OWNER, one in so many has the status `working`; but never fewer than would fill a
page, or a small store would have less to read."""

OWNER = "u7"

APP, USER = "bench", "user"


def text(index: int, length: int = TEXT) -> str:
    """The text of the message at an index."""
    start = f"{index} "
    return (start + _WORDS * (length // len(_WORDS) + 1))[:length]


def role(index: int) -> str:
    return "assistant" if index % 2 else "user"


def owner(index: int) -> str:
    """Whose the session at an index is."""
    return OWNER if index < AT_LEAST else f"u{index % OWNERS}"


def status(index: int) -> str:
    return "working" if index < AT_LEAST or index % WORKING == 0 else "idle"


def message(index: int, length: int = TEXT) -> dict[str, Any]:
    """The message at an index, as session-manager takes it."""
    made: dict[str, Any] = {"role": role(index), "content": [{"type": "text", "text": text(index, length)}]}
    if index % 2:
        made |= {"stop_reason": "end", "model": "model", "provider": "provider"}
    return made | {"timestamp": 1_700_000_000_000 + index}


def item(index: int, length: int = TEXT) -> dict[str, str]:
    """The message at an index, as most others take it."""
    return {"role": role(index), "content": text(index, length)}
