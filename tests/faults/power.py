"""A load that writes beside the database what its callers were told: python -m tests.faults.power DIRECTORY SEED STEPS.

It runs below the shim, which writes down what is done to every file of the directory, in order: what was told too.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from tests.faults.load import load_file

TOLD = "told"


def main(directory: Path, seed: int, steps: int) -> None:
    fd = os.open(directory / TOLD, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for run in range(3):  # closed and opened in between, so that the log is removed and made anew
        asyncio.run(load_file(directory / "sessions.db", fd, f"r{run}", seed + run, steps))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
