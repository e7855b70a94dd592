"""The command line and the functions for other workers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft7Validator

from session_manager.cli import main
from session_manager.clock import RandomIds, SystemClock
from session_manager.dispatch import Runtime, Service
from session_manager.errors import InvalidRequest, MalformedRequest, SessionNotFound
from session_manager.events import Emission
from session_manager.functions import FUNCTIONS as SESSION_FUNCTIONS
from session_manager.interop.opencode.functions import FUNCTIONS
from session_manager.interop.opencode.targets import ServiceTarget
from session_manager.model import SessionMeta
from session_manager.paging import Limits
from session_manager.schema import document as schema
from session_manager.store import Store
from session_manager.stores import open_store
from session_manager.stores.memory import MemoryStore
from tests.interop.support import DATA, Json, differences, load

TOOLS = DATA / "samples/v1_tools/export.json"
KINDS = DATA / "synthetic_2.1/all_kinds.transfer.json"


class Shell:
    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:{folder / 'store.db'}"

    def import_(self, *arguments: str, stdin: bytes | None = None) -> Result:
        return CliRunner().invoke(main, ["import", "opencode", *arguments, "--store", self.url], input=stdin)

    def export(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["export", "opencode", *arguments, "--store", self.url])

    def metas(self) -> list[SessionMeta]:
        async def read() -> list[SessionMeta]:
            store: Store = open_store(self.url, Path.cwd())
            await store.open()
            try:
                return await store.metas()
            finally:
                await store.close()

        return asyncio.run(read())


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_a_dry_run_makes_no_store_and_an_export_neither(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    assert shell.import_(str(TOOLS), "--dry-run").exit_code == 0
    assert shell.export("ses_nobody").exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_told_in_a_line(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    [session] = json.loads(shell.import_(str(TOOLS), "--json").stdout)["sessions"]
    result = shell.export(session["session_id"], "--output", str(tmp_path / "nowhere" / "x.json"))
    assert (result.exit_code, result.stderr.startswith("session-manager: ")) == (1, True)


def test_files_come_in_and_a_table_says_what_came(shell: Shell) -> None:
    result = shell.import_(str(TOOLS), str(KINDS), "--metadata", '{"owner":"ann"}')
    assert result.exit_code == 0, result.output
    assert "2 sessions: 2 new, 0 changed, 0 unchanged; 0 refused" in result.output
    metas = shell.metas()
    assert [meta.metadata["owner"] for meta in metas if meta.metadata] == ["ann", "ann"]
    assert all(f"{meta.session_id} new " in result.output for meta in metas)  # whole, as an export wants it
    again = shell.import_(str(TOOLS), str(KINDS))
    assert "2 sessions: 0 new, 0 changed, 2 unchanged; 0 refused" in again.output


def test_a_directory_comes_in_but_for_what_is_refused(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "exports" / "deep"
    folder.mkdir(parents=True)
    (folder / "good.json").write_bytes(TOOLS.read_bytes())
    (folder / "cut.json").write_bytes(KINDS.read_bytes()[:500])
    (folder / "notes.txt").write_text("not looked at")
    result = shell.import_(str(tmp_path / "exports"), "--json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert [session["session_id"] for session in told["sessions"]] == [
        load("samples/v1_tools/export.json")["info"]["id"]
    ]
    [refusal] = told["refused"]
    assert refusal["source"].endswith("cut.json")
    assert refusal["reason"]
    assert len(shell.metas()) == 1


def test_a_session_that_the_store_cannot_read_keeps_no_other_from_coming_in(shell: Shell) -> None:
    shell.import_(str(TOOLS))
    session_id = load("samples/v1_tools/export.json")["info"]["id"]
    with contextlib.closing(sqlite3.connect(shell.url.removeprefix("sqlite:"))) as database, database:
        database.execute("UPDATE entry SET body = x'00' WHERE id LIKE 'msg_%'")
    result = shell.import_(str(TOOLS), str(KINDS), "--json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert [refusal["source"] for refusal in told["refused"]] == [str(TOOLS)]
    assert "session/storage" in told["refused"][0]["reason"]
    assert [session["created"] for session in told["sessions"]] == [True]
    assert session_id in {meta.session_id for meta in shell.metas()}


def test_a_dry_run_changes_nothing(shell: Shell) -> None:
    result = shell.import_(str(TOOLS), "--dry-run", "--json")
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert told["dry_run"] is True
    assert told["sessions"][0]["created"] is True
    assert shell.metas() == []


def test_stdin_is_a_source_and_a_file_is_a_target(shell: Shell, tmp_path: Path) -> None:
    assert shell.import_("-", stdin=KINDS.read_bytes()).exit_code == 0
    file = tmp_path / "out.json"
    result = shell.export("ses_dd8a000000ffeSyntheticAAAA", "--output", str(file), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rendered"] == 0
    assert list(differences(json.loads(file.read_bytes()), json.loads(KINDS.read_bytes()))) == []


def test_the_document_goes_to_stdout_and_remarks_to_stderr(shell: Shell) -> None:
    shell.import_(str(TOOLS))
    session_id = load("samples/v1_tools/export.json")["info"]["id"]
    result = shell.export(session_id)
    assert list(differences(json.loads(result.stdout), json.loads(TOOLS.read_bytes()))) == []
    assert result.stderr == ""
    other = shell.export(session_id, "--format", "2.1")
    assert json.loads(other.stdout)["messages"][0]["type"] == "user"
    assert "note: " in other.stderr


def test_a_log_goes_out_as_it_came(shell: Shell) -> None:
    shell.import_(str(DATA / "samples/v2_tools/history.v2.json"))
    result = shell.export("ses_dd89fa1a7ffeI819nZ1hXYh43w", "--format", "log")
    assert list(differences(json.loads(result.stdout), load("samples/v2_tools/history.v2.json")["data"])) == []


def test_a_list_without_a_session_needs_its_id(shell: Shell) -> None:
    listing = str(DATA / "samples/v2_tools/messages.v2.json")
    refused = shell.import_(listing)
    assert refused.exit_code == 1
    assert "--session" in refused.output
    assert shell.import_(listing, "--session", "ses_dd89fa1a7ffeI819nZ1hXYh43w").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["/no/such/file"], "cannot be read"),
        ([str(TOOLS), "--metadata", "nonsense"], "not JSON"),
        ([str(TOOLS), "--metadata", "[1]"], "must be an object"),
    ],
)
def test_what_cannot_be_done_is_said(shell: Shell, arguments: list[str], why: str) -> None:
    result = shell.import_(*arguments)
    assert result.exit_code != 0
    assert why in result.output
    assert shell.metas() == []


def test_an_unknown_session_and_store_are_said(shell: Shell) -> None:
    shell.import_(str(TOOLS))
    assert "no session" in shell.export("ses_nobody").output
    result = CliRunner().invoke(main, ["export", "opencode", "ses_1", "--store", "paper:drawer"])
    assert result.exit_code == 2
    assert "names no store" in result.output


def test_names_in_files_do_not_reach_the_terminal_raw(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "evil.json"
    info = {"id": "ses_\x1b[2J", "title": "x", "time": {"created": 1, "updated": 1}}
    file.write_text(json.dumps({"info": info, "messages": [{"id": "m", "type": "\x1b]0;x\x07", "time": {}}]}))
    result = shell.import_(str(file))
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    assert "\x07" not in result.output


def test_a_server_that_is_not_there_is_said(shell: Shell) -> None:
    pytest.importorskip("opencode", reason="the extra [opencode] is not installed")
    result = shell.import_("http://127.0.0.1:9")
    assert result.exit_code == 1
    assert "http://127.0.0.1:9" in result.output
    once = CliRunner().invoke(main, ["follow", "opencode", "http://127.0.0.1:9", "--once", "--store", shell.url])
    assert once.exit_code == 1


# --- functions for other workers ---


class NoReload:
    last_outcome = "applied"
    last_error = None
    rejected_reloads = 0

    async def reload(self) -> None:
        raise AssertionError("nobody asks for this")


class Stage:
    def __init__(self) -> None:
        self.told: list[Emission] = []
        self.store = MemoryStore()
        runtime = Runtime(self.store, self.publish, Limits(50, 500))
        self.service = Service(runtime, SystemClock(), RandomIds(), NoReload())  # type: ignore[arg-type] # never asked
        self.target = ServiceTarget(self.service)

    def publish(self, emissions: Sequence[Emission]) -> None:
        self.told += emissions

    async def call(self, name: str, payload: Json) -> Json:
        [function] = [f for f in FUNCTIONS if f.id == name]
        reply = await function(self.target, payload)
        Draft7Validator(schema(function.response)).validate(reply)
        return reply


def test_they_are_not_among_the_session_functions() -> None:
    assert {f.id for f in FUNCTIONS} == {"opencode::import", "opencode::export"}
    assert not {f.id for f in FUNCTIONS} & {f.id for f in SESSION_FUNCTIONS}
    for function in FUNCTIONS:
        Draft7Validator.check_schema(schema(function.request))
        Draft7Validator.check_schema(schema(function.response))


async def test_an_import_into_a_running_service_tells_its_events() -> None:
    stage = Stage()
    document = json.loads(TOOLS.read_bytes())
    reply = await stage.call("opencode::import", {"document": document, "metadata": {"owner": "ann"}})
    [session] = reply["sessions"]
    assert session["created"] is True
    kinds = [emission.event.trigger_type for emission in stage.told]
    assert kinds[0] == "session::created"
    assert set(kinds[1:]) == {"session::message-added"}
    assert len(kinds) == 1 + session["added"]
    assert all(emission.metadata is not None and emission.metadata["owner"] == "ann" for emission in stage.told)
    # What subscribers see of the chain holds together: every entry comes after the one it hangs under.
    seen: set[str | None] = {None}
    for emission in stage.told[1:]:
        payload = json.loads(emission.event.payload())
        assert payload["parent_id"] in seen
        seen.add(payload["entry_id"])
    # The public functions read what came in.
    read = await stage.service.call("session::messages", {"session_id": session["session_id"], "limit": 500})
    assert len(read["messages"]) == (await stage.store.metas())[0].message_count

    stage.told.clear()
    again = await stage.call("opencode::import", {"document": document})
    assert again["sessions"][0]["changed"] is False
    assert stage.told == []

    reply = await stage.call("opencode::export", {"session_id": session["session_id"]})
    assert list(differences(reply["document"], document)) == []


async def test_a_dry_run_over_the_wire_changes_nothing() -> None:
    stage = Stage()
    reply = await stage.call("opencode::import", {"document": json.loads(TOOLS.read_bytes()), "dry_run": True})
    assert reply["sessions"][0]["created"] is True
    assert stage.told == []
    assert await stage.store.metas() == []


async def test_errors_are_those_of_the_contract() -> None:
    stage = Stage()
    with pytest.raises(InvalidRequest, match=r"session/invalid_request: .*no session"):
        await stage.call("opencode::import", {"document": {"x": 1}})
    with pytest.raises(MalformedRequest, match="document"):
        await stage.call("opencode::import", {})
    with pytest.raises(MalformedRequest, match="format"):
        await stage.call("opencode::export", {"session_id": "s", "format": "3.0"})
    with pytest.raises(SessionNotFound):
        await stage.call("opencode::export", {"session_id": "s"})


async def test_imports_of_one_session_at_the_same_time_give_one_session() -> None:
    stage = Stage()
    document = json.loads(TOOLS.read_bytes())
    replies = await asyncio.gather(*(stage.call("opencode::import", {"document": document}) for _ in range(8)))
    assert sum(reply["sessions"][0]["created"] for reply in replies) == 1
    assert [e.event.trigger_type for e in stage.told].count("session::created") == 1


def imported(database: Path) -> int:
    """How many sessions there are so far, seen from outside."""
    try:
        reader = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)
    except sqlite3.OperationalError:
        return 0
    with contextlib.closing(reader), contextlib.suppress(sqlite3.OperationalError):
        count: int = reader.execute("SELECT count(*) FROM session").fetchone()[0]
        return count
    return 0


def test_an_import_that_is_killed_leaves_whole_sessions_and_continues(shell: Shell, tmp_path: Path) -> None:
    """It has a source that never ends behind half of the others, so that it cannot be done before it is killed."""
    halves = [tmp_path / "first", tmp_path / "second"]
    text = TOOLS.read_text()
    original = load("samples/v1_tools/export.json")["info"]["id"]
    for folder, numbers in zip(halves, (range(75), range(75, 150)), strict=True):
        folder.mkdir()
        for number in numbers:
            (folder / f"{number:03}.json").write_text(text.replace(original, f"ses_{number:03}"))
    code = (
        "import sys; from session_manager.interop.opencode.cli import import_opencode;"
        "import_opencode([sys.argv[1], '-', sys.argv[2], '--store', sys.argv[3]])"
    )
    command = [sys.executable, "-c", code, *map(str, halves), shell.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        database = Path(shell.url.removeprefix("sqlite:"))
        deadline = time.monotonic() + 60
        while imported(database) < 10:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.kill()
    half = shell.metas()
    assert 10 <= len(half) <= 75
    for meta in half:
        result = shell.export(meta.session_id)
        assert len(json.loads(result.stdout)["messages"]) == 10
    again = shell.import_(*map(str, halves), "--json")
    assert again.exit_code == 0
    told = json.loads(again.stdout)["sessions"]
    assert sum(not session["changed"] for session in told) == len(half)
    assert len(shell.metas()) == 150
