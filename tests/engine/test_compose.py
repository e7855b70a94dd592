"""The worker under `iii compose`, driven by `iii trigger`, as docs/operating.md shows it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.engines import real_engine_process, why_no_engine
from tests.wire import COMMAND, clean_environment

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(why_no_engine(of_its_own=True) is not None, reason=f"{why_no_engine(of_its_own=True)}"),
]


class Project:
    """A directory with a compose file and a checkout of the worker, and a compose daemon that serves it."""

    def __init__(self, directory: Path, port: int, binary: str, namespace: str) -> None:
        self.directory, self.port, self.binary, self.namespace = directory, port, binary, namespace
        self.worker = directory / "session-manager"
        self.log = self.worker / "data" / "session-manager" / "session-manager.log"
        self.environment = clean_environment(HOME=str(directory / "home"), III_TELEMETRY_ENABLED="false")
        (directory / "home").mkdir()
        self._check_out()

    def _check_out(self) -> None:
        """The worker's manifest, and in place of the virtual environment that its start command would make, this
        interpreter."""
        command = self.worker / ".venv" / "bin" / "session-manager"
        command.parent.mkdir(parents=True)
        shutil.copy(ROOT / "iii.worker.yaml", self.worker)
        source = f"PYTHONPATH={shlex.quote(os.environ.get('PYTHONPATH', ''))}"
        command.write_text(f'#!/bin/sh\n{source} exec {shlex.join(COMMAND)} "$@"\n')
        command.chmod(0o755)

    def write(self, **file: Any) -> None:
        (self.directory / "worker-compose.yaml").write_text(yaml.safe_dump(file, sort_keys=False))

    def run(self, function_id: str, *arguments: str, namespace: str | None = None) -> subprocess.CompletedProcess[str]:
        target = ["-n", namespace] if namespace else []
        return subprocess.run(
            [self.binary, "trigger", "--port", str(self.port), *target, function_id, *arguments],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=90,
        )

    def trigger(self, function_id: str, *arguments: str, namespace: str | None = None) -> Any:
        done = self.run(function_id, *arguments, namespace=namespace)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout) if done.stdout.strip() else None

    def compose(self, function: str, *arguments: str) -> Any:
        answer = self.trigger(f"compose::{function}", *arguments)
        assert answer["status"] == "ok", answer
        return answer

    def events(self) -> list[str]:
        """What the worker's own log tells, oldest first."""
        return [json.loads(line)["event"] for line in self.log.read_text().splitlines()]

    def processes(self) -> list[int]:
        """The processes of the worker that run."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "cwd").resolve() == self.worker:
                    found.append(int(entry.name))
            except OSError:
                continue
        return found


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with real_engine_process() as engine:
        made = Project(tmp_path, engine.port, engine.binary, "default")
        with (tmp_path / "compose.log").open("wb") as log:
            daemon = subprocess.Popen(
                [engine.binary, "compose", "-n", "default", "--engine", engine.url],
                cwd=tmp_path,
                env=made.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        try:
            deadline = time.monotonic() + 15
            while made.run("compose::list").returncode:
                assert time.monotonic() < deadline, (tmp_path / "compose.log").read_text()
            yield made
        finally:
            made.run("compose::down")
            daemon.terminate()
            daemon.wait(15)


def test_a_worker_that_is_added_serves_keeps_its_data_and_stops_cleanly(project: Project) -> None:
    (project.directory / "worker-compose.yaml").write_text("containers:\n")
    added = project.trigger("compose::add", "worker=./session-manager")
    assert (added["status"], added["container"]) == ("ok", "session-manager")

    made = project.trigger("session::create", "title=hello")
    session = f"session_id={made['session_id']}"
    message = json.dumps({"role": "user", "content": [{"type": "text", "text": "Hello?"}], "timestamp": 1})
    entry = project.trigger("session::append", session, f"message={message}")
    page = project.trigger("session::messages", session)
    assert [item["entry_id"] for item in page["messages"]] == [entry["entry_id"]]
    told = project.trigger("engine::workers::info", "name=session-manager")
    assert len(told["trigger_types"]) == 7

    missing = project.run("session::get-message", "entry_id=x")
    assert missing.returncode == 1
    assert "Traceback" not in missing.stderr
    assert str(project.directory) not in missing.stderr

    for _ in range(2):
        project.compose("restart", "worker=session-manager")
        assert project.trigger("session::get", session)["meta"]["title"] == "hello"
    assert (project.worker / "data" / "session-manager" / "sessions.db").exists()

    began = time.monotonic()
    project.compose("down")
    assert time.monotonic() - began < 10
    assert not project.processes()
    assert project.events() == ["serving", "stopped"] * 3
    assert "Traceback" not in project.log.read_text()

    project.compose("up", "file=./worker-compose.yaml")
    assert project.trigger("session::messages", session) == page


def _commands(document: str, heading: str) -> list[tuple[str, str]]:
    """The commands of the terminal blocks below a heading, and what the document shows that they print."""
    text = (ROOT / document).read_text(encoding="utf-8")
    [section] = [part for part in re.split(r"^## ", text, flags=re.MULTILINE) if part.startswith(heading)]
    shown = []
    for block in re.findall(r"```console\n(.*?)```", section, flags=re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, line, rest = "", "", part
            while not command or line.endswith("\\"):
                line, _, rest = rest.partition("\n")
                command += line + "\n"
            shown.append((command, rest))
    return shown


class _Run:
    """What differs between two runs: times, and ids, which the commands that follow have to name."""

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}

    def command(self, shown: str) -> str:
        for theirs, ours in self.ids.items():
            shown = shown.replace(theirs, ours)
        return shown

    def same(self, shown: str, printed: str) -> None:
        made = r"\b(?:[se]_[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
        self.ids |= dict(zip(re.findall(made, shown), re.findall(made, printed), strict=True))
        assert re.sub(r"\b\d{13}\b", "<time>", self.command(shown)) == re.sub(r"\b\d{13}\b", "<time>", printed)


@pytest.mark.parametrize("document", ["README.md", "docs/operating.md"])
def test_the_documents_show_what_a_terminal_shows(project: Project, document: str) -> None:
    (project.directory / "worker-compose.yaml").write_text("containers:\n")
    tools = project.directory / "tools"
    tools.mkdir()
    (tools / "iii").write_text(
        f'#!/bin/sh\nshift\nexec {shlex.quote(project.binary)} trigger --port {project.port} "$@"\n'
    )
    (tools / "iii").chmod(0o755)
    environment = {**project.environment, "PATH": f"{tools}:{os.environ['PATH']}"}
    run = _Run()
    commands = [shown for shown in _commands(document, "Under `iii compose`") if not shown[0].startswith("iii compose")]
    assert len(commands) >= 4
    for command, shown in commands:
        done = subprocess.run(
            ["/bin/sh", "-c", run.command(command)],
            cwd=project.directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=90,
        )
        run.same(shown, done.stdout)


def test_a_worker_behind_a_shell_stops_cleanly_although_the_signal_comes_twice(project: Project) -> None:
    """The shell that starts it dies first, and what is left of its group gets the signal again."""
    command = ".venv/bin/session-manager serve; true"
    project.write(containers={"session-manager": {"worker": "path://./session-manager", "scripts": {"run": command}}})
    project.compose("up", "file=./worker-compose.yaml")
    project.trigger("session::create", "title=hello")
    assert len(project.processes()) == 2, "no shell in between"
    project.compose("down")
    assert not project.processes()
    assert project.events() == ["serving", "stopped"]
    assert "Traceback" not in project.log.read_text()


def test_a_worker_that_has_died_is_started_again_by_up(project: Project) -> None:
    project.write(containers={"session-manager": {"worker": "path://./session-manager"}})
    project.compose("up", "file=./worker-compose.yaml")
    session = f"session_id={project.trigger('session::create', 'title=hello')['session_id']}"
    [process] = project.processes()
    os.kill(process, signal.SIGKILL)
    deadline = time.monotonic() + 15
    while project.run("session::get", session).returncode:
        project.run("compose::up", "worker=session-manager")
        assert time.monotonic() < deadline, "it did not come back"
    assert project.trigger("session::get", session)["meta"]["title"] == "hello"


def test_a_project_may_have_a_namespace_and_a_configuration_of_its_own(project: Project) -> None:
    project.write(
        namespace="chat",
        containers={
            "store": {
                "worker": "path://./session-manager",
                "config_name": "chat-store",
                "config_override": {
                    "adapter": {"name": "sqlite", "config": {"path": "chat/conversations.db"}},
                    "default_list_limit": 1,
                },
            }
        },
    )
    project.compose("up", "file=./worker-compose.yaml")
    workers = project.trigger("engine::workers::list", "search=store")["workers"]
    assert {(one["name"], one["namespace"]) for one in workers} == {("store", "chat"), ("store-deliveries", "chat")}
    for _ in range(2):
        project.trigger("session::create", namespace="chat")
    page = project.trigger("session::list", namespace="chat")
    assert len(page["sessions"]) == 1
    assert (project.worker / "chat" / "conversations.db").exists()

    value = project.trigger("configuration::get", "id=chat-store")["value"]
    value["default_list_limit"] = 2
    project.trigger("configuration::set", "id=chat-store", f"value={json.dumps(value)}")
    deadline = time.monotonic() + 10
    while len(project.trigger("session::list", namespace="chat")["sessions"]) != 2:
        assert time.monotonic() < deadline, "the configuration that was set is not in force"
    project.compose("down")
    assert not project.processes()
