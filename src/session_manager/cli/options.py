"""Options and habits that commands share."""

from __future__ import annotations

import json
import sys
from typing import Any, NoReturn

import click

DEFAULT_URL = "ws://127.0.0.1:49134"

url_option = click.option(
    "--url", envvar="III_URL", default=DEFAULT_URL, show_default=True, help="WebSocket URL of the engine (III_URL)."
)


def fail(text: str) -> NoReturn:
    """One line on stderr, and exit status 1."""
    click.echo(f"session-manager: {text}", err=True)
    sys.exit(1)


def arguments(pairs: tuple[str, ...], text: str | None) -> dict[str, Any]:
    """A payload from `k=v` pairs laid over a JSON object. A value that is JSON is taken as such, else as text."""
    payload: Any = {}
    if text is not None:
        try:
            payload = json.loads(text)
        except ValueError as error:
            raise click.BadParameter(f"not JSON: {error}", param_hint="--json") from None
    if not pairs:
        return payload  # type: ignore[no-any-return] # any JSON may be tried; the worker refuses what is no object
    if not isinstance(payload, dict):
        raise click.BadParameter("must be an object when k=v pairs are given", param_hint="--json")
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{pair!r} is not of the form k=v")
        try:
            payload[key] = json.loads(value)
        except ValueError:
            payload[key] = value
    return payload
