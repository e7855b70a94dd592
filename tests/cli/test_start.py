"""What a start imports is most of the time that it takes."""

from __future__ import annotations

import subprocess
import sys

from tests.wire import clean_environment

UNWANTED = (
    "attr",
    "pygments",
    "rich",
    "yaml",
    "session_manager.cli.migrate",
    "session_manager.doctor",
    "session_manager.edge.bridge",
    "session_manager.stores.fs",
)


def _imported(code: str) -> set[str]:
    """The modules that a fresh interpreter has after running this."""
    tell = f"{code}\nimport sys; print('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", tell], capture_output=True, text=True, env=clean_environment(), check=True
    )
    return set(done.stdout.split())


def test_a_worker_that_starts_imports_nothing_that_only_others_need() -> None:
    code = """
import contextlib, os, tempfile
from session_manager.cli import main
os.chdir(tempfile.mkdtemp())
with contextlib.suppress(SystemExit):
    main(["serve", "--url", "ws://127.0.0.1:1", "--patience", "0"])
"""
    imported = _imported(code)
    assert "session_manager.edge.worker" in imported
    assert imported.isdisjoint(UNWANTED)


def test_what_a_start_leaves_out_is_there_for_those_who_use_it() -> None:
    imported = _imported("import session_manager.cli, session_manager.cli.migrate, rich.traceback, structlog")
    assert {"rich.console", "pygments"} <= imported
