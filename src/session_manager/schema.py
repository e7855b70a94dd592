"""JSON Schemas (draft-07) of the surface, generated from the types, and the files in `schemas/` that hold them.

What is named is defined once and referred to: records, unions and enumerations. An optional field accepts null.
"""

from __future__ import annotations

import enum
import json
import types
import typing
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from msgspec import NODEFAULT, Meta, Struct, UnsetType
from msgspec.structs import FieldInfo, fields

from session_manager import model
from session_manager.bindings import TRIGGER_TYPES, TriggerType
from session_manager.functions import FUNCTIONS, Function
from session_manager.model import JsonObject

DRAFT = "http://json-schema.org/draft-07/schema#"

UNIONS: dict[frozenset[type], tuple[str, str]] = {
    frozenset(typing.get_args(model.ContentBlock)): ("ContentBlock", "A piece of a message's content."),
    frozenset(typing.get_args(model.Message)): ("AgentMessage", "A message of the conversation."),
    frozenset(typing.get_args(model.WireEntry)): ("SessionEntry", "An entry in its place in the chain."),
}
"""Name and description of the unions, by their members."""

PLAIN: dict[Any, JsonObject] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
}


class _Generator:
    """Schemas of one document, and the definitions they refer to."""

    def __init__(self) -> None:
        self.definitions: dict[str, JsonObject] = {}

    def of(self, annotation: Any) -> JsonObject:
        if typing.get_origin(annotation) is Annotated:
            base, *metas = typing.get_args(annotation)
            return self._annotated(base, metas)
        if annotation in PLAIN:
            return dict(PLAIN[annotation])
        if annotation is Any:
            return {}
        origin, args = typing.get_origin(annotation), typing.get_args(annotation)
        if origin in (Union, types.UnionType):
            return self._union([arg for arg in args if arg is not UnsetType])
        if origin is Literal:
            return {"type": "string", "enum": list(args)}
        if origin is list:
            return {"type": "array", "items": self.of(args[0])}
        if origin is dict:
            return {"type": "object", "additionalProperties": True}
        if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
            return self._define(f"List{annotation.__name__}", lambda: {
                "type": "string", "enum": sorted(member.value for member in annotation),
            })  # fmt: skip
        assert isinstance(annotation, type)
        assert issubclass(annotation, Struct)
        return self._define(annotation.__name__, lambda: self.object(annotation))

    def _annotated(self, base: Any, metas: list[Meta]) -> JsonObject:
        schema = self.of(base)
        description = None
        for meta in metas:
            extra = dict(meta.extra_json_schema or {})
            wrap = extra.pop("wrap", None)
            if meta.title is not None:
                schema = self._define_enumeration(meta, schema, wrap)
                continue
            if meta.ge is not None and meta.ge >= 0:
                extra["minimum"] = meta.ge
            schema = _constrained(schema, extra)
            description = meta.description or description
            if wrap == "allOf":
                schema = {"allOf": [schema]}
        if description is not None and "$ref" not in schema:  # beside a reference it would be ignored
            schema = {"description": description, **schema}
        return schema

    def _define_enumeration(self, meta: Meta, schema: JsonObject, wrap: str | None) -> JsonObject:
        assert meta.title is not None
        if wrap == "oneOf":
            schema = {"oneOf": [{"type": "string", "enum": [value]} for value in schema["enum"]]}
        if meta.description is not None:
            schema = {"description": meta.description, **schema}
        return self._define(meta.title, lambda: schema)

    def _union(self, members: list[Any]) -> JsonObject:
        rest = [member for member in members if member is not type(None)]
        named = UNIONS.get(frozenset(rest))
        if named is not None:
            name, description = named
            schema = self._define(
                name, lambda: {"description": description, "oneOf": [self.object(member) for member in rest]}
            )
        else:
            assert len(rest) == 1, f"a union without a name: {rest}"
            schema = self.of(rest[0])
        if len(rest) == len(members):
            return schema
        if isinstance(schema.get("type"), str):
            return {**schema, "type": [schema["type"], "null"]}
        return {"anyOf": [schema, {"type": "null"}]}

    def _define(self, name: str, make: Any) -> JsonObject:
        if name not in self.definitions:
            self.definitions[name] = {}  # so that a recursive type finds itself
            self.definitions[name] = make()
        return {"$ref": f"#/definitions/{name}"}

    def object(self, of: type[Struct]) -> JsonObject:
        """The schema of a struct, in place."""
        properties: JsonObject = {}
        required: list[str] = []
        config = of.__struct_config__
        if config.tag_field is not None:
            properties[config.tag_field] = {"type": "string", "enum": [config.tag]}
            required.append(config.tag_field)
        for field in _fields(of):
            schema = self.of(field.type)
            if field.required:
                required.append(field.encode_name)
            elif type(field.default) in (bool, int) and field.default is not NODEFAULT:
                schema = {**schema, "default": field.default}
            properties[field.encode_name] = schema
        schema = {"type": "object", "properties": dict(sorted(properties.items()))}
        if of is model.SessionMeta:
            schema = {"description": "The record of a session.", **schema}
        if required:
            schema["required"] = sorted(required)
        if config.forbid_unknown_fields:
            schema["additionalProperties"] = False
        return schema


@cache
def _fields(of: type[Struct]) -> tuple[FieldInfo, ...]:
    """Many documents refer to the same structs, and evaluating annotations is most of the work."""
    return fields(of)


def _constrained(schema: JsonObject, extra: JsonObject) -> JsonObject:
    return {**schema, **extra} if extra else schema


def document(of: Any) -> JsonObject:
    """The whole schema of a request, a reply or a configuration."""
    generator = _Generator()
    if isinstance(of, type) and issubclass(of, Struct):
        root = {"title": _title(of.__name__), **generator.object(of)}
        generator.definitions.pop(of.__name__, None)
        if of is model.SessionMeta:
            root["title"] = "SessionMeta"
    else:
        inner = generator.of(of)
        name = inner["anyOf"][0]["$ref"].rsplit("/", 1)[-1]
        root = {"title": f"Nullable_{name}", **inner}
    schema: JsonObject = {"$schema": DRAFT, **root}
    if generator.definitions:
        schema["definitions"] = dict(sorted(generator.definitions.items()))
    return schema


def _title(name: str) -> str:
    return name.removeprefix("_")


def function_schema(function: Function) -> JsonObject:
    """What `schemas/` and the engine hold of a function."""
    return {
        "function_id": function.id,
        "description": function.description,
        "metadata": function.metadata,
        "request_schema": document(function.request),
        "response_schema": document(function.response),
    }


def trigger_schema(trigger_type: TriggerType) -> JsonObject:
    """What `schemas/` and the engine hold of a trigger type."""
    schema: JsonObject = {
        "trigger_type": trigger_type.id,
        "description": trigger_type.description,
        "config_schema": document(trigger_type.config),
    }
    if trigger_type.event is not None:
        schema["payload_schema"] = document(trigger_type.event)
    return schema


def files() -> dict[Path, str]:
    """The schema files, by path below `schemas/`."""
    found = {}
    for function in FUNCTIONS:
        name = function.id.removeprefix("session::").replace("::", ".")
        found[Path("functions") / f"{name}.json"] = _text(function_schema(function))
    for trigger_type in TRIGGER_TYPES:
        name = trigger_type.id.removeprefix("session::").replace("::", ".")
        found[Path("triggers") / f"{name}.json"] = _text(trigger_schema(trigger_type))
    return found


def _text(schema: JsonObject) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
