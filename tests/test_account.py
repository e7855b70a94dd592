"""After a kill, subscribers are told what the worker before may not have told any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from session_manager.bindings import Binding, BindingTable, binding
from session_manager.catchup import Told
from session_manager.delivery import Delivery, Parcel
from session_manager.edge.account import Account
from session_manager.errors import StorageError
from session_manager.events import (
    EVENTS,
    PORTION,
    STORE_EVENTS,
    Created,
    Deleted,
    Emission,
    Event,
    MetaUpdated,
    StatusChanged,
    entry_event,
)
from session_manager.hub import Hub as RealHub
from session_manager.ledger import Ledger
from session_manager.model import Entry, JsonObject, SessionMeta
from session_manager.store import Change, Drop
from session_manager.stores.memory import MemoryStore
from tests.bridge.test_catchup import Hub
from tests.contract.scenario import until


async def backlog() -> int:
    return 0


async def under_way() -> set[str]:
    return set()


def record(session_id: str) -> SessionMeta:
    return SessionMeta(session_id, "", "", "idle", created_at=1, updated_at=1, message_count=0)


async def killed(file: Path) -> MemoryStore:
    """The store of a worker that was killed while it told of three sessions, and left an account in the file."""
    store = MemoryStore()
    for session_id in ("s1", "s2", "s3"):
        await store.commit(store.ahead(), Change(session_id, meta=record(session_id)))
    account = Account(Hub(), file, backlog, under_way)  # type: ignore[arg-type] # all of it that is needed here
    await account.open()
    await account.begin(None)
    keeping = asyncio.create_task(account.keep(lambda: None))
    await asyncio.sleep(0)
    account.ready()
    for session_id in ("s1", "s2", "s3"):
        account.publish([Emission(Created.of(record(session_id)), None)])
    await account.told_all()
    keeping.cancel()
    account._ledger._forget()  # as a kill leaves it
    account._files.stop()
    return store


async def test_a_session_that_cannot_be_read_keeps_no_other_from_being_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await killed(tmp_path / "told.db")
    entries = store.entries

    async def spoilt(session_id: str) -> list[Entry]:
        if session_id == "s2":
            raise StorageError("the row is damaged")
        return await entries(session_id)

    monkeypatch.setattr(store, "entries", spoilt)
    hub = Hub()
    account = Account(hub, tmp_path / "told.db", backlog, under_way)  # type: ignore[arg-type] # the same
    await account.open()
    await account.begin(None)
    keeping = asyncio.create_task(account.keep(lambda: store))
    account.ready()
    await until(lambda: {"s1", "s3"} <= set(hub.told))
    keeping.cancel()
    await account.close(clean=True)


async def test_a_file_that_takes_nothing_more_keeps_nobody_from_being_told_what_it_holds(tmp_path: Path) -> None:
    store = await killed(tmp_path / "told.db")
    hub = Hub()
    account = Account(hub, tmp_path / "told.db", backlog, under_way)  # type: ignore[arg-type] # the same
    await account.open()
    assert account._ledger._db is not None
    account._ledger._db.execute("PRAGMA query_only = ON")  # as a full disk answers
    await account.begin(None)
    keeping = asyncio.create_task(account.keep(lambda: store))
    account.ready()
    await until(lambda: {"s1", "s2", "s3"} <= set(hub.told))
    keeping.cancel()
    await account.close(clean=True)


async def kept(path: Path) -> tuple[Account, BindingTable, list[Parcel], asyncio.Task[None]]:
    """An account that is ready, who listens, what they get, and the task that keeps it."""
    parcels: list[Parcel] = []
    bindings = BindingTable()
    account = Account(RealHub(bindings, parcels.extend), path, backlog, under_way)
    await account.open()
    await account.begin(None)
    keeping = asyncio.create_task(account.keep(lambda: None))
    await asyncio.sleep(0)
    account.ready()
    return account, bindings, parcels, keeping


async def test_only_what_somebody_listens_to_is_listed_before_it_is_told(tmp_path: Path) -> None:
    """The list costs a write to a file, which a session that nobody listens to need not wait for."""
    account, bindings, parcels, keeping = await kept(tmp_path / "told.db")

    async def tell(session_id: str, labels: JsonObject | None = None) -> None:
        gone = [Emission(Deleted(session_id=session_id, timestamp=1), labels)]
        account.expect(gone)
        account.publish(gone)
        await account.told_all()

    await tell("nobody binds anything")
    bindings.add(binding("one", "session::deleted", "f", {"session_id": "wanted"}))
    bindings.add(binding("labelled", "session::deleted", "f", {"metadata": {"owner": "me"}}))
    bindings.add(binding("else", "session::created", "f", {}))
    await tell("another")
    await tell("another's", {"owner": "you"})
    await tell("wanted")
    await tell("mine", {"owner": "me"})
    assert [parcel.session_id for parcel in parcels] == ["wanted", "mine"]
    bindings.add(binding("bridge", STORE_EVENTS, "f", {}))
    await tell("relayed")
    keeping.cancel()
    account._ledger._forget()  # as a kill leaves it
    account._files.stop()
    ledger = Ledger(tmp_path / "told.db")
    past = ledger.open(Told())
    ledger.abandon()
    assert past is not None
    assert past.doubtful == {"wanted", "mine", "relayed"}


async def test_until_the_bindings_are_there_anybody_may_be_to_be_told(tmp_path: Path) -> None:
    gone = [Emission(Deleted(session_id="s", timestamp=1), None)]
    starting = Account(Hub(), tmp_path / "starting.db", backlog, under_way)  # type: ignore[arg-type] # all that is needed
    assert starting.concern(gone)
    account, bindings, _, keeping = await kept(tmp_path / "told.db")
    assert not account.concern(gone)
    bindings.add(binding("else", "session::created", "f", {}))
    assert not account.concern(gone)
    bindings.add(binding("one", "session::deleted", "f", {"session_id": "s"}))
    assert account.concern(gone)
    keeping.cancel()
    await account.close(clean=True)


async def test_who_binds_while_a_change_is_on_its_way_is_told_after_it_was_listed(tmp_path: Path) -> None:
    account, bindings, parcels, keeping = await kept(tmp_path / "told.db")
    gone = [Emission(Deleted(session_id="s", timestamp=1), None)]
    account.expect(gone)
    bindings.add(binding("late", "session::deleted", "f", {}))
    account.publish(gone)
    assert not parcels
    await account.told_all()
    assert [parcel.session_id for parcel in parcels] == ["s"]
    assert b'"s"' in (tmp_path / "told.since").read_bytes()
    keeping.cancel()
    await account.close(clean=True)


# --- very much at once ---


@asynccontextmanager
async def delivering(
    path: Path, receive: Callable[[dict[str, Any]], None]
) -> AsyncIterator[tuple[Account, Delivery, BindingTable]]:
    """An account whose events are delivered, to whoever binds."""

    async def send(to: Binding, payload: bytes) -> None:
        await asyncio.sleep(0)
        receive(msgspec.json.decode(payload))

    async def waiting() -> int:
        await account.told_all()
        return delivery.backlog()

    delivery, bindings = Delivery(send), BindingTable()
    account = Account(RealHub(bindings, delivery.take), path, waiting, under_way)
    await account.open()
    await account.begin(None)
    account.ready()
    yield account, delivery, bindings
    delivery.close()
    await account.close(clean=False)


def session_of(count: int, size: int) -> list[Emission]:
    """A session and its entries, each of so many bytes."""
    text = "x" * size
    body = b'{"role":"user","content":[{"type":"text","text":"%b"}],"timestamp":1}' % text.encode()
    entries = (Entry(f"{number}", None, number, "user", body) for number in range(count))
    return [Emission(event, None) for event in (Created.of(record("s")), *(entry_event("s", one) for one in entries))]


@pytest.mark.parametrize(("count", "size"), [(12_000, 1), (80, 1 << 20)])
async def test_one_session_that_is_more_than_a_queue_holds_is_told_whole(tmp_path: Path, count: int, size: int) -> None:
    heard: list[str] = []
    async with delivering(tmp_path / "told.db", lambda event: heard.append(event["entry_id"])) as (
        account,
        delivery,
        bindings,
    ):
        bindings.add(binding("b", "session::message-added", "f", {}))
        await account.tell(session_of(count, size))
        assert await delivery.drain(60) == 0
        assert heard == [f"{number}" for number in range(count)]


async def test_nothing_more_is_told_of_a_session_that_is_deleted_while_it_is_told(tmp_path: Path) -> None:
    heard: list[str] = []
    async with delivering(tmp_path / "told.db", lambda event: heard.append(event["session_id"])) as (
        account,
        delivery,
        bindings,
    ):
        for kind in ("session::message-added", "session::deleted"):
            bindings.add(binding(kind, kind, "f", {}))
        backlog = account._backlog

        async def meanwhile() -> int:
            account._backlog = backlog
            account.publish([Emission(Deleted(session_id="s", timestamp=1), None)])
            return await backlog()

        account._backlog = meanwhile
        await account.tell(session_of(3 * PORTION, 1))
        await account.told_all()
        assert await delivery.drain(60) == 0
        assert len(heard) == PORTION


# --- one worker after another ---

Binds = tuple[tuple[str, Any], ...]
EVERYTHING: Binds = tuple((kind, {}) for kind in EVENTS)


class Life:
    """A worker from its start to its end, as far as it keeps account. `heard` is what subscribers were handed."""

    def __init__(self, store: MemoryStore, file: Path, binds: Binds = EVERYTHING) -> None:
        self.store, self.heard, self.under_way = store, list[tuple[str, str]](), set[str]()
        self._binds, self._bindings = binds, BindingTable()

        async def unanswered() -> set[str]:
            return self.under_way

        self.account = Account(RealHub(self._bindings, self._take), file, backlog, unanswered)
        self._keeping: asyncio.Task[None] | None = None
        self._ended = False

    def _take(self, parcels: Any) -> None:
        self.heard += [(one.binding.trigger_type.removeprefix("session::"), one.session_id) for one in parcels]

    async def start(self) -> None:
        """Until calls are answered."""
        await self.account.open()
        await self.account.begin(self.store)

    async def bound(self) -> None:
        """The bindings are there, and what the worker before did not tell is told."""
        for number, (kind, config) in enumerate(self._binds):
            self._bindings.add(binding(str(number), kind, "f", config))
        self.account.ready()
        self._keeping = asyncio.create_task(self.account.keep(lambda: self.store))
        await until(lambda: self.account._kept)
        await self.account.told_all()

    async def make(self, change: Change, *events: Event, labels: JsonObject | None = None, told: bool = True) -> None:
        """Not `told`: the kill comes first."""
        emissions = [Emission(event, labels) for event in events]
        self.account.expect(emissions)
        await self.store.commit(self.store.ahead(), change)
        if told:
            self.account.publish(emissions)
            await self.account.told_all()

    async def saved(self) -> None:
        """What a second does, which no test lasts."""
        count = self.account._ledger._save
        await self.account.save_answered()
        assert self.account._ledger._save == count + 1, "there was nothing to be saved"

    async def end(self) -> None:
        """In order, and before the kill."""
        assert self._keeping is not None
        self._keeping.cancel()
        await self.account.close(clean=True)
        self._ended = True

    async def kill(self) -> None:
        if self._ended:
            return
        if self._keeping is not None:
            self._keeping.cancel()
        await self.account._files.run(self.account._ledger._forget)
        self.account._files.stop()


Lives = Callable[..., Any]


@pytest.fixture
def lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lives:
    """`async with lives() as life`: a worker after those before, on the same store; it is killed at the end."""
    monkeypatch.setattr("session_manager.edge.account.SAVE", 3600.0)
    store = MemoryStore()

    @asynccontextmanager
    async def live(*binds: tuple[str, Any], bound: bool = True) -> AsyncIterator[Life]:
        life = Life(store, tmp_path / "told.db", binds or EVERYTHING)
        await life.start()
        if bound:
            await life.bound()
        yield life
        await life.kill()

    return live


def changed(at: int, status: str = "idle", labels: JsonObject | None = None, created_at: int = 1) -> SessionMeta:
    return SessionMeta("s", "", "", status, created_at, at, 0, metadata=labels)  # type: ignore[arg-type] # any status


def put(meta: SessionMeta) -> Change:
    return Change(meta.session_id, meta=meta)


GONE = Change("s", drops=frozenset(Drop))


async def test_a_session_whose_making_may_not_have_been_told_is_told_as_created(lives: Lives) -> None:
    async with lives() as life:
        await life.make(put(changed(5)), Created.of(changed(5)), told=False)
    async with lives() as life:
        assert ("created", "s") in life.heard


async def test_what_was_not_even_listed_before_a_kill_is_told_although_its_session_goes_on_at_once(
    lives: Lives,
) -> None:
    entries = [Entry(f"e{n}", None, n, "user", b'{"role":"user","content":[],"timestamp":1}') for n in (6, 7)]
    async with lives() as life:
        await life.make(put(changed(5)), Created.of(changed(5)))
        await life.saved()
        await life.store.commit(life.store.ahead(), Change("s", changed(6), "e6", (entries[0],)))
    async with lives(bound=False) as life:
        await life.make(Change("s", changed(7), "e7", (entries[1],)), entry_event("s", entries[1]))
        await life.bound()
        assert life.heard == [("message-added", "s")] * 2


async def test_a_status_and_labels_that_were_set_back_untold_are_told_as_they_are(lives: Lives) -> None:
    """The file and the store agree, but subscribers were told of something else in between."""
    async with lives() as life:
        await life.make(put(changed(5)), Created.of(changed(5)))
        await life.saved()
        await life.make(put(changed(6, "working")), StatusChanged.of(changed(6, "working"), "idle"))
        await life.make(put(changed(7)), StatusChanged.of(changed(7), "working"), told=False)
    async with lives() as life:
        assert {("status-changed", "s"), ("meta-updated", "s")} <= set(life.heard)


async def test_who_hears_of_a_new_session_alone_is_told_its_status_by_that_as_well(lives: Lives) -> None:
    async with lives() as life:
        await life.make(put(changed(5)), Created.of(changed(5)))
        await life.make(put(changed(6, "working")), StatusChanged.of(changed(6, "working"), "idle"))
        await life.make(put(changed(7)), StatusChanged.of(changed(7), "working"), told=False)
    async with lives() as life:
        assert [kind for kind, _ in life.heard] == ["created", "meta-updated", "status-changed"]


BLUE, RED = {"team": "blue"}, {"team": "red"}


async def test_a_deletion_is_told_to_those_who_want_the_labels_that_the_session_had_last(lives: Lives) -> None:
    binds: Binds = ("session::deleted", {"metadata": RED}), ("session::created", {}), ("session::meta-updated", {})
    async with lives(*binds) as life:
        blue, red = changed(5, labels=BLUE), changed(6, labels=RED)
        await life.make(put(blue), Created.of(blue), labels=BLUE)
        await life.saved()
        await life.make(put(red), MetaUpdated.of(red), labels=RED)
        await life.make(GONE, Deleted(session_id="s", timestamp=7), labels=RED, told=False)
    async with lives(*binds) as life:
        assert life.heard == [("deleted", "s")]


async def test_labels_of_which_nobody_wanted_to_hear_count_for_a_deletion_too(lives: Lives) -> None:
    binds: Binds = ("session::deleted", {"metadata": RED}), ("session::created", {})
    async with lives(*binds) as life:
        blue, red = changed(5, labels=BLUE), changed(6, labels=RED)
        await life.make(put(blue), Created.of(blue), labels=BLUE)
        await life.make(put(red), MetaUpdated.of(red), labels=RED)
        await life.make(GONE, Deleted(session_id="s", timestamp=7), labels=RED, told=False)
    async with lives(*binds) as life:
        assert life.heard == [("deleted", "s")]


BLUE_ENDS: Binds = ("session::deleted", {"metadata": BLUE}), ("session::created", {})
FIRST, AGAIN = changed(5, labels=BLUE, created_at=5), changed(8, labels=RED, created_at=8)
"""A session, and the one that is made under its id when it is gone."""


@pytest.mark.parametrize("saved", [True, False])
async def test_of_a_session_that_was_made_again_the_deletion_is_told_with_the_labels_of_the_first(
    lives: Lives, saved: bool
) -> None:
    async with lives(*BLUE_ENDS) as life:
        await life.make(put(FIRST), Created.of(FIRST), labels=BLUE)
        if saved:
            await life.saved()
        await life.make(GONE, Deleted(session_id="s", timestamp=7), labels=BLUE, told=False)
        await life.store.commit(life.store.ahead(), put(AGAIN))
    async with lives(*BLUE_ENDS) as life:
        assert life.heard == [("deleted", "s"), ("created", "s")]


async def test_of_a_session_that_was_made_again_while_something_was_under_way_the_deletion_is_told(
    lives: Lives,
) -> None:
    first, second = changed(5, created_at=5), changed(8, created_at=8)
    async with lives() as life:
        life.under_way.add("s")
        await life.make(put(first), Created.of(first))
        await life.make(GONE, Deleted(session_id="s", timestamp=7))
        await life.saved()
        await life.make(put(second), Created.of(second), told=False)
    async with lives() as life:
        assert life.heard[:2] == [("deleted", "s"), ("created", "s")]


@pytest.mark.parametrize("saved", [True, False])
async def test_a_session_that_is_made_again_before_its_end_could_be_told_is_told_as_another(
    lives: Lives, saved: bool
) -> None:
    """By a call that comes before what was missed is told."""
    async with lives(*BLUE_ENDS) as life:
        await life.make(put(FIRST), Created.of(FIRST), labels=BLUE)
        if saved:
            await life.saved()
        await life.store.commit(life.store.ahead(), GONE)
    async with lives(*BLUE_ENDS, bound=False) as life:
        await life.make(put(AGAIN), Created.of(AGAIN), labels=RED)
        await life.bound()
        assert life.heard == [("deleted", "s"), ("created", "s")]


async def stored_before_any_account(session_id: str, lives: Lives, directory: Path) -> None:
    async with lives(bound=False) as life:
        await life.store.commit(life.store.ahead(), put(record(session_id)))
    for file in directory.iterdir():
        file.unlink()


async def test_what_happens_before_the_bindings_are_there_is_told_after_a_kill(lives: Lives, tmp_path: Path) -> None:
    await stored_before_any_account("older than the account", lives, tmp_path)
    async with lives() as life:
        await life.make(put(record("old")), Created.of(record("old")))
        await life.end()
    async with lives(bound=False) as life:
        new = record("new")
        await life.make(put(new), Created.of(new))
        for session_id in ("old", "older than the account"):
            await life.make(Change(session_id, drops=frozenset(Drop)), Deleted(session_id=session_id, timestamp=2))
    async with lives() as life:
        assert {("created", "new"), ("deleted", "old"), ("deleted", "older than the account")} <= set(life.heard)


async def test_what_a_store_held_before_any_account_was_kept_is_not_told(lives: Lives, tmp_path: Path) -> None:
    await stored_before_any_account("old", lives, tmp_path)
    async with lives() as life:
        await life.make(put(changed(5, created_at=5)), Created.of(changed(5, created_at=5)))
    async with lives() as life:
        assert {session_id for _, session_id in life.heard} == {"s"}


async def test_what_was_sent_and_is_not_answered_is_told_again_and_only_that(lives: Lives) -> None:
    async with lives() as life:
        life.under_way.add("s")
        await life.make(put(changed(5)), Created.of(changed(5)))
        other = record("answered")
        await life.make(put(other), Created.of(other))
        await life.saved()
        await life.make(put(record("last")), Created.of(record("last")))
        await life.saved()
    async with lives() as life:
        assert ("created", "s") in life.heard
        assert ("created", "answered") not in life.heard


async def test_of_a_session_with_something_under_way_anything_may_have_been_told(lives: Lives) -> None:
    async with lives() as life:
        await life.make(put(changed(5)), Created.of(changed(5)))
        await life.saved()
        life.under_way.add("s")
        await life.make(put(changed(6, "working")), StatusChanged.of(changed(6, "working"), "idle"))
        await life.make(put(record("other")), Created.of(record("other")))
        await life.saved()
        await life.make(put(record("last")), Created.of(record("last")))
        await life.saved()
        await life.make(put(changed(7)), StatusChanged.of(changed(7), "working"), told=False)
    async with lives() as life:
        assert ("status-changed", "s") in life.heard


async def test_what_is_told_while_the_deliveries_are_asked_does_not_count_as_delivered(lives: Lives) -> None:
    async with lives() as life:
        asked = asyncio.Event()

        async def answer() -> set[str]:
            if not asked.is_set():
                life.account.publish([Emission(Created.of(changed(5)), None)])
                asked.set()
            return set()

        await life.store.commit(life.store.ahead(), put(changed(5)))
        life.account.publish([Emission(Created.of(changed(5)), None)])
        await life.account.told_all()
        life.account._under_way = answer
        await life.account.save_answered()
        assert asked.is_set()
        assert "s" in life.account.told.changes


async def test_sessions_that_were_told_long_ago_are_not_told_again(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("session_manager.edge.account.FAR_BACK", 1)
    async with lives() as life:
        for number in range(600):
            meta = SessionMeta(f"s{number}", "", "", "idle", number, number, 1)
            entry = Entry("e", None, number, "user", b'{"role":"user","content":[],"timestamp":1}')
            change = Change(meta.session_id, meta=meta, entries=(entry,))
            await life.make(change, Created.of(meta), entry_event(meta.session_id, entry))
        await life.saved()
        await life.store.commit(life.store.ahead(), Change("s3", drops=frozenset(Drop)))
    async with lives() as life:
        assert life.heard == [("deleted", "s3")]


async def test_events_that_cannot_be_told_do_not_keep_those_behind_them(lives: Lives) -> None:
    async with lives() as life:
        post = life.account._hub.post

        def broken(_: object) -> None:
            life.account._hub.post = post
            raise RuntimeError("nobody should do this")

        life.account._hub.post = broken
        for session_id in ("lost", "next"):
            life.account.publish([Emission(Created.of(record(session_id)), None)])
        await asyncio.wait_for(life.account.told_all(), 30)
        assert life.heard == [("created", "next")]


async def test_a_disk_that_hangs_while_the_account_is_begun_does_not_stop_the_event_loop(lives: Lives) -> None:
    go = threading.Event()
    async with lives(bound=False) as life:
        begin = life.account._ledger.begin
        life.account._ledger.begin = lambda told: (go.wait(60), begin(told))[1]
        beginning = asyncio.create_task(life.account.begin(None))
        await asyncio.sleep(0.01)
        assert not beginning.done()
        go.set()
        await beginning
