"""Active paths held in memory: they say what the disk says, or nothing, and take no more room than they may."""

from __future__ import annotations

import asyncio
import random

import pytest

from session_manager.errors import BrokenPath, StorageError
from session_manager.model import Entry
from session_manager.store import EVERYTHING, Change, Found, PathPage, PathQuery, Session
from session_manager.stores.memory import MemoryStore
from session_manager.stores.sqlite import paths
from session_manager.stores.sqlite.paths import Paths
from tests.stores.test_promises import chain, entry, meta


class Disk:
    """A store whose reads arrive when told."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.paths = Paths(self._load)
        self.loads: list[tuple[PathQuery, asyncio.Future[PathPage]]] = []

    def _load(self, query: PathQuery) -> asyncio.Future[PathPage]:
        loading: asyncio.Future[PathPage] = asyncio.get_running_loop().create_future()
        self.loads.append((query, loading))
        return loading

    def change(self, *changes: Change) -> None:
        for change in changes:
            self.store.apply(change)
        self.paths.apply(changes)

    async def arrive(self) -> None:
        query, loading = self.loads.pop()
        try:
            loading.set_result(await self.store.path(query))
        except BrokenPath as broken:
            loading.set_exception(broken)
        await asyncio.sleep(0)

    async def hold(self, session_id: str, entries: tuple[Entry, ...]) -> None:
        self.change(Change(session_id, meta(session_id), entries[-1].id, entries))
        while not self.loads:
            self.paths.was_read(session_id, 0)
        await self.arrive()

    async def page(self, query: PathQuery) -> PathPage | None:
        return self.paths.page(await self.store.session(query.session_id), query)

    async def ids(self) -> list[str] | None:
        page = await self.page(PathQuery("s"))
        return None if page is None else [one.id for one in page.entries]


@pytest.fixture
async def disk() -> Disk:
    return Disk()


async def test_a_path_without_entries_is_damaged_and_not_held(disk: Disk) -> None:
    disk.change(Change("s", meta("s"), "a", chain("a")))
    disk.paths.was_read("s", 1)
    disk.paths.was_read("s", 1)
    _, loading = disk.loads.pop()
    loading.set_result(PathPage(Found.PATH, meta("s")))
    await asyncio.sleep(0)
    assert "s" not in disk.paths
    disk.change(Change("s", leaf="b", entries=(entry("b", "a"),)))


async def test_a_path_is_held_from_its_second_read_on(disk: Disk) -> None:
    disk.change(Change("s", meta("s"), "b", chain("a", "b")))
    disk.paths.was_read("s", 2)
    assert disk.loads == []
    disk.paths.was_read("s", 2)
    await disk.arrive()
    assert await disk.ids() == ["a", "b"]
    assert disk.paths.entry("s", "b") == entry("b", "a")
    assert disk.paths.entry("s", "c") is None


async def test_a_long_path_is_held_once_as_much_was_read_of_it(disk: Disk) -> None:
    for _ in range(paths.PATIENCE + 19):
        disk.paths.was_read("s", 20 * paths.PER_READ)
    assert disk.loads == []
    disk.paths.was_read("s", 20 * paths.PER_READ)
    assert len(disk.loads) == 1


async def test_it_grows_with_the_session(disk: Disk) -> None:
    await disk.hold("s", chain("a", "b"))
    disk.change(Change("s", meta("s"), "c", (entry("c", "b"),)), Change("s", entries=(entry("b", "a", size=9),)))
    assert await disk.ids() == ["a", "b", "c"]
    assert disk.paths.entry("s", "b") == entry("b", "a", size=9)


async def test_what_changed_while_it_was_read_is_not_missed(disk: Disk) -> None:
    disk.change(Change("s", meta("s"), "b", chain("a", "b")))
    disk.paths.was_read("s", 2)
    disk.paths.was_read("s", 2)
    query, loading = disk.loads.pop()
    old = await disk.store.path(query)
    disk.change(Change("s", meta("s"), "c", (entry("c", "b"),)), Change("s", entries=(entry("b", "a", size=9),)))
    loading.set_result(old)
    await asyncio.sleep(0)
    assert await disk.ids() == ["a", "b", "c"]
    assert disk.paths.entry("s", "b") == entry("b", "a", size=9)


async def test_it_is_let_go_when_the_leaf_goes_elsewhere(disk: Disk) -> None:
    await disk.hold("s", chain("a", "b", "c"))
    disk.change(Change("s", leaf="b"))
    assert await disk.ids() == ["a", "b"], "the end of a shorter path lies on it"
    disk.change(Change("s", meta("s"), "d", (entry("d", "b"),)))
    assert await disk.ids() is None
    assert "s" not in disk.paths
    assert disk.paths.size == 0


@pytest.mark.parametrize(
    "change",
    [
        Change("s", entries=(entry("b", None),)),
        Change("s", entries=(entry("c", "b", size=5), entry("b", "x"))),
        Change("s", drops=EVERYTHING),
    ],
    ids=["cut", "hung elsewhere", "dropped"],
)
async def test_it_is_let_go_when_its_links_change(disk: Disk, change: Change) -> None:
    await disk.hold("s", chain("a", "b", "c"))
    disk.change(change)
    assert "s" not in disk.paths
    assert disk.paths.size == 0


async def test_nothing_is_held_of_what_was_read_before_a_failure(disk: Disk) -> None:
    disk.change(Change("s", meta("s"), "b", chain("a", "b")))
    disk.paths.was_read("s", 2)
    disk.paths.was_read("s", 2)
    disk.paths.clear()
    for _ in range(5):
        disk.paths.was_read("s", 2)
    assert len(disk.loads) == 2
    again = disk.loads.pop()
    await disk.arrive()
    assert "s" not in disk.paths
    disk.loads.append(again)
    await disk.arrive()
    assert await disk.ids() == ["a", "b"]


async def test_a_path_that_cannot_be_read_is_nobodys_business_here(disk: Disk) -> None:
    disk.paths.was_read("s", 2)
    disk.paths.was_read("s", 2)
    disk.loads.pop()[1].set_exception(StorageError("damaged"))
    await asyncio.sleep(0)
    assert "s" not in disk.paths
    disk.paths.was_read("t", 2)
    disk.paths.was_read("t", 2)
    assert [query.session_id for query, _ in disk.loads] == ["t"]


async def test_one_that_was_too_long_is_not_tried_again_at_once(disk: Disk) -> None:
    for _ in range(2):
        disk.paths.was_read("s", 2)
    query, loading = disk.loads.pop()
    assert query.max_bytes == paths.LONGEST
    loading.set_result(PathPage(Found.PATH, meta("s"), chain("a"), more=True))
    await asyncio.sleep(0)
    for _ in range(3):
        disk.paths.was_read("s", 2)
    assert disk.loads == []


async def test_all_together_they_take_the_room_they_have(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "ROOM", 8 * paths.BESIDE)
    monkeypatch.setattr(paths, "LONGEST", 7 * paths.BESIDE)
    for name in "stu":
        await disk.hold(name, chain("a", "b"))
    assert disk.paths.entry("s", "a") is not None
    await disk.hold("v", chain("a", "b"))
    held = [name for name in "stuv" if name in disk.paths]
    assert held == ["s", "u", "v"], "the one that was used longest ago goes"
    assert disk.paths.size <= 8 * paths.BESIDE
    disk.change(Change("v", leaf="c", entries=(entry("c", "b", size=6 * paths.BESIDE),)))
    assert "v" not in disk.paths, "it has become too long"
    for name in "su":
        disk.change(Change(name, drops=EVERYTHING))
    assert disk.paths.size == 0


@pytest.mark.parametrize("seed", range(20))
async def test_pages_are_those_of_the_store(seed: int, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "PATIENCE", -(10**9))
    chance = random.Random(seed)
    ids = ["e"]
    roles = ["user", "custom", None]
    answered = 0
    for number in range(150):
        session, drops = await disk.store.session("s"), EVERYTHING if chance.random() < 0.03 else frozenset()
        try:
            await disk.store.path(PathQuery("s"))
        except BrokenPath:
            drops = EVERYTHING  # a fresh start: of a broken path nothing is ever held
        parent = None if drops else session.leaf if chance.random() < 0.8 else chance.choice([None, *ids])
        old = chance.random() < 0.1
        new = entry(chance.choice(ids) if old else f"e{number}", parent, chance.choice(roles))  # type: ignore[arg-type]
        ids = [*ids[-10:], new.id]
        disk.change(Change("s", meta("s"), chance.choice([new.id, new.id, new.id, None]), (new,), drops))
        disk.paths.was_read("s", 0)
        if disk.loads and chance.random() < 0.7:
            await disk.arrive()
        query = PathQuery(
            "s",
            chance.choice([None, None, *ids]),
            chance.choice([None, frozenset({"user"})]),  # type: ignore[arg-type]
            chance.random() < 0.5,
            chance.choice([None, None, *ids]),
            chance.choice([None, 1, 3]),
            chance.choice([None, 1, 200]),
        )
        page = await disk.page(query)
        if page is not None:
            answered += 1
            assert page == await disk.store.path(query)
    assert answered > 20


def test_an_unknown_session_has_no_page() -> None:
    assert Paths(lambda query: asyncio.Future()).page(Session(), PathQuery("s")) is None


async def test_a_long_run_of_entries_that_are_not_shown_is_not_walked_on_the_event_loop(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "STEPS", 5)
    hidden = chain("a", *(f"n{number}" for number in range(8)), role=None)[1:]
    await disk.hold("s", (entry("a"), *hidden, entry("z", "n7")))
    shown = PathQuery("s", include_custom=False, limit=2)
    assert await disk.page(shown) is None, "the disk has to tell what is behind them"
    assert await disk.page(PathQuery("s", include_custom=False, after="a", limit=2)) is None
    page = await disk.page(PathQuery("s", limit=2))
    assert page is not None
    assert [one.id for one in page.entries] == ["a", "n0"]
    monkeypatch.setattr(paths, "STEPS", 20)
    assert await disk.page(shown) == await disk.store.path(shown)
