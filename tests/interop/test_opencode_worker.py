"""A worker that is asked to serves OpenCode's import and export beside the session functions, events and all."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from session_manager.dev import EngineThread
from tests.dev.client import eventually
from tests.sdk import call, close_client, open_client
from tests.wire import COMMAND, clean_environment, worker_process

DATA = Path(__file__).parent / "data" / "synthetic_2.1"


async def test_import_and_export_are_functions_of_a_worker_that_is_asked_for_them(tmp_path: Path) -> None:
    document = json.loads((DATA / "all_kinds.transfer.json").read_text(encoding="utf-8"))
    with EngineThread() as engine, worker_process(engine.url, tmp_path, "--with", "opencode") as worker:
        client = await open_client(engine.url, "asker")
        try:
            await worker.ready(client)
            created: list[Any] = []

            async def receive(event: Any) -> dict[str, bool]:
                created.append(event["session_id"])
                return {"ok": True}

            client.register_function("test::created", receive)
            client.register_trigger({"type": "session::created", "function_id": "test::created", "config": {}})
            await eventually(lambda: "session::created" in worker.said(), 5)
            [first] = (await call(client, "opencode::import", {"document": document}))["sessions"]
            assert (first["created"], first["changed"]) == (True, True)
            await eventually(lambda: created == [first["session_id"]], 5)
            [again] = (await call(client, "opencode::import", {"document": document}))["sessions"]
            assert (again["created"], again["changed"]) == (False, False)
            exported = await call(client, "opencode::export", {"session_id": first["session_id"]})
            assert exported["document"] == document
            page = await call(client, "session::messages", {"session_id": first["session_id"]})
            assert page["messages"]
            with pytest.raises(Exception, match="document"):
                await call(client, "opencode::import", {})
            with pytest.raises(Exception, match="session/not_found"):
                await call(client, "opencode::export", {"session_id": "nope"})
        finally:
            await close_client(client)


@pytest.mark.parametrize("url", ["nonsense", "ftp://127.0.0.1", "http://", "http://[::1"])
def test_a_worker_does_not_start_to_follow_what_is_no_server(url: str, tmp_path: Path) -> None:
    asked = [*COMMAND, "serve", "--follow-opencode", url, "--log-file", "-", "--patience", "0"]
    done = subprocess.run(asked, capture_output=True, text=True, env=clean_environment(), cwd=tmp_path)
    assert done.returncode == 1
    assert "is no address of a server" in done.stderr.splitlines()[-1]


async def test_a_worker_that_is_not_asked_has_no_such_function(tmp_path: Path) -> None:
    with EngineThread() as engine, worker_process(engine.url, tmp_path) as worker:
        client = await open_client(engine.url, "asker")
        try:
            await worker.ready(client)
            with pytest.raises(Exception, match="function_not_found"):
                await call(client, "opencode::import", {})
        finally:
            await close_client(client)
