"""Fixtures shared by all tests. A line in ADAPTERS brings a store every test that runs on stores."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.bridged import Bridged
from tests.stage import InProcess

ADAPTERS: dict[str, dict[str, Any]] = {
    "memory": {"name": "memory", "config": {}},
    "sqlite": {"name": "sqlite", "config": {"path": "sessions.db"}},
    "fs": {"name": "fs", "config": {"data_dir": "sessions"}},
}


BRIDGES = {"bridge": True, "bridge-unhinted": False}
"""Whether the main instance takes hints."""


@pytest.fixture(params=[*sorted(ADAPTERS), *BRIDGES])
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[InProcess]:
    if request.param in BRIDGES:
        async with Bridged(tmp_path, hints=BRIDGES[request.param]) as bridged:
            yield bridged
        return
    async with InProcess(ADAPTERS[request.param], tmp_path) as made:
        yield made
