"""`./scripts/dev` and `./scripts/test` install what is missing, and only that."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PYTHON = """\
#!/bin/sh
echo "$*" >> "$LOG"
case "$*" in
*"-m venv"*)
    mkdir -p .venv/bin
    cp "$0" .venv/bin/python
    [ -e no-ensurepip ] && exit 1
    cp "$0" .venv/bin/pip ;;
*"-m pip install"*)
    [ -e no-index ] && exit 1
    cp "$0" .venv/bin/session-manager ;;
esac
exit 0
"""
"""Stands for Python, pip and what they install: it notes how it was called."""


class Checkout:
    def __init__(self, directory: Path) -> None:
        self.directory, self._log = directory / "checkout", directory / "log"
        (directory / "bin").mkdir()
        python = directory / "bin" / "python3.13"
        python.write_text(PYTHON)
        python.chmod(0o755)
        shutil.copytree(ROOT / "scripts", self.directory / "scripts")
        (self.directory / "pyproject.toml").write_text("one")
        self._environment = {"PATH": f"{directory / 'bin'}:/usr/bin:/bin", "LOG": str(self._log)}

    def dev(self) -> tuple[int, list[str]]:
        """The exit status, and what was done: venv, install, dev."""
        self._log.write_text("")
        script = self.directory / "scripts" / "dev"
        status = subprocess.run([script], env=self._environment, capture_output=True).returncode
        called = [call.split() for call in self._log.read_text().splitlines()]
        named = [word for call in called for word in call if word in ("venv", "install", "dev")]
        return status, named


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_what_is_installed_is_not_installed_again(checkout: Checkout) -> None:
    assert checkout.dev() == (0, ["venv", "install", "dev"])
    (checkout.directory / "no-index").touch()  # so it does without a network
    assert checkout.dev() == (0, ["dev"])


def test_another_pyproject_or_another_place_is_installed(checkout: Checkout) -> None:
    checkout.dev()
    (checkout.directory / "pyproject.toml").write_text("two")
    assert checkout.dev() == (0, ["install", "dev"])
    checkout.directory = checkout.directory.rename(checkout.directory.with_name("moved"))
    assert checkout.dev() == (0, ["install", "dev"])


@pytest.mark.parametrize(
    ("fault", "again"), [("no-ensurepip", ["venv", "install", "dev"]), ("no-index", ["install", "dev"])]
)
def test_what_was_not_finished_is_done_when_it_is_started_again(
    checkout: Checkout, fault: str, again: list[str]
) -> None:
    (checkout.directory / fault).touch()
    status, _ = checkout.dev()
    assert status != 0
    (checkout.directory / fault).unlink()
    assert checkout.dev() == (0, again)
