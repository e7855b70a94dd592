"""`session-manager migrate`: everything from one store into another."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from session_manager.config import working_directory
from session_manager.errors import SessionManagerError
from session_manager.migrate import Report, as_json, migrate
from session_manager.store import Store
from session_manager.stores import NotOpened, open_source, open_store, opened
from session_manager.stores.directories import place
from session_manager.terminal import fail, plain

NOT_COMPLETE, UNREADABLE_LINES, INTERRUPTED = 1, 3, 130
"""Exit statuses besides 0, and 2 for a wrong command line."""

SHOWN = 20
"""Skipped sessions, and notices, that are shown; --json has them all."""


@click.command("migrate")
@click.option("--from", "source", required=True, metavar="URL", help="The store to read.")
@click.option("--to", "target", required=True, metavar="URL", help="The store to write; it is made if need be.")
@click.option("--overwrite", is_flag=True, help="Replace sessions that have changed in the target by themselves.")
@click.option("--json", "json_", is_flag=True, help="Print the report as one JSON object.")
def command(source: str, target: str, overwrite: bool, json_: bool) -> None:
    """Copy all sessions of a store into another, and look again at the end whether they are equal.

    URL is fs:DIR, sqlite:FILE or bridge:ws://HOST:PORT (the store of the session-manager on that engine). The source
    is not changed; a directory or file must not be in use by a worker. Run it again after an interruption, or
    whenever the source has gone on: what is equal is left alone.

    Exit status: 0 when everything is there and equal; 1 when a session is not; 2 for a wrong command line; 3 when all
    sessions are there and equal, but the source holds files or lines that it cannot read; 130 after an interruption.

    \b
    session-manager migrate --from fs:data/session-manager --to sqlite:data/session-manager/sessions.db
    """
    try:
        stores = _named(source, open_source), _named(target, open_store)
        if _place(source) == _place(target):
            raise click.UsageError("the source is the target")
        report = asyncio.run(_migrate(source, target, *stores, overwrite))
    except KeyboardInterrupt:
        click.echo("session-manager: interrupted; run it again to continue", err=True)
        sys.exit(INTERRUPTED)
    except (SessionManagerError, NotOpened) as error:
        fail(str(error))
    click.echo(as_json(report) if json_ else _told(report))
    sys.exit(NOT_COMPLETE if not report.complete else UNREADABLE_LINES if report.notices else 0)


def _place(url: str) -> tuple[str, str]:
    """What is one for all names of a file or directory."""
    scheme, _, rest = url.partition(":")
    return scheme, rest if scheme == "bridge" else str(place(working_directory(), rest))


def _named(url: str, local: Callable[[str, Path], Store]) -> Store:
    """The store, not yet open."""
    scheme, _, rest = url.partition(":")
    if scheme == "bridge":
        from session_manager.edge.way import bridge_store

        return bridge_store(rest)
    if scheme not in ("fs", "sqlite"):
        raise click.UsageError(f"{url!r} names no store; use fs:DIR, sqlite:FILE or bridge:ws://HOST:PORT")
    try:
        return local(url, working_directory())
    except ValueError as error:
        raise click.UsageError(str(error)) from None


async def _migrate(source_url: str, target_url: str, source: Store, target: Store, overwrite: bool) -> Report:
    async with opened(source_url, source), opened(target_url, target):
        try:
            with _Bar() as bar:
                return await migrate(source, target, bar.show, overwrite=overwrite)
        except SessionManagerError as error:
            fail(f"{error}; run it again to continue")


class _Bar(Progress):
    """A bar per phase, on stderr, so that the report can be piped."""

    def __init__(self) -> None:
        super().__init__(
            TextColumn("{task.description:>10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("sessions"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self._phases: dict[str, TaskID] = {}

    def show(self, phase: str, done: int, total: int) -> None:
        if phase not in self._phases:
            self._phases[phase] = self.add_task(phase, total=total)
        self.update(self._phases[phase], completed=done)


def _told(report: Report) -> str:
    lines = [
        f"{report.sessions} sessions in the source: {report.new} new, {report.continued} continued,"
        f" {report.updated} updated, {report.there} there already, {len(report.skipped)} skipped",
        f"verified equal: {report.verified_sessions} sessions, {report.verified_entries} entries",
    ]
    if report.only_in_target:
        lines.append(f"the target has {report.only_in_target} more sessions")
    problems = [f"{problem.session_id}: {problem.why}" for problem in report.skipped]
    for title, rows in (("found in the source:", report.notices), ("skipped:", problems)):
        if rows:
            lines += [title, *(f"  {plain(row)}" for row in rows[:SHOWN])]
        if len(rows) > SHOWN:
            lines.append(f"  and {len(rows) - SHOWN} more (--json has them all)")
    but = ", but for what was found in the source" if report.notices else ""
    lines.append(f"complete{but}" if report.complete else "not complete")
    return "\n".join(lines)
