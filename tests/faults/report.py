"""Runs every fault, the long ones too, and writes the table of docs/reliability.md: python -m tests.faults.report

With `--keep FILE` the figures are kept in a file, and taken from it if it is there. Takes about twenty minutes. With
`III_BIN` set, workers are killed on a real engine too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"

ORDER = (
    "Crash", "Power loss", "Log cut", "Torn pages", "Disk full", "Disk read-only", "Permission denied", "Disk broken",
    "Disk slow", "Disk removed", "Two processes", "Cancellation", "Races", "Values", "Big body", "Ids", "Clock",
    "Dead subscriber", "Bindings", "100,000 sessions", "1,000 connections", "Streamed reply", "Deleted sessions",
    "Write-ahead log", "Malformed", "Broken data",
)  # fmt: skip


def measure(figures: Path) -> int:
    command = [sys.executable, "-m", "pytest", "tests/faults", "tests/stores", "-q", "-m", "long or not long"]
    return subprocess.run(
        [*command, "-p", "no:cacheprovider"], cwd=ROOT, env={**os.environ, "FAULT_FIGURES": str(figures)}
    ).returncode


def table(figures: Path) -> str:
    """One line per fault; of those that ran on several stores the last."""
    lines: dict[str, list[str]] = {}
    for text in figures.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        lines[line[0]] = line

    def place(name: str) -> tuple[int, str]:
        return next((n for n, start in enumerate(ORDER) if name.startswith(start)), len(ORDER)), name

    rows = ["| fault | how provoked | runs | result |", "| --- | --- | --- | --- |"]
    rows += [f"| {' | '.join(cell.replace('|', '/') for cell in lines[name])} |" for name in sorted(lines, key=place)]
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, metavar="FILE", help="keep the figures here, and take them if it is there")
    keep: Path | None = parser.parse_args().keep
    figures = keep.resolve() if keep else Path(tempfile.mkdtemp(prefix="faults-")) / "figures"
    failed = 0 if figures.exists() else measure(figures)
    text = DOCUMENT.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    DOCUMENT.write_text(f"{head}{BEGIN}\n{table(figures)}\n{END}{tail}", encoding="utf-8")
    return failed


if __name__ == "__main__":
    sys.exit(main())
