"""What was acknowledged is there after a power loss, whatever of the rest reached the disk."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import shim
from tests.faults.conftest import Figure
from tests.faults.load import Told, check_file
from tests.faults.power import TOLD


def lose_power(tmp_path: Path, library: Path, moments: int, steps: int, seed: int) -> tuple[int, int, int, list[str]]:
    """How many things were done to the files, how many moments were tried, what was acknowledged, what was wrong."""
    directory, log = tmp_path / "data", tmp_path / "log"
    directory.mkdir()
    subprocess.run(
        [sys.executable, "-m", "tests.faults.power", str(directory), str(seed), str(steps)],
        env=shim.environment(library, directory, log=log),
        check=True,
        timeout=300,
    )
    done = list(shim.deeds(log))
    assert any(deed.kind == "s" and deed.name == "sessions.db-wal" for deed in done)
    assert any(deed.kind == "u" for deed in done), "the log is removed when the database is closed"
    chance = random.Random(seed)
    at = sorted(chance.sample(range(len(done)), moments))
    disk, told, problems, next_ = shim.Disk(), Told(), list[str](), 0
    for number, deed in enumerate(done):
        if next_ < len(at) and at[next_] == number:
            next_ += 1
            problems += look_after_loss(tmp_path / f"after-{number}", disk, told, chance)
        if deed.name == TOLD:
            if deed.kind == "w":
                told.take(deed.data.splitlines())
        else:
            disk.take(deed)
    return len(done), moments, told.acknowledged, problems


def look_after_loss(directory: Path, disk: shim.Disk, told: Told, chance: random.Random) -> list[str]:
    directory.mkdir()
    for name, content in disk.after_power_loss(chance).items():
        (directory / name).write_bytes(content)
    problems = [f"{directory.name}: {problem}" for problem in asyncio.run(check_file(directory / "sessions.db", told))]
    if not problems:
        for path in directory.iterdir():
            path.unlink()
    return problems


def test_what_is_acknowledged_survives_a_power_loss_at_some_moments(tmp_path: Path, library: Path) -> None:
    _, _, acknowledged, problems = lose_power(tmp_path, library, moments=15, steps=4, seed=1)
    assert acknowledged > 200
    assert problems == []


@pytest.mark.long
def test_what_is_acknowledged_survives_a_power_loss_at_200_moments(
    tmp_path: Path, library: Path, figure: Figure
) -> None:
    done, moments, acknowledged, problems = lose_power(tmp_path, library, moments=200, steps=40, seed=2)
    assert problems == []
    figure(
        "Power loss",
        f"{done:,} writes, truncations and syncs recorded under 64-way load; the files rebuilt with what was not "
        "synced dropped, reordered or torn at sectors",
        f"{moments} moments",
        f"all of up to {acknowledged:,} acknowledged changes there and whole; every file opened unaided",
    )
