"""`${NAME}` and `${NAME:default}` in configuration values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

_PLACEHOLDER = re.compile(r"\$\{([^}:]+)(?::([^}]*))?\}")
_LONE = re.compile(r"\s*\$\{[^}]*\}\s*")


class CoreLoader(yaml.SafeLoader):
    """YAML with the scalars of version 1.2: `on`, `007` and dates are text."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's way


class CoreDumper(yaml.SafeDumper):
    """Quotes every string that CoreLoader, or a reader of YAML 1.1, would take for something else."""


for _tag, _pattern, _first in (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("tag:yaml.org,2002:int", r"[-+]?(0|[1-9][0-9]*|0x[0-9a-fA-F]+)", list("-+0123456789")),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|(0|[1-9][0-9]*)(?=[eE]))([eE][-+]?[0-9]+)?",
        list("-+.0123456789"),
    ),
):
    CoreLoader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), _first)
    CoreDumper.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), _first)


def expand(value: Any, environment: Mapping[str, str]) -> tuple[Any, list[str]]:
    """The value with its placeholders filled in, and the names that have neither a value nor a default.

    A string that is one placeholder and nothing else takes the type of what it stands for, as YAML sees it.
    """
    missing: list[str] = []

    def text(string: str) -> Any:
        def fill(match: re.Match[str]) -> str:
            name, default = match.group(1), match.group(2)
            known: str | None = environment.get(name, default)
            if known is None:
                missing.append(name)
                return match.group(0)
            return known

        filled = _PLACEHOLDER.sub(fill, string)
        if not _LONE.fullmatch(string) or not filled.strip():
            return filled
        try:
            return yaml.load(filled.strip(), CoreLoader)  # noqa: S506 - a SafeLoader
        except yaml.YAMLError:
            return filled

    def walk(part: Any) -> Any:
        if isinstance(part, str):
            return text(part)
        if isinstance(part, list):
            return [walk(item) for item in part]
        if isinstance(part, dict):
            return {key: walk(item) for key, item in part.items()}
        return part

    return walk(value), missing
