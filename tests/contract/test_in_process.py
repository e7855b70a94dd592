"""The contract's scenarios on every store, without an engine."""

from __future__ import annotations

from typing import Any

import pytest

from session_manager.stores import LOCAL
from tests.contract.scenario import Play, all_scenarios
from tests.stage import InProcess


@pytest.mark.parametrize("scenario", [pytest.param(s, id=f"{area}: {s['name']}") for area, s in all_scenarios()])
async def test_a_scenario_holds(scenario: dict[str, Any], stage: InProcess) -> None:
    if "adapter-swap" in scenario.get("tags", []) and "fs" not in LOCAL:
        pytest.skip("needs the fs adapter")
    await Play(stage, scenario).run()
