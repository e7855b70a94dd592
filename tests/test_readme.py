"""The README's two commands are the scripts, and its tour runs as it stands."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.engines import free_port

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(heading: str) -> list[str]:
    """The shell blocks below a heading."""
    section = re.split(r"^## ", README, flags=re.MULTILINE)
    [text] = [part for part in section if part.startswith(heading)]
    return re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)


def start(port: int, directory: Path) -> subprocess.Popen[str]:
    """`session-manager dev`, once it says that it is ready."""
    command = [sys.executable, "-m", "session_manager", "dev", "--port", str(port)]
    process = subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "is ready on" in line:
            return process
    raise AssertionError(f"it ended with {process.wait()}")


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert process.stdout is not None
    process.stdout.close()


def test_the_two_commands_are_scripts_that_can_be_run() -> None:
    commands = [block.strip() for block in blocks("Start")]
    assert commands == ["./scripts/dev", "./scripts/test"]
    assert all(os.access(ROOT / command, os.X_OK) for command in commands)
    assert "./scripts/test" in (ROOT / ".ci" / "run").read_text()


def test_the_tour_runs_as_it_stands(tmp_path: Path) -> None:
    *before, after = blocks("Two minutes")
    port = free_port()
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "III_URL": f"ws://127.0.0.1:{port}",
        "NO_PROXY": "127.0.0.1,localhost",
    }
    environment.pop("III_NAMESPACE", None)

    def shell(script: str) -> str:
        done = subprocess.run(
            ["/bin/sh", "-eu", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=170
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    watch = before[0].replace(" &", " > watched.log 2> watching.log &\nWATCHER=$!\n")
    waited = "until grep -q watching watching.log; do sleep 0.05; done\n"
    arrived = "until grep -q 'r2' watched.log; do sleep 0.05; done\nkill $WATCHER\necho \"$S\" > session\n"
    dev = start(port, tmp_path)
    try:
        out = shell(watch + waited + "\n".join(before[1:]) + arrived)
    finally:
        stop(dev)
    assert "About 460 km by road." in out
    assert '"title": "Another plan"' in out
    watched = (tmp_path / "watched.log").read_text().splitlines()
    assert [line.split()[1] for line in watched] == ["message-added"] * 2 + ["message-updated"] * 2

    dev = start(port, tmp_path)
    try:
        again = json.loads(shell("S=$(cat session)\n" + after))
    finally:
        stop(dev)
    assert [item["message"]["role"] for item in again["messages"]] == ["user", "assistant"]
    assert again["messages"][1]["message"]["content"][0]["text"] == "About 460 km by road."


def test_every_document_that_the_readme_names_is_there() -> None:
    named = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", README)
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []
