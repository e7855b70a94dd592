"""The worker's entry in the engine's configuration worker."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import structlog

from session_manager.config import CONFIGURATION_ID, Configuration, schema
from session_manager.edge.client import Client, InvocationError
from session_manager.errors import SessionManagerError
from session_manager.model import JsonObject

log = structlog.get_logger("session_manager.config")

ATTEMPTS = 3
PAUSE = 0.25
"""Seconds, times the number of the attempt."""
TIMEOUT = 5.0
ABSENCE = 0.75
"""Seconds after which a value that was not found is asked for once more: the engine can lose sight of one for half a
second (docs/protocol-notes.md, "Writes can be undone"), and a hand that edits the file can too."""


class Unavailable(SessionManagerError):
    """The configuration worker does not give the value."""


class ConfigurationEntry:
    """Registers the schema, seeds the value on the first boot, and reads the value."""

    def __init__(self, client: Client, seed: JsonObject | None) -> None:
        self._client, self._seed = client, seed
        self.id = os.environ.get("III_CONFIG_NAME") or CONFIGURATION_ID

    async def register(self, *, again: bool = False) -> None:
        """Registers the schema. A value that is stored stays; where there is none, the seed or the default is. `again`:
        there should be one, so that it is looked for once more before another takes its place for good."""
        initial: JsonObject | None = None
        stored = await self._stored()
        if stored is None and again:
            await asyncio.sleep(ABSENCE)
            stored = await self._stored()
        if stored is None:
            initial = self._first_value()
        elif self._seed not in (None, stored):
            log.info("the seed configuration is not used: one is stored", id=self.id)
        entry: JsonObject = {
            "id": self.id,
            "name": "Session manager",
            "description": "Where conversations are kept, and how long their pages are.",
            "schema": schema(),
        }
        if initial is not None:
            entry["initial_value"] = initial
        await self._call("configuration::register", entry)

    async def _stored(self) -> Any:
        """The value as it was stored; None where the engine knows of none."""
        try:
            return (await self._call("configuration::get", {"id": self.id, "raw": True})).get("value")
        except InvocationError as error:
            if "not_found" not in f"{error.code} {error.message}".lower():
                raise
            return None

    def _first_value(self) -> JsonObject:
        return Configuration().value() if self._seed is None else self._seed

    async def fetch(self) -> Any:
        """The value in force, environment expanded. Registers the schema again where the engine has forgotten it.
        Raises Unavailable."""
        try:
            known = await self._call("configuration::schema", {"id": self.id})
            if known.get("schema") is None:
                await self.register(again=True)
            return (await self._call("configuration::get", {"id": self.id}))["value"]
        except (InvocationError, KeyError) as error:
            raise Unavailable(f"the configuration cannot be read: {error}") from None

    async def _call(self, function_id: str, payload: JsonObject) -> Any:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._client.call(function_id, payload, seconds=TIMEOUT)
            except InvocationError as error:
                if error.code != "TIMEOUT" or attempt == ATTEMPTS:
                    raise
                await asyncio.sleep(PAUSE * attempt)
        raise AssertionError
