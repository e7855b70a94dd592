"""The tour of the README in every client language, each a program of its own with its SDK and nothing else."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.conftest import Connect, Serve
from tests.node import NoNode, run_node
from tests.rust import NoRust, rust_program
from tests.sdk import call
from tests.wire import clean_environment

UPDATES = 100

CLIENTS = Path(__file__).parent / "clients"


def python(url: str) -> str:
    return _run(sys.executable, str(CLIENTS / "tour.py"), url, str(UPDATES))


def node(url: str) -> str:
    return run_node((CLIENTS / "tour.mjs").read_text(encoding="utf-8"), url, str(UPDATES), seconds=60)


def rust(url: str) -> str:
    return _run(str(rust_program(CLIENTS / "rust", "session-manager-tour")), url, str(UPDATES))


def _run(*command: str) -> str:
    environment = {**clean_environment(), "OTEL_ENABLED": "false"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("client", [python, node, pytest.param(rust, marks=pytest.mark.long)])
async def test_a_client_creates_appends_streams_watches_reads_and_forks(
    url: str, serve: Serve, connect: Connect, client: Callable[[str], str]
) -> None:
    worker, beside = serve(url), await connect(url)
    await worker.ready(beside)
    try:
        printed = await asyncio.to_thread(client, url)
    except (NoNode, NoRust) as reason:
        pytest.skip(str(reason))
    told = json.loads(printed.splitlines()[-1])
    reply, asked = told["reply"], told["asked"]
    assert told["added"] == [[reply, "assistant"]]
    assert told["heard_last"], "the last update was not heard"
    assert told["revisions"] == sorted(told["revisions"])
    assert told["revisions"][-1] == UPDATES
    assert told["words_heard"] == told["words"] == "".join(f"{number} " for number in range(1, UPDATES + 1))
    assert told["elsewhere"] == 0
    assert told["stale"] == {"updated": False, "revision": UPDATES}
    assert told["page"] == [[asked, "How far is Oslo from Bergen?"], [reply, told["words"]]]
    assert sorted(told["listed"]) == sorted([told["session_id"], told["fork"]]), "a fork has its origin's metadata"
    assert "session/not_found: no session 'nobody'" in told["refused"]
    forked = await call(beside, "session::messages", {"session_id": told["fork"]})
    assert [item["message"]["content"][0]["text"] for item in forked["messages"]] == ["How far is Oslo from Bergen?"]
    page = await call(beside, "session::messages", {"session_id": told["session_id"]})
    assert [item["entry_id"] for item in page["messages"]] == [asked, reply]
