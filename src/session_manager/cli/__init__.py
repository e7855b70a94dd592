"""The command line: one module per command, one line each."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from session_manager import __version__
from session_manager.cli import light  # before the commands
from session_manager.terminal import fail, reason

with light.plain():
    from session_manager import logs

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("serve", "serve"),
    "dev": ("dev", "dev"),
    "engine": ("dev", "engine"),
    "call": ("call", "call"),
    "watch": ("watch", "watch"),
    "check": ("check", "check"),
    "migrate": ("migrate", "command"),
    "import": ("interop", "import_"),
    "export": ("interop", "export"),
    "follow": ("interop", "follow"),
    "schemas": ("schemas", "schemas"),
    "manifest": ("manifest", "manifest"),
}
"""Module and name of each command."""


class _Commands(click.Group):
    """Imports a command when it is asked for: a worker that starts has no use for the others."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """What the system refuses (a full disk behind stdout, a directory that cannot be read) is told in one line, and
        so is text that cannot be written: the command line's, where it is not UTF-8, or what stdout's encoding lacks.
        """
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            try:
                sys.stdout.flush()
            except OSError:
                with suppress(OSError):
                    sys.stdout.close()  # else Python tries again at its end, and the exit status is its own
            fail(reason(error))
        except UnicodeEncodeError as error:
            fail(f"{error.object[error.start : error.end]!a} cannot be written as {error.encoding}")

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = command(cmd_name) if cmd_name in COMMANDS else None
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # until here, see `__main__`
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return found


def command(name: str) -> click.Command:
    module, attribute = COMMANDS[name]
    found: click.Command = getattr(import_module(f"session_manager.cli.{module}"), attribute)
    return found


@click.group(cls=_Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="session-manager")
@click.option("--url", help="WebSocket URL of the engine; with no command, the worker is served there.")
@click.option("--config", "seed", type=click.Path(path_type=Path), help="First-boot configuration (YAML or TOML).")
@click.option("--manifest", "show_manifest", is_flag=True, help="Print the worker's manifest as JSON and exit.")
@click.pass_context
def main(context: click.Context, url: str | None, seed: Path | None, show_manifest: bool) -> None:
    """The conversation database of an agent system: a worker on the iii engine.

    Start with `session-manager dev`: it runs an engine and the worker on this machine and tells what to try next.
    Shell completion: eval "$(_SESSION_MANAGER_COMPLETE=bash_source session-manager)" (or zsh_source, fish_source).
    """
    logs.configure("error")  # on stderr; the commands that go on and on set it up anew
    if show_manifest:
        context.invoke(command("manifest"), write=False, check=False, json_=True)
        context.exit()
    given = [*(("--url", url) if url else ()), *(("--config", str(seed)) if seed else ())]
    if context.invoked_subcommand is not None:
        if given:
            raise click.UsageError(f"{given[0]} belongs behind {context.invoked_subcommand!r}, where that takes it")
    elif given:
        serve = command("serve")
        with serve.make_context("serve", given, parent=context) as asked:
            serve.invoke(asked)
    else:
        click.echo(context.get_help())
