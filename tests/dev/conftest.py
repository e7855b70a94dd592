"""The engines that every promise of the protocol is tried on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from session_manager.dev import EngineThread
from tests.engines import on_both_engines, real_engine, real_engine_process

#: How long engines wait for a worker to name its namespace.
GRACE_S = 0.6

#: What placeholders in configuration values find.
ENVIRONMENT = {"SET_IN_ENGINE": "7", "WORD_IN_ENGINE": "word"}


@pytest.fixture(scope="session", params=on_both_engines())
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An engine of each kind, shared by the tests: every test uses ids of its own."""
    if request.param == "loopback":
        with EngineThread(config_dir=tmp_path_factory.mktemp("config"), grace_s=GRACE_S) as engine:
            yield engine.url
        return
    with real_engine({"III_NAMESPACE_GRACE_MS": str(int(GRACE_S * 1000))}) as running:
        yield running


@dataclass
class Place:
    """An engine that can be restarted, without any warning, and whose files can be reached."""

    url: str
    directory: Path
    restart: Callable[[], None]

    def file(self, entry_id: str) -> Path:
        return self.directory / f"{entry_id}.yaml"


@pytest.fixture(scope="module", params=on_both_engines(of_its_own=True))
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if request.param == "loopback":
        directory = tmp_path_factory.mktemp("config")
        with EngineThread(config_dir=directory, environment=ENVIRONMENT) as engine:
            yield Place(engine.url, directory, engine.restart)
        return
    with real_engine_process(ENVIRONMENT) as real:

        def restart() -> None:
            real.kill()
            real.start()

        yield Place(real.url, real.config_dir, restart)
