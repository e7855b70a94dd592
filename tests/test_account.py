"""After a kill, subscribers are told what the worker before may not have told any more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from session_manager.bindings import BindingTable, binding
from session_manager.catchup import Told
from session_manager.delivery import Parcel
from session_manager.edge.account import Account
from session_manager.errors import StorageError
from session_manager.events import STORE_EVENTS, Created, Deleted, Emission
from session_manager.hub import Hub as RealHub
from session_manager.ledger import Ledger
from session_manager.model import Entry, JsonObject, SessionMeta
from session_manager.store import Change
from session_manager.stores.memory import MemoryStore
from tests.bridge.test_catchup import Hub
from tests.contract.scenario import until


async def backlog() -> int:
    return 0


def record(session_id: str) -> SessionMeta:
    return SessionMeta(session_id, "", "", "idle", created_at=1, updated_at=1, message_count=0)


async def killed(file: Path) -> MemoryStore:
    """The store of a worker that was killed while it told of three sessions, and left an account in the file."""
    store = MemoryStore()
    for session_id in ("s1", "s2", "s3"):
        await store.commit(store.ahead(), Change(session_id, meta=record(session_id)))
    account = Account(Hub(), file, backlog)  # type: ignore[arg-type] # all of it that is needed here
    await account.open()
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
    account = Account(hub, tmp_path / "told.db", backlog)  # type: ignore[arg-type] # the same
    await account.open()
    keeping = asyncio.create_task(account.keep(lambda: store))
    account.ready()
    await until(lambda: {"s1", "s3"} <= set(hub.told))
    keeping.cancel()
    await account.close(clean=True)


async def test_a_file_that_takes_nothing_more_keeps_nobody_from_being_told_what_it_holds(tmp_path: Path) -> None:
    store = await killed(tmp_path / "told.db")
    hub = Hub()
    account = Account(hub, tmp_path / "told.db", backlog)  # type: ignore[arg-type] # the same
    await account.open()
    assert account._ledger._db is not None
    account._ledger._db.execute("PRAGMA query_only = ON")  # as a full disk answers
    keeping = asyncio.create_task(account.keep(lambda: store))
    account.ready()
    await until(lambda: {"s1", "s2", "s3"} <= set(hub.told))
    keeping.cancel()
    await account.close(clean=True)


async def kept(path: Path) -> tuple[Account, BindingTable, list[Parcel], asyncio.Task[None]]:
    """An account that is ready, who listens, what they get, and the task that keeps it."""
    parcels: list[Parcel] = []
    bindings = BindingTable()
    account = Account(RealHub(bindings, parcels.extend), path, backlog)
    await account.open()
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
    past = Ledger(tmp_path / "told.db").open(Told())
    assert past is not None
    assert past.doubtful == {"wanted", "mine", "relayed"}


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
