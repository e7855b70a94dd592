"""Short visits to an engine by the command-line tools, under a name of their own."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from session_manager.edge.client import Client
from session_manager.edge.waiting import Pause, probe, sleep
from session_manager.model import JsonObject

PATIENCE = 3.0
"""Seconds to wait for an engine."""


class Visitor(Client):
    def subscribe(self, trigger_type: str, config: JsonObject, receive: Callable[[JsonObject], None]) -> None:
        """Binds a fresh function to a trigger type."""
        function_id = f"session-manager-cli::{secrets.token_hex(8)}"

        async def handle(data: Any) -> JsonObject:
            receive(data)
            return {"ok": True}

        self.register_function(function_id, handle, "Events for a terminal.", {"internal": True}, None, None)
        self.bind(trigger_type, function_id, config)


@contextmanager
def visit(url: str, pause: Pause = sleep) -> Iterator[Visitor]:
    """A connection that ends with the block. Raises EngineError, and GivenUp where `pause` says so."""
    os.environ.pop("III_WORKER_NAME", None)  # that name is the worker's, and its connection would be refused
    probe(url, PATIENCE, pause)
    name = f"session-manager-cli-{secrets.token_hex(4)}"
    visitor = Visitor(url, name, "Command line of session-manager.", pause=pause)
    try:
        yield visitor
    finally:
        visitor.shutdown()
