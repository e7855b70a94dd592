"""`session-manager check`: is all well in a store?"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter

import click
import msgspec

from session_manager import config
from session_manager.clock import RandomIds, SystemClock
from session_manager.errors import StorageError
from session_manager.terminal import plain, reason

SHOWN = 10
"""Findings of one kind that the table shows one by one."""


@click.command()
@click.argument("store", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--repair", is_flag=True, help="Mend what can be mended, after a backup; no worker may be running on it.")
@click.option("--stuck-after", default=60, show_default=True, help="Minutes after which `working` is suspected.")
def check(store: str | None, as_json: bool, repair: bool, stuck_after: int) -> None:
    """Look for damage in STORE: sqlite:FILE or fs:DIR; by default the worker's own database.

    Reads only, also while a worker runs, unless --repair is given: then a backup is made first, nothing stored is
    altered or removed (what cannot be reached is copied to a new branch), and each repair is told.

    Exit status: 0 when all is well or repaired, 1 when something is wrong, 2 when the store cannot be looked at.
    """
    from session_manager.doctor.check import check as check_store
    from session_manager.doctor.findings import KINDS

    url = store or f"sqlite:{config.base_directory() / config.SqliteConfig().path}"
    try:
        report = asyncio.run(
            check_store(url, SystemClock(), RandomIds(), repair=repair, stuck=max(0, stuck_after) * 60_000)
        )
    except (StorageError, OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        if as_json:
            click.echo(json.dumps({"store": url, "error": why}))
        else:
            click.echo(plain(f"session-manager: {url}: {why}"), err=True)
        sys.exit(2)
    if as_json:
        click.echo(json.dumps({**msgspec.to_builtins(report), "healthy": report.healthy}, indent=2, ensure_ascii=False))
        sys.exit(0 if report.healthy else 1)
    click.echo(f"{url}: {report.sessions:,} sessions, {report.entries:,} entries")
    for kind, count in sorted(Counter(finding.kind for finding in report.findings).items()):
        click.echo(f"\n{kind} ({count:,}): {KINDS[kind]}")
        of_kind = [finding for finding in report.findings if finding.kind == kind]
        for finding in of_kind[:SHOWN]:
            where = " ".join(repr(id_) for id_ in (finding.session_id, finding.entry_id) if id_ is not None)
            click.echo(f"  {where + ': ' if where else ''}{finding.text}")
            if finding.repaired:
                click.echo(f"    repaired: {finding.repaired}")
        if count > SHOWN:
            click.echo(f"  ... and {count - SHOWN:,} more; --json shows all")
    if report.backup:
        click.echo(f"\nThe store as it was before: {report.backup}")
    if not report.findings:
        click.echo("Nothing is wrong.")
    sys.exit(0 if report.healthy else 1)
