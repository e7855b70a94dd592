"""The surface is what is checked in: schemas, manifest, version; and replies are as the schemas say."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from session_manager import __version__
from session_manager.bindings import TRIGGER_TYPES
from session_manager.config import Configuration
from session_manager.functions import FUNCTIONS
from session_manager.manifest import manifest, worker_yaml
from session_manager.schema import files, function_schema, trigger_schema
from tests.stage import InProcess

ROOT = Path(__file__).parent.parent
USER = {"role": "user", "content": [{"type": "text", "text": "hi"}], "timestamp": 1}


def test_there_are_29_functions_and_7_trigger_types() -> None:
    assert (len(FUNCTIONS), len(TRIGGER_TYPES)) == (29, 7)


def test_the_checked_in_schemas_are_what_the_types_say() -> None:
    there = {path.relative_to(ROOT / "schemas"): path.read_text() for path in (ROOT / "schemas").rglob("*.json")}
    assert there == files()


@pytest.mark.parametrize("schema", [function_schema(f) for f in FUNCTIONS] + [trigger_schema(t) for t in TRIGGER_TYPES])
def test_every_schema_is_valid_draft_07_and_says_what_it_is_for(schema: dict[str, Any]) -> None:
    for key in ("request_schema", "response_schema", "config_schema", "payload_schema"):
        if key in schema:
            jsonschema.Draft7Validator.check_schema(schema[key])
            assert schema[key]["$schema"] == "http://json-schema.org/draft-07/schema#"
            assert schema[key]["title"]
    assert schema["description"].endswith(".")
    assert ". " not in schema["description"], "one sentence"


def test_reads_are_listed_and_everything_else_is_hidden_from_discovery() -> None:
    visible = {function.id for function in FUNCTIONS if not function.metadata.get("internal")}
    assert visible == {"session::get", "session::list", "session::messages", "session::get-message"}
    assert all(function.metadata["trace_hidden"] for function in FUNCTIONS)


def test_manifest_configuration_and_version_are_held_together() -> None:
    toml = tomllib.loads((ROOT / "iii.worker.toml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (ROOT / "iii.worker.yaml").read_text() == worker_yaml(ROOT / "iii.worker.toml")
    made = manifest()
    assert project["version"] == toml["worker"]["version"] == made["version"] == __version__
    assert project["name"] == toml["worker"]["name"] == made["name"]
    assert toml["worker"]["description"] == made["description"]
    assert toml["config"] == made["default_config"] == Configuration().value()
    assert len(made["supported_targets"]) == 1
    assert yaml.safe_load((ROOT / "iii.worker.yaml").read_text())["scripts"]["start"].count("exec ") == 1


def tour() -> Iterator[tuple[str, dict[str, Any]]]:
    """A call of every function, so that each reply can be held against its schema."""
    yield "session::create", {"title": "t", "metadata": {"a": [1, None]}}
    yield "session::ensure", {"session_id": "s"}
    yield "session::get", {"session_id": "s"}
    yield "session::get", {"session_id": "none"}
    yield "session::append", {"session_id": "s", "message": USER, "entry_id": "e1", "origin": {"by": "me"}}
    yield "session::append", {"session_id": "s", "custom": {"custom_type": "note"}, "entry_id": "e2"}
    yield (
        "session::append-many",
        {"session_id": "s", "messages": [USER, {**USER, "role": "custom", "custom_type": "c"}]},
    )
    yield "session::update-message", {"session_id": "s", "entry_id": "e1", "content": []}
    yield "session::messages", {"session_id": "s", "include_custom": True, "limit": 2}
    yield "session::get-message", {"session_id": "s", "entry_id": "e1"}
    yield "session::get-message", {"session_id": "s", "entry_id": "e2"}
    yield "session::get-message", {"session_id": "s", "entry_id": "none"}
    yield "session::fork", {"session_id": "s", "entry_id": "e2"}
    yield "session::set-active-leaf", {"session_id": "s", "entry_id": "e1"}
    yield "session::set-meta", {"session_id": "s", "description": "d"}
    yield "session::set-draft", {"session_id": "s", "draft": "x"}
    yield "session::set-draft", {"session_id": "s"}
    yield "session::set-status", {"session_id": "s", "status": "working", "reason": "r"}
    yield "session::list", {"limit": 1}
    yield "session::config-status", {}
    yield "session::on-config-change", {}
    for name in ("get-meta", "list-metas", "list-entries", "get-active-leaf", "delete-active-leaf", "get-active-leaf"):
        yield f"session::store::{name}", {"session_id": "s"}
    yield "session::store::get-entry", {"session_id": "s", "entry_id": "e1"}
    yield (
        "session::store::put-entry",
        {"session_id": "s", "entry": {"kind": "custom", "id": "x", "timestamp": 1, "custom_type": "c"}},
    )
    meta = {"session_id": "s", "title": "", "description": "", "status": "idle", "created_at": 1, "updated_at": 1}
    yield "session::store::put-meta", {"meta": {**meta, "message_count": 0}}
    yield "session::store::set-active-leaf", {"session_id": "s", "entry_id": "x"}
    yield "session::store::publish-events", {"events": []}
    yield "session::store::delete-entries", {"session_id": "s"}
    yield "session::store::delete-meta", {"session_id": "s"}
    yield "session::delete", {"session_id": "s"}


async def test_every_request_and_reply_is_as_its_schema_says(stage: InProcess) -> None:
    schemas = {function.id: function_schema(function) for function in FUNCTIONS}
    called = set()
    for function_id, payload in tour():
        jsonschema.validate(payload, schemas[function_id]["request_schema"])
        jsonschema.validate(await stage.call(function_id, payload), schemas[function_id]["response_schema"])
        called.add(function_id)
    assert called == set(schemas)


async def test_every_event_is_as_its_schema_says(stage: InProcess) -> None:
    events: list[tuple[str, Any]] = []
    for trigger_type in TRIGGER_TYPES:
        await stage.bind(trigger_type.id, {}, lambda event, kind=trigger_type.id: events.append((kind, event)))  # type: ignore[misc] # the default binds the loop variable
    for function_id, payload in tour():
        if "store" not in function_id:
            await stage.call(function_id, payload)
    await stage.settle()
    schemas = {trigger_type.id: trigger_schema(trigger_type) for trigger_type in TRIGGER_TYPES}
    for kind, event in events:
        if "payload_schema" in schemas[kind]:
            schema = {**schemas[kind]["payload_schema"], "additionalProperties": False}
            jsonschema.validate(event, schema)
    assert {kind for kind, _ in events} == set(schemas)


def test_the_schema_files_are_stable_text() -> None:
    for text in files().values():
        assert json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n" == text
