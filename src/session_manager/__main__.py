"""`python -m session_manager` is the `session-manager` command."""

from session_manager.cli import main

main(prog_name="session-manager")
