"""Fixtures shared by all tests. A line in ADAPTERS brings a store every test that runs on stores."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.bridged import BRIDGE, Bridged
from tests.stage import InProcess

ADAPTERS: dict[str, dict[str, Any]] = {
    "memory": {"name": "memory", "config": {}},
    "sqlite": {"name": "sqlite", "config": {"path": "sessions.db"}},
    "fs": {"name": "fs", "config": {"data_dir": "sessions"}},
}


@pytest.fixture(params=[*sorted(ADAPTERS), "bridge"])
def adapter(request: pytest.FixtureRequest) -> dict[str, Any]:
    return ADAPTERS.get(request.param, BRIDGE)


@pytest.fixture
async def stage(adapter: dict[str, Any], tmp_path: Path) -> AsyncIterator[InProcess]:
    async with Bridged(tmp_path) if adapter is BRIDGE else InProcess(adapter, tmp_path) as made:
        yield made
