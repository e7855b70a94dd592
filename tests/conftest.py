"""Fixtures shared by all tests. A line in ADAPTERS brings a store every test that runs on stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog

from session_manager.stores.sqlite import forks
from tests.bridged import Bridged
from tests.stage import InProcess

hypothesis.settings.register_profile(
    "tests",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    database=None,
    derandomize=True,
)
hypothesis.settings.load_profile("tests")
"""The same examples every time, on a machine of any speed."""

ADAPTERS: dict[str, dict[str, Any]] = {
    "memory": {"name": "memory", "config": {}},
    "sqlite": {"name": "sqlite", "config": {"path": "sessions.db"}},
    "fs": {"name": "fs", "config": {"data_dir": "sessions"}},
}


SHARING = "sqlite-sharing"
"""The store on SQLite whose forks share rows however short they are."""

BRIDGES = {"bridge": True, "bridge-unhinted": False}
"""Whether the main instance takes hints."""


@pytest.fixture(params=[*sorted(ADAPTERS), SHARING, *BRIDGES])
async def stage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[InProcess]:
    if request.param in BRIDGES:
        async with Bridged(tmp_path, hints=BRIDGES[request.param]) as bridged:
            yield bridged
        return
    if request.param == SHARING:
        monkeypatch.setattr(forks, "SHARED_FROM", 1)
    async with InProcess(ADAPTERS["sqlite" if request.param == SHARING else request.param], tmp_path) as made:
        yield made


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """A command that runs in this process sets logging up for good; the next test may want to see what is logged."""
    yield
    structlog.reset_defaults()
