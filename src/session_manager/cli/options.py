"""Options and habits that commands share."""

from __future__ import annotations

import math
from typing import Any

import click

from session_manager import door
from session_manager.terminal import from_json

DEFAULT_URL = "ws://127.0.0.1:49134"

url_option = click.option(
    "--url", envvar="III_URL", default=DEFAULT_URL, show_default=True, help="WebSocket URL of the engine (III_URL)."
)


PORT = click.IntRange(0, 65535)


class Seconds(click.FloatRange):
    """A time span: no less than nothing, and neither infinite nor NaN, which a range lets through."""

    def __init__(self) -> None:
        super().__init__(min=0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} is no number of seconds", param, ctx)
        return seconds


def arguments(pairs: tuple[str, ...], text: str | None) -> dict[str, Any]:
    """A payload from `k=v` pairs laid over a JSON object. A value that is JSON is taken as such, else as text. Raises
    MalformedRequest for what no engine carries: the call would get no answer."""
    payload: Any = {}
    if text is not None:
        try:
            payload = from_json(text)
        except ValueError as error:
            raise click.BadParameter(f"not JSON: {error}", param_hint="--json") from None
        if payload is None:
            raise click.BadParameter("null is no payload; give an object", param_hint="--json")
    if pairs and not isinstance(payload, dict):
        raise click.BadParameter("must be an object when k=v pairs are given", param_hint="--json")
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{pair!r} is not of the form k=v")
        try:
            payload[key] = from_json(value)
        except ValueError:
            payload[key] = value
    door.check_carried(payload)
    return payload  # type: ignore[no-any-return] # any JSON may be tried; the worker refuses what is no object
