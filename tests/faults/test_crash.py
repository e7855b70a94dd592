"""A worker that is killed loses nothing it acknowledged, and leaves nothing half done."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import Figure


def kill_again_and_again(directory: Path, kills: int, seed: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.crash", str(directory), str(kills), str(seed)],
        capture_output=True,
        text=True,
        timeout=900,
        check=True,
    )
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def test_what_is_acknowledged_survives_some_kills(tmp_path: Path) -> None:
    seen = kill_again_and_again(tmp_path, 10, 1)
    assert seen["problems"] == []
    assert seen["acknowledged"] > 100


@pytest.mark.long
def test_what_is_acknowledged_survives_200_kills(tmp_path: Path, figure: Figure) -> None:
    seen = kill_again_and_again(tmp_path, 200, 2)
    assert seen["problems"] == []
    figure(
        "Crash",
        "SIGKILL at random moments under 64-way mixed load, always the same database; the callers' side notes what "
        "was acknowledged",
        f"{seen['kills']} kills",
        f"all {seen['acknowledged']:,} acknowledged changes there and whole, none half done; opened unaided each time",
    )
