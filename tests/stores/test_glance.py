"""Looking at files without asking for their times."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from session_manager.store import Change
from session_manager.stores.sqlite import SqliteStore, files
from session_manager.stores.sqlite import glance as module
from session_manager.stores.sqlite.glance import glance
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
    assert asked  # the lock file is looked at, so looking is noticed
    assert str(files.log_of(tmp_path / "sessions.db")) not in asked
