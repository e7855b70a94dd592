"""The engine's configuration worker: named values with a JSON Schema, kept as one YAML file each.

Values are stored as given, placeholders and all. Schemas live in memory only: after a restart every owner has to
register its own again. Files may be edited by hand; the directory is looked at several times a second.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from session_manager.dev import frames
from session_manager.dev.bindings import Binding, Rejected, TriggerType
from session_manager.dev.catalog import Resident
from session_manager.dev.entries import Entry, Files
from session_manager.dev.inputs import Input, Unreadable
from session_manager.dev.placeholders import expand
from session_manager.dev.registry import Connection, Function, Refused
from session_manager.dev.router import Router
from session_manager.dev.schemas import faults

log = structlog.get_logger(__name__)

WORKER = Resident("configuration", "Named values with a schema, kept and watched.")

_ID = re.compile(r"[a-z0-9_-]{1,64}")
_LOOK_EVERY_S = 0.1
_SETTLE_S = 0.5

_REGISTER = Input(
    "configuration::register",
    "ConfigurationRegisterInput",
    {
        "id": "string",
        "name": "string",
        "description": "string",
        "schema": "any",
        "initial_value": "any=",
        "metadata": "any=",
    },
)
_SET = Input("configuration::set", "ConfigurationSetInput", {"id": "string", "value": "any"})
_GET = Input("configuration::get", "ConfigurationGetInput", {"id": "string", "raw": "boolean="})
_LIST = Input("configuration::list", "ConfigurationListInput", {})
_SCHEMA = Input("configuration::schema", "ConfigurationSchemaInput", {"id": "string"})
_BINDING = Input(
    "configuration",
    "ConfigurationTriggerConfig",
    {"configuration_id": "string?", "event_types": "strings?", "condition_function_id": "string?"},
)


class Configuration:
    """The `configuration::` functions and the trigger type `configuration`.

    With `directory` None nothing outlives the engine. Provider of its trigger type: see `bindings.Local`.
    """

    def __init__(self, router: Router, directory: Path | None, environment: Mapping[str, str] | None = None) -> None:
        self._router = router
        self._environment = os.environ if environment is None else environment
        self._files = Files(directory) if directory is not None else None
        #: What is in force, and what is on disk: an invalid edit by hand is only the latter.
        self._entries: dict[str, Entry] = (self._files.load() if self._files else None) or {}
        self._stored = dict(self._entries)
        self._written = False
        """Whether a file was written since the files were looked at: it may be gone again by the next look."""
        self._subscribers: dict[str, tuple[Binding, dict[str, Any]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        router.bindings.register_type(
            TriggerType(
                WORKER.name, frames.DEFAULT_NAMESPACE, "A configuration was registered, changed or deleted.", self
            )
        )
        for given, serve, description in (
            (_REGISTER, self._register, "Register a configuration's schema, and its value if it comes with one."),
            (_SET, self._set, "Change a configuration's value."),
            (_GET, self._get, "A configuration's value, placeholders filled in unless raw."),
            (_LIST, self._list, "All configurations, without their values."),
            (_SCHEMA, self._schema, "One configuration, without its value."),
        ):
            router.registry.register(
                Function(
                    id=given.function_id,
                    namespace=frames.DEFAULT_NAMESPACE,
                    handler=_served(given, serve),
                    worker_name=WORKER.name,
                    description=description,
                    request_format={"type": "object"},
                )
            )

    def start(self) -> None:
        """Watch the directory."""
        if self._files is not None:
            self._spawn(self._watch(self._files))

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    # --- functions ---

    def _register(self, given: dict[str, Any]) -> Any:
        entry_id = _checked_id(given["id"])
        value = given["initial_value"]
        known = self._entries.get(entry_id)
        if value is not None:
            self._validate(value, given["schema"])
        elif known is not None:
            value = known.value
        entry = Entry(entry_id, given["name"], given["description"], given["schema"], value, given["metadata"])
        before = self._store(entry)
        if before is None:
            self._announce("registered", entry, None, value)
        else:
            self._announce("updated", entry, before.value, value)
        return {**entry.view(), "value": value}

    def _set(self, given: dict[str, Any]) -> Any:
        entry_id = _checked_id(given["id"])
        known = self._entries.get(entry_id)
        if known is None:
            raise Refused(
                "NOT_REGISTERED",
                f"configuration '{entry_id}' is not registered; call configuration::register first",
            )
        if known.schema is None:
            raise Refused(
                "SCHEMA_UNAVAILABLE",
                f"configuration '{entry_id}' has no schema available yet; the owning worker must register before "
                "values can be set",
            )
        self._validate(given["value"], known.schema)
        entry = replace(self._stored[entry_id], value=given["value"])
        before = self._store(entry)
        old = None if before is None else before.value
        self._announce("updated", entry, old, entry.value)
        return {"old_value": old, "new_value": entry.value}

    def _get(self, given: dict[str, Any]) -> Any:
        entry = self._known(given["id"])
        if given["raw"]:
            return {"id": entry.id, "value": entry.value}
        value, missing = expand(entry.value, self._environment)
        if missing:
            raise Refused(
                "EXPAND_FAILED",
                f"configuration '{entry.id}' references unset environment variable(s) with no default: "
                f"{', '.join(missing)}",
            )
        if entry.schema is not None:
            self._refuse_faults(value, entry.schema)
        return {"id": entry.id, "value": value}

    def _list(self, given: dict[str, Any]) -> Any:
        return {"configurations": [self._entries[entry_id].view() for entry_id in sorted(self._entries)]}

    def _schema(self, given: dict[str, Any]) -> Any:
        return self._known(given["id"]).view()

    def _known(self, entry_id: str) -> Entry:
        if entry_id not in self._entries:
            raise Refused("NOT_FOUND", f"configuration '{entry_id}' not found")
        return self._entries[entry_id]

    def _validate(self, value: Any, schema: Any) -> None:
        """Refuse an invalid value; one with an unset placeholder cannot be judged yet."""
        expanded, missing = expand(value, self._environment)
        if not missing:
            self._refuse_faults(expanded, schema)

    def _refuse_faults(self, value: Any, schema: Any) -> None:
        found = faults(value, schema)
        if found:
            raise Refused("SCHEMA_INVALID", f"schema validation failed: {'; '.join(found)}")

    def _store(self, entry: Entry) -> Entry | None:
        """Put an entry in force, on disk first; returns what was on disk before."""
        if self._files is not None:
            try:
                self._files.write(entry)
            except OSError as error:
                raise Refused("ADAPTER_ERROR", str(error)) from error
            self._written = True
        before = self._stored.get(entry.id)
        self._entries[entry.id] = self._stored[entry.id] = entry
        return before

    # --- edits by hand ---

    async def _watch(self, files: Files) -> None:
        seen = files.signature()
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if files.signature() == seen and not self._written:
                continue
            await asyncio.sleep(_SETTLE_S)
            self._written = False
            seen, found = files.signature(), files.load()
            if self._router.disorder.unkindness.slow_files:
                await asyncio.sleep(self._router.disorder.unkindness.slow_files)
            if found is not None:
                self._reload(found)

    def _reload(self, found: dict[str, Entry]) -> None:
        for entry_id, fresh in found.items():
            stored = self._stored.get(entry_id)
            if stored is None:
                self._stored[entry_id] = self._entries[entry_id] = fresh
                self._announce("registered", fresh, None, fresh.value)
            elif _shown(stored) != _shown(fresh):
                edited = replace(fresh, schema=stored.schema)
                self._stored[entry_id] = edited
                if self._acceptable(edited):
                    self._entries[entry_id] = edited
                    self._announce("updated", edited, stored.value, edited.value)
        for entry_id in self._stored.keys() - found.keys():
            gone = self._stored.pop(entry_id)
            self._entries.pop(entry_id, None)
            self._announce("deleted", gone, gone.value, None)

    def _acceptable(self, edited: Entry) -> bool:
        if edited.schema is None:
            return True
        value, missing = expand(edited.value, self._environment)
        found = [f"{name} is not set" for name in missing] or faults(value, edited.schema)
        if found:
            log.warning("an edited configuration is invalid; the old value stays in force", id=edited.id, faults=found)
        return not found

    # --- events ---

    def bind(self, binding: Binding) -> None:
        try:
            wanted = _BINDING.read(binding.config)
        except Unreadable as error:
            raise Rejected(f"Failed to parse configuration trigger config: {error}") from None
        self._subscribers[binding.id] = binding, wanted

    def unbind(self, binding: Binding) -> None:
        self._subscribers.pop(binding.id, None)

    def _announce(self, what: str, entry: Entry, old: Any, new: Any) -> None:
        event_type = f"configuration:{what}"
        event = {
            "type": "configuration",
            "event_type": event_type,
            **entry.view(),
            "old_value": expand(old, self._environment)[0],
            "new_value": expand(new, self._environment)[0],
        }
        told = [
            (binding, wanted["condition_function_id"])
            for binding, wanted in self._subscribers.values()
            if wanted["configuration_id"] in (None, entry.id)
            and (wanted["event_types"] is None or event_type in wanted["event_types"])
        ]
        if told:
            self._spawn(self._tell(self._router.disorder.shuffled(told), event))

    async def _tell(self, told: list[tuple[Binding, str | None]], event: dict[str, Any]) -> None:
        """Tell one subscriber after the other: a slow one holds up the rest, as on the real engine."""
        for binding, condition in told:
            try:
                if condition is not None and await self._router.call(binding.namespace, condition, event) is False:
                    continue
                await self._router.call(binding.namespace, binding.function_id, event, binding.metadata)
            except Refused as error:
                if error.body.code != "invocation_stopped":  # else the subscriber left
                    log.warning(
                        "a configuration event was not taken", function_id=binding.function_id, error=str(error)
                    )

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _shown(entry: Entry) -> bytes:
    """What an edit by hand can change; as text, because to Python 1 equals 1.0 and true."""
    return frames.encode_value([entry.name, entry.description, entry.value])


def _checked_id(entry_id: str) -> str:
    if not _ID.fullmatch(entry_id):
        raise Refused("INVALID_ID", f"invalid configuration id '{entry_id}': must match [a-z0-9_-]{{1,64}}")
    return entry_id


def _served(given: Input, serve: Any) -> Any:
    async def handler(data: Any, caller: Connection | None) -> Any:
        return serve(given.take(data))

    return handler
