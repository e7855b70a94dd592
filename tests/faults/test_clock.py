"""The order of a conversation is its chain, whatever the clock says; lists leave no gaps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ADAPTERS
from tests.faults.conftest import Figure
from tests.faults.load import user
from tests.stage import InProcess

HOUR = 3_600_000


class Clock:
    def __init__(self, *times: int) -> None:
        self.times = list(times)

    def now(self) -> int:
        return self.times.pop(0) if len(self.times) > 1 else self.times[0]


CLOCKS = {
    "an hour back": [10 * HOUR, 10 * HOUR + 1, 9 * HOUR, 9 * HOUR, 9 * HOUR + 5, 11 * HOUR],
    "equal stamps": [5] * 10,
    "1969": [-1, -HOUR, -(2**40), -2, -1],
    "2038": [2**31 * 1000 - 1, 2**31 * 1000, 2**31 * 1000 + 1, 2**32 * 1000],
    "the ends of time": [-(2**63), 2**63 - 1, 0, 2**63 - 1, -(2**63)],
}


@pytest.mark.parametrize("name", CLOCKS)
@pytest.mark.parametrize("adapter_name", sorted(ADAPTERS))
async def test_the_chain_is_the_order_and_lists_are_gapless(
    name: str, adapter_name: str, tmp_path: Path, figure: Figure
) -> None:
    clock = Clock(*CLOCKS[name])
    async with InProcess(ADAPTERS[adapter_name], tmp_path, clock=clock) as stage:
        for n in range(25):
            clock.times = CLOCKS[name][n % len(CLOCKS[name]) :] or [0]
            await stage.call("session::ensure", {"session_id": f"s{n}"})
            for m in range(3):
                await stage.call("session::append", {"session_id": f"s{n}", "message": user(str(m))})
        page = await stage.call("session::messages", {"session_id": "s7"})
        assert [item["message"]["content"][0]["text"] for item in page["messages"]] == ["0", "1", "2"]
        for order in ("created_asc", "created_desc", "updated_desc"):
            seen: list[str] = []
            request: dict[str, Any] = {"order": order, "limit": 3}
            while True:
                page = await stage.call("session::list", request)
                seen += [meta["session_id"] for meta in page["sessions"]]
                if "next_cursor" not in page:
                    break
                request["cursor"] = page["next_cursor"]
            assert sorted(seen) == sorted(f"s{n}" for n in range(25)), "each session is listed exactly once"
    if adapter_name == "sqlite" and name == "1969":
        figure(
            "Clock",
            "an hour back, equal stamps, 1969, 2038, the ends of 64 bits, on every store",
            f"{len(CLOCKS)} clocks",
            "the order is the chain; every list shows each session exactly once",
        )


@pytest.mark.parametrize("adapter_name", sorted(ADAPTERS))
async def test_a_revision_owes_nothing_to_the_clock(adapter_name: str, tmp_path: Path) -> None:
    async with InProcess(ADAPTERS[adapter_name], tmp_path, clock=Clock(50, 50, 40, 30, 30)) as stage:
        await stage.call("session::ensure", {"session_id": "s"})
        await stage.call("session::append", {"session_id": "s", "entry_id": "e", "message": user("x")})
        for revision in range(1, 6):
            reply = await stage.call(
                "session::update-message",
                {"session_id": "s", "entry_id": "e", "content": [], "expected_revision": revision - 1},
            )
            assert reply == {"updated": True, "revision": revision}
