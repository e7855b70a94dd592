"""Group commit: when a batch goes, and with what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from session_manager.store import Change
from session_manager.stores.pending import GroupCommit, _size
from session_manager.stores.threads import Done
from tests.contract.scenario import until
from tests.stores.test_promises import entry, meta


class Held:
    """A thread that finishes a batch when told."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self._running: list[tuple[Callable[[], Any], Done]] = []

    def do(self, job: Callable[[], Any], done: Done) -> None:
        self._running.append((job, done))

    def write(self, changes: Sequence[Change]) -> int:
        self.batches.append(len(changes))
        return sum(self.batches) - len(changes) + 1

    async def finish(self) -> None:
        await until(lambda: bool(self._running))
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


def test_what_waits_counts_with_its_origins_and_texts() -> None:
    bare = Change("s", meta("s"), "a", (entry("a"),))
    origin = replace(bare.entries[0], origin=b"x" * 1000)
    assert _size(replace(bare, entries=(origin,))) == _size(bare) + 1000
    assert _size(replace(bare, meta=meta("s", draft="x" * 1000))) == _size(bare) + 1000
