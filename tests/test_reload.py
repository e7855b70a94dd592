"""Another configuration takes the place of the one in force, while calls run and subscribers listen."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from session_manager.config import Configuration, InvalidConfiguration
from session_manager.dispatch import Runtime
from session_manager.errors import StorageError
from session_manager.events import Emission
from session_manager.stores.sqlite import SqliteStore
from tests.stage import InProcess

USER = {"role": "user", "content": [], "timestamp": 1}


def sqlite(name: str) -> dict[str, Any]:
    return {"name": "sqlite", "config": {"path": name}}


@pytest.mark.parametrize(("sessions", "batches"), [(5, 3), (1, 12)], ids=["of many sessions", "of one session"])
async def test_a_replay_of_more_events_than_a_queue_holds_loses_none(
    tmp_path: Path, sessions: int, batches: int
) -> None:
    async with InProcess(sqlite("a.db"), tmp_path) as stage:
        for session in range(sessions):
            await stage.call("session::ensure", {"session_id": f"s{session}"})
            for _ in range(batches):
                await stage.call("session::append-many", {"session_id": f"s{session}", "messages": [USER] * 1000})
        await stage.set_config({"adapter": sqlite("empty.db")})
        heard: list[Any] = []
        await stage.bind("session::message-added", {}, heard.append)
        await stage.set_config({"adapter": sqlite("a.db")})
        await stage.settle()
        assert len({event["entry_id"] for event in heard}) == sessions * batches * 1000


async def test_a_store_learns_when_all_that_it_held_has_been_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with InProcess(sqlite("a.db"), tmp_path) as stage:
        await stage.call("session::ensure", {"session_id": "s"})
        await stage.set_config({"adapter": sqlite("empty.db")})
        told: list[str] = []
        build, tell = stage.build, stage.configurator._tell

        async def telling(emissions: Sequence[Emission]) -> None:
            await tell(emissions)
            told.append(emissions[0].event.session_id)

        async def building(configuration: Configuration, *, replayed: bool) -> Runtime:
            runtime = await build(configuration, replayed=replayed)
            return structs.replace(runtime, replayed=lambda: told.append("all"))

        monkeypatch.setattr(stage, "build", building)
        monkeypatch.setattr(stage.configurator, "_tell", telling)
        await stage.set_config({"adapter": sqlite("a.db")})
        assert told == ["s", "all"]


async def test_what_is_changed_while_a_new_store_is_replayed_is_not_told_as_it_was_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with InProcess(sqlite("a.db"), tmp_path) as stage:
        for session_id in ("changed", "gone"):
            await stage.call("session::ensure", {"session_id": session_id, "title": "before"})
        await stage.set_config({"adapter": sqlite("empty.db")})
        heard: list[tuple[str, Any]] = []
        for kind in ("created", "meta-updated", "deleted"):
            await stage.bind(f"session::{kind}", {}, lambda event, kind=kind: heard.append((kind, event)))  # type: ignore[misc]
        entries = SqliteStore.entries

        async def reading(self: SqliteStore, session_id: str) -> Any:
            monkeypatch.setattr(SqliteStore, "entries", entries)
            await stage.call("session::set-meta", {"session_id": "changed", "title": "after"})
            await stage.call("session::delete", {"session_id": "gone"})
            return await entries(self, session_id)

        monkeypatch.setattr(SqliteStore, "entries", reading)
        await stage.set_config({"adapter": sqlite("a.db")})
        await stage.settle()
        told = [(kind, event["session_id"], event.get("title")) for kind, event in heard]
        assert told == [
            ("meta-updated", "changed", "after"),
            ("deleted", "gone", None),
            ("created", "changed", "after"),
        ]


async def test_calls_on_their_way_finish_on_the_store_they_began_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with InProcess(sqlite("a.db"), tmp_path) as stage:
        await stage.call("session::ensure", {"session_id": "s"})
        old = stage.store
        reached, go_on = asyncio.Event(), asyncio.Event()
        session = type(old).session

        async def slow(self: Any, session_id: str) -> Any:
            if self is old and session_id == "s":
                reached.set()
                await go_on.wait()
            return await session(self, session_id)

        monkeypatch.setattr(type(old), "session", slow)
        running = asyncio.create_task(stage.call("session::append", {"session_id": "s", "message": USER}))
        await reached.wait()
        swap = asyncio.create_task(stage.set_config({"adapter": sqlite("b.db")}))
        while stage.store is old:
            await asyncio.sleep(0)
        assert await stage.call("session::get", {"session_id": "s"}) is None, "new calls see the new store"
        assert not swap.done(), "the old store is kept open for the call"
        go_on.set()
        entry_id = (await running)["entry_id"]
        await swap
        await stage.set_config({"adapter": sqlite("a.db")})
        page = await stage.call("session::messages", {"session_id": "s"})
        assert [item["entry_id"] for item in page["messages"]] == [entry_id]


async def test_a_configuration_that_cannot_be_built_is_reported_and_the_old_one_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    async with InProcess(sqlite("a.db"), tmp_path) as stage:
        await stage.call("session::ensure", {"session_id": "s"})
        for count in (1, 2):
            await stage.set_config({"adapter": sqlite("file/sessions.db")})
            status = await stage.call("session::config-status", {})
            assert (status["last_outcome"], status["rejected_reloads"]) == ("rejected", count)
            assert "session/storage" in status["last_error"]
        assert (await stage.call("session::get", {"session_id": "s"}))["meta"]["session_id"] == "s"
        await stage.set_config({"adapter": sqlite("b.db")})
        assert await stage.call("session::config-status", {}) == {
            "last_outcome": "applied",
            "last_error": None,
            "rejected_reloads": 2,
        }


async def test_how_durable_a_change_is_can_be_set_while_calls_run(tmp_path: Path) -> None:
    async with InProcess(sqlite("a.db"), tmp_path) as stage:
        await stage.call("session::ensure", {"session_id": "s"})
        store = stage.store
        assert isinstance(store, SqliteStore)
        for name, number in (("OFF", 0), ("NORMAL", 1), ("FULL", 2)):
            await stage.set_config({"adapter": {"name": "sqlite", "config": {"path": "a.db", "synchronous": name}}})
            assert (await stage.call("session::config-status", {}))["last_outcome"] == "applied"
            assert stage.store is store, "the same store goes on"
            assert store._writing.connection is not None
            [(now,)] = store._writing.connection.execute("PRAGMA synchronous").fetchall()
            assert now == number
        await stage.call("session::append", {"session_id": "s", "message": USER})


async def test_a_new_store_that_cannot_be_read_is_in_force_and_the_old_one_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with InProcess(sqlite("a.db"), tmp_path) as stage:
        await stage.call("session::ensure", {"session_id": "s"})
        old, metas = stage.store, SqliteStore.metas

        async def spoilt(self: SqliteStore) -> Any:
            if self is old:
                return await metas(self)
            raise StorageError("the disk is at fault")

        monkeypatch.setattr(SqliteStore, "metas", spoilt)
        await stage.set_config({"adapter": sqlite("b.db"), "default_list_limit": 7})
        status = await stage.call("session::config-status", {})
        assert (status["last_outcome"], stage.service.runtime.limits.default) == ("applied", 7)
        assert await stage.call("session::get", {"session_id": "s"}) is None, "it is the new store that answers"
        monkeypatch.setattr(SqliteStore, "metas", metas)
        await stage.set_config({"adapter": sqlite("a.db")})
        assert await stage.call("session::get", {"session_id": "s"}), "nobody held on to the old one"


async def test_a_session_that_cannot_be_read_keeps_no_other_from_being_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with InProcess(sqlite("a.db"), tmp_path) as stage:
        for session_id in ("s1", "s2", "s3"):
            await stage.call("session::ensure", {"session_id": session_id})
            await stage.call("session::append", {"session_id": session_id, "message": USER, "entry_id": "e"})
        await stage.set_config({"adapter": sqlite("b.db")})
        heard: list[Any] = []
        await stage.bind("session::message-added", {}, heard.append)
        entries = SqliteStore.entries

        async def spoilt(self: SqliteStore, session_id: str) -> Any:
            if session_id == "s2":
                raise StorageError("the disk is at fault")
            return await entries(self, session_id)

        monkeypatch.setattr(SqliteStore, "entries", spoilt)
        await stage.set_config({"adapter": sqlite("a.db")})
        await stage.settle()
        assert [event["session_id"] for event in heard] == ["s1", "s3"]


async def test_a_value_that_is_none_fails_the_call_and_changes_nothing(tmp_path: Path) -> None:
    async with InProcess(sqlite("a.db"), tmp_path) as stage:
        stage.value = {"adapter": {"name": "floppy"}}
        with pytest.raises(InvalidConfiguration):
            await stage.call("session::on-config-change", {})
        assert (await stage.call("session::config-status", {}))["last_outcome"] == "applied"


async def test_changes_that_overlap_end_in_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with InProcess(sqlite("a.db"), tmp_path) as stage:
        changes = []
        for number in range(6):
            stage.value = {"adapter": sqlite(f"{number}.db"), "default_list_limit": number + 1}
            changes.append(asyncio.create_task(stage.call("session::on-config-change", {})))
            await asyncio.sleep(0)
        await asyncio.gather(*changes)
        assert stage.service.runtime.limits.default == 6
        assert (tmp_path / "5.db").exists()


async def test_what_is_put_into_force_is_logged(tmp_path: Path) -> None:
    async with InProcess(sqlite("a.db"), tmp_path) as stage:
        with capture_logs() as logged:
            await stage.set_config({"adapter": sqlite("b.db"), "default_list_limit": 7})
            await stage.set_config({"adapter": sqlite("b.db"), "default_list_limit": 7})
    [told] = [line for line in logged if line["event"] == "another configuration is in force"]
    assert (told["adapter"]["config"]["path"], told["default_list_limit"]) == ("b.db", 7)


async def test_a_boot_with_a_configuration_that_cannot_be_built_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    stage = InProcess(sqlite("file/sessions.db"), tmp_path)
    with pytest.raises(StorageError, match="session/storage"):
        await stage.start()


@pytest.mark.parametrize(
    "adapter", [sqlite("~nobody-of-that-name/x.db"), {"name": "fs", "config": {"data_dir": "~nobody-of-that-name/x"}}]
)
async def test_the_home_of_nobody_is_no_place_for_data(adapter: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="home directory"):
        await InProcess(adapter, tmp_path).start()


def test_the_default_is_what_an_empty_value_means() -> None:
    assert Configuration().adapter.name == "sqlite"
    assert Runtime.__struct_config__.frozen
