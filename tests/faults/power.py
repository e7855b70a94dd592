"""A load that writes beside the store what its callers were told: python -m tests.faults.power KIND DIRECTORY SEED
STEPS.

It runs below the shim, which writes down what is done to every file of the directory, in order: what was told too.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from session_manager.errors import StorageError
from tests.faults.load import load_store

TOLD = "told"


def main(kind: str, directory: Path, seed: int, steps: int) -> None:
    fd = os.open(directory / TOLD, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for run in range(3):  # closed and opened in between, so that a database's log is removed and made anew
        while True:
            try:
                asyncio.run(load_store(directory, kind, fd, f"r{run}", seed + run, steps))
                break
            except StorageError:  # the disk may be one that fails at times
                continue


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
