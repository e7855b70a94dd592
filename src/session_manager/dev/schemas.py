"""JSON Schema validation with the engine's choice of drafts and its wording of faults."""

from __future__ import annotations

import ast
import re
from typing import Any

import jsonschema
from jsonschema.validators import validator_for

from session_manager.dev import frames


def faults(value: Any, schema: Any) -> list[str]:
    """What is wrong with a value, or with the schema itself; nothing when it is valid.

    The draft is the one `$schema` names, else 2020-12.
    """
    if not isinstance(schema, dict | bool):
        return [f'invalid JSON Schema: {_text(schema)} is not of types "boolean", "object"']
    kind: Any = validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        return [f"invalid JSON Schema: {_worded(error)}"]
    try:
        return [_worded(error) for error in kind(_ordered(schema)).iter_errors(value)]
    except Exception as error:  # an unresolvable $ref raises an undocumented type
        return [f"invalid JSON Schema: {_pointer(error)}"]


def _pointer(error: Exception) -> str:
    """An unresolvable reference as the engine words it."""
    found = re.match(r"PointerToNowhere: ('.*?') does not exist", str(error))
    return f"Pointer {found.group(1)} does not exist" if found else str(error)


def _ordered(schema: Any) -> Any:
    """The schema with its keywords in the order the engine checks them."""
    if isinstance(schema, dict):
        keys = sorted(schema, key=lambda key: "propertiez" if key == "additionalProperties" else key)
        return {key: _ordered(schema[key]) for key in keys}
    if isinstance(schema, list):
        return [_ordered(item) for item in schema]
    return schema


def _worded(error: Any) -> str:
    """One fault as the engine words it."""
    limit, value = error.validator_value, error.instance
    shown = _text(value)
    match error.validator:
        case None:
            return f"False schema does not allow {shown}"
        case "type" if isinstance(limit, list):
            return f"{shown} is not of types {', '.join(_text(kind) for kind in sorted(limit))}"
        case "type":
            return f"{shown} is not of type {_text(limit)}"
        case "minimum":
            return f"{shown} is less than the minimum of {_text(limit)}"
        case "maximum":
            return f"{shown} is greater than the maximum of {_text(limit)}"
        case "exclusiveMinimum":
            return f"{shown} is less than or equal to the minimum of {_text(limit)}"
        case "exclusiveMaximum":
            return f"{shown} is greater than or equal to the maximum of {_text(limit)}"
        case "minLength":
            return f"{shown} is shorter than {_count(limit, 'character')}"
        case "maxLength":
            return f"{shown} is longer than {_count(limit, 'character')}"
        case "minItems" | "minProperties":
            return f"{shown} has less than {_count(limit, 'item' if isinstance(value, list) else 'property')}"
        case "maxItems" | "maxProperties":
            return f"{shown} has more than {_count(limit, 'item' if isinstance(value, list) else 'property')}"
        case "pattern":
            return f"{shown} does not match {_text(limit)}"
        case "enum":
            return f"{shown} is not one of {_text(limit)}"
        case "const":
            return f"{_text(limit)} was expected"
        case "anyOf" | "oneOf" as keyword:
            if "each of" in error.message:
                return f"{shown} is valid under more than one of the schemas listed in the '{keyword}' keyword"
            return f"{shown} is not valid under any of the schemas listed in the '{keyword}' keyword"
        case "not":
            return f"{_text(limit)} is not allowed for {shown}"
        case "multipleOf":
            return f"{shown} is not a multiple of {_text(limit)}"
        case "uniqueItems":
            return f"{shown} has non-unique elements"
        case "required" | "dependencies" | "dependentRequired":
            return f"{_text(_missing(error))} is a required property"
        case "contains":
            return f"None of {shown} are valid under the given schema"
        case "additionalProperties" if limit is False and not error.schema.keys() & {"properties", "patternProperties"}:
            return f"False schema does not allow {_text(next(iter(value.values())))}"
        case "additionalProperties":
            return _additional(error)
        case _:
            return str(error.message)


def _additional(error: Any) -> str:
    known = error.schema.get("properties", {})
    patterns = error.schema.get("patternProperties", {})
    extra = sorted(
        name for name in error.instance if name not in known and not any(re.search(p, name) for p in patterns)
    )
    names = ", ".join(f"'{name}'" for name in extra)
    return f"Additional properties are not allowed ({names} {'was' if len(extra) == 1 else 'were'} unexpected)"


def _missing(error: Any) -> Any:
    quoted = error.message.split(" is a ")[0]
    return ast.literal_eval(quoted)


def _count(number: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def _text(value: Any) -> str:
    return frames.encode_value(value).decode()
