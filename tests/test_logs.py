"""What of a URL may be a secret is in no log and in no error, wherever it comes from."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from session_manager import logs
from session_manager.terminal import concealed, fail

SECRET = "hunter2"  # no password of anything
URLS = [
    f"ws://me:{SECRET}@engine:49134/x",
    f"wss://engine/?token={SECRET}",
    f"http://{SECRET}@host",
    f"ws://a?b@c={SECRET}",
]


@pytest.fixture
def log_file(tmp_path: Path) -> Iterator[Path]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logs.configure("debug", tmp_path / "worker.log")
    yield tmp_path / "worker.log"
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.parametrize("url", URLS)
def test_no_log_tells_a_secret_of_a_url(url: str, log_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = structlog.get_logger("session_manager.test")
    log.info("serving", engine=url, adapter={"name": "bridge", "config": {"urls": [url]}})
    logging.getLogger("websockets").warning("cannot reach %s", url)
    try:
        raise OSError(f"no engine at {url}")
    except OSError:
        log.exception("failed", count=1)
    told = log_file.read_text()
    assert len([json.loads(line) for line in told.splitlines()]) == 3
    assert SECRET not in told + capsys.readouterr().err
    assert url.partition("://")[0] in told


@pytest.mark.parametrize("url", URLS)
def test_no_error_of_a_command_tells_a_secret_of_a_url(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fail(f"no engine at {url}: refused")
    assert SECRET not in capsys.readouterr().err


@pytest.mark.parametrize("text", ["ws://engine:49134", "who? me@home", "sqlite:a.db?synchronous=NORMAL", "a://b/c@d"])
def test_other_text_stays_as_it_is(text: str) -> None:
    assert concealed(text) == text
