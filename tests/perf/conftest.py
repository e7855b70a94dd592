"""The watched worker, for all tests here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.perf.watch import Watched


@pytest.fixture
async def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    stage = Watched(tmp_path, monkeypatch)
    async with stage:
        yield stage
