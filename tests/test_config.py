"""The configuration: its shape, its schema, and the file that seeds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
from structlog.testing import capture_logs

from session_manager.config import Configuration, InvalidConfiguration, expand, parse, schema, seed
from session_manager.paging import Limits

REFUSED: list[tuple[Any, str]] = [
    ([], "value"),
    ("x", "value"),
    ({"unknown": 1}, "unknown"),
    ({"adapter": {"name": "floppy", "config": {}}}, "adapter"),
    ({"adapter": {"name": "bridge"}}, "config"),
    ({"adapter": {"name": "bridge", "config": {}}}, "url"),
    ({"adapter": {"name": "bridge", "config": {"url": "ws://x", "zzz": 1}}}, "zzz"),
    ({"adapter": {"name": "fs"}}, "config"),
    ({"adapter": {"name": "sqlite", "config": {"synchronous": "SOMETIMES"}}}, "synchronous"),
    ({"adapter": {"name": "sqlite", "config": {"path": ""}}}, "path"),
    ({"adapter": {"name": "sqlite", "config": {"path": "a\0b"}}}, "path"),
    ({"adapter": {"name": "fs", "config": {"data_dir": ""}}}, "data_dir"),
    ({"adapter": {"name": "fs", "config": {"data_dir": "a\0b"}}}, "data_dir"),
    ({"adapter": {"name": "memory", "config": {"size": 1}}}, "size"),
    ({"default_list_limit": -1}, "default_list_limit"),
    ({"default_list_limit": "5"}, "default_list_limit"),
    ({"max_list_limit": 1.5}, "max_list_limit"),
    ({"max_list_limit": True}, "max_list_limit"),
]

ACCEPTED: list[Any] = [
    {},
    {"adapter": {"name": "memory"}},
    {"adapter": {"name": "sqlite"}},
    {"adapter": {"name": "sqlite", "config": {"path": "x.db"}}},
    {"adapter": {"name": "fs", "config": {}}},
    {"adapter": {"name": "bridge", "config": {"url": "ws://127.0.0.1:1", "timeout_ms": 100, "namespace": "n"}}},
    {"default_list_limit": 0, "max_list_limit": 0},
]


@pytest.mark.parametrize(("value", "field"), REFUSED)
def test_a_value_of_another_shape_is_refused_and_the_field_named(value: Any, field: str) -> None:
    with pytest.raises(InvalidConfiguration, match=field):
        parse(value)


@pytest.mark.parametrize("value", ACCEPTED)
def test_everything_may_be_left_out(value: Any) -> None:
    written_out = parse(value).value()
    assert parse(written_out).value() == written_out


def test_null_is_the_default() -> None:
    assert parse(None) == Configuration()


def test_the_schema_says_what_the_parser_does() -> None:
    validator = jsonschema.Draft7Validator(schema())
    jsonschema.Draft7Validator.check_schema(schema())
    assert [value for value in ACCEPTED if not validator.is_valid(value)] == []
    assert [value for value, _ in REFUSED if validator.is_valid(value)] == []


def test_a_console_can_draw_a_picker_of_adapters_from_the_schema() -> None:
    made = schema()
    assert made["additionalProperties"] is False
    assert made["example"] == Configuration().value()
    variants = [made["definitions"][one["$ref"].rsplit("/", 1)[-1]] for one in made["definitions"]["Adapter"]["oneOf"]]
    names = []
    for variant in variants:
        name = variant["properties"]["name"]
        assert len(name["enum"]) == 1
        names += name["enum"]
        assert "name" in variant["required"]
        assert variant["additionalProperties"] is False
        config = variant["properties"]["config"]
        reference = config.get("$ref") or config["allOf"][0]["$ref"]
        assert made["definitions"][reference.rsplit("/", 1)[-1]]["additionalProperties"] is False
    assert names == ["memory", "sqlite", "fs", "bridge"]


@pytest.mark.parametrize(
    ("limits", "asked", "given"),
    [
        (Limits(50, 500), None, 50),
        (Limits(50, 500), 0, 1),
        (Limits(50, 500), 501, 500),
        (Limits(50, 10), None, 10),
        (Limits(0, 0), None, 1),
        (Limits(5, 0), 7, 1),
        (Limits(2**64 - 1, 2**64 - 1), None, 2**32),
        (Limits(50, 2**64 - 1), 2**64 - 1, 2**32),
    ],
)
def test_a_limit_is_brought_into_the_bounds(limits: Limits, asked: int | None, given: int) -> None:
    assert limits.of(asked) == given


def test_the_seed_may_be_yaml_or_toml_and_names_the_environment(tmp_path: Path) -> None:
    environment = {"DB": "/tmp/x.db"}
    yaml, toml = tmp_path / "seed.yaml", tmp_path / "seed.toml"
    yaml.write_text("adapter: {name: sqlite, config: {path: '${DB}'}}\ndefault_list_limit: 7\n")
    toml.write_text(
        "[worker]\nname = 'x'\n[config]\ndefault_list_limit = 7\n"
        "[config.adapter]\nname = 'sqlite'\n[config.adapter.config]\npath = '${DB}'\n"
    )
    assert seed(yaml, environment) == seed(toml, environment)
    assert parse(seed(yaml, environment)).adapter.config.model_dump() == {"path": "/tmp/x.db", "synchronous": "FULL"}


def test_the_manifest_file_of_the_worker_can_be_the_seed() -> None:
    assert seed(Path(__file__).parent.parent / "iii.worker.toml") == Configuration().value()


@pytest.mark.parametrize("text", ["adapter: [", "unknown: 1", "\x00", "default_list_limit: -3", "[" * 5000, "\ud800"])
def test_a_seed_that_cannot_be_used_is_passed_over(tmp_path: Path, text: str) -> None:
    file = tmp_path / "seed.yaml"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    assert seed(file) is None
    assert seed(tmp_path / "missing.yaml") is None


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("mistyped/seed.yaml", None, "No such file or directory"),
        ("seed.yaml", "adaptor: {name: memory}", "adaptor: there is no such setting"),
        ("seed.yaml", "adapter: {name: fs, config: {dir: x}}", "adapter.config.dir: there is no such setting"),
        ("seed.yaml", "adapter: sqlite", "adapter: it must be an object"),
        ("seed.yaml", "adapter: {}", "adapter: it has no name"),
        ("seed.yaml", "sqlite", "value: it must be an object"),
        ("seed.toml", "[adapter]\nname = 'memory'", "there is no table [config]"),
    ],
)
def test_a_seed_that_is_passed_over_is_named_with_the_reason_and_what_holds_instead(
    name: str, text: str | None, why: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with capture_logs() as logged:
        assert seed(tmp_path / name) is None
    assert logged == [
        {
            "event": "the seed configuration is not used; if none is stored, the default is",
            "log_level": "warning",
            "file": str(tmp_path / name),
            "error": why,
        }
    ]


def test_placeholders_with_a_default_are_left_to_the_configuration_worker() -> None:
    assert expand("${A}|${B}|${A:x}|${A", {"A": "1"}) == "1||${A:x}|${A"
