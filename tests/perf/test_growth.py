"""What a call costs does not grow with what is there: steps of SQLite's machine, which are the same everywhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tests.perf.watch import Watched, user

SHORT, LONG = 1_000, 50_000

FEW, MANY = 100, 2_000
"""Sessions."""

SLACK = 1.2
"""The machine takes a few steps more or less for what lies next to a page's end; a scan takes fifty times as many."""


async def _steps(watched: Watched, call: Callable[[], Awaitable[Any]]) -> int:
    await call()  # so that no connection is opened and no statement prepared while steps are counted
    with watched.steps() as taken:
        await call()
    assert taken[0] > 0
    return taken[0]


async def _path_costs(watched: Watched, entries: int) -> dict[str, int]:
    session, ids = await watched.session(entries=entries)

    def page(**query: Any) -> Callable[[], Awaitable[Any]]:
        async def read() -> None:
            reply = await watched.call("session::messages", {"session_id": session, "limit": 50, **query})
            assert len(reply["messages"]) == 50

        return read

    async def append() -> None:
        await watched.call("session::append", {"session_id": session, "message": user()})

    async def update() -> None:
        update = {"session_id": session, "entry_id": ids[-1], "content": []}
        await watched.call("session::update-message", update)

    async def early_fork() -> None:
        await watched.call("session::fork", {"session_id": session, "entry_id": ids[20]})

    return {
        "the first page": await _steps(watched, page()),
        "a page in the middle": await _steps(watched, page(after_entry_id=ids[entries // 2])),
        "the last page": await _steps(watched, page(after_entry_id=ids[-51])),
        "a page of one role in the middle": await _steps(
            watched, page(after_entry_id=ids[entries // 2], roles=["user"])
        ),
        "an append": await _steps(watched, append),
        "an update": await _steps(watched, update),
        "a fork of the first twenty": await _steps(watched, early_fork),
    }


async def test_a_page_an_append_and_an_update_cost_the_same_in_a_long_session(watched: Watched) -> None:
    short = await _path_costs(watched, SHORT)
    long = await _path_costs(watched, LONG)
    for what, steps in short.items():
        assert long[what] <= SLACK * steps, f"{what}: {steps} steps at {SHORT} entries, {long[what]} at {LONG}"


async def test_a_fork_costs_what_it_copies(watched: Watched) -> None:
    async def fork(entries: int) -> int:
        session, ids = await watched.session(entries=entries)
        return await _steps(
            watched, lambda: watched.call("session::fork", {"session_id": session, "entry_id": ids[-1]})
        )

    assert await fork(2_000) <= SLACK * 10 * await fork(200)


async def test_a_list_costs_its_page_however_many_sessions_there_are(watched: Watched) -> None:
    queries: tuple[dict[str, Any], ...] = (
        {"limit": 5},
        {"limit": 5, "order": "created_asc"},
        {"limit": 5, "status": "working"},
        {"limit": 5, "metadata": {"tag": "rare"}},
    )

    async def costs() -> list[int]:
        return [await _steps(watched, lambda query=query: watched.call("session::list", query)) for query in queries]  # type: ignore[misc]

    async def more(count: int) -> None:
        for _ in range(count):
            await watched.session(metadata={"tag": "common"})

    for _ in range(8):
        session, _ = await watched.session(metadata={"tag": "rare"})
        await watched.call("session::set-status", {"session_id": session, "status": "working"})
    await more(FEW)
    few = await costs()
    await more(MANY)
    many = await costs()
    for query, before, after in zip(queries, few, many, strict=True):
        assert after <= SLACK * before, f"{query}: {before} steps with {FEW} sessions, {after} with {FEW + MANY}"
