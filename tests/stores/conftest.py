"""What tests of the SQLite store share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from session_manager.stores.sqlite import SqliteStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    made = SqliteStore(tmp_path / "sessions.db")
    await made.open()
    yield made
    await made.close()
