"""A mirror of a server of 2.1: in order, each event once, through restarts of either side."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from session_manager.errors import StorageError
from session_manager.events import MessageUpdated, StatusChanged
from session_manager.interop.opencode import cache, follow
from session_manager.interop.opencode.events import read_event
from session_manager.interop.opencode.exports import export_session, stored_records
from session_manager.interop.opencode.follow import Mirror
from session_manager.interop.opencode.imports import Plan
from session_manager.interop.opencode.progress import MirrorProgress, on_change
from session_manager.interop.opencode.replay import Replay
from session_manager.interop.opencode.servers import read_server
from session_manager.interop.opencode.sessions import Refused
from session_manager.interop.opencode.targets import Decide, StoreTarget
from session_manager.model import Entry
from session_manager.store import Change, PathPage, PathQuery
from session_manager.stores.memory import MemoryStore
from tests.interop.later_server import LaterServer, delta, told_later
from tests.interop.support import Json, bring_in, differences, files, load, messages, name, plain

pytest.importorskip("opencode", reason="the extra [opencode] is not installed")

from session_manager.interop.opencode.client import Server

TOOLS = list(told_later(load("samples/v2_tools/history.v2.json")["data"]))
SESSION = TOOLS[0]["durable"]["aggregateID"]


def wanted() -> Json:
    return load("synthetic_2.1/v2_tools.transfer.json")["messages"]


class Watched(StoreTarget):
    """A target that remembers what was told."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.plans: list[Plan] = []

    async def write(self, session_id: str, decide: Decide) -> Plan:
        plan = await super().write(session_id, decide)
        self.plans.append(plan)
        return plan

    def told(self) -> list[Json]:
        return [emission.event for plan in self.plans for emission in plan.emissions()]


@pytest.fixture
def later() -> Iterator[LaterServer]:
    server = LaterServer()
    server.start()
    yield server
    server.stop()


@asynccontextmanager
async def following(later: LaterServer, target: StoreTarget) -> AsyncIterator[Mirror]:
    client = Server(later.url)
    mirror = Mirror(client, target)
    task = asyncio.create_task(mirror.run())
    try:
        await until(lambda: mirror.progress.connected)
        yield mirror
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def came_to(store: MemoryStore, seq: int, session_id: str = SESSION) -> Callable[[], bool]:
    def reached() -> bool:
        meta = asyncio.get_running_loop() and store._kept.get(session_id)  # its reads are coroutines
        if not meta or meta.meta is None or meta.meta.metadata is None:
            return False
        return bool(meta.meta.metadata["opencode"].get("mirror", {}).get("seq") == seq)

    return reached


HISTORIES = [path for path in files("samples/v2_*/history.v2*.json") if path.stat().st_size > 300]


@pytest.mark.parametrize("path", HISTORIES, ids=name)
def test_the_events_of_2_1_give_the_list_of_2_1(path: Path) -> None:
    """Recorded conversations, told as 2.1 does, come to the lists that a server upgrades them to."""
    moment = path.name.removeprefix("history.v2").removesuffix(".json")
    transfer = path.parents[2] / "synthetic_2.1" / f"{path.parent.name}{moment}.transfer.json"
    early = json.loads(path.read_bytes())["data"]
    kinds = {event["type"] for event in early}
    if not transfer.exists() or kinds & {"session.next.compaction.ended", "session.next.revert.committed"}:
        pytest.skip("2.1 tells of these in another way")
    events = [event for raw in told_later(early) if (event := read_event(raw)) is not None]
    replay = Replay(events[0].session_id)
    for event in events:
        replay.apply(event)
    theirs = json.loads(transfer.read_bytes())["messages"]
    if any("files" in record or "error" in record for record in theirs) or kinds & {
        "session.next.agent.switched",
        "session.next.model.switched",
    }:
        theirs = [r for r in theirs if r["type"] in ("user", "assistant") and "files" not in r and "error" not in r]
        ours = {record["id"]: record for record in replay.list()}
        assert list(differences([_opened(ours[r["id"]]) for r in theirs], [_opened(r) for r in theirs])) == []
    else:
        assert list(differences([_opened(r) for r in replay.list()], [_opened(r) for r in theirs])) == []
    assert replay.unknown == {}


def _opened(record: Json) -> Json:
    """Without what a next step sets on one that never ended: the early form leaves it open for ever."""
    if record["type"] != "assistant" or "finish" in record:
        return record
    return {**record, "time": {key: value for key, value in record["time"].items() if key != "completed"}}


async def test_what_was_there_and_what_comes_is_mirrored(later: LaterServer) -> None:
    store = MemoryStore()
    later.say(*TOOLS[:20])
    async with following(later, StoreTarget(store)):
        await until(came_to(store, 19))
        later.say(*TOOLS[20:])
        await until(came_to(store, TOOLS[-1]["durable"]["seq"]))
    export = await export_session(store, SESSION)
    assert list(differences(export.document["messages"], wanted())) == []


async def test_a_store_that_cannot_be_read_for_a_while_ends_no_mirror(
    later: LaterServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    later.say(*TOOLS)
    monkeypatch.setattr(follow, "AGAIN_S", 0.05)
    store, faults = MemoryStore(), {"metas": 2, "session": 3}

    def spoil(name: str) -> None:
        whole = getattr(store, name)

        async def spoilt(*args: Json) -> Json:
            if faults[name]:
                faults[name] -= 1
                raise StorageError("the disk is at fault")
            return await whole(*args)

        monkeypatch.setattr(store, name, spoilt)

    for name_ in faults:
        spoil(name_)
    async with following(later, StoreTarget(store)):
        await until(came_to(store, TOOLS[-1]["durable"]["seq"]))
    assert set(faults.values()) == {0}


async def test_a_new_session_appears_while_following(later: LaterServer) -> None:
    store = MemoryStore()
    async with following(later, StoreTarget(store)):
        later.say(*TOOLS)
        await until(came_to(store, TOOLS[-1]["durable"]["seq"]))
    assert list(differences((await export_session(store, SESSION)).document["messages"], wanted())) == []


@pytest.mark.parametrize("cut", [1, 3, 5, 9, 17, 26, 40, 55])
async def test_the_mirror_goes_on_where_it_was(later: LaterServer, cut: int) -> None:
    """It stops in the middle of an answer, the server goes on, and the mirror comes back: no gap, nothing twice."""
    store = MemoryStore()
    later.say(*TOOLS[:cut])
    async with following(later, StoreTarget(store)):
        await until(came_to(store, cut - 1))
    later.say(*TOOLS[cut:])
    later.asked.clear()
    again = Watched(store)
    async with following(later, again):
        await until(came_to(store, TOOLS[-1]["durable"]["seq"]))
    assert any(f"after={cut - 1}" in path for path in later.asked)
    assert list(differences((await export_session(store, SESSION)).document["messages"], wanted())) == []
    ids = [entry.id for entry in await store.entries(SESSION)]
    assert len(ids) == len(set(ids))
    # The same as if it had been there all the time.
    whole = MemoryStore()
    async with following(later, StoreTarget(whole)):
        await until(came_to(whole, TOOLS[-1]["durable"]["seq"]))
    ours = [plain(entry)[5:] for entry in await store.entries(SESSION)]
    assert list(differences(ours, [plain(entry)[5:] for entry in await whole.entries(SESSION)])) == []


async def test_a_lost_stream_is_taken_up_again(later: LaterServer) -> None:
    store = MemoryStore()
    async with following(later, StoreTarget(store)) as mirror:
        later.say(*TOOLS[:10])
        await until(came_to(store, 9))
        later.drop()
        later.say(*TOOLS[10:30])
        await until(lambda: later.listeners == 1)
        await until(came_to(store, 29))
        later.stop()
        await until(lambda: not mirror.progress.connected)
        later.say(*TOOLS[30:])
        later.start()
        await until(came_to(store, TOOLS[-1]["durable"]["seq"]))
    assert list(differences((await export_session(store, SESSION)).document["messages"], wanted())) == []


async def test_events_that_the_stream_leaves_out_are_fetched_from_the_log(later: LaterServer) -> None:
    store = MemoryStore()
    async with following(later, StoreTarget(store)):
        for number, event in enumerate(TOOLS):
            later.say(event, live=number % 5 != 4)
        await until(came_to(store, TOOLS[-1]["durable"]["seq"]))
    assert list(differences((await export_session(store, SESSION)).document["messages"], wanted())) == []


async def test_where_the_log_does_not_go_back_far_enough_the_list_is_written_at_once(later: LaterServer) -> None:
    store = MemoryStore()
    async with following(later, StoreTarget(store)):
        later.say(*TOOLS[:10])
        await until(came_to(store, 9))
        later.lists[SESSION] = load("synthetic_2.1/v2_tools.transfer.json")
        later.logs[SESSION] = []
        later.say(TOOLS[-1])
        await until(came_to(store, TOOLS[-1]["durable"]["seq"]))
    assert list(differences((await export_session(store, SESSION)).document["messages"], wanted())) == []


async def test_events_told_twice_count_once(later: LaterServer) -> None:
    store = MemoryStore()
    async with following(later, StoreTarget(store)):
        for event in TOOLS:
            later.say(event)
            for listener in list(later._listeners):
                listener.put(event)
        await until(came_to(store, TOOLS[-1]["durable"]["seq"]))
    assert list(differences((await export_session(store, SESSION)).document["messages"], wanted())) == []


async def test_words_on_their_way_are_updates_of_the_answer(later: LaterServer) -> None:
    target = Watched(MemoryStore())
    store = target.store
    assert isinstance(store, MemoryStore)
    message = "msg_227607434001wTpDkPtPJ9Dy7a"
    start = next(n for n, e in enumerate(TOOLS) if e["data"].get("assistantMessageID") == message) + 2
    async with following(later, target):
        later.say(*TOOLS[:start])
        await until(came_to(store, start - 1))
        said = ""
        for word in ("All ", "tools ", "have "):
            later.say(delta(SESSION, message, word))
            said += word

            async def shows(words: str = said) -> bool:
                entry = await store.entry(SESSION, message)
                return entry is not None and words in entry.body.decode()

            async with asyncio.timeout(60):
                while not await shows():
                    await asyncio.sleep(0.01)
        later.say(*TOOLS[start:])
        await until(came_to(store, TOOLS[-1]["durable"]["seq"]))
    revisions = [e.revision for e in target.told() if isinstance(e, MessageUpdated) and e.entry_id == message]
    assert revisions == list(range(1, len(revisions) + 1))
    assert len(revisions) >= 3
    assert list(differences((await export_session(store, SESSION)).document["messages"], wanted())) == []


async def test_executions_are_the_status_and_the_whole_set_of_events_is_mirrored(later: LaterServer) -> None:
    events = load("synthetic_2.1/all_events.json")
    session = events[0]["durable"]["aggregateID"]
    target = Watched(MemoryStore())
    store = target.store
    assert isinstance(store, MemoryStore)
    fork = {"sessionID": "ses_dd8a000002ffeSyntheticCCCC", "boundary": {"type": "through", "messageID": "msg_x"}}
    later.lists[session] = {"info": {"id": session, "title": "All kinds", "fork": fork}, "messages": []}
    later.say(*events[:2])
    async with following(later, target):
        for event in events[2:]:
            later.say(event)
            if event["type"].startswith("session.execution"):
                await until(came_to(store, event["durable"]["seq"], session))
        await until(came_to(store, 53, session))
    statuses = [(event.previous_status, event.status) for event in target.told() if isinstance(event, StatusChanged)]
    assert statuses == [
        ("idle", "working"),
        ("working", "error"),
        ("error", "working"),
        ("working", "idle"),
        ("idle", "working"),
        ("working", "done"),
    ]
    meta = (await store.session(session)).meta
    assert meta is not None
    assert meta.metadata is not None
    # Deleted over there, kept and marked here.
    assert meta.metadata["opencode"]["mirror"]["deleted"] is True
    assert meta.forked_from == "ses_dd8a000002ffeSyntheticCCCC"
    # Everything behind the line of the revert is off the path, and still here.
    kept = await stored_records(store, session)
    assert not any(record["id"] == "msg_227600000033Synthetic00033" for record in kept)
    assert await store.entry(session, "msg_227600000033Synthetic00033") is not None


async def test_what_the_server_works_on_is_working_and_later_is_not(later: LaterServer) -> None:
    store = MemoryStore()
    later.say(*TOOLS)
    for active, status in ((True, "working"), (False, "error")):
        later.active = {SESSION} if active else set()
        async with following(later, StoreTarget(store)):
            async with asyncio.timeout(60):
                while (meta := (await store.session(SESSION)).meta) is None or meta.status != status:
                    await asyncio.sleep(0.01)


async def test_what_is_edited_here_stays_while_the_session_goes_on(later: LaterServer) -> None:
    store = MemoryStore()
    later.say(*TOOLS[:14])
    async with following(later, StoreTarget(store)):
        await until(came_to(store, 13))
        entry = await store.entry(SESSION, "msg_227606781001Bk2KOqDIo1iIyP")
        assert entry is not None
        body = entry.body.replace(b"I will read the file first.", b"Edited by hand.")
        edited = type(entry)(
            entry.id, entry.parent_id, entry.timestamp, entry.role, body, entry.revision + 1, entry.origin
        )
        await store.commit(store.ahead(), Change(SESSION, entries=(edited,)))
        later.say(*TOOLS[14:])
        await until(came_to(store, TOOLS[-1]["durable"]["seq"]))
    kept = await store.entry(SESSION, entry.id)
    assert kept is not None
    assert b"Edited by hand." in kept.body
    assert len(await messages(store, SESSION)) > 10


async def test_a_session_that_cannot_be_kept_is_left_out_and_the_others_go_on(later: LaterServer) -> None:
    store = MemoryStore()
    bad = json.loads(json.dumps(TOOLS[:3]).replace(SESSION, "ses_bad"))
    bad[1]["data"]["item"]["payload"]["metadata"] = {"n": 10**30}
    async with following(later, StoreTarget(store)) as mirror:
        later.say(*bad, *TOOLS)
        await until(came_to(store, TOOLS[-1]["durable"]["seq"]))
        assert mirror.progress.left_out == 1
        assert "64 bits" in mirror.progress.last
    assert [meta.session_id for meta in await store.metas()] == [SESSION]


class Spoilt(MemoryStore):
    """A store some of whose sessions are damaged: the records can be read, the entries cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.damaged: set[str] = set()
        self.tries = 0
        """Of what is damaged."""

    async def entries(self, session_id: str) -> list[Entry]:
        self._check(session_id)
        return await super().entries(session_id)

    async def path(self, query: PathQuery) -> PathPage:
        self._check(query.session_id)
        return await super().path(query)

    def _check(self, session_id: str) -> None:
        if session_id in self.damaged:
            self.tries += 1
            raise StorageError("an entry is damaged")


def of_two() -> tuple[list[Json], list[str]]:
    """The events of one conversation in two sessions, and their ids; the first is the one that comes first."""
    ids = ["ses_aaa", SESSION]
    return json.loads(json.dumps(TOOLS).replace(SESSION, ids[0])), ids


@pytest.mark.parametrize("live", [False, True], ids=["in the log", "in the stream"])
async def test_a_stored_session_that_cannot_be_read_is_left_out_and_the_others_go_on(
    later: LaterServer, live: bool
) -> None:
    store = Spoilt()
    others, ids = of_two()
    later.say(*others[:10], *TOOLS[:10])
    async with following(later, StoreTarget(store)):
        for id_ in ids:
            await until(came_to(store, 9, id_))
    store.damaged.add(ids[0])
    rest = [*others[10:], *TOOLS[10:]]
    if not live:
        later.say(*rest)
    async with following(later, StoreTarget(store)) as mirror:
        if live:
            later.say(*rest)
        await until(came_to(store, TOOLS[-1]["durable"]["seq"]))
        assert (mirror.progress.left_out, mirror.progress.reconnects) == (1, 0)
        assert ids[0] in mirror.progress.last
        assert store.tries == 1  # however much is said of it
    assert came_to(store, 9, ids[0])()


@pytest.mark.parametrize("live", [False, True], ids=["in the log", "in the stream"])
async def test_a_session_that_can_be_read_again_is_brought_up_to_date_by_itself(
    later: LaterServer, monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    """Also when nothing more is said of it, and while another one stays damaged."""
    monkeypatch.setattr(follow, "AGAIN_S", 0.05)
    store = Spoilt()
    others, ids = of_two()
    ids.append("ses_bad")
    later.say(*others[:10], *TOOLS[:10], *json.loads(json.dumps(TOOLS[:11]).replace(SESSION, "ses_bad")))
    async with following(later, StoreTarget(store)):
        for id_, seq in zip(ids, (9, 9, 10), strict=True):
            await until(came_to(store, seq, id_))
    store.damaged.update(["ses_bad", ids[0]])
    later.active = {"ses_bad", ids[0]}
    last, rest = TOOLS[-1]["durable"]["seq"], [*others[10:], *TOOLS[10:]]
    if not live:
        later.say(*rest)
    async with following(later, StoreTarget(store)) as mirror:
        if live:
            later.say(*rest)
        await until(came_to(store, last))
        await until(lambda: mirror.progress.left_out == 2)
        tried = store.tries
        await until(lambda: store.tries >= tried + 3)
        store.damaged.remove(ids[0])
        await until(came_to(store, last, ids[0]))
        await until(lambda: mirror.progress.left_out == 1)
        assert mirror.progress.reconnects == 0
        assert stands(store, "working", ids[0])()
        assert not stands(store, "working", "ses_bad")()
    for id_ in ids[:2]:
        assert list(differences((await export_session(store, id_)).document["messages"], wanted())) == []


async def test_what_a_session_was_doing_is_known_when_it_is_back(
    later: LaterServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "AGAIN_S", 0.05)
    store = Spoilt()
    later.say(*TOOLS)
    later.active = {SESSION}
    async with following(later, StoreTarget(store)):
        await until(stands(store, "working"))
    store.damaged.add(SESSION)
    async with following(later, StoreTarget(store)) as mirror:
        await until(lambda: mirror.progress.left_out == 1)
        later.active = set()
        store.damaged.clear()
        await until(stands(store, "error"))


def stands(store: MemoryStore, status: str, session_id: str = SESSION) -> Callable[[], bool]:
    def reached() -> bool:
        kept = store._kept.get(session_id)
        return kept is not None and kept.meta is not None and kept.meta.status == status

    return reached


async def test_one_that_cannot_be_written_makes_room_for_others(
    later: LaterServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "AGAIN_S", 0.05)
    monkeypatch.setattr(cache, "OPEN_SESSIONS", 1)
    store = Spoilt()
    others, ids = of_two()
    last = TOOLS[-1]["durable"]["seq"]
    async with following(later, StoreTarget(store)) as mirror:
        later.say(*others[:10])
        await until(came_to(store, 9, ids[0]))
        store.damaged.add(ids[0])
        later.say(*others[10:], *TOOLS)
        await until(came_to(store, last))
        assert (mirror.progress.left_out, mirror.progress.reconnects) == (1, 0)
        store.damaged.clear()
        await until(came_to(store, last, ids[0]))
    assert list(differences((await export_session(store, ids[0])).document["messages"], wanted())) == []


async def test_one_that_cannot_be_kept_makes_room_for_others(
    later: LaterServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "OPEN_SESSIONS", 1)
    store = MemoryStore()
    bad = json.loads(json.dumps(TOOLS[:3]).replace(SESSION, "ses_bad"))
    bad[1]["data"]["item"]["payload"]["metadata"] = {"n": 10**30}
    later.say(*bad, *TOOLS)
    async with following(later, StoreTarget(store)) as mirror:
        await until(came_to(store, TOOLS[-1]["durable"]["seq"]))
        assert (mirror.progress.left_out, mirror.progress.reconnects) == (1, 0)


@pytest.mark.parametrize("who", ["mirror", "server"])
async def test_more_sessions_were_left_working_than_are_kept_in_memory(
    later: LaterServer, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """Whoever of the two was away."""
    monkeypatch.setattr(cache, "OPEN_SESSIONS", 1)
    store = MemoryStore()
    others, ids = of_two()
    later.say(*others, *TOOLS)
    later.active = set(ids)
    async with following(later, StoreTarget(store)):
        for id_ in ids:
            await until(stands(store, "working", id_))
        if who == "server":
            later.active = set()
            later.drop()
            for id_ in ids:
                await until(stands(store, "error", id_))
    if who == "mirror":
        later.active = set()
        async with following(later, StoreTarget(store)):
            for id_ in ids:
                await until(stands(store, "error", id_))


async def test_one_that_was_let_go_while_it_could_not_be_written_is_read_again(
    later: LaterServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing more is said of it, so nothing else would tell that it is behind."""
    monkeypatch.setattr(follow, "AGAIN_S", 0.05)
    monkeypatch.setattr(cache, "OPEN_SESSIONS", 1)
    others, ids = of_two()
    fails = asyncio.Event()
    writing = asyncio.Event()

    class Slow(StoreTarget):
        async def write(self, session_id: str, decide: Decide) -> Plan:
            if session_id == ids[0] and not fails.is_set():
                writing.set()
                await fails.wait()
                raise StorageError("the disk is full")
            return await super().write(session_id, decide)

    store = MemoryStore()
    async with following(later, Slow(store)) as mirror:
        later.say(others[0])
        await writing.wait()
        later.say(*TOOLS)
        await until(lambda: mirror.progress.events == 1 + len(TOOLS))
        fails.set()
        await until(came_to(store, TOOLS[-1]["durable"]["seq"]))
        await until(came_to(store, 0, ids[0]))


async def test_a_session_that_cannot_be_written_keeps_no_other_from_being_written(later: LaterServer) -> None:
    store = Spoilt()
    others, ids = of_two()
    async with following(later, StoreTarget(store)) as mirror:
        later.say(*others[:10])
        await until(came_to(store, 9, ids[0]))
        store.damaged.add(ids[0])
        later.say(*others[10:], *TOOLS)
        await until(came_to(store, TOOLS[-1]["durable"]["seq"]))
        assert "damaged" in mirror.progress.last
        store.damaged.clear()
        await until(came_to(store, TOOLS[-1]["durable"]["seq"], ids[0]))


async def test_a_server_is_a_source_too(later: LaterServer) -> None:
    transfer = load("synthetic_2.1/v2_tools.transfer.json")
    later.lists[SESSION] = transfer
    created = {**TOOLS[0], "data": {**TOOLS[0]["data"], "title": transfer["info"]["title"]}}
    later.say(created, *TOOLS[1:])
    client = Server(later.url)
    await client.open()
    store = MemoryStore()
    try:
        async for source in read_server(client):
            assert not isinstance(source, Refused)
            await bring_in(store, source)
    finally:
        await client.close()
    assert list(differences((await export_session(store, SESSION)).document, transfer)) == []
    # Following it afterwards adds nothing and doubles nothing.
    target = Watched(store)
    async with following(later, target):
        await until(came_to(store, TOOLS[-1]["durable"]["seq"]))
    assert [e for e in target.told() if not isinstance(e, StatusChanged)] == []
    assert list(differences((await export_session(store, SESSION)).document["messages"], transfer["messages"])) == []


def test_who_operates_a_mirror_is_told_of_changes_and_not_of_every_commit() -> None:
    told: list[tuple[bool, int]] = []
    tell = on_change(lambda progress: told.append((progress.connected, progress.left_out)))
    progress = MirrorProgress()
    for progress.connected, progress.left_out in ((False, 0), (True, 0), (True, 1), (False, 1)):
        for _ in range(2):
            progress.commits += 1
            tell(progress)
    assert told == [(False, 0), (True, 0), (True, 1), (False, 1)]
