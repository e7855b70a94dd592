"""The worker's manifest: `iii.worker.toml` is its one source, `iii.worker.yaml` (which iii reads) is made from it."""

from __future__ import annotations

import platform
import tomllib
from pathlib import Path
from typing import Any

import yaml

from session_manager import __version__
from session_manager.config import Configuration
from session_manager.model import JsonObject

DESCRIPTION = "Conversation database of an agent system: typed entries in branching sessions, every change pushed live."

_HEADER = "# Made from iii.worker.toml by `session-manager manifest --write`; change that file instead.\n"


def manifest() -> JsonObject:
    """What `--manifest` prints."""
    return {
        "name": "session-manager",
        "version": __version__,
        "description": DESCRIPTION,
        "default_config": Configuration().value(),
        "supported_targets": [_target()],
    }


def _target() -> str:
    machine = {"arm64": "aarch64", "amd64": "x86_64", "AMD64": "x86_64"}.get(platform.machine(), platform.machine())
    system = {"Linux": "unknown-linux-gnu", "Darwin": "apple-darwin", "Windows": "pc-windows-msvc"}
    return f"{machine}-{system.get(platform.system(), platform.system().lower())}"


def worker_yaml(toml: Path) -> str:
    """The text of `iii.worker.yaml` for an `iii.worker.toml`."""
    source: dict[str, Any] = tomllib.loads(toml.read_text(encoding="utf-8"))
    return _HEADER + yaml.safe_dump({**source["worker"], "config": source["config"]}, sort_keys=False, width=110)
