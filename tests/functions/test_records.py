"""Session records stay such that every reply and list can hold them."""

from __future__ import annotations

from typing import Any

import pytest

from session_manager.door import MAX_RECORD
from session_manager.errors import MalformedRequest
from tests.functions.test_pages import stage
from tests.stage import InProcess

__all__ = ["stage"]

WIDE = "\U0001f600" * MAX_RECORD
"""16 MiB, as long as a text of a record may be."""


async def test_a_record_that_no_reply_could_hold_does_not_come_about(stage: InProcess) -> None:
    raw = {"title": "", "description": "", "status": "idle", "created_at": 1, "updated_at": 1, "message_count": 0}
    await stage.call("session::set-meta", {"session_id": "s", "title": WIDE})
    refused: list[tuple[str, dict[str, Any]]] = [
        ("session::create", {"title": WIDE, "description": WIDE}),
        ("session::ensure", {"session_id": "t", "title": WIDE, "description": WIDE}),
        ("session::set-meta", {"session_id": "s", "description": WIDE}),
        ("session::set-draft", {"session_id": "s", "draft": WIDE}),
        ("session::set-status", {"session_id": "s", "status": "error", "reason": WIDE}),
        ("session::store::put-meta", {"meta": {**raw, "session_id": "t", "title": WIDE, "draft": WIDE}}),
    ]
    for function_id, payload in refused:
        with pytest.raises(MalformedRequest, match="a session record may have at most"):
            await stage.call(function_id, payload)
    [record] = (await stage.call("session::list", {}))["sessions"]
    assert (record["session_id"], record["description"], record["status"]) == ("s", "", "idle")
    await stage.call("session::set-draft", {"session_id": "s", "draft": "x" * MAX_RECORD})
