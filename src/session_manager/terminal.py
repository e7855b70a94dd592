"""What comes from a command line, and text on its way to a terminal."""

from __future__ import annotations

import json
import re
import sys
from typing import Any, NoReturn

import click

from session_manager import door
from session_manager.errors import MalformedRequest


def plain(text: str) -> str:
    """Text that somebody else wrote, with everything written out that a terminal would obey or not show."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


_USER = re.compile(r"(?<=://)[^/?#\s]*@")
_QUERY = re.compile(r"(://[^\s?'\"]*\?)[^\s'\"]+")


def concealed(text: str) -> str:
    """Text without what of a URL may be a secret: a user with a password, a query."""
    return _QUERY.sub(r"\1…", _USER.sub("…@", text))


def reason(error: OSError) -> str:
    """Why the system refuses something, and where."""
    why = error.strerror or str(error)
    return why if error.filename is None else f"{error.filename}: {why}"


def fail(text: str) -> NoReturn:
    """What went wrong on stderr, in one line as a rule, and exit status 1."""
    click.echo("session-manager: " + "\n".join(map(plain, concealed(text).splitlines())), err=True)
    sys.exit(1)


def from_json(text: str) -> Any:
    """Raises ValueError for what is no JSON, MalformedRequest for what nests deeper than can be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise MalformedRequest(f"values may nest at most {door.MAX_LEVELS} levels deep") from None


def labels(text: str | None) -> dict[str, Any] | None:
    """The value of a `--metadata` option."""
    if text is None:
        return None
    try:
        value = from_json(text)
        door.check_metadata(value)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint="--metadata") from None
    except MalformedRequest as error:
        raise click.BadParameter(str(error), param_hint="--metadata") from None
    if not isinstance(value, dict):
        raise click.BadParameter("must be an object", param_hint="--metadata")
    return value
