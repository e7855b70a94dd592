"""The command line: help for everything, clear errors, exit statuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from session_manager import __version__
from session_manager.cli import COMMANDS, main
from session_manager.cli.options import arguments
from session_manager.dev import EngineThread
from tests.engines import free_port
from tests.wire import COMMAND, clean_environment

ROOT = Path(__file__).parent.parent.parent


def run(*args: str) -> Any:
    return CliRunner().invoke(main, list(args))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert len(result.output.splitlines()) > 4


def test_version_and_manifest_touch_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("--version").output.strip().endswith(__version__)
    assert json.loads(run("--manifest").output)["name"] == "session-manager"
    assert list(tmp_path.iterdir()) == []


def test_no_command_shows_the_help() -> None:
    result = run()
    assert result.exit_code == 0
    assert "session-manager dev" in result.output


@pytest.mark.parametrize(
    "args",
    [
        ("call", "session::list"),
        ("watch",),
        ("serve", "--log-file", "-", "--patience", "0"),
    ],
)
def test_without_an_engine_there_is_one_clear_line_and_exit_status_1(
    args: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"ws://127.0.0.1:{free_port()}"
    result = run(*args, "--url", url)
    assert result.exit_code == 1
    [line] = [line for line in result.stderr.splitlines() if line.startswith("session-manager:")]
    assert url in line
    assert "Traceback" not in result.stderr


def test_pairs_are_json_where_they_can_be_and_lie_over_the_json_option() -> None:
    assert arguments(("limit=5", "title=hello", 'metadata={"a":1}', "x="), '{"limit": 1, "y": null}') == {
        "limit": 5,
        "title": "hello",
        "metadata": {"a": 1},
        "x": "",
        "y": None,
    }
    anything: Any = arguments((), "[1]")
    assert anything == [1]
    for bad in (("novalue",), ("=x",)):
        with pytest.raises(click.BadParameter):
            arguments(bad, None)
    with pytest.raises(click.BadParameter):
        arguments((), "{")


def test_how_long_the_texts_of_a_call_are_is_for_the_function_to_judge() -> None:
    long = "x" * (4 << 20)
    result = run("call", "f", f"id={long}", f"title={long}x", "--url", "ws://127.0.0.1:1")
    assert "no engine at" in result.stderr


@pytest.mark.parametrize("text", ["NaN", "1e999", '"\\ud800"', str(2**64)])
def test_what_no_engine_carries_is_refused_before_it_is_sent(text: str) -> None:
    result = run("call", "session::create", f"title={text}")
    assert result.exit_code == 1
    assert "malformed request" in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("call", "session::list", "--json", "null"),
        ("call", "session::list", "--timeout", "nan"),
        ("call", "session::list", "--timeout", "-1"),
        ("call", "session::list", "--namespace", " "),
        ("serve", "--patience", "inf"),
        ("engine", "--port", "65536"),
        ("dev", "--port", "-1"),
        ("watch", "--metadata", "[]"),
        ("watch", "--metadata", '{"a":NaN}'),
        ("import", "opencode", "--metadata", '{"a":NaN}', "x.json"),
        ("export", "opencode", "--store", "sqlite:missing.db", "s"),
        ("--url", "ws://127.0.0.1:1", "call", "session::list"),
        ("--config", "x.yaml", "serve"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused_and_nothing_is_done(
    args: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["engine", "dev"])
def test_a_place_where_nothing_can_be_kept_is_named(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").write_text("in the way")
    monkeypatch.chdir(tmp_path)
    result = run(command, "--port", "0")
    assert result.exit_code == 1
    assert "cannot keep its configuration in data" in result.stderr.splitlines()[-1]


def test_without_a_command_the_environment_counts_as_it_does_for_serve(tmp_path: Path) -> None:
    url = f"ws://127.0.0.1:{free_port()}"

    def started(**environment: str) -> subprocess.CompletedProcess[str]:
        said = clean_environment(**environment)
        return subprocess.run([*COMMAND, "--url", url], capture_output=True, text=True, env=said, cwd=tmp_path)

    no_engine = started(SESSION_MANAGER_PATIENCE="0")
    assert (no_engine.returncode, url in no_engine.stderr) == (1, True)
    assert started(SESSION_MANAGER_LOG="shout").returncode == 2


def test_the_manifest_is_all_that_is_done_when_it_is_asked_for() -> None:
    result = run("--manifest", "serve", "--url", "ws://127.0.0.1:1", "--patience", "0", "--log-file", "-")
    assert (result.exit_code, result.stderr) == (0, "")


def test_schema_files_that_are_not_as_the_types_say_are_named(tmp_path: Path) -> None:
    directory = tmp_path / "schemas"
    shutil.copytree(ROOT / "schemas", directory)
    assert run("schemas", "--check", "--directory", str(directory)).exit_code == 0
    (directory / "functions" / "get.json").write_text("{}")
    (directory / "extra.json").write_text("{}")
    result = run("schemas", "--check", "--directory", str(directory))
    assert result.exit_code == 1
    assert "get.json" in result.stderr
    assert "extra.json" in result.stderr
    result = run("schemas", "--write", "--directory", str(directory))
    assert (result.exit_code, "extra.json" in result.stderr) == (0, True)
    (directory / "extra.json").unlink()  # written by hand, removed by hand
    assert run("schemas", "--check", "--directory", str(directory)).exit_code == 0


def test_a_manifest_that_is_not_as_its_source_says_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "iii.worker.toml", tmp_path)
    assert run("manifest", "--check").exit_code == 1
    assert run("manifest", "--write").exit_code == 0
    assert run("manifest", "--check").exit_code == 0


def test_a_value_that_nests_too_deeply_to_be_read_is_refused_like_any_other() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    for result in (run("call", "f", f"x={deep}"), run("call", "f", "--json", deep)):
        assert (result.exit_code, result.stderr) == (
            1,
            "session-manager: malformed request: values may nest at most 96 levels deep\n",
        )
    for args in (("watch",), ("import", "opencode", "x.json"), ("follow", "opencode", "http://127.0.0.1:1")):
        result = run(*args, "--metadata", deep)
        assert (result.exit_code, "values may nest at most 96 levels deep" in result.stderr) == (2, True)


@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize("args", [("--help",), ("manifest",), ("schemas",), ("check", "fs:.")])
def test_a_full_disk_behind_stdout_is_one_line_and_exit_status_1(
    args: tuple[str, ...], buffered: str, tmp_path: Path
) -> None:
    environment = clean_environment(PYTHONUNBUFFERED=buffered)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, *args], stdout=full, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
        )
    assert (done.returncode, done.stderr) == (1, "session-manager: No space left on device\n")


def test_what_is_logged_never_gets_among_what_is_printed(tmp_path: Path) -> None:
    source = Path(__file__).parent.parent / "interop" / "data" / "samples" / "v1_tools" / "export.json"
    store = f"fs:{tmp_path / 'store'}"
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "odd.jsonl").write_text("odd\n")
    for args in (("import", "opencode", str(source), "--json"), ("export", "opencode", "odd")):
        result = run(*args, "--store", store)
        assert "odd.jsonl" not in result.stdout
    assert json.loads(run("import", "opencode", str(source), "--json", "--store", store).stdout)["refused"] == []


@pytest.mark.parametrize("json_", [(), ("--json",)])
@pytest.mark.parametrize(
    ("store", "why"),
    [
        ("sqlite:none.db", "there is no such database"),
        ("sqlite:pipe", "this is no file"),
        ("sqlite:.", "this is no file"),
        ("sqlite:loop", "the path is a link that leads to itself"),
        ("fs:loop", "the path is a link that leads to itself"),
        ("sqlite:" + "x" * 5000, "File name too long"),
        ("none.db", "this names no store that can be looked at; use sqlite:FILE or fs:DIR"),
    ],
)
def test_a_store_that_cannot_be_looked_at_is_named_with_the_reason(
    store: str, why: str, json_: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    for repair in ((), ("--repair",)):
        result = run("check", store, *json_, *repair)
        told = json.loads(result.stdout) if json_ else {"store": store, "error": result.stderr.rstrip()}
        assert (result.exit_code, told["store"], why in told["error"]) == (2, store, True)
        assert json_ or told["error"].startswith(f"session-manager: {store}: ")


@pytest.mark.parametrize(
    "args",
    [
        ("import", "opencode", "x.json", "--store", "sqlite:{}"),
        ("import", "opencode", "x.json", "--dry-run", "--store", "sqlite:{}"),
        ("export", "opencode", "s", "--store", "sqlite:{}"),
        ("export", "opencode", "s", "--store", "fs:{}"),
        ("migrate", "--from", "sqlite:{}", "--to", "sqlite:new.db"),
        ("migrate", "--from", "fs:empty", "--to", "sqlite:{}"),
        ("migrate", "--from", "fs:empty", "--to", "fs:{}"),
    ],
)
@pytest.mark.parametrize("name", ["text", "loop"])
def test_a_store_that_does_not_open_is_named(
    args: tuple[str, ...], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("text").write_text("this is no database\n")
    Path("loop").symlink_to("loop")
    given = [arg.format(name) for arg in args]
    [store] = [arg for arg in given if arg.endswith(f":{name}")]
    result = run(*given)
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1), result.stderr
    assert result.stderr.startswith(f"session-manager: {store}: session/storage: ")


@pytest.mark.parametrize(
    ("args", "status"),
    [
        (("check",), 1),
        (("check", "sqlite:x.db"), 2),
        (("import", "opencode", "x.json"), 1),
        (("import", "opencode", "x.json", "--store", "sqlite:x.db"), 1),
        (("export", "opencode", "s"), 1),
        (("migrate", "--from", "fs:a", "--to", "sqlite:b.db"), 1),
        (("dev", "--port", "0"), 1),
        (("serve", "--patience", "0", "--url", "ws://127.0.0.1:1"), 1),
    ],
)
def test_a_working_directory_that_was_removed_is_the_reason_that_is_told(
    args: tuple[str, ...], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    monkeypatch.delenv("III_COMPOSE_DIR", raising=False)
    (tmp_path / "gone").rmdir()
    result = run(*args)
    assert result.exit_code == status
    assert result.stderr.endswith(": the working directory is not there any more\n")


@pytest.mark.parametrize("host", ["a..b", "a" * 64, "\udcff"])
@pytest.mark.parametrize("args", [("call", "f"), ("watch",), ("serve", "--log-file", "-", "--patience", "0")])
def test_a_host_that_no_name_service_can_be_asked_for_is_no_url(args: tuple[str, ...], host: str) -> None:
    result = run(*args, "--url", f"ws://{host}:1")
    assert result.exit_code == 1
    assert result.stderr.endswith(":1' is no WebSocket URL\n")


@pytest.mark.parametrize(
    ("args", "status", "why"),
    [
        (("call", "\udcff"), 1, "a lone surrogate, which is no character - at `function`"),
        (("call", "f", "--namespace", "\udcff"), 1, "a lone surrogate, which is no character - at `namespace`"),
        (("watch", "--session", "\udcff"), 2, "a lone surrogate, which is no character - at `session_id`"),
        (
            ("serve", "--name", "\udcff", "--patience", "0", "--log-file", "-"),
            1,
            "'\\udcff' cannot be written as utf-8",
        ),
        (("export", "opencode", "\udcff", "--store", "fs:."), 1, "no session"),
        (("export", "opencode", "\udcff", "--store", "sqlite:here.db"), 1, "'\\udcff' cannot be written as utf-8"),
    ],
)
def test_a_command_line_that_is_not_utf_8_is_refused_and_not_sent(
    args: tuple[str, ...], status: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run("import", "opencode", ".", "--store", "sqlite:here.db")  # makes the database
    with EngineThread() as engine:
        monkeypatch.setenv("III_URL", engine.url)
        result = run(*args)
    assert (result.exit_code, why in result.stderr) == (status, True), result.stderr
