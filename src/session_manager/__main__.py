"""The `session-manager` command, also as `python -m session_manager`."""

from __future__ import annotations

import signal


def main() -> None:
    """Until a command is found, Ctrl+C ends the process as it ends others. Python's own way would show where in its
    imports it was, or be lost there: what is raised when an import puts its lock away is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from session_manager.cli import main as commands

    commands(prog_name="session-manager")


if __name__ == "__main__":
    main()
