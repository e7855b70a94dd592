"""The engines that every promise of the protocol is tried on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from session_manager.dev import EngineThread
from tests.engines import on_both_engines, real_engine, real_engine_process

#: How long engines wait for a worker to name its namespace: none of those that do is ever too late. Who never does has
#: an engine that waits for a moment only.
GRACE_S, MOMENT_S = 60.0, 0.6

#: What placeholders in configuration values find.
ENVIRONMENT = {"SET_IN_ENGINE": "7", "WORD_IN_ENGINE": "word"}


@pytest.fixture(scope="session", params=on_both_engines())
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An engine of each kind, shared by the tests: every test uses ids of its own."""
    with _engine(request.param, tmp_path_factory.mktemp("config"), GRACE_S) as running:
        yield running


@pytest.fixture(params=on_both_engines())
def hasty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An engine of each kind that soon takes a worker for one that will not name its namespace."""
    with _engine(request.param, tmp_path, MOMENT_S) as running:
        yield running


@contextmanager
def _engine(kind: str, directory: Path, grace_s: float) -> Iterator[str]:
    if kind == "loopback":
        with EngineThread(config_dir=directory, grace_s=grace_s) as engine:
            yield engine.url
        return
    with real_engine({"III_NAMESPACE_GRACE_MS": str(int(grace_s * 1000))}) as running:
        yield running


@dataclass
class Place:
    """An engine that can be restarted, without any warning, and whose files can be reached."""

    url: str
    directory: Path
    restart: Callable[[], None]

    def file(self, entry_id: str) -> Path:
        return self.directory / f"{entry_id}.yaml"

    def edit(self, entry_id: str, text: str) -> None:
        """Replaces a file in one step, as editors do: an engine that looks just then finds no half of it."""
        scratch = self.file(entry_id).with_suffix(".edited")
        scratch.write_text(text)
        scratch.replace(self.file(entry_id))


@pytest.fixture(scope="module", params=on_both_engines(of_its_own=True))
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """An engine of a module's own, to be restarted and to have its files edited."""
    with _place(request.param, tmp_path_factory.mktemp("config")) as made:
        yield made


@pytest.fixture(scope="module", params=on_both_engines(of_its_own=True))
def calm_place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """An engine that does not notice edits of its files.

    The real engine takes its own writes for edits, looks at them half a second later, and undoes what is written while
    it looks. Tests that count events or read back at once would fail now and then, so its directory is moved away from
    under it: it watches the old one and writes to the new one.
    """
    with _place(request.param, tmp_path_factory.mktemp("config")) as made:
        if request.param == "real":
            made.directory.rename(made.directory.with_name("watched"))
            made.directory.mkdir()
        yield made


@contextmanager
def _place(kind: str, directory: Path) -> Iterator[Place]:
    if kind == "loopback":
        with EngineThread(config_dir=directory, environment=ENVIRONMENT) as engine:
            yield Place(engine.url, directory, engine.restart)
        return
    with real_engine_process(ENVIRONMENT) as real:

        def restart() -> None:
            real.kill()
            real.start()

        yield Place(real.url, real.config_dir, restart)
