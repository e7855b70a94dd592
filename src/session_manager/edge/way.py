"""The way to a main instance: store calls over a line of their own."""

from __future__ import annotations

import secrets

from session_manager.config import BridgeConfig
from session_manager.edge.failures import DISCONNECTED, EngineError, Undelivered
from session_manager.edge.line import Line
from session_manager.stores.bridge import BridgeStore, MainError, MainSilent

QUESTIONS = ("session::store::get-", "session::store::list-")
"""How functions begin that change nothing."""

CONNECT = 3.0
"""Seconds within which the main instance's engine must take a connection."""


class Way:
    """What a bridge store calls its main instance through (a `Main`)."""

    def __init__(self, config: BridgeConfig, name: str) -> None:
        self._config = config
        self._seconds = config.timeout_ms / 1000
        self._line = Line(config.url, name, "Store calls of a session-manager bridge.", config.namespace)

    async def open(self) -> None:
        await connect(self._line)

    async def call(self, function_id: str, payload: bytes) -> bytes:
        try:
            question = function_id.startswith(QUESTIONS)
            return await self._line.call(function_id, payload, self._config.namespace, self._seconds, question=question)
        except Undelivered as error:
            if error.code == "TIMEOUT":
                raise MainSilent(f"the main instance did not answer within {self._config.timeout_ms} ms") from error
            raise MainError(_REASONS.get(error.code, f"it failed at the main instance ({error.code})")) from error

    async def close(self) -> None:
        await self._line.close()


_REASONS = {
    DISCONNECTED: "the main instance's engine cannot be reached",
    "function_not_found": "no main instance serves it",
    "invocation_stopped": "the main instance went away",
}


async def connect(line: Line) -> None:
    """Opens a line to the main instance's engine. Raises MainError."""
    try:
        await line.open(CONNECT)
    except EngineError as error:
        raise MainError(f"the main instance's engine: {error}") from error


def bridge_store(url: str) -> BridgeStore:
    """A store, not yet open, over the main instance on an engine: for tools, without relay and events."""
    return BridgeStore(Way(BridgeConfig(url=url), f"session-manager-tool-{secrets.token_hex(4)}"))
