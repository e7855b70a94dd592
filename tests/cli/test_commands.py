"""The command line: help for everything, clear errors, exit statuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from session_manager import __version__
from session_manager.cli import COMMANDS, main
from session_manager.cli.options import arguments
from tests.engines import free_port

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
    assert run("schemas", "--write", "--directory", str(directory)).exit_code == 0
    assert run("schemas", "--check", "--directory", str(directory)).exit_code == 0


def test_a_manifest_that_is_not_as_its_source_says_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "iii.worker.toml", tmp_path)
    assert run("manifest", "--check").exit_code == 1
    assert run("manifest", "--write").exit_code == 0
    assert run("manifest", "--check").exit_code == 0
