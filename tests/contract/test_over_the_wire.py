"""The contract's scenarios with everything real but the engine: a worker process per store, an SDK client beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import ADAPTERS
from tests.contract.scenario import Play, all_scenarios
from tests.engines import loopback_engine
from tests.wire import Wire, wire


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with loopback_engine() as running:
        yield running


@pytest.fixture(scope="module", params=sorted(ADAPTERS))
def stage(request: pytest.FixtureRequest, url: str) -> Iterator[Wire]:
    with wire(url, ADAPTERS[request.param]) as made:
        yield made


@pytest.mark.parametrize("scenario", [pytest.param(s, id=f"{area}: {s['name']}") for area, s in all_scenarios()])
async def test_a_scenario_holds_over_the_wire(scenario: dict[str, Any], stage: Wire) -> None:
    forgets = "adapter-swap" in scenario.get("tags", []) or any("restart" in step for step in scenario["steps"])
    if stage.initial["adapter"]["name"] == "memory" and forgets:
        pytest.skip("memory forgets when the process or the adapter ends")
    stage.forget()
    await Play(stage, scenario).run()
