"""Payloads for a schema: right ones, nearly right ones, and nonsense."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

SCHEMAS = Path(__file__).parents[2] / "schemas"

TEXTS = [
    "",
    "s1",
    "s2",
    "e1",
    "e2",
    "e3",
    "x",
    "../x",
    "a\0b",
    "\u00e9",
    "😀",
    "\ud800",
    "user",
    "idle",
    "text",
    " ",
    "x" * 5000,
]
NUMBERS = [0, 1, -1, 2, 3, 2**31, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**30]
DOUBLES = [0.0, -0.0, 1.0, 1.5, 1e308, 5e-324, float("inf"), float("-inf"), float("nan")]
CURSORS = [
    "", "e1", "eyJlbnRyeV9pZCI6ImUxIn0=", "eyJvcmRlciI6InVwZGF0ZWRfZGVzYyIsImtleSI6MSwiaWQiOiJzMSJ9",
    "eyJvcmRlciI6InVwZGF0ZWRfZGVzYyIsImtleSI6MTAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMCwiaWQiOiJzMSJ9", "W1tb", "bnVsbA==",
    "eyJlbnRyeV9pZCI6Ilx1ZDgwMCJ9", "é", "====", "eyJlbnRyeV9pZCI6MX0=",
]  # fmt: skip


def schemas() -> dict[str, dict[str, Any]]:
    """The request schema of every function, and the configuration schema of every trigger type, by id."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((SCHEMAS / "functions").glob("*.json")):
        found[f"session::{path.stem.replace('store.', 'store::')}"] = json.loads(path.read_text())["request_schema"]
    for path in sorted((SCHEMAS / "triggers").glob("*.json")):
        found[f"session::{path.stem.replace('store.', 'store::')}"] = json.loads(path.read_text())["config_schema"]
    return found


class Maker:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def payload(self, schema: dict[str, Any]) -> Any:
        """Right in about half of the cases; else with something wrong at one or several places."""
        chance = self.random.random()
        if chance < 0.04:
            return self.nonsense(3)
        value = self.of(schema, schema, 0)
        if chance < 0.55:
            return value
        for _ in range(self.random.choice((1, 1, 1, 2, 4))):
            value = self.spoiled(value)
        return value

    # --- right ---

    def of(self, schema: Any, root: dict[str, Any], depth: int) -> Any:
        if schema is True or schema == {}:
            return self.any_json(2)
        if "$ref" in schema:
            return self.of(self.resolve(schema["$ref"], root), root, depth)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                options = schema[key]
                if depth > 5:
                    options = [option for option in options if option.get("type") in ("null", "string")] or options
                return self.of(self.random.choice(options), root, depth + 1)
        if "allOf" in schema:
            return self.of(schema["allOf"][0], root, depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self.random.choice(schema["enum"])
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = self.random.choice(kind)
        if kind == "object":
            return self.object(schema, root, depth)
        if kind == "array":
            items = schema.get("items", {})
            return [self.of(items, root, depth + 1) for _ in range(self.random.choice((0, 1, 1, 2, 3)))]
        return self.plain(kind, schema)

    def resolve(self, ref: str, root: dict[str, Any]) -> dict[str, Any]:
        found: Any = root
        for step in ref.removeprefix("#/").split("/"):
            found = found[step]
        return dict(found)

    def object(self, schema: dict[str, Any], root: dict[str, Any], depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        required = set(schema.get("required", ()))
        for name, inner in schema.get("properties", {}).items():
            if name in required or self.random.random() < 0.4:
                made[name] = self.named(name) if self.random.random() < 0.6 else None
                if made[name] is None:
                    made[name] = self.of(inner, root, depth + 1)
        if not schema.get("properties"):
            return {self.text(): self.any_json(1) for _ in range(self.random.choice((0, 1, 2)))}
        return made

    def named(self, name: str) -> Any:
        """A value that leads somewhere."""
        if name in ("session_id", "forked_from"):
            return self.random.choice(("s1", "s2", "s3", "unknown"))
        if name in ("entry_id", "parent_id", "from_entry_id", "after_entry_id"):
            return self.random.choice(("e1", "e2", "e3", "unknown"))
        if name == "cursor":
            return self.random.choice(CURSORS)
        if name == "trigger_type":
            return self.random.choice(("session::created", "session::message-added", "session::deleted", "other"))
        return None

    def plain(self, kind: Any, schema: dict[str, Any]) -> Any:
        if kind == "string":
            return self.text()
        if kind == "integer":
            return self.random.choice([n for n in NUMBERS if 0 <= n < 2**63] if "minimum" in schema else NUMBERS[:-4])
        if kind == "number":
            return self.random.choice((0, 1, 0.5, 1e10))
        if kind == "boolean":
            return self.random.random() < 0.5
        return None

    def text(self) -> str:
        return self.random.choice([text for text in TEXTS if text != "\ud800"])

    def any_json(self, levels: int) -> Any:
        kind = self.random.randrange(8 if levels else 6)
        if kind < 2:
            return self.text()
        if kind == 2:
            return self.random.choice(NUMBERS[:8])
        if kind == 3:
            return self.random.choice((True, False, None, 0.5, -0.0))
        if kind < 6:
            return self.random.choice(({}, [], "x", None))
        if kind == 6:
            return [self.any_json(levels - 1) for _ in range(self.random.randrange(3))]
        return {self.text(): self.any_json(levels - 1) for _ in range(self.random.randrange(3))}

    # --- wrong ---

    def nonsense(self, levels: int) -> Any:
        kind = self.random.randrange(9 if levels else 7)
        if kind == 0:
            return self.random.choice(TEXTS)
        if kind == 1:
            return self.random.choice(NUMBERS)
        if kind == 2:
            return self.random.choice(DOUBLES)
        if kind == 3:
            return self.random.choice((True, False, None))
        if kind == 4:
            value: Any = self.random.choice(([], {}))
            for _ in range(self.random.choice((3, 90, 97, 130, 500))):
                value = [value] if self.random.random() < 0.5 else {"a": value}
            return value
        if kind < 7:
            return self.random.choice(([], {}))
        if kind == 7:
            return [self.nonsense(levels - 1) for _ in range(self.random.randrange(4))]
        return {self.random.choice(TEXTS): self.nonsense(levels - 1) for _ in range(self.random.randrange(4))}

    def spoiled(self, value: Any) -> Any:
        """The value with one thing changed somewhere in it."""
        if isinstance(value, dict) and value and self.random.random() < 0.85:
            key = self.random.choice(list(value))
            chance = self.random.random()
            if chance < 0.15:
                return {name: inner for name, inner in value.items() if name != key}
            if chance < 0.25:
                return {**value, self.random.choice(TEXTS): self.nonsense(1)}
            if chance < 0.3:
                return {key.upper() if name == key else name: inner for name, inner in value.items()}
            return {**value, key: self.spoiled(value[key])}
        if isinstance(value, list) and value and self.random.random() < 0.7:
            at = self.random.randrange(len(value))
            return [*value[:at], self.spoiled(value[at]), *value[at + 1 :]]
        return self.nonsense(2)
