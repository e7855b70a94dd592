"""Group commit: when a batch goes, and with what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from session_manager.errors import StorageError
from session_manager.store import Change
from session_manager.stores.pending import GroupCommit, _size
from session_manager.stores.threads import Done
from tests.contract.scenario import until
from tests.stores.test_promises import entry, meta


class Held:
    """A thread that finishes a batch when told."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.running: list[tuple[Callable[[], Any], Done]] = []

    def do(self, job: Callable[[], Any], done: Done) -> None:
        self.running.append((job, done))

    def write(self, changes: Sequence[Change]) -> int:
        self.batches.append(len(changes))
        return sum(self.batches) - len(changes) + 1

    async def finish(self) -> None:
        await until(lambda: bool(self.running))
        job, done = self.running.pop()
        done(job(), None)

    def fail(self, error: StorageError) -> None:
        self.running.pop()[1](None, error)


class Writers:
    def __init__(self) -> None:
        self.thread = Held()
        self.commits = GroupCommit(self.thread, self.thread.write, lambda _: None)  # type: ignore[arg-type] # all it needs of one
        self._ids = 0
        self.durable: list[int] = []

    def add(self, count: int) -> list[asyncio.Future[int]]:
        first, self._ids = self._ids + 1, self._ids + count
        return [
            self.commits.add(0, Change(f"s{id_}", entries=(entry("e"),)), partial(self.durable.append, id_))
            for id_ in range(first, first + count)
        ]


@pytest.fixture
async def writers() -> Writers:
    return Writers()


async def test_who_comes_alone_goes_at_once_and_those_behind_it_go_together(writers: Writers) -> None:
    changes = writers.add(3)
    assert len(writers.thread.running) == 1
    await writers.thread.finish()
    changes += writers.add(1)
    await writers.thread.finish()
    await writers.thread.finish()
    assert writers.thread.batches == [1, 2, 1]
    assert await asyncio.gather(*changes) == [1, 2, 3, 4]


async def test_who_goes_alone_hears_of_it_early_on_the_thread(writers: Writers) -> None:
    heard: list[str] = []
    commits, change = writers.commits, Change("s", entries=(entry("e"),))
    commits.add(0, change, partial(heard.append, "durable"), partial(heard.append, "early"))
    for _ in range(2):
        commits.add(0, change, partial(heard.append, "durable"), partial(heard.append, "together"))
    await writers.thread.finish()
    assert heard == ["early", "durable"]
    await writers.thread.finish()
    assert heard == ["early", "durable", "durable", "durable"]


async def test_nobody_hears_early_of_what_has_failed(writers: Writers) -> None:
    heard: list[str] = []

    def fail(changes: Sequence[Change]) -> int:
        raise StorageError("the disk is full")

    writers.commits._write = fail
    done = writers.commits.add(0, Change("s", entries=(entry("e"),)), early=partial(heard.append, "early"))
    job, told = writers.thread.running.pop()
    with pytest.raises(StorageError) as failure:
        job()
    told(None, failure.value)
    with pytest.raises(StorageError):
        await done
    assert heard == []


async def test_whatever_happens_to_what_is_called_early_the_change_is_stored(writers: Writers) -> None:
    def fail() -> None:
        raise RuntimeError

    done = writers.commits.add(0, Change("s", entries=(entry("e"),)), early=fail)
    await writers.thread.finish()
    assert await done == 1


async def test_where_there_were_several_the_next_of_one_turn_go_together(writers: Writers) -> None:
    writers.add(2)
    await writers.thread.finish()
    await writers.thread.finish()
    last = writers.add(3)
    assert not writers.thread.running
    await writers.thread.finish()
    assert writers.thread.batches == [1, 1, 3]
    assert await asyncio.gather(*last) == [3, 4, 5]
    assert [await done for done in await alone(writers)] == [6]


async def alone(writers: Writers) -> list[asyncio.Future[int]]:
    """One change after which the next ones are taken for alone again."""
    one = writers.add(1)
    await writers.thread.finish()
    assert not writers.thread.running
    writers.add(1)
    assert writers.thread.running
    return one


async def test_what_is_durable_is_told_before_whoever_waits_and_also_when_nobody_does(writers: Writers) -> None:
    gone, *others = writers.add(3)
    settled = asyncio.ensure_future(writers.commits.settled(0, "s1"))
    await asyncio.sleep(0)
    gone.cancel()
    told_before: list[list[int]] = []
    others[1].add_done_callback(lambda _: told_before.append(list(writers.durable)))
    await writers.thread.finish()
    assert writers.durable == [1]
    await settled  # who gave up waiting does not concern who waits for the same change
    await writers.thread.finish()
    await asyncio.gather(*others)
    await until(lambda: bool(told_before))
    assert told_before == [[1, 2, 3]]


async def test_what_failed_is_not_told_as_durable(writers: Writers) -> None:
    failed = writers.add(2)
    writers.thread.fail(StorageError("the disk is full"))
    for done in failed:
        with pytest.raises(StorageError):
            await done
    assert writers.durable == []


def test_what_waits_counts_with_its_origins_and_texts() -> None:
    bare = Change("s", meta("s"), "a", (entry("a"),))
    origin = replace(bare.entries[0], origin=b"x" * 1000)
    assert _size(replace(bare, entries=(origin,))) == _size(bare) + 1000
    assert _size(replace(bare, meta=meta("s", draft="x" * 1000))) == _size(bare) + 1000
