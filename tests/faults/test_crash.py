"""A worker that is killed loses nothing it acknowledged, and leaves nothing half done."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engines import on_both_engines
from tests.faults.conftest import Figure


def kill_again_and_again(program: str, *arguments: object) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", f"tests.faults.{program}", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


@pytest.mark.parametrize("kind", ["sqlite", "fs"])
def test_what_is_acknowledged_survives_some_kills(kind: str, tmp_path: Path) -> None:
    seen = kill_again_and_again("crash", kind, tmp_path, 10, 1)
    assert seen["problems"] == []
    assert seen["acknowledged"] > 100


@pytest.mark.long
@pytest.mark.parametrize(("kind", "kills"), [("sqlite", 200), ("fs", 80)])  # a directory is read whole at every start
def test_what_is_acknowledged_survives_many_kills(kind: str, kills: int, tmp_path: Path, figure: Figure) -> None:
    seen = kill_again_and_again("crash", kind, tmp_path, kills, 2)
    assert seen["problems"] == []
    figure(
        "Crash" if kind == "sqlite" else "Crash, fs store",
        "SIGKILL at random moments under 64-way mixed load, always the same store; the callers' side notes what was "
        "acknowledged",
        f"{seen['kills']} kills",
        f"all {seen['acknowledged']:,} acknowledged changes there and whole, none half done; opened unaided each time",
    )


@pytest.mark.parametrize("engine", on_both_engines(of_its_own=True))
def test_what_a_worker_on_an_engine_acknowledged_survives_some_kills(engine: str, tmp_path: Path) -> None:
    seen = kill_again_and_again("served", engine, tmp_path, 3, 1)
    assert seen["problems"] == []
    assert seen["acknowledged"] > 100


@pytest.mark.long
@pytest.mark.parametrize("engine", on_both_engines(of_its_own=True))
def test_what_a_worker_on_an_engine_acknowledged_survives_60_kills(engine: str, tmp_path: Path, figure: Figure) -> None:
    seen = kill_again_and_again("served", engine, tmp_path, 60, 2)
    assert seen["problems"] == []
    assert seen["early"] > 5
    figure(
        f"Crash of `session-manager serve`, {engine} engine",
        "SIGKILL at random moments under a 64-way mixed load from a client in another process, some while it was "
        "opening the database; started again on the same one",
        f"{seen['kills']} kills, {seen['early']} while opening",
        f"all {seen['acknowledged']:,} acknowledged changes there and whole, read through the worker that was started "
        "again; `check` finds nothing",
    )
