"""The command line: one module per command, one line each."""

from __future__ import annotations

from pathlib import Path

import click

from session_manager import __version__
from session_manager.cli import call, check, dev, interop, manifest, migrate, schemas, serve, watch

COMMANDS: tuple[click.Command, ...] = (
    serve.serve,
    dev.dev,
    dev.engine,
    call.call,
    watch.watch,
    check.check,
    migrate.command,
    interop.import_,
    interop.export,
    interop.follow,
    schemas.schemas,
    manifest.manifest,
)


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
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
    if show_manifest:
        context.invoke(manifest.manifest, write=False, check=False, json_=True)
    elif context.invoked_subcommand is None:
        if url is None and seed is None:
            click.echo(context.get_help())
            return
        context.invoke(serve.serve, **serve.defaults(url, seed))


for command in COMMANDS:
    main.add_command(command)
