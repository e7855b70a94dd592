"""The container: what its Dockerfile does is done here without Docker, and what it promises is checked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

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
    [entry] = re.findall(r'^ENTRYPOINT \["(.+?)"', DOCKERFILE, flags=re.MULTILINE)
    out = subprocess.run(
        [entry.replace("/app", str(app)), "--manifest"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert '"name": "session-manager"' in out


def test_the_container_is_not_root_and_keeps_its_data_in_a_volume() -> None:
    users = re.findall(r"^USER (\S+)$", DOCKERFILE, flags=re.MULTILINE)
    assert users == ["session-manager"]
    assert "VOLUME /data" in DOCKERFILE
    assert "III_COMPOSE_DIR=/data" in DOCKERFILE
    assert re.search(r"^ENTRYPOINT \[", DOCKERFILE, flags=re.MULTILINE), "no shell between the worker and its signals"
