"""Events on a terminal, and in a pipe."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from session_manager.cli.watch import _line
from session_manager.dev import EngineThread
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


def test_watching_ends_quietly_when_nobody_reads_any_more(tmp_path: Path) -> None:
    with EngineThread() as engine, worker_process(engine.url, tmp_path):
        watch = subprocess.Popen(
            [*COMMAND, "watch", "--json", "--url", engine.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )
        assert watch.stdout is not None
        assert watch.stderr is not None
        assert "watching" in watch.stderr.readline()
        with visit(engine.url) as client:
            bound = {"trigger_type": "session::created", "include_internal": True}
            deadline = time.monotonic() + 10
            while not client.call_blocking("engine::registered-triggers::list", bound)["registered_triggers"]:
                assert time.monotonic() < deadline
            client.call_blocking("session::create", {})
            assert json.loads(watch.stdout.readline())["trigger_type"] == "session::created"
            watch.stdout.close()
            client.call_blocking("session::create", {})
        assert watch.wait(10) == 1
        assert watch.stderr.read() == ""
        watch.stderr.close()
