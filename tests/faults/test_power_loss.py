"""What was acknowledged is there after a power loss, whatever of the rest reached the disk."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import shim
from tests.faults.conftest import Figure
from tests.faults.load import Told, check_store
from tests.faults.power import TOLD


def lose_power(
    kind: str, tmp_path: Path, library: Path, moments: int, steps: int, seed: int, disk_mode: str = "ok"
) -> tuple[int, int, int, list[str]]:
    """How many things were done to the files, how many moments were tried, what was acknowledged, what was wrong."""
    directory, log, control = tmp_path / "data", tmp_path / "log", tmp_path / "control"
    directory.mkdir()
    control.write_text(disk_mode + "\n")
    subprocess.run(
        [sys.executable, "-m", "tests.faults.power", kind, str(directory), str(seed), str(steps)],
        env=shim.environment(library, directory, log=log, control=control),
        check=True,
        capture_output=True,
        timeout=300,
    )
    done = list(shim.deeds(log))
    assert any(deed.kind == "s" for deed in done)
    assert any(deed.kind == "u" for deed in done), (
        "a log is removed when its database is closed, a file with its session"
    )
    assert any(deed.kind == "f" for deed in done) == (disk_mode != "ok")
    chance = random.Random(seed)
    at = sorted(chance.sample(range(len(done)), moments))
    disk, told, problems, next_ = shim.Disk(chance), Told(), list[str](), 0
    for number, deed in enumerate(done):
        if next_ < len(at) and at[next_] == number:
            next_ += 1
            problems += look_after_loss(tmp_path / f"after-{number}", kind, disk, told)
        if deed.name == TOLD:
            if deed.kind == "w":
                told.take(deed.data.splitlines())
        else:
            disk.take(deed)
    return len(done), moments, told.acknowledged, problems


def look_after_loss(directory: Path, kind: str, disk: shim.Disk, told: Told) -> list[str]:
    directory.mkdir()
    for name, content in disk.after_power_loss().items():
        (directory / name).write_bytes(content)
    problems = [f"{directory.name}: {problem}" for problem in asyncio.run(check_store(directory, kind, told))]
    if not problems:
        shutil.rmtree(directory)
    return problems


@pytest.mark.parametrize("kind", ["sqlite", "fs"])
def test_what_is_acknowledged_survives_a_power_loss_at_some_moments(kind: str, tmp_path: Path, library: Path) -> None:
    _, _, acknowledged, problems = lose_power(kind, tmp_path, library, moments=15, steps=4, seed=1)
    assert acknowledged > 200
    assert problems == []


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite", "fs"])
def test_what_is_acknowledged_survives_a_power_loss_at_200_moments(
    kind: str, tmp_path: Path, library: Path, figure: Figure
) -> None:
    done, moments, acknowledged, problems = lose_power(kind, tmp_path, library, moments=200, steps=40, seed=2)
    assert problems == []
    figure(
        "Power loss" if kind == "sqlite" else "Power loss, fs store",
        f"{done:,} writes, truncations, renames and syncs recorded under 64-way load; the files rebuilt with what was "
        "not synced dropped, reordered or torn at sectors",
        f"{moments} moments",
        f"all of up to {acknowledged:,} acknowledged changes there and whole; every file opened unaided",
    )


@pytest.mark.parametrize("kind", ["sqlite", "fs"])
@pytest.mark.parametrize("moments", [15, pytest.param(200, marks=pytest.mark.long)])
def test_syncs_that_fail_take_nothing_with_them_that_was_acknowledged(
    kind: str, moments: int, tmp_path: Path, library: Path, figure: Figure
) -> None:
    mode = "flaky 8 -wal" if kind == "sqlite" else "flaky 8"
    _, _, acknowledged, problems = lose_power(kind, tmp_path, library, moments, moments // 5 + 4, 5, mode)
    assert acknowledged > 100
    assert problems == []
    if moments == 200:
        figure(
            "Power loss after failed syncs" if kind == "sqlite" else "Power loss after failed syncs, fs store",
            "every twelfth sync of the log, or of the fs store's files, fails under 64-way load, and what it was to "
            "bring to disk may never get there; then the power is lost as above",
            f"{moments} moments",
            f"all of up to {acknowledged:,} acknowledged changes there and whole",
        )
