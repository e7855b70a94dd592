"""What everybody stores: the same texts, of the same length, in the same order."""

from __future__ import annotations

from typing import Any

TEXT = 250
"""Characters of a message, about 300 bytes as JSON."""

_WORDS = "the session keeps what was said and gives it back in order whenever an agent asks for the newest part of it "

OWNERS = 1000
"""A session belongs to one of so many owners: a filter by owner matches one session in so many."""

WORKING = 100
"""One session in so many has the status `working`."""

APP, USER = "bench", "user"


def text(index: int, length: int = TEXT) -> str:
    """The text of the message at an index."""
    start = f"{index} "
    return (start + _WORDS * (length // len(_WORDS) + 1))[:length]


def role(index: int) -> str:
    return "assistant" if index % 2 else "user"


def message(index: int, length: int = TEXT) -> dict[str, Any]:
    """The message at an index, as session-manager takes it."""
    made: dict[str, Any] = {"role": role(index), "content": [{"type": "text", "text": text(index, length)}]}
    if index % 2:
        made |= {"stop_reason": "end", "model": "model", "provider": "provider"}
    return made | {"timestamp": 1_700_000_000_000 + index}


def item(index: int, length: int = TEXT) -> dict[str, str]:
    """The message at an index, as most others take it."""
    return {"role": role(index), "content": text(index, length)}
