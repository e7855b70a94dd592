"""The indexes over what is held in memory answer as a look at everything would."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from session_manager.errors import BrokenPath
from session_manager.model import Entry, SessionMeta
from session_manager.store import Change, Drop, ListQuery, Order, PathPage, PathQuery
from session_manager.stores.memory import Kept, MemoryStore, list_page
from tests.stores.test_fs_lines import entry, meta, note

IDS = "abcdefgh"


def path_or_error(kept: Kept, query: PathQuery) -> PathPage | str:
    try:
        return kept.path(query)
    except BrokenPath as error:
        return str(error)


@pytest.mark.parametrize("seed", range(20))
async def test_a_remembered_path_is_the_path_that_is_walked(seed: int) -> None:
    chance = random.Random(seed)
    store, model = MemoryStore(), Kept()
    for _ in range(300):
        drops = frozenset(drop for drop in Drop if chance.random() < 0.02)
        some = [
            chance.choice([entry, note])(chance.choice(IDS), chance.choice([*IDS, None, None]))
            for _ in range(chance.choice([0, 1, 1, 3]))
        ]
        record = meta() if chance.random() < 0.5 else None
        change = Change("s", record, chance.choice([*IDS, None, None]), tuple(some), drops)
        store.apply(change)
        model.apply(change)
        query = PathQuery(
            "s",
            leaf=chance.choice([*IDS, None, None, None]),
            roles=chance.choice([None, None, frozenset({"user"})]),  # type: ignore[arg-type] # a literal
            include_custom=chance.random() < 0.7,
            after=chance.choice([*IDS, None, None, None, None]),
            limit=chance.choice([None, 1, 2]),
            max_bytes=chance.choice([None, 1, 100]),
        )
        try:
            found: PathPage | str = await store.path(query)
        except BrokenPath as error:
            found = str(error)
        assert found == path_or_error(model, query)


async def test_a_session_that_was_removed_and_made_again_has_the_path_of_the_new_one() -> None:
    store = MemoryStore()
    for change in (Change("s", meta()), Change("s", drops=frozenset({Drop.META}))):
        store.apply(change)
        await store.path(PathQuery("s"))
    store.apply(Change("s", meta(), "a", (entry("a"),)))
    assert [found.id for found in (await store.path(PathQuery("s"))).entries] == ["a"]


@pytest.mark.parametrize("seed", range(10))
async def test_a_list_is_the_list_of_all_records_sorted(seed: int) -> None:
    chance = random.Random(seed)
    store, model = MemoryStore(), dict[str, SessionMeta]()
    for _ in range(200):
        id_ = chance.choice(["a", "b", "é", "~", "A", "aa", "", "z"])
        if chance.random() < 0.2:
            store.apply(Change(id_, drops=frozenset({Drop.META})))
            model.pop(id_, None)
        else:
            times = {"created_at": chance.randrange(3), "updated_at": chance.randrange(3)}
            status = chance.choice(["idle", "done"])
            model[id_] = meta(id_, status=status, metadata={"n": chance.randrange(2)}, **times)
            store.apply(Change(id_, model[id_]))
        query = ListQuery(
            order=chance.choice(list(Order)),
            after=chance.choice([None, (chance.randrange(3), chance.choice("aé~y"))]),
            status=chance.choice([None, None, "done"]),
            metadata=chance.choice([None, {"n": 1}]),
            limit=chance.choice([1, 3, 50]),
            max_bytes=chance.choice([None, 1, 300]),
        )
        assert await store.sessions(query) == list_page(model.values(), query)


class Looks(dict[str, Entry]):
    """Entries that count how often one of them is looked at."""

    count = 0

    def __getitem__(self, id_: str) -> Entry:
        self.count += 1
        return super().__getitem__(id_)

    def get(self, id_: str, default: Any = None) -> Any:
        self.count += 1
        return super().get(id_, default)

    def __iter__(self) -> Iterator[str]:
        for id_ in super().__iter__():
            self.count += 1
            yield id_


async def test_a_page_costs_the_page_and_not_the_session() -> None:
    async def looks(count: int) -> tuple[int, int]:
        """For the first page and for the same again."""
        entries = Looks({str(n): entry(str(n), str(n - 1) if n else None) for n in range(count)})
        store, taken = MemoryStore({"s": Kept(meta(), str(count - 1), entries)}), [0]
        for _ in range(2):
            await store.path(PathQuery("s", after=str(count // 2), limit=50))
            taken.append(entries.count)
        return taken[1], taken[2] - taken[1]

    (walked, short), (_, long) = await looks(1_000), await looks(50_000)
    assert walked > 500
    assert short == long < 70
