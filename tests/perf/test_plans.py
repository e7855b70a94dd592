"""Every statement that reads finds its rows through an index, and comes out sorted without being sorted."""

from __future__ import annotations

import re
import sqlite3
from typing import Any

from session_manager.functions import FUNCTIONS
from tests.perf.watch import Watched, user

SCAN = re.compile(r"SCAN (?:TABLE )?(\w+)(.*)")

ONE_ROW = {"sequence"}
"""Tables that hold one row."""

SORTED_AFTERWARDS = "label.session"
"""Sessions with a rare label are few (at most `lists.RARE`), found by it, and sorted then."""

CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ensure", {"session_id": "$s"}),
    ("ensure", {"session_id": "new"}),
    ("get", {"session_id": "$s"}),
    ("list", {"limit": 2}),
    ("list", {"limit": 2, "order": "created_asc"}),
    ("list", {"limit": 2, "order": "created_desc", "status": "idle"}),
    ("list", {"limit": 2, "status": "working"}),
    ("list", {"limit": 2, "metadata": {"owner": "u1"}}),
    ("list", {"limit": 2, "metadata": {"owner": "u1", "app": "a"}, "status": "idle"}),
    ("set-meta", {"session_id": "$s", "metadata": {"owner": "u2"}}),
    ("set-draft", {"session_id": "$s", "draft": "d"}),
    ("set-status", {"session_id": "$s", "status": "working"}),
    ("append", {"session_id": "$s", "message": user()}),
    ("append", {"session_id": "$s", "message": user(), "parent_id": "$e"}),
    ("append", {"session_id": "$s", "message": user(), "entry_id": "$e"}),
    ("append-many", {"session_id": "$s", "messages": [user(), user()]}),
    ("update-message", {"session_id": "$s", "entry_id": "$e", "content": []}),
    ("messages", {"session_id": "$s", "limit": 3}),
    ("messages", {"session_id": "$s", "limit": 3, "after_entry_id": "$e", "from_entry_id": "$f"}),
    ("messages", {"session_id": "$s", "limit": 3, "roles": ["user"], "from_entry_id": "$f"}),
    ("messages", {"session_id": "$s", "limit": 3, "roles": ["assistant", "user"]}),
    ("messages", {"session_id": "$s", "limit": 3, "include_custom": True}),
    ("get-message", {"session_id": "$s", "entry_id": "$e"}),
    ("fork", {"session_id": "$s", "entry_id": "$f"}),
    ("set-active-leaf", {"session_id": "$s", "entry_id": "$e"}),
    ("store::get-meta", {"session_id": "$s"}),
    ("store::list-metas", {}),
    ("store::get-entry", {"session_id": "$s", "entry_id": "$e"}),
    ("store::list-entries", {"session_id": "$s"}),
    ("store::get-active-leaf", {"session_id": "$s"}),
    ("store::put-meta", {"meta": {"session_id": "r", "title": "", "description": "", "status": "idle",
                                  "created_at": 1, "updated_at": 1, "message_count": 0}}),
    ("store::put-entry", {"session_id": "r", "entry": {"kind": "message", "id": "x", "parent_id": "gone",
                                                       "timestamp": 1, "message": user()}}),
    ("store::put-entry", {"session_id": "r", "entry": {"kind": "message", "id": "gone", "timestamp": 1,
                                                       "message": user()}}),
    ("store::set-active-leaf", {"session_id": "r", "entry_id": "x"}),
    ("messages", {"session_id": "r"}),  # no index leads there: its links are followed
    ("store::delete-active-leaf", {"session_id": "r"}),
    ("store::delete-entries", {"session_id": "r"}),
    ("store::delete-meta", {"session_id": "r"}),
    ("store::publish-events", {"events": []}),
    ("config-status", {}),
    ("create", {}),
    ("delete", {"session_id": "$s"}),
)  # fmt: skip

AT_ITS_LEISURE = {"session::on-config-change"}
"""Opens a store anew."""


async def _everything(watched: Watched) -> list[str]:
    """The statements of every function, on a session with branches, right after a restart and again."""
    for number in range(20):
        await watched.session(metadata={"owner": f"u{number % 4}", "app": "a"})
    session, ids = await watched.session(entries=30, metadata={"owner": "u1", "app": "a"})
    branch = {"session_id": session, "message": user(), "parent_id": ids[10]}
    other = (await watched.call("session::append", branch))["entry_id"]
    await watched.call("session::set-active-leaf", {"session_id": session, "entry_id": ids[-1]})
    await watched.restart()
    names = {"$s": session, "$e": ids[5], "$f": other}
    with watched.statements() as seen:
        for function, payload in CALLS:
            filled = {
                key: names.get(value, value) if isinstance(value, str) else value for key, value in payload.items()
            }
            await watched.call(f"session::{function}", filled)
    return seen


def _plans(watched: Watched, statements: list[str]) -> dict[str, list[str]]:
    """What SQLite plans for each statement, told apart by its text without values."""
    plans: dict[str, list[str]] = {}
    connection = sqlite3.connect(watched.file)
    try:
        for statement in statements:
            if statement.split(None, 1)[0].upper() in ("BEGIN", "COMMIT", "ROLLBACK"):
                continue
            shape = re.sub(r"x?'(?:[^']|'')*'|\b\d+\b", "?", statement, flags=re.IGNORECASE)
            if shape not in plans:
                plans[shape] = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
    finally:
        connection.close()
    return plans


def test_every_function_is_looked_at() -> None:
    assert {function.id for function in FUNCTIONS} - {f"session::{name}" for name, _ in CALLS} == AT_ITS_LEISURE


async def test_no_statement_reads_a_whole_table(watched: Watched) -> None:
    plans = _plans(watched, await _everything(watched))
    assert len(plans) > 20
    for statement, plan in plans.items():
        for step in plan:
            scan = SCAN.search(step)
            if scan and scan[1] not in ONE_ROW:
                assert "INDEX" in scan[2] or scan[1].isupper(), f"{step}\n{statement}"


async def test_no_statement_walks_an_index_of_all_sessions_but_those_that_return_them_all(watched: Watched) -> None:
    """Walking an index in order is how a list without a filter finds its page, and it stops when the page is full."""
    plans = _plans(watched, await _everything(watched))
    for statement, plan in plans.items():
        if any(SCAN.search(step) and "INDEX" in step for step in plan):
            assert "ORDER BY" in statement, f"{plan}\n{statement}"


async def test_nothing_is_sorted_but_sessions_with_a_rare_label(watched: Watched) -> None:
    plans = _plans(watched, await _everything(watched))
    for statement, plan in plans.items():
        if any("TEMP B-TREE" in step for step in plan):
            assert SORTED_AFTERWARDS in statement, f"{plan}\n{statement}"
            assert any("SEARCH label" in step or "SEARCH TABLE label" in step for step in plan), plan
