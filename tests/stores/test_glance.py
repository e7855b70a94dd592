"""Looking at files without asking for their times."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from session_manager.errors import StorageError
from session_manager.store import Change
from session_manager.stores.sqlite import SqliteStore, files
from session_manager.stores.sqlite import glance as module
from session_manager.stores.sqlite.glance import Directory, glance
from tests.stores.test_promises import chain, meta, put


@pytest.mark.parametrize("name", ["plain", "mit Leerzeichen und ü"])
@pytest.mark.parametrize("library", ["as it is", "has no such call", "forbids it"])
def test_it_says_what_stat_says(name: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if library == "has no such call":
        monkeypatch.setattr(module, "_statx", None)
    elif library == "forbids it":
        monkeypatch.setattr(module, "_statx", lambda *_: -1)
    path = tmp_path / name
    path.write_bytes(b"x" * 5000)
    told = os.stat(path)
    assert glance(path) == ((told.st_dev, told.st_ino), 5000)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        glance(path)


async def test_a_commit_does_not_ask_for_the_times_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if module._statx is None:
        pytest.skip("this C library has no statx")
    store = SqliteStore(tmp_path / "sessions.db")
    await store.open()
    await put(store, Change("s", meta("s"), "a", chain("a")))
    asked: list[str] = []
    stat = os.stat

    def noticed(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        asked.append(os.fspath(path))
        return stat(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", noticed)
    await put(store, Change("s", meta("s"), "b", chain("b")))
    monkeypatch.undo()
    await store.close()
    assert asked  # the directory is looked at, so looking is noticed
    assert str(files.log_of(tmp_path / "sessions.db")) not in asked


def settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets so much time pass that what a directory shows is believed."""
    monkeypatch.setattr(module, "SETTLED", -3600.0)


def noticeably(change: Callable[[], object], directory: Path) -> None:
    """Makes a change, and others until the directory shows another time: two within one tick may show the same."""
    before = os.stat(directory).st_mtime_ns
    change()
    while os.stat(directory).st_mtime_ns == before:
        (directory / "other").touch()
        (directory / "other").unlink()


def test_a_directory_in_which_nothing_happens_is_looked_into_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch)
    (tmp_path / "file").write_bytes(b"x")
    directory = Directory(tmp_path)
    assert directory.has_changed()
    assert directory.has_changed(), "nobody has said yet that all is well"
    directory.is_in_order()
    (tmp_path / "file").write_bytes(b"more")
    assert not directory.has_changed(), "what is in a file is no concern of its directory"
    changes: list[Callable[[], object]] = [
        lambda: (tmp_path / "file").rename(tmp_path / "elsewhere"),
        lambda: (tmp_path / "elsewhere").unlink(),
        lambda: (tmp_path / "file").touch(),
        lambda: (tmp_path / "inner").mkdir(),
    ]
    for change in changes:
        noticeably(change, tmp_path)
        assert directory.has_changed()
        directory.is_in_order()
        assert not directory.has_changed()
    tmp_path.rename(tmp_path.with_name("away"))
    assert directory.has_changed()
    tmp_path.mkdir()
    assert directory.has_changed()


def test_a_directory_that_was_changed_just_now_is_looked_into_again(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    assert directory.has_changed()
    directory.is_in_order()
    assert directory.has_changed()


@pytest.mark.parametrize("name", ["sessions.db", "sessions.db-wal", "sessions.db.lock"])
async def test_a_file_removed_after_long_quiet_is_noticed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(monkeypatch)
    store = SqliteStore(tmp_path / "sessions.db")
    await store.open()
    for _ in range(3):
        await put(store, Change("s", meta("s"), "a", chain("a")))
    assert not store._writing._directory.has_changed()
    noticeably((tmp_path / name).unlink, tmp_path)
    with pytest.raises(StorageError, match="removed"):
        await put(store, Change("s", meta("s"), "b", chain("b")))
    await store.close()
