"""The Rust SDK for tests: a program built once into a directory that is not checked in, skipped with a reason where it
cannot be."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

CACHE = Path(__file__).parent / ".rust_cache"

OFFLINE = ("failed to download", "failed to get", "Could not resolve host", "failed to query replaced source")
"""What cargo says when it cannot reach the registry."""


class NoRust(Exception):
    """cargo or the SDK cannot be had here."""


def rust_program(package: Path, name: str) -> Path:
    """The program of a package; raises NoRust, or AssertionError with what the compiler says.

    The first call takes minutes: it downloads the SDK from the registry and builds it.
    """
    cargo = shutil.which("cargo")
    if cargo is None:
        raise NoRust("cargo is not installed")
    command = [cargo, "build", "--quiet", "--manifest-path", str(package / "Cargo.toml")]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(CACHE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    if done.returncode and any(sign in done.stderr for sign in OFFLINE):
        raise NoRust(f"the registry cannot be reached: {done.stderr.strip().splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    return CACHE / "debug" / name
