"""Chains of entries, as pure functions over (entry id -> parent id)."""

from __future__ import annotations

from collections.abc import Callable

from session_manager.errors import BrokenPath

MISSING = object()


def chain(session_id: str, leaf: str, parent_of: Callable[[str], object]) -> list[str]:
    """Entry ids from the root to `leaf`. `parent_of` answers with the parent's id, None at a root, or MISSING.

    Raises BrokenPath when a link leads to an entry that is not there, or back into the chain.
    """
    ids: list[str] = []
    seen: set[str] = set()
    at: object = leaf
    while isinstance(at, str):
        if at in seen:
            raise BrokenPath(session_id, at, "the links run in a circle")
        parent = parent_of(at)
        if parent is MISSING:
            raise BrokenPath(session_id, at, "there is no such entry")
        seen.add(at)
        ids.append(at)
        at = parent
    ids.reverse()
    return ids
