"""Whatever a worker was doing when it was killed, its subscribers end up with what the store holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines import on_both_engines
from tests.faults.conftest import Figure
from tests.faults.test_crash import kill_again_and_again


@pytest.mark.parametrize("engine", on_both_engines(of_its_own=True))
def test_what_subscribers_may_have_missed_by_some_kills_is_told(engine: str, tmp_path: Path) -> None:
    seen = kill_again_and_again("heard", engine, tmp_path, 3, 1)
    assert seen["problems"] == []
    assert min(seen["heard"]) > 20


@pytest.mark.long
@pytest.mark.parametrize("engine", on_both_engines(of_its_own=True))
def test_what_subscribers_may_have_missed_by_40_kills_is_told(engine: str, tmp_path: Path, figure: Figure) -> None:
    seen = kill_again_and_again("heard", engine, tmp_path, 40, 2)
    assert seen["problems"] == []
    assert seen["early"] > 5
    figure(
        f"Crash heard by subscribers, {engine} engine",
        "SIGKILL at random moments under a 16-way load, some while it was starting; six subscribers in processes of "
        "their own, to all or some types or the internal feed, to all or some sessions, slow ones, and one that comes "
        "and goes; sessions made, changed, deleted and made again",
        f"{seen['kills']} kills, {seen['early']} while starting",
        f"after each, all believe what the store holds, from {sum(seen['heard']):,} events of "
        f"{seen['acknowledged']:,} changes",
    )
