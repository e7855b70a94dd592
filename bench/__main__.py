"""`python -m bench [stores|wire|grow|report|all]`: measures, and writes tables and pictures."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from bench import grow as growth
from bench import machine, report, stores
from bench.figures import ratio
from bench.subjects import SUBJECTS

PARTS = ("stores", "wire", "grow")

FILE = "figures.json"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("part", type=click.Choice([*PARTS, "report", "all"]), default="all")
@click.option("--quick", is_flag=True, help="Small sizes and few repetitions: tries the machinery in a few minutes.")
@click.option("--only", multiple=True, metavar="NAME", help="Only this store or this kind of work; repeatable.")
@click.option("--rounds", type=click.IntRange(1), help="Rounds of the stores' part.")
@click.option(
    "--sizes", help="Entries of the stores' part, such as 1000,10000; as many sessions, twice as many at the most."
)
@click.option("--peers/--no-peers", default=True, help="Whether to measure other projects' stores.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("docs/performance"), show_default=True
)
def main(
    part: str, quick: bool, only: tuple[str, ...], rounds: int | None, sizes: str | None, peers: bool, out: Path
) -> None:
    """Measures session-manager beside bare SQLite and the stores that people would use instead (stores), over an
    engine beside an echo (wire), and with a million entries (grow). Each part replaces its own figures in OUT;
    `report` writes the tables again from what was recorded."""
    unknown = set(only) - set(SUBJECTS) - {work.id for work in stores.WORKS}
    if unknown:
        names = ", ".join([*SUBJECTS, *(work.id for work in stores.WORKS)])
        raise click.UsageError(f"--only {sorted(unknown)[0]} names nothing; there are {names}")
    file = out / FILE
    recorded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for name in PARTS:
        if part in (name, "all"):
            click.echo(f"{name}:", err=True)
            started = time.perf_counter()
            if name == "stores":
                measured = _stores(quick, only, rounds, sizes, peers)
            elif name == "wire":
                from bench.wire import run

                measured = {"engines": run.run(quick)}
            else:
                measured = {"found": growth.run(quick)}
            recorded[name] = {
                "quick": quick,
                "when": time.strftime("%Y-%m-%d"),
                "seconds": time.perf_counter() - started,
                "machine": machine.described(),
                **measured,
            }
            out.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for written in report.write(out, recorded):
        click.echo(f"wrote {out / written}", err=True)
    for target in report.all_targets(recorded):
        click.echo(f"{'   ok' if target.met else 'SHORT'}  {target.what}: {ratio(target.value)} ({target.bound})")


def _stores(quick: bool, only: tuple[str, ...], rounds: int | None, sizes: str | None, peers: bool) -> dict[str, Any]:
    plan = stores.QUICK if quick else stores.FULL
    if rounds:
        plan = plan._replace(rounds=rounds)
    if sizes:
        given = tuple(sorted(int(text) for text in sizes.split(",")))
        plan = plan._replace(entries=given, sessions=(*given[:-1], 2 * given[-1]) if len(given) > 1 else given)
    works = [work.id for work in stores.WORKS if work.id in only] or [work.id for work in stores.WORKS]
    rows = stores.run(plan, stores.names(peers, only), works)
    click.echo("the same at all sizes side by side", err=True)
    return {"rounds": plan.rounds, "rows": rows, "flat": [] if only else stores.flat(plan)}


if __name__ == "__main__":
    main()
