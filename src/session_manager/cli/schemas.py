"""`session-manager schemas`: the checked-in schema files."""

from __future__ import annotations

from pathlib import Path

import click

from session_manager.terminal import fail


@click.command()
@click.option("--write", is_flag=True, help="Write the files.")
@click.option("--check", is_flag=True, help="Compare the files; exit status 1 when they differ.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("schemas"),
    show_default=True,
    help="Where the files are.",
)
def schemas(write: bool, check: bool, directory: Path) -> None:
    """Write or check the JSON Schemas of all functions and trigger types; without either, list them."""
    from session_manager.schema import files

    made = {directory / path: text for path, text in files().items()}
    there = set(directory.rglob("*.json")) if directory.is_dir() else set()
    if write:
        for path, text in made.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        click.echo(f"{len(made)} schemas written to {directory}")
        for path in sorted(there - set(made)):  # whose they are, nobody here knows
            click.echo(f"not made from the types: {path}", err=True)
    elif check:
        wrong = sorted(
            [path for path, text in made.items() if path not in there or path.read_text(encoding="utf-8") != text]
            + list(there - set(made))
        )
        if wrong:
            fail("these schema files are not as the types say: " + ", ".join(map(str, wrong)))
        click.echo(f"{len(made)} schemas are as the types say")
    else:
        for path in sorted(made):
            click.echo(path)
