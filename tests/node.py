"""The Node SDK for tests: installed once into a directory that is not checked in, skipped with a reason elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SDK = "iii-sdk@0.22.1"

CACHE = Path(__file__).parent / ".node_cache"


class NoNode(Exception):
    """Node, npm or the SDK cannot be had here."""


def node_sdk() -> Path:
    """A directory whose scripts can `import ... from 'iii-sdk'`; raises NoNode.

    The first call installs the SDK from the npm registry.
    """
    if not (shutil.which("node") and shutil.which("npm")):
        raise NoNode("node and npm are not installed")
    home = CACHE / SDK.replace("@", "-")
    if home.is_dir():
        return home
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, ignore_cleanup_errors=True) as scratch:
        (Path(scratch) / "package.json").write_text('{"private": true}\n')
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", scratch, SDK]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=180)
        except subprocess.CalledProcessError as error:
            raise NoNode(f"npm could not install {SDK}: {error.stderr.strip().splitlines()[-1:]}") from None
        except subprocess.TimeoutExpired:
            raise NoNode(f"npm could not install {SDK} within three minutes") from None
        try:
            Path(scratch).rename(home)
        except OSError:
            if not home.is_dir():  # else another run was faster
                raise
    return home


@contextmanager
def node_process(script: str, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A module run by Node, its standard input and output as text pipes; killed at the end. Raises NoNode."""
    path = node_sdk() / f"{uuid.uuid4().hex}.mjs"
    path.write_text(script, encoding="utf-8")
    try:
        process = subprocess.Popen(
            ["node", str(path), *arguments],
            env={**os.environ, "OTEL_ENABLED": "false", **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()
    finally:
        path.unlink(missing_ok=True)


def run_node(script: str, *arguments: str, seconds: float = 120, **environment: str) -> str:
    """What a module printed; raises AssertionError with its standard error if it failed. Raises NoNode."""
    with node_process(script, *arguments, **environment) as process:
        output, errors = process.communicate(timeout=seconds)
        assert process.returncode == 0, errors
        return output
