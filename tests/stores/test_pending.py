"""Group commit: when a batch goes, and with what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from session_manager.store import Change
from session_manager.stores import pending
from session_manager.stores.pending import GroupCommit
from session_manager.stores.threads import Done
from tests.contract.scenario import until
from tests.stores.test_promises import entry


class Held:
    """A thread that finishes a batch when told."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self._running: list[tuple[Callable[[], Any], Done]] = []

    @property
    def waits(self) -> bool:
        return bool(self._running)

    def do(self, job: Callable[[], Any], done: Done) -> None:
        self._running.append((job, done))

    def write(self, changes: Sequence[Change]) -> int:
        self.batches.append(len(changes))
        return sum(self.batches) - len(changes) + 1

    async def finish(self) -> None:
        await until(lambda: self.waits)
        job, done = self._running.pop()
        done(job(), None)


class Writers:
    def __init__(self) -> None:
        self.thread = Held()
        self.commits = GroupCommit(self.thread, self.thread.write, lambda _: None)  # type: ignore[arg-type] # all it needs of one
        self._ids = 0

    def add(self, count: int) -> list[asyncio.Future[int]]:
        self._ids += count
        return [self.commits.add(0, Change(f"s{self._ids - n}", entries=(entry("e"),))) for n in range(count)]


@pytest.fixture
async def writers() -> Writers:
    return Writers()


async def test_changes_of_one_turn_go_together_and_later_ones_wait_for_them(writers: Writers) -> None:
    first = writers.add(3)
    await asyncio.sleep(0)
    later = writers.add(2)
    await writers.thread.finish()
    await writers.thread.finish()
    assert writers.thread.batches == [3, 2]
    assert await asyncio.gather(*first, *later) == [1, 2, 3, 4, 5]


async def test_a_writer_alone_never_waits_for_others(writers: Writers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "LINGER", 3600.0)
    for _ in range(500):  # as fast as it goes, which is more than DENSE
        (done,) = writers.add(1)
        await writers.thread.finish()
        await done
    assert writers.thread.batches == [1] * 500


async def test_where_changes_come_densely_a_batch_waits_for_enough_of_them(
    writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "LINGER", 3600.0)
    monkeypatch.setattr(pending, "DENSE", 0.0)
    while not writers.commits._traffic.is_dense:
        done = writers.add(2)
        await writers.thread.finish()
        await asyncio.gather(*done)
    before = list(writers.thread.batches)
    few = writers.add(pending.ENOUGH - 1)
    await asyncio.sleep(0.05)
    assert not writers.thread.waits, "it went with too few"
    last = writers.add(1)
    await writers.thread.finish()
    await asyncio.gather(*few, *last)
    assert writers.thread.batches == [*before, pending.ENOUGH]


async def test_it_waits_a_moment_only(writers: Writers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "DENSE", 0.0)
    monkeypatch.setattr(pending, "TOGETHER", 0.0)
    for number in (1, 2, 3):
        (done,) = writers.add(1)
        await writers.thread.finish()
        assert await done == number
    await writers.commits.drained()
