"""`session-manager dev` says where conversations are, and they are there."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.wire import COMMAND, clean_environment


@contextmanager
def ready(directory: Path, *options: str, **environment: str) -> Iterator[str]:
    """What it says then; the process is there until the block ends."""
    command = [*COMMAND, "dev", "--port", "0", *options]
    environment = clean_environment(**environment)
    with subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            lines: list[str] = []
            while not (lines and lines[-1].startswith("Ctrl+C")):
                lines.append(process.stdout.readline())
                assert lines[-1], "it has ended"
            yield "".join(lines)
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0


@pytest.mark.parametrize("compose", [True, False])
def test_the_database_that_it_names_is_where_relative_paths_start(compose: bool, tmp_path: Path) -> None:
    project, here = tmp_path / "project", tmp_path / "here"
    here.mkdir()
    database = (project if compose else here) / "data" / "session-manager" / "sessions.db"
    with ready(here, **({"III_COMPOSE_DIR": str(project)} if compose else {})) as said:
        assert f"its conversations in {database}." in said
        assert "it finds everything there" in said
        assert database.exists()
    assert (project / "data").exists() is compose


def test_what_the_configuration_says_is_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "seed.yaml").write_text("adapter: {name: memory}")
    with ready(tmp_path, "--config", "seed.yaml") as said:
        assert "its conversations in memory." in said
        assert "it finds everything there" not in said
