"""The promises of the port (session_manager.store), one test each, kept by every store."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from session_manager.errors import BrokenPath, StorageError
from session_manager.model import CustomPayload, Entry, Role, SessionMeta, TextBlock, UserMessage, encode
from session_manager.store import (
    EVERYTHING,
    Change,
    Drop,
    Found,
    ListQuery,
    Order,
    PathQuery,
    Session,
    Store,
)
from tests.stage import InProcess


@pytest.fixture
def store(stage: InProcess) -> Store:
    return stage.store


def meta(id_: str, *, created: int = 1, updated: int = 1, **more: Any) -> SessionMeta:
    fields = {"title": "t", "description": "", "status": "idle", "message_count": 0, **more}
    return SessionMeta(session_id=id_, created_at=created, updated_at=updated, **fields)


def entry(
    id_: str, parent_id: str | None = None, role: Role | None = "user", size: int = 1, revision: int = 0
) -> Entry:
    if role is None:
        body = encode(CustomPayload("c", "x" * size))
    elif role == "user":
        body = encode(UserMessage([TextBlock("x" * size)], 0))
    else:
        assert role == "custom"
        body = encode({"role": "custom", "custom_type": "c", "content": [], "timestamp": 0})
    return Entry(id_, parent_id, 7, role, body, revision)


async def put(store: Store, *changes: Change) -> list[int]:
    return [await store.commit(store.ahead(), change) for change in changes]


def chain(*ids: str, role: Role | None = "user") -> tuple[Entry, ...]:
    return tuple(entry(id_, parent, role) for parent, id_ in zip((None, *ids), ids, strict=False))


async def path(store: Store, **query: Any) -> list[str]:
    page = await store.path(PathQuery("s", **query))
    assert page.found is Found.PATH
    return [one.id for one in page.entries]


# --- what is kept ---


async def test_of_an_unknown_session_there_is_nothing(store: Store) -> None:
    assert await store.session("s") == Session()
    assert await store.entry("s", "e") is None
    assert await store.entries("s") == []
    assert (await store.path(PathQuery("s"))).found is Found.NO_SESSION


@pytest.mark.parametrize("part", ["meta", "leaf", "entries"])
async def test_each_part_can_be_there_without_the_others(part: str, store: Store) -> None:
    whole = {"meta": meta("s"), "leaf": "e", "entries": (entry("e"),)}
    await put(store, Change("s", **{part: whole[part]}))  # type: ignore[arg-type]
    assert await store.session("s") == Session(meta("s") if part == "meta" else None, "e" if part == "leaf" else None)
    assert await store.entries("s") == ([entry("e")] if part == "entries" else [])
    assert [one.session_id for one in await store.metas()] == (["s"] if part == "meta" else [])


@pytest.mark.parametrize("drop", list(Drop))
async def test_what_is_dropped_goes_and_the_rest_stays(drop: Drop, store: Store) -> None:
    await put(store, Change("s", meta("s"), "e", (entry("e"),)), Change("s", drops=frozenset({drop})))
    session = await store.session("s")
    assert (session.meta is None, session.leaf is None, await store.entries("s") == []) == (
        drop is Drop.META,
        drop is Drop.LEAF,
        drop is Drop.ENTRIES,
    )


async def test_removals_come_before_what_is_put(store: Store) -> None:
    await put(store, Change("s", meta("s"), "a", chain("a", "b")))
    new = meta("s", title="new")
    await put(store, Change("s", new, "c", (entry("c"),), EVERYTHING))
    assert await store.session("s") == Session(new, "c")
    assert await store.entries("s") == [entry("c")]


async def test_a_deleted_session_leaves_nothing_and_can_begin_again(store: Store) -> None:
    await put(store, Change("s", meta("s"), "b", chain("a", "b")), Change("s", drops=EVERYTHING))
    assert await store.session("s") == Session()
    assert await store.entries("s") == []
    await put(store, Change("s", meta("s"), "x", chain("x")))
    assert await path(store) == ["x"]


async def test_an_entry_replaces_one_of_its_id_whatever_the_revision(store: Store) -> None:
    for revision in (3, 0, 2**64 - 1, 2**63, 1):
        await put(store, Change("s", entries=(entry("e", revision=revision),)))
        assert await store.entry("s", "e") == entry("e", revision=revision)
    assert len(await store.entries("s")) == 1


async def test_entries_come_by_id_in_the_order_of_bytes(store: Store) -> None:
    ids = ["b", "B", "a", "é", "z", "\U0001f600", "\uffff", "", "aa"]
    await put(store, Change("s", entries=tuple(entry(id_) for id_ in ids)))
    assert [one.id for one in await store.entries("s")] == sorted(ids, key=str.encode)


async def test_records_come_by_session_id_in_the_order_of_bytes(store: Store) -> None:
    ids = ["b", "B", "a", "é", "z", "\U0001f600", "\uffff", "aa"]
    await put(store, *(Change(id_, meta(id_)) for id_ in ids))
    assert [one.session_id for one in await store.metas()] == sorted(ids, key=str.encode)


async def test_sessions_do_not_share_entries(store: Store) -> None:
    await put(store, Change("s", entries=(entry("e"),)), Change("t", entries=(entry("e", size=9),)))
    await put(store, Change("t", drops=frozenset({Drop.ENTRIES})))
    assert await store.entries("s") == [entry("e")]


async def test_what_a_caller_changes_afterwards_is_not_what_is_kept(store: Store) -> None:
    await put(store, Change("s", meta("s"), entries=(entry("e"),)))
    with pytest.raises(AttributeError):
        (await store.session("s")).meta.title = "changed"  # type: ignore[misc, union-attr]
    with pytest.raises(AttributeError):
        (await store.entries("s"))[0].revision = 9  # type: ignore[misc]
    (await store.entries("s")).clear()
    assert len(await store.entries("s")) == 1


# --- paths ---


async def test_a_path_runs_from_the_root_to_the_leaf_whatever_order_it_was_written_in(store: Store) -> None:
    await put(store, Change("s", meta("s"), "c", entries=tuple(reversed(chain("a", "b", "c")))))
    assert await path(store) == ["a", "b", "c"]


async def test_a_path_looks_for_the_session_before_the_leaf(store: Store) -> None:
    await put(store, Change("s", None, "a", chain("a")))
    assert (await store.path(PathQuery("s", leaf="nobody"))).found is Found.NO_SESSION


async def test_a_path_to_an_unknown_leaf_says_so(store: Store) -> None:
    await put(store, Change("s", meta("s"), "a", chain("a")))
    page = await store.path(PathQuery("s", leaf="nobody"))
    assert (page.found, page.meta) == (Found.NO_ENTRY, meta("s"))


async def test_a_session_without_a_leaf_says_so_even_with_a_position(store: Store) -> None:
    await put(store, Change("s", meta("s"), entries=chain("a")))
    assert (await store.path(PathQuery("s", after="nobody"))).found is Found.NO_LEAF


async def test_an_active_leaf_that_names_no_entry_is_a_broken_path(store: Store) -> None:
    await put(store, Change("s", meta("s"), "nobody", chain("a")))
    with pytest.raises(BrokenPath):
        await store.path(PathQuery("s"))


async def test_a_missing_parent_is_a_broken_path_until_it_arrives(store: Store) -> None:
    await put(store, Change("s", meta("s"), "c", (entry("b", "a"), entry("c", "b"))))
    for query in (PathQuery("s"), PathQuery("s", leaf="b"), PathQuery("s", after="nobody"), PathQuery("s", limit=1)):
        with pytest.raises(BrokenPath):
            await store.path(query)
    await put(store, Change("s", entries=(entry("a"),)))
    assert await path(store) == ["a", "b", "c"]
    await put(store, Change("s", leaf="d", entries=(entry("d", "c"),)))
    assert await path(store) == ["a", "b", "c", "d"]


async def test_a_circle_is_a_broken_path(store: Store) -> None:
    await put(store, Change("s", meta("s"), "c", (entry("a", "c"), entry("b", "a"), entry("c", "b"), entry("d", "d"))))
    for leaf in ("c", "d", None):
        with pytest.raises(BrokenPath):
            await store.path(PathQuery("s", leaf=leaf))


async def test_branches_share_their_beginning_and_nothing_else(store: Store) -> None:
    tree = (*chain("a", "b", "c"), entry("d", "a"), entry("e", "d"), entry("f", "b"), entry("g", "e"), entry("h", "d"))
    await put(store, Change("s", meta("s"), "c", tree))
    expected = {"c": "abc", "e": "ade", "f": "abf", "g": "adeg", "h": "adh", "a": "a", "d": "ad"}
    assert {leaf: "".join(await path(store, leaf=leaf)) for leaf in expected} == expected


async def test_an_entry_hung_elsewhere_takes_its_descendants_along(store: Store) -> None:
    await put(store, Change("s", meta("s"), "d", (*chain("a", "b", "c", "d"), entry("x", "a"))))
    await put(store, Change("s", entries=(entry("c", "x"),)))
    assert await path(store) == ["a", "x", "c", "d"]
    await put(store, Change("s", leaf="e", entries=(entry("e", "d"),)))
    assert await path(store) == ["a", "x", "c", "d", "e"]
    assert await path(store, leaf="b") == ["a", "b"]


async def test_a_second_root_is_a_path_of_its_own(store: Store) -> None:
    await put(store, Change("s", meta("s"), "b", (*chain("a", "b"), *chain("y", "z"))))
    assert await path(store, leaf="z") == ["y", "z"]
    assert await path(store) == ["a", "b"]


async def test_a_page_starts_behind_a_position_and_says_whether_more_follows(store: Store) -> None:
    ids = [f"{n:02}" for n in range(10)]
    await put(store, Change("s", meta("s"), ids[-1], chain(*ids)))
    seen: list[str] = []
    after = None
    while True:
        page = await store.path(PathQuery("s", after=after, limit=3))
        seen += [one.id for one in page.entries]
        assert len(page.entries) <= 3
        if not page.more:
            break
        after = page.entries[-1].id
    assert seen == ids
    last = await store.path(PathQuery("s", after=ids[-1]))
    assert (last.entries, last.more) == ((), False)


async def test_a_position_must_be_shown_on_the_path(store: Store) -> None:
    await put(
        store,
        Change("s", meta("s"), "c", (*chain("a", "b", "c"), entry("x", "a"), entry("n", "c", None), entry("o", "n"))),
    )
    for query in (
        PathQuery("s", after="nobody"),
        PathQuery("s", after="x"),
        PathQuery("s", leaf="b", after="c"),
        PathQuery("s", leaf="o", after="n", include_custom=False),
        PathQuery("s", after="a", roles=frozenset({"custom"})),
    ):
        assert (await store.path(query)).found is Found.NOT_SHOWN, query


@pytest.mark.parametrize("limit", [1, 2, None])
async def test_filters_show_what_they_say_page_by_page(limit: int | None, store: Store) -> None:
    tree = (
        entry("a"), entry("b", "a", None), entry("c", "b", "custom"), entry("d", "c", None), entry("e", "d", None),
        entry("f", "e"), entry("g", "f", "custom"),
    )  # fmt: skip
    await put(store, Change("s", meta("s"), "g", tree))

    async def shown(**query: Any) -> str:
        seen, after = "", None
        while True:
            page = await store.path(PathQuery("s", limit=limit, after=after, **query))
            seen += "".join(one.id for one in page.entries)
            if not page.more:
                return seen
            after = page.entries[-1].id

    assert await shown() == "abcdefg"
    assert await shown(include_custom=False) == "acfg"
    assert await shown(include_custom=False, roles=frozenset({"user"})) == "af"
    assert await shown(roles=frozenset({"custom"})) == "bcdeg"
    assert await shown(include_custom=False, roles=frozenset()) == ""


async def test_a_page_ends_when_it_is_heavy_but_never_before_its_first_entry(store: Store) -> None:
    tree = tuple(
        entry(id_, parent, size=size)
        for id_, parent, size in (("a", None, 1000), ("b", "a", 1000), ("c", "b", 10), ("d", "c", 10))
    )
    await put(store, Change("s", meta("s"), "d", tree))
    page = await store.path(PathQuery("s", max_bytes=1))
    assert ([one.id for one in page.entries], page.more) == (["a"], True)
    page = await store.path(PathQuery("s", max_bytes=1500))
    assert ([one.id for one in page.entries], page.more) == (["a", "b"], True)
    page = await store.path(PathQuery("s", max_bytes=1500, leaf="c"))
    assert ([one.id for one in page.entries], page.more) == (["a", "b"], True), "one entry is left, and that is told"
    page = await store.path(PathQuery("s", max_bytes=10_000))
    assert ([one.id for one in page.entries], page.more) == (["a", "b", "c", "d"], False)


async def test_a_long_path_is_no_deep_recursion(store: Store) -> None:
    ids = [f"e{n}" for n in range(3000)]
    await put(store, Change("s", meta("s"), ids[-1], chain(*ids)))
    assert await path(store) == ids


# --- lists ---


def listed(page: Any) -> list[str]:
    return [one.session_id for one in page.metas]


@pytest.mark.parametrize("order", list(Order))
async def test_lists_are_in_order_with_ties_by_id_in_the_same_direction(order: Order, store: Store) -> None:
    made = [meta(id_, created=c, updated=u) for id_, c, u in (("b", 1, 9), ("a", 1, 9), ("é", 1, 3), ("c", -5, 3))]
    await put(store, *(Change(one.session_id, one) for one in made))
    expected = sorted(
        made, key=lambda one: (order.key(one), one.session_id.encode()), reverse=order is not Order.CREATED_ASC
    )
    seen: list[str] = []
    after: tuple[int, str] | None = None
    while True:
        page = await store.sessions(ListQuery(order, after, limit=1))
        seen += listed(page)
        if not page.more:
            break
        after = (order.key(page.metas[-1]), page.metas[-1].session_id)
    assert seen == [one.session_id for one in expected]


async def test_a_list_goes_on_behind_a_position_where_no_record_is(store: Store) -> None:
    await put(store, *(Change(f"s{n}", meta(f"s{n}", created=n)) for n in range(6)))
    await put(store, Change("s3", drops=EVERYTHING))
    assert listed(await store.sessions(ListQuery(Order.CREATED_ASC, (3, "s3")))) == ["s4", "s5"]
    assert listed(await store.sessions(ListQuery(Order.CREATED_DESC, (3, "s3")))) == ["s2", "s1", "s0"]
    assert listed(await store.sessions(ListQuery(Order.CREATED_ASC, (3, "")))) == ["s4", "s5"]


async def test_metadata_filters_are_deep_and_typed(store: Store) -> None:
    values: list[Any] = [1, 1.0, True, "1", None, {"x": 1}, {"x": 1, "y": 2}, [1, 2], [2, 1], {}]
    await put(store, *(Change(f"s{n}", meta(f"s{n}", metadata={"k": value, "o": n})) for n, value in enumerate(values)))
    await put(store, Change("none", meta("none")), Change("empty", meta("empty", metadata={})))
    for n, value in enumerate(values):
        assert listed(await store.sessions(ListQuery(metadata={"k": value}))) == [f"s{n}"], value
    assert len(listed(await store.sessions(ListQuery(metadata={})))) == len(values) + 2
    assert listed(await store.sessions(ListQuery(metadata={"k": {"y": 2, "x": 1}, "o": 6}))) == ["s6"]
    assert listed(await store.sessions(ListQuery(metadata={"k": 1, "o": 6}))) == []


async def test_a_list_filters_by_status_as_it_is_now(store: Store) -> None:
    await put(store, Change("a", meta("a")), Change("b", meta("b", status="working")))
    await put(store, Change("a", meta("a", status="working")), Change("b", meta("b", status="done")))
    assert listed(await store.sessions(ListQuery(status="working"))) == ["a"]
    await put(store, Change("a", drops=frozenset({Drop.META})))
    assert listed(await store.sessions(ListQuery(status="working"))) == []


async def test_a_list_ends_when_it_is_heavy_but_never_before_its_first_record(store: Store) -> None:
    await put(store, *(Change(f"s{n}", meta(f"s{n}", created=n, title="x" * 1000)) for n in range(3)))
    page = await store.sessions(ListQuery(Order.CREATED_ASC, max_bytes=1))
    assert (listed(page), page.more) == (["s0"], True)
    page = await store.sessions(ListQuery(Order.CREATED_ASC, max_bytes=1500))
    assert (listed(page), page.more) == (["s0", "s1"], True), "one record is left, and that is told"


# --- commits ---


async def test_numbers_of_commits_grow_and_are_not_used_twice(stage: InProcess) -> None:
    if not stage.store.pipelines:
        pytest.skip("through a bridge the numbers are the main instance's")
    first = await put(stage.store, *(Change(f"s{n}", meta(f"s{n}")) for n in range(3)))
    await stage.restart()
    second = await put(stage.store, Change("s", meta("s")))
    numbers = [*first, *second]
    assert numbers == sorted(set(numbers))


async def test_everything_is_there_after_a_restart(stage: InProcess) -> None:
    await put(stage.store, Change("s", meta("s", metadata={"a": 1}), "b", chain("a", "b")))
    await put(stage.store, Change("s", entries=(entry("b", "a", revision=2),)))
    await stage.restart()
    assert await stage.store.session("s") == Session(meta("s", metadata={"a": 1}), "b")
    assert await stage.store.entries("s") == [entry("a"), entry("b", "a", revision=2)]
    assert await path(stage.store) == ["a", "b"]


async def test_a_view_ahead_shows_what_is_not_yet_durable(store: Store) -> None:
    if not store.pipelines:
        pytest.skip("a store that does not pipeline shows only what is durable")
    done = store.commit(store.ahead(), Change("s", meta("s"), "a", chain("a")))
    view = store.ahead()
    assert await view.session("s") == Session(meta("s"), "a")
    assert await view.entry("s", "a") == entry("a")
    more = store.commit(view, Change("s", drops=frozenset({Drop.ENTRIES, Drop.LEAF})))
    assert await store.ahead().session("s") == Session(meta("s"))
    assert await store.ahead().entry("s", "a") is None
    await done
    await more
    assert await store.entry("s", "a") is None


async def test_changes_become_durable_in_the_order_in_which_they_came(store: Store) -> None:
    commits = [store.commit(store.ahead(), Change("s", meta("s", title=str(n)))) for n in range(20)]
    numbers = [await commit for commit in commits]
    assert numbers == sorted(numbers)
    assert (await store.session("s")).meta == meta("s", title="19")


async def test_what_is_called_early_is_called_at_most_once_and_first(store: Store) -> None:
    told: list[str] = []
    commit = store.commit(
        store.ahead(), Change("s", meta("s")), lambda: told.append("durable"), lambda: told.append("early")
    )
    await commit
    assert told in (["durable"], ["early", "durable"])


async def test_who_stops_waiting_does_not_stop_the_change(store: Store) -> None:
    if not store.pipelines:
        pytest.skip("a change that goes out while it is awaited; the road holds on to it instead")
    commit = asyncio.ensure_future(store.commit(store.ahead(), Change("s", meta("s"))))
    waiting = asyncio.ensure_future(asyncio.wait_for(asyncio.shield(commit), 5))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    await store.settled(store.ahead(), "s")
    assert (await store.session("s")).meta == meta("s")


async def test_settled_waits_until_what_was_seen_is_durable(store: Store) -> None:
    commit = asyncio.ensure_future(store.commit(store.ahead(), Change("s", meta("s"))))
    if not store.pipelines:
        await commit
    view = store.ahead()
    assert (await view.session("s")).meta == meta("s")
    await store.settled(view, "s")
    assert (await store.session("s")).meta == meta("s")
    await commit


async def test_closing_waits_for_what_was_committed_and_may_be_done_twice(stage: InProcess) -> None:
    store = stage.store
    commits = [asyncio.ensure_future(store.commit(store.ahead(), Change(f"s{n}", meta(f"s{n}")))) for n in range(30)]
    await asyncio.sleep(0)
    await store.close()
    assert all(done.done() and done.exception() is None for done in commits)
    await store.close()
    await stage.start()
    assert len(await stage.store.metas()) == 30


async def test_one_change_is_seen_whole_or_not_at_all(store: Store) -> None:
    if not store.pipelines:
        pytest.skip("through a bridge a change is several calls of the store protocol")

    async def write() -> None:
        for n in range(60):
            ids = [f"{n}.{m}" for m in range(4)]
            await store.commit(
                store.ahead(), Change("s", meta("s", message_count=4, title=str(n)), ids[-1], chain(*ids), EVERYTHING)
            )

    writing = asyncio.create_task(write())
    while not writing.done():
        await asyncio.sleep(0)
        page = await store.path(PathQuery("s"))
        if page.meta is not None:
            assert [one.id for one in page.entries] == [f"{page.meta.title}.{m}" for m in range(4)]
    await writing


async def test_a_value_is_kept_to_the_last_bit(store: Store) -> None:
    odd = Entry("e", "", -(2**63), "user", entry("e").body, 2**64 - 1, b'{"k":[1.0,1e308,-0.0]}')
    kept = msgspec.structs.replace(meta("s"), message_count=2**64 - 1, updated_at=2**63 - 1, draft="\0", metadata={})
    await put(store, Change("s", kept, "", (odd,)))
    assert await store.entry("s", "e") == odd
    assert await store.session("s") == Session(kept, "")


async def test_a_closed_store_refuses_and_does_not_hang(stage: InProcess) -> None:
    store = stage.store
    if not store.pipelines or type(store).__name__ == "MemoryStore":
        await store.close()
        await stage.start()
        return  # there is nothing to close, or it belongs to another
    await store.close()
    with pytest.raises(StorageError):
        await asyncio.wait_for(asyncio.ensure_future(store.commit(store.ahead(), Change("s", meta("s")))), 60)
    await stage.start()


async def test_a_limit_that_no_number_of_entries_reaches_is_none(store: Store) -> None:
    await put(store, Change("s", meta("s"), "b", chain("a", "b")))
    assert await path(store, limit=2**64 - 1) == ["a", "b"]
    page = await store.sessions(ListQuery(limit=2**64 - 1))
    assert [one.session_id for one in page.metas] == ["s"]
