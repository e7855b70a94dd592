"""Inputs of the engine's own functions: typed fields, unknown ones ignored, errors worded as the engine words them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from session_manager.dev.registry import Refused

_EXPECTED = {"string": "a string", "boolean": "a boolean", "strings": "a sequence"}


class Unreadable(ValueError):
    """Why an input cannot be read."""


@dataclass(frozen=True)
class Input:
    """The input of one function.

    `fields` maps a name to `string`, `boolean`, `strings` or `any`; a `?` behind it means absent or null (then the
    value is None), a `=` means absent only (then it is false or None).
    """

    function_id: str
    struct: str
    fields: dict[str, str]

    def take(self, data: Any) -> dict[str, Any]:
        """All fields of a call's `data`; raises Refused with `deserialization_error`."""
        try:
            return self.read(data)
        except Unreadable as error:
            message = f"Failed to deserialize input for {self.function_id}: {error}"
            raise Refused("deserialization_error", message) from None

    def read(self, data: Any) -> dict[str, Any]:
        """All fields of any `data`; raises Unreadable."""
        if not isinstance(data, dict):
            raise Unreadable(f"invalid type: {_describe(data)}, expected struct {self.struct}")
        taken: dict[str, Any] = {}
        for name in sorted(data.keys() & self.fields.keys()):
            kind = self.fields[name]
            if data[name] is None and kind.endswith("?"):
                continue
            taken[name] = self._checked(kind.rstrip("?="), data[name])
        for name, kind in self.fields.items():
            if name in taken:
                continue
            if kind[-1] not in "?=":
                raise Unreadable(f"missing field `{name}`")
            taken[name] = False if kind == "boolean=" else None
        return taken

    def _checked(self, kind: str, value: Any) -> Any:
        if kind == "any" or isinstance(value, {"string": str, "boolean": bool}.get(kind, ())):
            return value
        if kind == "strings" and isinstance(value, list):
            return [self._checked("string", item) for item in value]
        raise Unreadable(f"invalid type: {_describe(value)}, expected {_EXPECTED[kind]}")


def _describe(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return f"boolean `{json.dumps(value)}`"
        case int():
            return f"integer `{value}`"
        case float():
            return f"floating point `{value}`"
        case str():
            return f"string {json.dumps(value, ensure_ascii=False)}"
        case list():
            return "sequence"
        case _:
            return "map"
