"""The worker's configuration: its shape, its JSON Schema, and reading the first-boot seed.

The value lives in the engine's configuration worker under the id `session-manager`; a file given with `--config` only
seeds it on the first boot. Keys that nobody knows are refused.
"""

from __future__ import annotations

import errno
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import structlog
from pydantic import BaseModel, ConfigDict, Field

from session_manager.errors import SessionManagerError
from session_manager.model import JsonObject
from session_manager.paging import Limits

log = structlog.get_logger("session_manager.config")

CONFIGURATION_ID = "session-manager"

DATA_DIR = "data/session-manager"
"""Where data is kept, relative to the compose directory or else the working directory."""


class InvalidConfiguration(SessionManagerError):
    """The value is not a configuration of this worker; the text names the field."""


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Place = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*$")]
"""A path that the system can take."""


class MemoryConfig(_Closed):
    """Nothing to set."""


class SqliteConfig(_Closed):
    """One SQLite file."""

    path: Place = Field(f"{DATA_DIR}/sessions.db", description="The database file; relative to the compose directory.")
    synchronous: Literal["FULL", "NORMAL", "OFF"] = Field(
        "FULL", description="What an acknowledged change survives: FULL power loss, NORMAL a crash of the process."
    )


class FsConfig(_Closed):
    """A directory of JSON lines, one file per session, as earlier versions of the worker keep them."""

    data_dir: Place = Field(DATA_DIR, description="The directory; relative to the compose directory.")


class BridgeConfig(_Closed):
    """Storage through the session-manager of another engine."""

    url: str = Field(description="The WebSocket URL of the engine whose session-manager owns the store.")
    timeout_ms: int = Field(5000, ge=1, description="How long one store call may take, in milliseconds.")
    namespace: str = Field("default", min_length=1, description="The namespace of the functions over there.")


class MemoryAdapter(_Closed):
    """Keep everything in memory; a restart forgets it."""

    name: Literal["memory"]
    config: MemoryConfig = MemoryConfig()


class SqliteAdapter(_Closed):
    """Keep everything in one SQLite file."""

    name: Literal["sqlite"]
    config: SqliteConfig = SqliteConfig()


class FsAdapter(_Closed):
    """Keep everything in a directory of JSON lines."""

    name: Literal["fs"]
    config: FsConfig


class BridgeAdapter(_Closed):
    """Share the store of another engine's session-manager."""

    name: Literal["bridge"]
    config: BridgeConfig


Adapter = Annotated[MemoryAdapter | SqliteAdapter | FsAdapter | BridgeAdapter, Field(discriminator="name")]

Count = Annotated[int, Field(ge=0)]


class Configuration(_Closed):
    """Settings of session-manager."""

    adapter: Adapter = Field(SqliteAdapter(name="sqlite"), description="Where conversations are kept.")
    default_list_limit: Count = Field(50, description="Length of a page when the caller names none.")
    max_list_limit: Count = Field(500, description="Greatest length of a page, whatever the caller asks for.")

    @property
    def limits(self) -> Limits:
        return Limits(self.default_list_limit, self.max_list_limit)

    def value(self) -> JsonObject:
        """The configuration as JSON, every key written out."""
        return self.model_dump(mode="json")


def _field(steps: tuple[int | str, ...]) -> str:
    """Where it is in the value: without the name of the adapter, which pydantic counts as a step."""
    return ".".join(map(str, (*steps[:1], *steps[2:]))) or "value"


_REASONS = {
    "extra_forbidden": "there is no such setting",
    "model_type": "it must be an object",
    "model_attributes_type": "it must be an object",
    "union_tag_not_found": "it has no name",
}
"""Where pydantic's own words are for programmers."""


def parse(value: Any) -> Configuration:
    """The configuration in a JSON value; null stands for all defaults. Raises InvalidConfiguration."""
    try:
        return Configuration.model_validate({} if value is None else value)
    except pydantic.ValidationError as error:
        problems = [
            f"{_field(problem['loc'])}: {_REASONS.get(problem['type'], problem['msg'])}" for problem in error.errors()
        ]
        raise InvalidConfiguration("; ".join(problems)) from None


def schema() -> JsonObject:
    """The JSON Schema (draft-07) of the configuration, in the form from which a console draws a picker of adapters."""
    made = Configuration.model_json_schema(ref_template="#/definitions/{model}")
    definitions: JsonObject = made.pop("$defs")
    adapter = made["properties"]["adapter"]
    definitions["Adapter"] = {"title": "Adapter", "oneOf": adapter.pop("oneOf")}
    del adapter["discriminator"]
    adapter["allOf"] = [{"$ref": "#/definitions/Adapter"}]
    for definition in definitions.values():
        properties = definition.get("properties", {})
        for name, property_ in properties.items():
            property_.pop("title", None)
            if "const" in property_:
                property_["enum"] = [property_.pop("const")]
                property_["type"] = "string"
            if "$ref" in property_ and len(property_) > 1:
                property_["allOf"] = [{"$ref": property_.pop("$ref")}]
            properties[name] = property_
        if "config" in properties:
            definition["required"] = (
                ["name", "config"] if definition["title"] in ("FsAdapter", "BridgeAdapter") else ["name"]
            )
    for property_ in made["properties"].values():
        property_.pop("title", None)
    for limit in ("default_list_limit", "max_list_limit"):
        made["properties"][limit]["format"] = "uint"
    default = Configuration().value()
    adapter["default"] = default["adapter"]
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **made,
        "example": default,
        "definitions": definitions,
    }


def base_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """What relative data paths are relative to."""
    given = environ.get("III_COMPOSE_DIR")
    return Path(given) if given else working_directory()


def working_directory() -> Path:
    """Raises OSError where it has been removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "the working directory is not there any more") from None


# --- the first-boot seed ---

_PLACEHOLDER = re.compile(r"\$\{([^{}:]*)(:[^{}]*)?\}")


def seed(path: Path, environ: Mapping[str, str] = os.environ) -> JsonObject | None:
    """The configuration value in a YAML or TOML file (of which `[config]` counts); None, with a warning in the log,
    when there is none that can be used: the worker is started all the same. `${NAME}` is replaced from the environment.
    """
    import yaml  # which takes its time, and most starts have no seed

    try:
        text = expand(path.read_text(encoding="utf-8"), environ)
        value = _config_table(text) if path.suffix == ".toml" else yaml.safe_load(text)
        parse(value)
    except (OSError, ValueError, RecursionError, yaml.YAMLError, InvalidConfiguration) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        log.warning("the seed configuration is not used; if none is stored, the default is", file=str(path), error=why)
        return None
    return value or {}


def _config_table(text: str) -> Any:
    try:
        return tomllib.loads(text)["config"]
    except KeyError:
        raise InvalidConfiguration("there is no table [config]") from None


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Replaces `${NAME}`; an unset one becomes empty, with a warning. `${NAME:default}` and an unclosed `${` stay, for
    the configuration worker to expand."""

    def replace(found: re.Match[str]) -> str:
        if found[2] is not None:
            return found[0]
        value = environ.get(found[1])
        if value is None:
            log.warning("the seed configuration names an unset variable", variable=found[1])
        return value or ""

    return _PLACEHOLDER.sub(replace, text)
