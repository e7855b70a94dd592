"""`session-manager engine` and `session-manager dev`: an engine on this machine, alone or with the worker on it."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from session_manager import config, logs
from session_manager.cli import serve
from session_manager.cli.ending import Ending
from session_manager.cli.options import PORT
from session_manager.terminal import concealed, fail

if TYPE_CHECKING:
    from session_manager.edge.worker import Worker

DATA = Path("data")

NEXT = """
session-manager is ready on {url}, its conversations in {place}. Try, in another terminal:

  session-manager watch
  session-manager call session::create title=hello
  session-manager call session::list

Ctrl+C stops it; {end}.
"""


@click.command()
@click.option("--port", type=PORT, default=49134, show_default=True, help="Port to listen on; 0 takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--config-dir", type=click.Path(path_type=Path, file_okay=False), help="Where configuration is kept.")
@click.option("--allow-remote", is_flag=True, help="Listen on an address that others can reach. There is no login.")
def engine(port: int, host: str, config_dir: Path | None, allow_remote: bool) -> None:
    """Run a loopback engine for development and tests. Users run the real one."""
    from session_manager.dev import run

    logs.configure()
    try:
        run(port, config_dir or DATA / "engine", host=host, allow_remote=allow_remote)
    except (OSError, ValueError) as error:
        fail(_why(error, port))


@click.command()
@click.option("--port", type=PORT, default=49134, show_default=True, help="Port of the engine; 0 takes a free one.")
@click.option("--config", "seed", type=click.Path(path_type=Path), help="First-boot configuration (YAML or TOML).")
def dev(port: int, seed: Path | None) -> None:
    """Run a loopback engine and the worker on it, on SQLite below ./data: everything in one command."""
    ending = Ending()
    from session_manager.dev import EngineThread

    logs.configure("warning", config.base_directory() / config.DATA_DIR / "session-manager.log")
    try:
        with EngineThread(port=port, config_dir=DATA / "engine") as running:
            sys.exit(serve.run(ending, running.url, seed, None, ready=partial(_announce, running.url)))
    except OSError as error:
        fail(_why(error, port))


def _why(error: Exception, port: int) -> str:
    """Why the engine does not start."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"the engine cannot keep its configuration in {error.filename}: {error.strerror}"
    return f"the engine cannot listen on port {port}: {getattr(error, 'strerror', None) or error}"


def _announce(url: str, worker: Worker) -> None:
    from session_manager.stores import MEMORY

    place = concealed(worker.store_place)
    end = "what is in memory is gone then" if place == MEMORY else "started again, it finds everything there"
    click.echo(NEXT.format(url=url, place=place, end=end))
