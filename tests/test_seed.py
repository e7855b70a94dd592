"""When the seed of a configuration counts, on an engine that loses sight of what it has stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from session_manager.dev import EngineThread
from session_manager.dev.entries import Entry
from session_manager.edge import configuration
from session_manager.edge.configuration import ConfigurationEntry
from session_manager.edge.worker import Worker
from session_manager.model import JsonObject

STORED, SEED = 2, 8


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("III_COMPOSE_DIR", str(tmp_path))


@pytest.fixture
def engine() -> Iterator[EngineThread]:
    with EngineThread() as running:
        yield running


def started_and_stopped(engine: EngineThread, limit: int) -> int:
    """Which limit was in force while the worker ran."""
    seed: JsonObject = {"adapter": {"name": "memory", "config": {}}, "default_list_limit": limit}
    worker = Worker(engine.url, "session-manager", seed)
    worker.start()
    try:
        return worker._configurator.configuration.default_list_limit
    finally:
        worker.stop()


def look(engine: EngineThread, found: dict[str, Entry]) -> None:
    """The engine looks at its files, and these are what it finds."""

    async def reload() -> None:
        engine.engine._configuration._reload(found)

    engine.run(reload())


@pytest.fixture
def lost(engine: EngineThread, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], list[Any]]:
    """Makes the engine lose sight of all entries, until it has been asked for one or for good. Returns what workers are
    told from then on that ask."""

    def make(for_good: bool) -> list[Any]:
        monkeypatch.setattr(configuration, "ABSENCE", 0.0)
        stored = {
            entry.id: Entry(entry.id, entry.name, entry.description, None, entry.value)
            for entry in engine.engine._configuration._stored.values()
        }
        assert stored
        look(engine, {})
        asked = ConfigurationEntry._stored
        told: list[Any] = []

        async def and_back(self: ConfigurationEntry) -> Any:
            told.append(await asked(self))
            if len(told) == 1 and not for_good:
                await asyncio.to_thread(look, engine, stored)
            return told[-1]

        monkeypatch.setattr(ConfigurationEntry, "_stored", and_back)
        return told

    return make


def test_a_value_that_is_away_for_a_moment_beats_the_seed(
    engine: EngineThread, lost: Callable[[bool], list[Any]]
) -> None:
    assert started_and_stopped(engine, STORED) == STORED
    told = lost(False)
    assert started_and_stopped(engine, SEED) == STORED
    assert told[0] is None
    assert told[1]["default_list_limit"] == STORED


def test_a_value_that_is_away_for_good_is_seeded_again(engine: EngineThread, lost: Callable[[bool], list[Any]]) -> None:
    assert started_and_stopped(engine, STORED) == STORED
    told = lost(True)
    assert started_and_stopped(engine, SEED) == SEED
    assert told == [None, None]


def test_the_first_start_does_not_wait(engine: EngineThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "ABSENCE", 3600.0)
    assert started_and_stopped(engine, SEED) == SEED
