"""`session-manager serve`: the worker, until it is told to stop."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import structlog

from session_manager import config, logs
from session_manager.cli import light
from session_manager.cli.ending import Ending
from session_manager.cli.options import Seconds, url_option
from session_manager.config import InvalidConfiguration
from session_manager.errors import SessionManagerError
from session_manager.terminal import fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from session_manager.edge.extras import Extras
    from session_manager.edge.worker import Worker

log = structlog.get_logger("session_manager.worker")

PATIENCE = 20.0


@click.command()
@url_option
@click.option("--config", "seed", type=click.Path(path_type=Path), help="First-boot configuration (YAML or TOML).")
@click.option("--name", help="Name of the worker on the engine (III_WORKER_NAME).")
@click.option(
    "--log-level",
    envvar="SESSION_MANAGER_LOG",
    default="info",
    show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="How much to log (SESSION_MANAGER_LOG).",
)
@click.option(
    "--log-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Log file; by default session-manager.log in the data directory, '-' for none.",
)
@click.option(
    "--patience",
    envvar="SESSION_MANAGER_PATIENCE",
    default=PATIENCE,
    show_default=True,
    type=Seconds(),
    help="Seconds to wait for the engine, or for a name or a database that another one still holds.",
)
@click.option("--with", "extras", multiple=True, type=click.Choice(["opencode"]), help="Serve further functions too.")
@click.option("--follow-opencode", metavar="URL", help="Mirror the sessions of this OpenCode server into the store.")
def serve(
    url: str,
    seed: Path | None,
    name: str | None,
    log_level: str,
    log_file: Path | None,
    patience: float,
    extras: tuple[str, ...],
    follow_opencode: str | None,
) -> None:
    """Serve the session functions and trigger types on an engine, until SIGTERM or SIGINT.

    Exit status: 0 after an orderly end, 1 when the worker cannot start or the engine turned it down.
    """
    ending = Ending()
    if log_file is None:
        log_file = config.base_directory() / config.DATA_DIR / "session-manager.log"
    logs.configure(log_level, None if str(log_file) == "-" else log_file)
    sys.exit(run(ending, url, seed, name, patience, extras=_extras(extras, follow_opencode)))


def _extras(names: tuple[str, ...], opencode: str | None) -> Extras | None:
    if not names and opencode is None:
        return None
    from session_manager.cli.interop import opencode_extras

    return opencode_extras(functions="opencode" in names, follow=opencode)


def run(
    ending: Ending,
    url: str,
    seed: Path | None,
    name: str | None,
    patience: float = PATIENCE,
    ready: Callable[[Worker], None] | None = None,
    extras: Extras | None = None,
) -> int:
    """Runs the worker in the main thread until it is to end or has `failed`; returns the exit status."""
    use_fast_loop()
    gc.disable()  # what is imported and built here stays: looking through it for garbage would find none
    with light.plain():
        from session_manager.edge import environment, failures, worker

    given = environment.own_name("session-manager")
    try:
        first = None if seed is None else config.seed(seed)
        running = worker.start(url, name or given, first, patience, extras, ending.wait)
    except failures.GivenUp as why:
        log.info("stopped while it waited", reason=str(why))
        return 0
    except (failures.EngineError, InvalidConfiguration, SessionManagerError) as error:
        fail(str(error))
    finally:
        gc.freeze()
        gc.enable()
    if ready is not None:
        ready(running)
    while not ending.wait(0.5):
        if running.failed:
            running.stop()
            fail("the engine turned the connection down: another worker has the name")
    running.stop()
    return 0


def use_fast_loop() -> None:
    """Lets event loops that are made from now on be uvloop's, where there is one."""
    try:
        import uvloop
    except ImportError:
        return
    import asyncio

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
