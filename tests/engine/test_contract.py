"""The contract's scenarios on the real engine, on every store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.test_over_the_wire import stage, test_a_scenario_holds_over_the_wire
from tests.engines import NoEngine, real_engine

__all__ = ["stage", "test_a_scenario_holds_over_the_wire", "url"]

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    try:
        with real_engine() as running:
            yield running
    except NoEngine as error:
        pytest.skip(str(error))
