"""The machine and this process, as the tables and the figures need them."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
from pathlib import Path

PACKAGES = (
    "session-manager",
    "iii-sdk",
    "websockets",
    "msgspec",
    "uvloop",
    "openai-agents",
    "google-adk",
    "langgraph-checkpoint-sqlite",
    "langchain-community",
    "SQLAlchemy",
    "aiosqlite",
)


def described() -> dict[str, str]:
    """What a reader needs to know to compare figures."""
    found = {
        "CPU": f"{os.cpu_count()} x {_cpu()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
    }
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def resident(pid: int | str = "self") -> int:
    """Resident bytes now."""
    return _status(pid, "VmRSS")


def peak(pid: int | str = "self") -> int:
    """The most bytes that were resident since `forget_peak`."""
    return _status(pid, "VmHWM")


def forget_peak(pid: int | str = "self") -> None:
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return  # then peaks are those of the process's whole life


def _status(pid: int | str, key: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":")), 0)


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has used, all its threads that still run."""
    spent = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            spent += int((task / "schedstat").read_text(encoding="utf-8").split()[0])
        except OSError:
            continue
    return spent / 1e9


def on_disk(directory: Path) -> int:
    """Bytes of all files below a directory."""
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
