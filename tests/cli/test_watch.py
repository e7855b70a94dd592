"""Events on a terminal, and in a pipe."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from session_manager.cli.watch import _line
from session_manager.dev import EngineThread
from session_manager.edge.client import InvocationError
from session_manager.edge.visitor import visit
from tests.wire import COMMAND, clean_environment, worker_process


@pytest.mark.parametrize("milliseconds", [2**63 - 1, -(2**63)])
def test_an_event_of_any_time_has_a_line(milliseconds: int) -> None:
    line = _line("session::deleted", {"session_id": "s", "timestamp": milliseconds}, False)
    assert line.split() == [str(milliseconds), "deleted", "s"]


def test_nothing_that_others_wrote_commands_the_terminal() -> None:
    said = {"role": "user", "content": [{"type": "text", "text": "\x1b[2Jgone\x9b2J"}], "timestamp": 0}
    event = {"session_id": "s\n\x07", "entry_id": "\x1b]0;e", "parent_id": None, "message": said, "timestamp": 0}
    line = _line("session::message-added", event, False)
    assert line.isprintable()
    assert "gone" in line


@contextmanager
def watching(engine: EngineThread, *arguments: str, stdout: Any = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """`session-manager watch`, once its binding to `session::created` is there."""
    watch = subprocess.Popen(
        [*COMMAND, "watch", *arguments, "--url", engine.url],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    try:
        assert "watching" in said(watch)
        bound(engine)
        yield watch
    finally:
        watch.kill()
        watch.communicate()


def said(watch: subprocess.Popen[str]) -> str:
    assert watch.stderr is not None
    return watch.stderr.readline()


def bound(engine: EngineThread) -> None:
    with visit(engine.url) as client:
        asked = {"trigger_type": "session::created", "include_internal": True}
        deadline = time.monotonic() + 60
        while not client.call_blocking("engine::registered-triggers::list", asked)["registered_triggers"]:
            assert time.monotonic() < deadline


def create(engine: EngineThread) -> None:
    """Once the worker is there, which may have lost the engine too."""
    with visit(engine.url) as client:
        deadline = time.monotonic() + 60
        while True:
            try:
                client.call_blocking("session::create", {})
            except InvocationError:
                assert time.monotonic() < deadline
            else:
                return


def test_watching_ends_quietly_when_nobody_reads_any_more(tmp_path: Path) -> None:
    with EngineThread() as engine, worker_process(engine.url, tmp_path), watching(engine, "--json") as watch:
        assert watch.stdout is not None
        create(engine)
        assert json.loads(watch.stdout.readline())["trigger_type"] == "session::created"
        watch.stdout.close()
        watch.stdout = None
        create(engine)
        assert watch.wait(60) == 1
        assert said(watch) == ""


def test_watching_ends_with_the_reason_when_what_it_prints_cannot_be_kept(tmp_path: Path) -> None:
    with (
        EngineThread() as engine,
        worker_process(engine.url, tmp_path),
        Path("/dev/full").open("wb") as full,
        watching(engine, stdout=full) as watch,
    ):
        create(engine)
        assert watch.wait(60) == 1
        assert (said(watch), said(watch)) == ("session-manager: No space left on device\n", "")


def test_watching_tells_that_the_engine_went_away_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    with EngineThread() as engine, worker_process(engine.url, tmp_path), watching(engine) as watch:
        engine.restart()
        assert said(watch) == "the engine is gone; waiting for it\n"
        assert said(watch) == "watching again; what happened meanwhile is not shown\n"
        bound(engine)
        create(engine)
        assert watch.stdout is not None
        assert "created" in watch.stdout.readline()
        watch.send_signal(signal.SIGINT)
        assert (watch.wait(60), said(watch)) == (0, "")
