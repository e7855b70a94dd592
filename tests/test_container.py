"""The container: what its Dockerfile does is done here without Docker, and what it promises is checked."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.engines import loopback_engine

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_the_install_steps_make_a_worker_that_starts(tmp_path: Path) -> None:
    """Copies what the Dockerfile copies, runs its install step, and starts its entry point."""
    source, app = tmp_path / "src", tmp_path / "app"
    source.mkdir()
    for what, where in re.findall(r"^COPY (?!--from)(.+) (\S+)$", DOCKERFILE, flags=re.MULTILINE):
        for name in what.split():
            target = tmp_path / where.removeprefix("/")
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, target)
    [install] = re.findall(r"^RUN (python -m venv /app.+)$", DOCKERFILE, flags=re.MULTILINE)
    script = install.replace("/app", str(app)).replace("/src", str(source)).replace("python ", f"{sys.executable} ", 1)
    subprocess.run(["/bin/sh", "-eu", "-c", script], check=True, capture_output=True, timeout=300)
    _serves_and_stops(tmp_path / "data", app)


def _serves_and_stops(data: Path, app: Path) -> None:
    """Runs the entry point as the container does: its environment and nothing else, in the volume's directory."""
    data.mkdir(mode=0o700)
    [entry] = re.findall(r"^ENTRYPOINT (\[.+\])$", DOCKERFILE, flags=re.MULTILINE)
    [variables] = re.findall(r"^ENV (.+)$", DOCKERFILE, flags=re.MULTILINE)
    environment = dict(one.split("=", 1) for one in variables.replace("/data", str(data)).split())
    command = json.loads(entry.replace("/app", str(app)))
    with loopback_engine() as url:
        worker = subprocess.Popen(
            [*command, "--url", url],
            cwd=data,
            env={"PATH": os.defpath, **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert worker.stderr is not None
            first = worker.stderr.readline()
            assert "serving" in first, first
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0
        finally:
            worker.kill()
            worker.communicate()
    kept = {path.name for path in (data / "data" / "session-manager").iterdir()}
    assert {"sessions.db", "session-manager.log"} <= kept


def test_the_build_is_sent_what_it_copies_and_no_more() -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, flags=re.MULTILINE)
    assert sent == {name for names in copied for name in names.split()}


def test_the_container_is_not_root_and_keeps_its_data_in_a_volume() -> None:
    users = re.findall(r"^USER (\S+)$", DOCKERFILE, flags=re.MULTILINE)
    assert users == ["session-manager"]
    assert "VOLUME /data" in DOCKERFILE
    assert "III_COMPOSE_DIR=/data" in DOCKERFILE
    assert re.search(r"^ENTRYPOINT \[", DOCKERFILE, flags=re.MULTILINE), "no shell between the worker and its signals"
