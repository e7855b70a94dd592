"""The commands `import opencode`, `export opencode` and `follow opencode`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import Struct, field
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from session_manager.clock import SystemClock
from session_manager.config import DATA_DIR, base_directory, working_directory
from session_manager.errors import SessionManagerError
from session_manager.interop.opencode.client import NotInstalled, Server, ServerFailed
from session_manager.interop.opencode.exports import Format, as_json, export_log, export_session
from session_manager.interop.opencode.follow import Mirror
from session_manager.interop.opencode.functions import ImportedSession, told, write
from session_manager.interop.opencode.progress import MirrorProgress, on_change
from session_manager.interop.opencode.servers import read_server
from session_manager.interop.opencode.sessions import Refused, SourceSession
from session_manager.interop.opencode.sources import find_files, read, read_file
from session_manager.interop.opencode.targets import DryRun, StoreTarget, Target
from session_manager.model import JsonObject
from session_manager.store import Store
from session_manager.stores import NoStore, NotOpened, open_source, open_store, opened
from session_manager.terminal import fail, labels, plain

PASSWORD = "OPENCODE_SERVER_PASSWORD"  # noqa: S105 # the name of a variable
"""The variable that OpenCode itself reads a server's password from."""


def default_store() -> str:
    return f"sqlite:{base_directory() / DATA_DIR / 'sessions.db'}"


store_option = click.option(
    "--store",
    envvar="SESSION_MANAGER_STORE",
    default=default_store,
    show_default="the worker's own",
    help="Where sessions are kept: sqlite:FILE, fs:DIR or memory: (SESSION_MANAGER_STORE). No worker may use it "
    "meanwhile.",
)
metadata_option = click.option(
    "--metadata", metavar="JSON", help='Labels for the sessions besides their own, as in \'{"owner":"ann"}\'.'
)
json_option = click.option("--json", "as_json_", is_flag=True, help="Tell the outcome as JSON on stdout.")


@click.command("opencode")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@store_option
@metadata_option
@click.option(
    "--session",
    metavar="ID",
    help="The session of a message list that does not name its own; on a server, this session and no other.",
)
@click.option("--dry-run", is_flag=True, help="Tell what would change, and change nothing.")
@json_option
def import_opencode(
    sources: tuple[str, ...],
    store: str,
    metadata: str | None,
    session: str | None,
    dry_run: bool,
    as_json_: bool,
) -> None:
    """Bring OpenCode sessions in.

    A SOURCE is a file (an export, a message list or an event log of OpenCode), a directory of such files, `-` for
    stdin, or the address of a running server such as http://127.0.0.1:4096 (OPENCODE_SERVER_PASSWORD names its
    password). Importing again changes nothing; a session comes in whole or not at all.

    Exit status: 0 when all came in, 1 when any was refused.
    """
    added = labels(metadata)
    with _told():
        outcome = asyncio.run(_import(sources, store, added, session, dry_run=dry_run, quiet=as_json_))
    if as_json_:
        click.echo(msgspec.json.format(msgspec.json.encode(outcome), indent=2).decode())
    else:
        _show(outcome)
    sys.exit(1 if outcome.refused else 0)


@click.command("opencode")
@click.argument("session", metavar="SESSION")
@click.option(
    "--format",
    "form",
    type=click.Choice(["original", "1.18", "2.1", "log"]),
    default="original",
    show_default=True,
    help="1.18 or 2.1: what that OpenCode imports. original: as it came. log: the event log that it was imported from.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    default="-",
    show_default="stdout",
    help="The file to write.",
)
@store_option
@json_option
def export_opencode(session: str, form: str, output: Path, store: str, as_json_: bool) -> None:
    """Write SESSION as a document that OpenCode imports.

    What came from OpenCode and was not touched is written as it came; the rest is rendered from the entries, and
    stderr says so.
    """
    with _told():
        data, summary = asyncio.run(_export(session, form, store))
    if str(output) == "-":
        if as_json_:
            raise click.UsageError("--json tells of the outcome on stdout: name a file with --output")
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        temporary = output.with_name(f".{output.name}.part")
        temporary.write_bytes(data)
        temporary.replace(output)
    if as_json_:
        click.echo(json.dumps(summary, indent=2))
    else:
        for note in summary["notes"]:
            click.echo(f"note: {note}", err=True)


@click.command("opencode")
@click.argument("url", metavar="URL")
@store_option
@metadata_option
@click.option("--session", "only", multiple=True, metavar="ID", help="Only this session; may be given several times.")
@click.option("--once", is_flag=True, help="Bring everything to where the server is now, then stop.")
def follow_opencode(url: str, store: str, metadata: str | None, only: tuple[str, ...], once: bool) -> None:
    """Mirror the sessions of the OpenCode server at URL, until stopped.

    The mirror goes on where it was when either side was away. OPENCODE_SERVER_PASSWORD names the server's password.
    """
    added = labels(metadata)
    with _told():
        asyncio.run(_follow(url, store, added, set(only) or None, once=once))


# --- outcome ---


class Refusal(Struct):
    source: str
    reason: str


class Outcome(Struct):
    """What an import did, for people and for programs."""

    sessions: list[ImportedSession] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    dry_run: bool = False


def _show(outcome: Outcome) -> None:
    console = Console(stderr=False)
    title = "What would come in" if outcome.dry_run else "OpenCode sessions"
    # Without lines there is room in 80 columns for the whole id, by which a session is exported.
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("session", "", "messages", "added", "updated", "skipped", "lossy"):
        table.add_column(name, justify="left" if name in ("session", "") else "right", overflow="fold")
    for row in outcome.sessions:
        what = "new" if row.created else "changed" if row.changed else "unchanged"
        counts = (row.messages, row.added, row.updated, len(row.skipped), len(row.lossy))
        table.add_row(plain(row.session_id), what, *map(str, counts))
    if outcome.sessions:
        console.print(table)
    for row in outcome.sessions:
        for kind, lines in (("skipped", row.skipped), ("lossy", row.lossy), ("warning", row.warnings)):
            for line in lines:
                console.print(f"{kind}: {plain(row.session_id)}: {plain(line)}", markup=False, highlight=False)
    new = sum(row.created for row in outcome.sessions)
    changed = sum(row.changed and not row.created for row in outcome.sessions)
    console.print(
        f"{len(outcome.sessions)} sessions: {new} new, {changed} changed, "
        f"{len(outcome.sessions) - new - changed} unchanged; {len(outcome.refused)} refused",
        highlight=False,
    )
    for refusal in outcome.refused:
        click.echo(f"refused: {plain(refusal.source)}: {plain(refusal.reason)}", err=True)


# --- the work ---


async def _import(
    sources: tuple[str, ...], url: str, added: JsonObject | None, session: str | None, *, dry_run: bool, quiet: bool
) -> Outcome:
    outcome = Outcome(dry_run=dry_run)
    async with opened(url, _looked_at(url) if dry_run else _store(url)) as store:
        target: Target = DryRun(store) if dry_run else StoreTarget(store)
        with _bar(quiet) as bar:
            for name in sources:
                if name.startswith(("http://", "https://")):
                    await _from_server(name, session, target, added, outcome, bar)
                elif name == "-":
                    data = sys.stdin.buffer.read()
                    await _from_file("stdin", partial(read, data, "stdin", session), target, added, outcome)
                else:
                    await _from_paths(Path(name), session, target, added, outcome, bar)
    return outcome


async def _from_paths(
    path: Path, session: str | None, target: Target, added: JsonObject | None, outcome: Outcome, bar: Progress
) -> None:
    files = find_files(path)
    if not files:
        outcome.refused.append(Refusal(str(path), "the directory holds no JSON files"))
    for file in bar.track(files, description="importing"):
        await _from_file(str(file), partial(read_file, file, session), target, added, outcome)


async def _from_file(
    label: str,
    sessions: Callable[[], list[SourceSession]],
    target: Target,
    added: JsonObject | None,
    outcome: Outcome,
) -> None:
    try:
        for source in sessions():
            outcome.sessions.append(told(await write(target, source, added, SystemClock())))
    except (Refused, SessionManagerError) as refused:  # the store may be unable to read the one session
        outcome.refused.append(Refusal(label, str(refused)))


async def _from_server(
    url: str, session: str | None, target: Target, added: JsonObject | None, outcome: Outcome, bar: Progress
) -> None:
    server = Server(url, os.environ.get(PASSWORD))
    try:
        await server.open()
        count = len(await server.session_ids())
        task = bar.add_task("importing", total=1 if session else count)
        async for source in read_server(server, {session} if session else None):
            bar.advance(task)
            try:
                if isinstance(source, Refused):
                    raise source
                outcome.sessions.append(told(await write(target, source, added, SystemClock())))
            except (Refused, SessionManagerError) as refused:
                outcome.refused.append(Refusal(url, str(refused)))
    finally:
        await server.close()


async def _export(session_id: str, form: str, url: str) -> tuple[bytes, dict[str, Any]]:
    async with opened(url, _store(url, open_source)) as store:
        if form == "log":
            events = await export_log(store, session_id)
            notes = [] if events else ["the session was not imported from an event log"]
            return as_json(events), {"session_id": session_id, "format": form, "events": len(events), "notes": notes}
        chosen: Format = "1.18" if form == "1.18" else "2.1" if form == "2.1" else "original"
        made = await export_session(store, session_id, chosen)
        summary = {
            "session_id": session_id,
            "format": form,
            "verbatim": made.verbatim,
            "rendered": made.rendered,
            "notes": made.notes,
        }
        return as_json(made.document), summary


async def _follow(url: str, store_url: str, added: JsonObject | None, only: set[str] | None, *, once: bool) -> None:
    server = Server(url, os.environ.get(PASSWORD))

    def tell(progress: MirrorProgress) -> None:
        state = "following" if progress.connected else f"waiting for {url}"
        but = f", {progress.left_out} sessions left out" if progress.left_out else ""
        click.echo(f"{state}{but}{f' ({plain(progress.last)})' if progress.last else ''}", err=True)

    try:
        async with opened(store_url, _store(store_url)) as store:
            mirror = Mirror(server, StoreTarget(store), added=added, tell=on_change(tell), only=only)
            if once:
                await mirror.catch_up()
            else:
                await _until_signal(mirror.run())
            done = mirror.progress
            click.echo(f"{done.sessions} sessions new, {done.commits} changes, {done.left_out} left out", err=True)
    finally:
        await server.close()


async def _until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Works until SIGINT or SIGTERM, and lets the work end in order."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _store(url: str, named: Callable[[str, Path], Store] = open_store) -> Store:
    try:
        return named(url, working_directory())
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--store") from None


def _looked_at(url: str) -> Store:
    """The store for a look that changes nothing; where there is none yet, an empty one."""

    def named(url: str, base: Path) -> Store:
        try:
            return open_source(url, base)
        except NoStore:
            return open_store("memory:", base)

    return _store(url, named)


def _bar(quiet: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
    )


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Errors as one line on stderr, and exit status 1."""
    try:
        yield
    except (SessionManagerError, NotOpened, ServerFailed, NotInstalled) as error:
        fail(str(error))
