"""The account of what subscribers were told, and what a gap makes of it."""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from session_manager.catchup import Told
from session_manager.config import BridgeConfig
from session_manager.edge.account import Account
from session_manager.edge.bridge import Bridge
from session_manager.errors import StorageError
from session_manager.events import (
    EVENTS,
    Created,
    Deleted,
    Emission,
    Envelope,
    Event,
    MessageAdded,
    MetaUpdated,
    StatusChanged,
    entry_event,
    open_envelope,
)
from session_manager.intents import COMPACT, Intents
from session_manager.ledger import Ledger
from session_manager.model import Entry, SessionMeta, Status
from session_manager.store import Change, Session
from session_manager.stores.bridge import MainError
from session_manager.stores.memory import MemoryStore
from tests.contract.scenario import until
from tests.stage import InProcess


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}], "timestamp": 1}


class Hearing:
    """A stage whose events are noted, except while there is a gap."""

    def __init__(self, stage: InProcess, told: Told) -> None:
        self.stage, self.told, self.gap = stage, told, False

    async def start(self) -> None:
        for kind in EVENTS:
            await self.stage.bind(kind, {}, lambda event, kind=kind: self._hear(kind, event))  # type: ignore[misc]

    def _hear(self, kind: str, event: dict[str, Any]) -> None:
        emission = open_envelope(Envelope(kind, event, None))
        assert emission is not None
        if not self.gap:
            self.told.note([emission])

    async def do(self, *calls: tuple[str, dict[str, Any]]) -> None:
        for function, payload in calls:
            await self.stage.call(f"session::{function}", payload)
        await self.stage.settle()

    async def missing(self) -> list[Emission]:
        """What is told after a gap."""
        found: list[Emission] = []
        for session_id in self.told.changed(await self.stage.store.metas()):
            emissions = await self.told.difference(self.stage.store, session_id)
            self.told.note(emissions)
            found += emissions
        return found

    async def kinds(self) -> list[str]:
        return [emission.event.trigger_type.removeprefix("session::") for emission in await self.missing()]


class Ticking:
    """A clock on which no two moments are the same."""

    def __init__(self) -> None:
        self._ticks = itertools.count(1_000_000)

    def now(self) -> int:
        return next(self._ticks)


@pytest.fixture
async def hearing(tmp_path: Path) -> Any:
    async with InProcess({"name": "memory", "config": {}}, tmp_path, Ticking()) as stage:
        made = Hearing(stage, Told())
        await made.start()
        yield made


ENSURE = ("ensure", {"session_id": "s", "title": "t"})
APPEND = ("append", {"session_id": "s", "entry_id": "a", "message": user("x")})
UPDATE = ("update-message", {"session_id": "s", "entry_id": "a", "content": []})
STATUS = ("set-status", {"session_id": "s", "status": "working", "reason": "r"})
META = ("set-meta", {"session_id": "s", "title": "new"})
DELETE = ("delete", {"session_id": "s"})


async def test_nothing_is_told_again_when_nothing_was_missed(hearing: Hearing) -> None:
    await hearing.do(ENSURE, APPEND, UPDATE, STATUS, META)
    assert await hearing.missing() == []


@pytest.mark.parametrize(
    ("before", "during", "kinds"),
    [
        ([], [ENSURE, APPEND, STATUS], ["created", "status-changed", "message-added"]),
        ([ENSURE], [APPEND], ["message-added"]),
        ([ENSURE], [APPEND, UPDATE], ["message-updated"]),
        ([ENSURE, APPEND], [UPDATE], ["message-updated"]),
        ([ENSURE, APPEND], [STATUS], ["status-changed"]),
        ([ENSURE, APPEND], [META], ["meta-updated"]),
        ([ENSURE, APPEND], [DELETE], ["deleted"]),
        ([ENSURE, APPEND], [DELETE, ENSURE, APPEND], ["deleted", "created", "message-added"]),
        ([], [ENSURE, DELETE], []),
    ],
)
async def test_what_happened_in_a_gap_is_told_and_only_that(
    hearing: Hearing, before: list[Any], during: list[Any], kinds: list[str]
) -> None:
    await hearing.do(*before)
    hearing.gap = True
    await hearing.do(*during)
    assert await hearing.kinds() == kinds
    assert await hearing.kinds() == []


async def test_what_was_missed_is_found_also_behind_a_later_event(hearing: Hearing) -> None:
    """The record alone is as new as what was heard last, so a session heard of around the gap is looked into."""
    await hearing.do(ENSURE)
    hearing.gap = True
    await hearing.do(APPEND)
    hearing.gap = False
    await hearing.do(("append", {"session_id": "s", "entry_id": "b", "message": user("y")}))
    [emission] = await hearing.told.difference(hearing.stage.store, "s")
    assert emission.event.entry_id == "a"  # type: ignore[attr-defined] # it is a message


HOUR = 3_600_000


@pytest.mark.parametrize("settled", [False, True])
async def test_what_was_missed_long_before_what_was_heard_later_is_found(settled: bool) -> None:
    """What was told last says nothing about what came before it, unless nothing was missed."""
    told, store = Told(), MemoryStore()
    told.learn([META_OF_S])
    early, late = (msgspec.structs.replace(_entry(hours), timestamp=hours * HOUR) for hours in (1, 2))
    meta = msgspec.structs.replace(META_OF_S, updated_at=late.timestamp)
    await store.commit(store, Change("s", meta, "e2", (early, late)))
    told.note([Emission(entry_event("s", late), None)])
    told.settle(() if settled else {"s"})
    found = [emission.event for emission in await told.difference(store, "s")]
    assert found == ([] if settled else [entry_event("s", early)])


async def test_an_event_that_comes_while_a_session_is_read_is_not_overtaken(hearing: Hearing) -> None:
    await hearing.do(ENSURE)
    hearing.gap = True
    await hearing.do(STATUS)
    hearing.gap = False
    store, session = hearing.stage.store, hearing.stage.store.session
    calls = iter([hearing.do, None])

    async def late(session_id: str) -> Any:
        read = await session(session_id)
        if (do := next(calls, None)) is not None:
            await do(("set-status", {"session_id": "s", "status": "done"}))
        return read

    store.session = late  # type: ignore[method-assign]
    assert await hearing.told.difference(store, "s") == ()


async def test_the_store_as_it_was_found_counts_as_told(hearing: Hearing) -> None:
    hearing.gap = True
    await hearing.do(ENSURE, APPEND)
    hearing.told.learn(await hearing.stage.store.metas())
    assert await hearing.missing() == []
    await hearing.do(STATUS)
    assert await hearing.kinds() == ["status-changed", "message-added"], "recent entries may be told twice"


def test_what_is_remembered_is_bounded_and_old_sessions_count_as_told() -> None:
    told = Told(sessions=3, entries=3)
    for number in range(5):
        event = {"session_id": f"s{number}", "title": "", "description": "", "status": "idle", "created_at": number}
        emission = open_envelope(Envelope("session::created", event, None))
        assert emission is not None
        told.note([emission])
    assert list(told.sessions) == ["s2", "s3", "s4"]
    assert told.floor == 1


def test_entries_of_a_single_session_are_bounded_too() -> None:
    told = Told(entries=100)
    for number in range(1000):
        told.note([Emission(entry_event("s", _entry(number)), None)])
    assert told._count == len(told._entries["s"]) <= 100
    assert told.knows("s", _entry(999))
    assert not told.knows("s", _entry(0))


# --- kept in files ---


@pytest.fixture
async def noted(hearing: Hearing) -> Hearing:
    await hearing.do(ENSURE, APPEND, STATUS)
    return hearing


def reopened(path: Path) -> tuple[Told, Any]:
    told = Told()
    ledger = Ledger(path)
    past = ledger.open(told)
    ledger.abandon()
    return told, past


async def test_after_an_orderly_end_everything_is_known_and_nothing_doubtful(noted: Hearing, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "told.db")
    assert ledger.open(Told()) is None
    ledger.begin(noted.told)
    ledger.close(ledger.saving(noted.told, clean=True))
    told, past = reopened(tmp_path / "told.db")
    assert (past.clean, past.doubtful) == (True, frozenset())
    assert told.sessions["s"].status == ("working", "r")


async def test_after_a_kill_what_was_told_since_the_last_save_is_doubtful(noted: Hearing, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "told.db")
    ledger.open(Told())
    ledger.begin(noted.told)
    for number in range(3):
        event = {"session_id": f"n{number}", "title": "", "description": "", "status": "idle", "created_at": 1}
        emission = open_envelope(Envelope("session::created", event, {"label": number}))
        assert emission is not None
        assert ledger.lacks([emission])
        ledger.write(ledger.lines([emission]))
        assert not ledger.lacks([emission])
    ledger.abandon()  # as a kill leaves it
    with (tmp_path / "told.since").open("r+b") as file:
        whole = file.read()
        file.seek(0)
        file.write(b'["torn' + whole)
        file.write(b'\n["torn')
    told, past = reopened(tmp_path / "told.db")
    assert (past.clean, past.doubtful) == (False, {"n0", "n1", "n2"})
    assert told.sessions["n2"].metadata == {"label": 2}


def test_what_stays_listed_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("session_manager.ledger.MOST", 3)
    ledger, told = Ledger(tmp_path / "told.db"), Told()
    ledger.open(told)
    ledger.begin(told)
    under_way = [f"s{number}" for number in range(5)]
    for session_id in under_way:
        ledger.write(ledger.lines(deleted(session_id)))
        told.note(deleted(session_id))
    ledger.save(ledger.saving(told, under_way=under_way))
    ledger.abandon()
    assert reopened(tmp_path / "told.db")[1].doubtful == {"s2", "s3", "s4"}


def test_a_session_whose_change_failed_does_not_stay_listed(tmp_path: Path) -> None:
    ledger, told = Ledger(tmp_path / "told.db"), Told()
    ledger.open(told)
    ledger.begin(told)
    for session_id in ("failed", "next", "last"):
        ledger.write(ledger.lines(deleted(session_id)))
        if session_id != "failed":
            told.note(deleted(session_id))
        ledger.save(ledger.saving(told))
        assert ledger.lacks(deleted("failed")) is (session_id != "failed"), "it may be on its way at first"
    ledger.abandon()


@pytest.mark.parametrize("damage", [b"not a database at all, but long enough to be looked at" * 50, b""])
async def test_a_damaged_file_is_started_anew(noted: Hearing, tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "told.db").write_bytes(damage)
    ledger = Ledger(tmp_path / "told.db")
    assert ledger.open(Told()) is None
    ledger.begin(noted.told)
    ledger.close(ledger.saving(noted.told, clean=True))
    assert reopened(tmp_path / "told.db")[1].clean


async def test_a_damaged_file_that_cannot_be_removed_is_done_without(
    noted: Hearing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(Path, "unlink", refuse)
    (tmp_path / "told.db").write_bytes(b"not a database at all, but long enough to be looked at" * 50)
    ledger = Ledger(tmp_path / "told.db")
    assert ledger.open(Told()) is None
    ledger.begin(noted.told)
    ledger.close(ledger.saving(noted.told, clean=True))


async def test_a_write_of_which_the_disk_takes_a_part_is_gone_on_with(
    noted: Hearing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path / "told.db")
    ledger.open(Told())
    ledger.begin(noted.told)
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:5]))
    ledger.write(b'\n["one",null]\n["two",null]')
    ledger.abandon()
    assert reopened(tmp_path / "told.db")[1].doubtful >= {"one", "two"}


async def test_a_file_that_another_process_holds_is_done_without(noted: Hearing, tmp_path: Path) -> None:
    holder = sqlite3.connect(tmp_path / "told.db")
    holder.execute("PRAGMA locking_mode=EXCLUSIVE")
    holder.execute("CREATE TABLE t (x)")
    holder.execute("BEGIN EXCLUSIVE")
    ledger = Ledger(tmp_path / "told.db")
    assert ledger.open(Told()) is None
    ledger.begin(noted.told)
    ledger.save(ledger.saving(noted.told))
    ledger.close(ledger.saving(noted.told, clean=True))
    holder.close()


class Hub:
    """Notes what goes out, and when."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def is_heard(self, emissions: Sequence[Emission]) -> bool:
        return True

    def publish(self, emissions: Sequence[Emission]) -> None:
        self.told += [emission.event.session_id for emission in emissions]

    publish_locally = publish


@pytest.fixture
async def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Account]:
    monkeypatch.setattr("session_manager.edge.account.PATIENCE", 60.0)

    async def backlog() -> int:
        return 0

    async def under_way() -> set[str]:
        return set()

    made = Account(Hub(), tmp_path / "told.db", backlog, under_way)  # type: ignore[arg-type] # all of it that is needed here
    await made.open()
    await made.begin(None)
    keeping = asyncio.create_task(made.keep(lambda: None))
    await asyncio.sleep(0)
    made.ready()
    yield made
    keeping.cancel()
    await made.close(clean=True)


def deleted(session_id: str) -> list[Emission]:
    return [Emission(Deleted(session_id=session_id, timestamp=1), None)]


async def test_events_wait_until_their_sessions_are_listed_in_the_file(account: Account, tmp_path: Path) -> None:
    go, hub = threading.Event(), account._hub
    assert isinstance(hub, Hub)
    write = account._ledger.write
    account._ledger.write = lambda lines: (go.wait(60), write(lines))[1]  # type: ignore[method-assign]
    account.publish(deleted("a"))
    account.publish(deleted("b"))
    waiting = asyncio.create_task(account.told_all())
    await asyncio.sleep(0.02)  # while the disk does not answer, the event loop does
    assert hub.told == []
    assert not waiting.done()
    go.set()
    await waiting
    assert hub.told == ["a", "b"]
    listed = (tmp_path / "told.since").read_bytes()
    assert listed.count(b"\n") == 2
    account.publish(deleted("a"))
    assert hub.told == ["a", "b", "a"], "an event of a session that is listed waited"


def bridge_to_nowhere(account: Account, tmp_path: Path) -> Bridge:
    """A bridge that is not open: what it would ask its main instance, a test answers."""
    bridge = Bridge(BridgeConfig(url="ws://main.invalid"), "test", account, tmp_path / "intents")
    bridge._loop = asyncio.get_running_loop()
    return bridge


async def test_a_reply_through_a_bridge_waits_for_events_that_wait_for_the_file(
    account: Account, tmp_path: Path
) -> None:
    go, hub = threading.Event(), account._hub
    assert isinstance(hub, Hub)
    account._ledger.write = lambda lines: (go.wait(60), None)[1]  # type: ignore[method-assign]
    bridge = bridge_to_nowhere(account, tmp_path)
    bridge._relay = SimpleNamespace(connected=True)  # type: ignore[assignment] # all that is asked of it here

    async def tell(function_id: str, payload: bytes) -> bytes:
        bridge._hear(event[0])  # the main instance tells everybody, this bridge included
        return b"{}"

    bridge._way.call = tell  # type: ignore[method-assign]
    event = deleted("a")
    bridge.publish(event)
    answering = asyncio.create_task(bridge.announced("a"))
    await asyncio.sleep(0.02)
    assert not answering.done()
    go.set()
    await answering
    assert hub.told == ["a"]


@pytest.mark.parametrize("after", ["a start", "an outage", "a replay"])
async def test_what_is_missed_before_the_main_instance_takes_the_binding_in_is_told_all_the_same(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    """Although everything later of that session is heard, so that its record is as it was told."""
    monkeypatch.setattr("session_manager.edge.bridge.WATCH", 0.01)
    monkeypatch.setattr("session_manager.edge.bridge.PASSES", () if after == "an outage" else (0.0, 0.0, 0.0))
    hub = account._hub
    assert isinstance(hub, Hub)
    bridge = bridge_to_nowhere(account, tmp_path)
    store, main = MemoryStore(), ["main"]
    bridge.store = store  # type: ignore[assignment] # only read from
    looked, compared, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
    catch_up = bridge._catch_up

    async def look() -> tuple[str, ...]:
        looked.set()
        return tuple(main)

    async def compare(*, last: bool = False) -> None:
        await catch_up(last=last)
        compared.set()
        await go_on.wait()

    bridge._look, bridge._catch_up = look, compare  # type: ignore[method-assign]
    bridge._replaying = after == "a replay"
    watching = asyncio.create_task(bridge._watch())
    await until(looked.is_set)
    if after == "an outage":
        monkeypatch.setattr("session_manager.edge.bridge.PASSES", (0.0, 0.0, 0.0))
        main[0] = "main, started again"
    elif after == "a replay":
        await asyncio.sleep(0.05)
        assert not compared.is_set(), "which would tell what is about to be told"
        bridge.replayed()
    await until(compared.is_set)
    meta = SessionMeta("s", "t", "", "idle", 1, 9, 2)
    bodies = [b'{"role":"user","content":[],"timestamp":%d}' % number for number in range(2)]
    entries = [Entry(f"e{number}", None, 9, "user", body) for number, body in enumerate(bodies)]
    await store.commit(store, Change("s", meta, "e1", tuple(entries)))
    for event in (Created.of(meta), entry_event("s", entries[1])):
        bridge._hear(Emission(event, None))
    await account.told_all()
    go_on.set()
    await until(lambda: account.told.knows("s", entries[0]))
    watching.cancel()


class Watched:
    """A bridge that looks at its main instance when it is let: once, or all the time."""

    def __init__(self, bridge: Bridge) -> None:
        self.bridge, self.main = bridge, "main"
        self._let, self._asked = asyncio.Semaphore(0), asyncio.Semaphore(0)
        self.freely = False
        bridge._look = self._look  # type: ignore[method-assign]

    async def _look(self) -> tuple[str, ...]:
        self._asked.release()
        if not self.freely:
            await self._let.acquire()
        return (self.main,)

    async def looks(self) -> None:
        """Returns when it has seen what there was to be seen."""
        self._let.release()
        await asyncio.wait_for(self._asked.acquire(), 60)


@pytest.fixture
async def watched(account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    """It has heard of "s"."""
    monkeypatch.setattr("session_manager.edge.bridge.WATCH", 0.001)
    monkeypatch.setattr("session_manager.edge.bridge.PASSES", ())
    bridge = bridge_to_nowhere(account, tmp_path)
    bridge.store = MemoryStore()  # type: ignore[assignment] # only read from
    made = Watched(bridge)
    bridge._watching = asyncio.create_task(bridge._watch())
    for _ in range(3):
        await made.looks()
    bridge._hear(Emission(entry_event("s", _entry(1)), None))
    await account.told_all()
    yield made
    bridge._watching.cancel()


async def _listed(account: Account) -> set[str]:
    """Of which sessions the next worker would think that something is untold, were this one killed after a while."""
    for _ in range(2):
        await account.save_answered()
    return set(account._ledger._lines)


async def test_what_was_heard_last_is_doubtful_until_it_is_known_that_nothing_was_missed_before(
    account: Account, watched: Watched
) -> None:
    """Although all of it was delivered: a bridge may be killed before it notices that it was cut off for a moment."""
    assert await _listed(account) == {"s"}
    await watched.looks()
    assert await _listed(account) == {"s"}, "what breaks just before a look may not show in it"
    await watched.looks()
    assert await _listed(account) == set()


@pytest.mark.parametrize("gap", [True, False])
async def test_a_bridge_that_ends_says_whether_it_may_have_missed_something(
    account: Account, watched: Watched, gap: bool
) -> None:
    watched.main = "another" if gap else "main"
    watched.freely = True
    await watched.bridge.closed()
    assert account.owed == ({"s"} if gap else set())
    assert await _listed(account) == account.owed


async def _compared(account: Account, tmp_path: Path, *changes: Change) -> Bridge:
    """A bridge that is about to compare; its main instance has been changed meanwhile."""
    bridge = bridge_to_nowhere(account, tmp_path)
    store = MemoryStore()
    bridge.store = store  # type: ignore[assignment] # only read from
    for change in changes:
        await store.commit(store, change)
    return bridge


def _entry(number: int, revision: int = 0) -> Entry:
    return Entry(f"e{number}", None, 9, "user", b'{"role":"user","content":[],"timestamp":1}', revision=revision)


META_OF_S = SessionMeta("s", "t", "", "idle", 1, 9, 2)


def working(at: int, status: Status = "working") -> SessionMeta:
    return msgspec.structs.replace(META_OF_S, status=status, title="new", updated_at=at)


async def test_what_is_on_its_way_at_a_comparison_is_told_once(account: Account, tmp_path: Path) -> None:
    hub = account._hub
    assert isinstance(hub, Hub)
    entries = (_entry(0), _entry(1, revision=2))
    bridge = await _compared(account, tmp_path, Change("s", working(9), "e1", entries))
    account.told.learn([])
    await bridge._catch_up()
    assert hub.told == []
    before = Created.of(META_OF_S), MetaUpdated.of(working(9)), StatusChanged.of(working(9), "idle")
    for event in (*before, *(entry_event("s", entry) for entry in entries)):
        bridge._hear(Emission(event, None))
    await account.told_all()
    assert hub.told == ["s"] * 5
    await bridge._catch_up()
    await bridge._catch_up(last=True)
    await account.told_all()
    assert hub.told == ["s"] * 5
    assert account.owed == set()


async def test_what_was_missed_is_told_while_its_session_is_written_all_the_time(
    account: Account, tmp_path: Path
) -> None:
    store, number = MemoryStore(), itertools.count(10)
    account.told.learn([META_OF_S])
    bridge = await _compared(account, tmp_path)
    bridge.store = store  # type: ignore[assignment] # only read from
    await store.commit(store, Change("s", working(9), "e0", (_entry(0),)))

    async def written() -> None:
        """Something is heard, and something else is on its way."""
        for heard in (True, False):
            at = next(number)
            await store.commit(store, Change("s", working(at), f"e{at}", (_entry(at),)))
            if heard:
                bridge._hear(Emission(entry_event("s", _entry(at)), None))

    await written()
    await bridge._catch_up()
    await written()
    session = store.session

    async def reading(session_id: str) -> Session:
        await written()
        return await session(session_id)

    store.session = reading  # type: ignore[method-assign]
    published = _noted(account)
    await bridge._catch_up()
    assert {MetaUpdated, StatusChanged} < {type(event) for event in published}
    entries = [event.entry_id for event in published if isinstance(event, MessageAdded)]
    assert entries[-2:] == ["e0", "e11"], "which were missing both times"


def _noted(account: Account) -> list[Event]:
    """What goes out from now on."""
    published: list[Event] = []
    note = account.told.note

    def noting(emissions: Sequence[Emission]) -> None:
        published.extend(emission.event for emission in emissions)
        note(emissions)

    account.told.note = noting  # type: ignore[method-assign]
    return published


async def test_the_last_comparison_tells_only_what_differed_before(account: Account, tmp_path: Path) -> None:
    """What differs for the first time by then is on its way: it is heard by now."""
    account.told.learn([META_OF_S])
    bridge = await _compared(account, tmp_path, Change("s", META_OF_S, "e0", (_entry(0),)))
    account.owed.add("s")
    await bridge._catch_up()
    store: Any = bridge.store
    await store.commit(store, Change("s", working(10), "e1", (_entry(1),)))
    published = _noted(account)
    await bridge._catch_up(last=True)
    assert [event.entry_id for event in published if isinstance(event, MessageAdded)] == ["e0"]
    assert len(published) == 1
    assert account.owed == set()


async def test_what_differed_is_not_forgotten_when_the_main_instance_goes_away_in_the_middle(
    account: Account, tmp_path: Path
) -> None:
    account.told.learn([])
    bridge = await _compared(account, tmp_path, Change("s", META_OF_S))
    await bridge._catch_up()
    store: Any = bridge.store

    async def away(*_: str) -> Any:
        raise StorageError("the main instance does not answer")

    store.session, session = away, store.session
    store.metas, metas = away, store.metas
    store.check = away
    with pytest.raises(StorageError):
        await bridge._catch_up(last=True)
    assert account.owed == {"s"}
    store.session, store.metas = session, metas
    published = _noted(account)
    await bridge._catch_up(last=True)
    assert [type(event) for event in published] == [Created]


async def test_a_status_of_which_later_ones_are_heard_while_it_is_read_is_not_told(
    account: Account, tmp_path: Path
) -> None:
    """However often: the last one told has to be the last one that happened."""
    account.told.learn([META_OF_S])
    bridge = await _compared(account, tmp_path, Change("s", working(9), "e0", (_entry(0),)))
    await bridge._catch_up()
    store: Any = bridge.store
    session, number = store.session, itertools.count(10)

    async def reading(session_id: str) -> Session:
        read: Session = await session(session_id)
        bridge._hear(Emission(StatusChanged.of(working(next(number), "done"), "working"), None))
        return read

    store.session = reading
    published = _noted(account)
    await bridge._catch_up()
    assert {event.status for event in published if isinstance(event, StatusChanged)} == {"done"}
    assert [event.entry_id for event in published if isinstance(event, MessageAdded)] == ["e0"]


async def test_a_session_that_is_deleted_while_it_is_read_is_not_told_of(hearing: Hearing) -> None:
    hearing.gap = True
    await hearing.do(ENSURE, APPEND)
    hearing.gap = False
    store, entries = hearing.stage.store, hearing.stage.store.entries

    async def late(session_id: str) -> list[Entry]:
        read = await entries(session_id)
        await hearing.do(DELETE)
        return read

    store.entries = late  # type: ignore[method-assign]
    assert await hearing.told.difference(store, "s") == ()


async def test_what_others_may_have_missed_too_is_told_to_everybody(account: Account, tmp_path: Path) -> None:
    """What only this side was told would not be looked for any more, were this bridge killed."""
    account.told.learn([META_OF_S])
    bridge = await _compared(account, tmp_path, Change("s", working(9)))

    async def refuse(function_id: str, payload: bytes) -> bytes:
        raise MainError("it does not take events at present")

    bridge._way.call = refuse  # type: ignore[method-assign]
    bridge.publish([Emission(StatusChanged.of(working(9), "idle"), None)])
    await bridge._catch_up()
    published = _noted(account)
    await bridge._catch_up()
    assert published == []
    assert account.told.differs(working(9)), "so whoever looks finds it missing"
    assert await bridge.announcer.drain(0) == 2


async def test_what_has_come_and_waits_for_the_file_is_not_told_by_a_comparison_too(
    account: Account, tmp_path: Path
) -> None:
    go, hub = threading.Event(), account._hub
    assert isinstance(hub, Hub)
    account._ledger.write = lambda lines: (go.wait(60), None)[1]  # type: ignore[method-assign]
    bridge = await _compared(account, tmp_path, Change("s", META_OF_S, "e0", (_entry(0),)))
    for event in (Created.of(META_OF_S), entry_event("s", _entry(0))):
        bridge._hear(Emission(event, None))
    read, entries = asyncio.Event(), bridge.store.entries

    async def reading(session_id: str) -> list[Entry]:
        read.set()
        return await entries(session_id)

    bridge.store.entries = reading  # type: ignore[method-assign]
    comparing = asyncio.create_task(bridge._catch_up())
    await read.wait()
    go.set()
    await comparing
    await account.told_all()
    assert hub.told == ["s"] * 2
    assert bridge._differed == {}


async def test_a_disk_that_does_not_answer_does_not_stop_events(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("session_manager.edge.account.PATIENCE", 0.01)
    go, hub = threading.Event(), account._hub
    assert isinstance(hub, Hub)
    account._ledger.write = lambda lines: go.wait(60)  # type: ignore[method-assign,assignment]
    for number in range(20):
        account.publish(deleted(f"{number}"))
        await asyncio.wait_for(account.told_all(), 30)
    assert hub.told == [f"{number}" for number in range(20)]
    go.set()


async def test_intents_that_were_not_done_outlive_the_process(tmp_path: Path) -> None:
    path = tmp_path / "intents"
    first = Intents(path)
    assert await first.open() == frozenset()
    for session_id in ("a", "b\n", "c"):
        await first.begin(session_id)
    first.done("a")
    await first.close()
    path.write_bytes(path.read_bytes() + b'[true,"to')
    second = Intents(path)
    assert await second.open() == {"b\n", "c"}
    second.done("c")
    await second.close()
    assert await Intents(path).open() == {"b\n"}


@pytest.mark.parametrize("compacted", [False, True])
async def test_intents_outlive_a_start_and_a_compaction_that_are_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compacted: bool
) -> None:
    path = tmp_path / "intents"
    first = Intents(path)
    await first.open()
    await first.begin("a")

    def cut_off(*_: Any) -> None:
        raise OSError("the process is killed here")

    with monkeypatch.context() as patched:
        patched.setattr("session_manager.intents.os.write", cut_off)
        if compacted:
            first._size = COMPACT + 1
            await first.begin("b")
        else:
            assert await Intents(path).open() == {"a"}
    assert await Intents(path).open() == {"a"}


async def test_a_disk_that_hangs_while_intents_are_read_does_not_stop_the_event_loop(tmp_path: Path) -> None:
    intents, go = Intents(tmp_path / "intents"), threading.Event()
    start = intents._start
    intents._start = lambda: (go.wait(60), start())[1]  # type: ignore[method-assign]
    opening = asyncio.create_task(intents.open())
    await asyncio.sleep(0.01)
    assert not opening.done()
    go.set()
    assert await opening == frozenset()
    await intents.close()


async def test_a_session_that_is_changed_again_soon_stays_noted(tmp_path: Path) -> None:
    path = tmp_path / "intents"
    intents = Intents(path)
    await intents.open()
    for _ in range(3):
        await intents.begin("a")
        intents.done("a")
    assert path.read_bytes().count(b"\n") == 1
    await intents.begin("a")
    await intents.close()
    await intents.close()
    assert await Intents(path).open() == {"a"}


async def test_the_file_of_intents_stays_small(tmp_path: Path) -> None:
    intents = Intents(tmp_path / "intents")
    await intents.open()
    await intents.begin("kept")
    for number in range(60_000):
        await intents.begin(f"{number}")
        intents.done(f"{number}")
        if number % 100 == 0:
            intents._close_over()
    await intents.close()
    assert (tmp_path / "intents").stat().st_size < 2 << 20
    assert await Intents(tmp_path / "intents").open() == {"kept"}


class Damaged(MemoryStore):
    """A main instance that is there and cannot read one of its sessions."""

    async def entries(self, session_id: str) -> list[Entry]:
        if session_id == "damaged":
            raise StorageError("an entry is damaged")
        return await super().entries(session_id)


async def test_a_session_that_cannot_be_read_keeps_no_other_from_being_told(account: Account, tmp_path: Path) -> None:
    hub = account._hub
    assert isinstance(hub, Hub)
    bridge = bridge_to_nowhere(account, tmp_path)
    store = bridge.store = Damaged()  # type: ignore[assignment] # only read from
    account.told.learn([])
    for session_id in ("damaged", "whole"):
        meta = SessionMeta(session_id, "t", "", "idle", 2**50, 2**50, 0)
        await store.commit(store, Change(session_id, meta))
        bridge.doubt(session_id, frozenset())
        bridge._doubts[session_id] = (0.0, None)
    published: list[str] = []
    bridge.announcer.publish = lambda emissions: published.append(emissions[0].event.session_id)  # type: ignore[method-assign]
    await bridge._settle_doubts(bridge._loop.time())
    for _ in range(2):
        await bridge._catch_up()
    assert published == ["whole"]
    assert list(bridge._doubts) == ["damaged"], "which is looked at again"
    await account.told_all()
    assert hub.told == ["whole"]
    assert account.owed == {"damaged"}


async def test_what_the_last_bridge_left_untold_stays_listed_until_it_was_compared(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main instance may be away for longer than this bridge lives."""
    account.owed.add("s")
    bridge = await _compared(account, tmp_path, Change("s", META_OF_S))

    def left() -> bytes:
        with closing(sqlite3.connect(f"file:{tmp_path / 'told.db'}?immutable=1", uri=True)) as db:
            return b"".join(line for (line,) in db.execute("SELECT line FROM listed"))

    async def saved() -> None:
        await account._save()
        await account._files.run(lambda: account._ledger._db.execute("PRAGMA wal_checkpoint(TRUNCATE)"))  # type: ignore[union-attr] # it is open

    for session_id in ("a", "b"):
        account.publish(deleted(session_id))
        await account.told_all()
        await saved()
        assert b'"s"' in left()
    await bridge._catch_up()
    await saved()
    assert b'"s"' in left()
    await bridge._catch_up()
    await account.told_all()
    await saved()
    assert b'"s"' not in left()


async def test_an_account_that_owes_something_is_not_closed_as_clean(account: Account, tmp_path: Path) -> None:
    account.owed.add("s")
    account._files.stop = lambda: None  # type: ignore[method-assign] # it is closed once more at the end
    await account._save()
    await account.close(clean=True)
    _, past = reopened(tmp_path / "told.db")
    assert (past.clean, past.doubtful) == (False, {"s"})


async def test_the_file_is_written_while_a_change_becomes_durable(account: Account) -> None:
    hub, go, written = account._hub, threading.Event(), list[bytes]()
    assert isinstance(hub, Hub)

    def write(lines: bytes) -> None:
        go.wait(60)
        written.append(lines)

    account._ledger.write = write  # type: ignore[method-assign]
    account.expect(deleted("a"))
    account.publish(deleted("a"))
    await asyncio.sleep(0.02)
    assert hub.told == [], "not before it is in the file"
    go.set()
    await account.told_all()
    assert hub.told == ["a"]
    account.expect(deleted("b"))
    await until(lambda: not account._is_listing())
    account.publish(deleted("b"))
    assert hub.told == ["a", "b"], "at once"
    assert len(written) == 2


async def test_a_file_that_does_not_answer_is_waited_for_once(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("session_manager.edge.account.PATIENCE", 0.02)
    hub, go = account._hub, threading.Event()
    assert isinstance(hub, Hub)
    account._ledger.write = lambda lines: (go.wait(60), None)[1]  # type: ignore[method-assign]
    account.expect(deleted("a"))
    account.publish(deleted("a"))
    await account.told_all()
    account.publish(deleted("a"))
    assert hub.told == ["a", "a"], "the second one at once"
    go.set()
