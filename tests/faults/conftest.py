"""Figures of the faults: what was provoked, how often, and what came of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import shim

Figure = Callable[[str, str, str, str], None]


@pytest.fixture
def figure() -> Figure:
    """Notes a line of the table in docs/reliability.md: fault, how it is provoked, runs, result. `report` collects
    them; without it they go nowhere."""

    def note(fault: str, how: str, runs: str, result: str) -> None:
        path = os.environ.get("FAULT_FIGURES")
        if path:
            with Path(path).open("a", encoding="utf-8") as out:
                out.write(json.dumps([fault, how, runs, result]) + "\n")

    return note


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shim.build(tmp_path_factory.mktemp("shim"))
