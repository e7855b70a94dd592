"""`session-manager manifest`: what the worker says of itself."""

from __future__ import annotations

import json
from pathlib import Path

import click

from session_manager.terminal import fail

TOML, YAML = Path("iii.worker.toml"), Path("iii.worker.yaml")


@click.command()
@click.option("--write", is_flag=True, help="Make iii.worker.yaml from iii.worker.toml in this directory.")
@click.option("--check", is_flag=True, help="Compare the two; exit status 1 when they differ.")
@click.option("--json", "json_", is_flag=True, help="Print the manifest as JSON (the default).")
def manifest(write: bool, check: bool, json_: bool) -> None:
    """Print the worker's manifest, or make iii.worker.yaml."""
    from session_manager.manifest import manifest as made
    from session_manager.manifest import worker_yaml

    if write or check:
        try:
            text = worker_yaml(TOML)
        except OSError as error:
            fail(f"{TOML}: {error.strerror}")
        if write:
            YAML.write_text(text, encoding="utf-8")
            click.echo(f"{YAML} written")
        elif not YAML.exists() or YAML.read_text(encoding="utf-8") != text:
            fail(f"{YAML} is not as {TOML} says; run `session-manager manifest --write`")
        return
    click.echo(json.dumps(made(), indent=2))
