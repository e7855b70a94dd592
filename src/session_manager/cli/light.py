"""Leaves out of a start what nothing here needs. Imported before everything else that the commands import."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

DECORATION = ("rich", "pygments")

# pydantic looks through all installed packages for plugins of its own.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


@contextmanager
def plain() -> Iterator[None]:
    """Imports of the block find neither rich nor pygments. structlog and httpx, which the SDK brings, import both where
    they can, one for tracebacks in colour and one for a command line, and that is a tenth of a worker's start. Commands
    that use them import them themselves."""
    hidden = [name for name in DECORATION if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment] # as documented: importing it fails
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


with plain():
    import structlog  # noqa: F401 # for all others
