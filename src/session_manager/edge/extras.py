"""What a worker can serve or do besides the session functions, when it is asked to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from msgspec import Struct

from session_manager.dispatch import Service
from session_manager.model import JsonObject


class ExtraFunction(Struct, frozen=True):
    id: str
    description: str
    request_schema: JsonObject
    response_schema: JsonObject
    answer: Callable[[Service, Any], Awaitable[Any]]
    """Takes the payload and returns the reply. Raises SessionManagerError."""


class Extras(Struct, frozen=True):
    functions: tuple[ExtraFunction, ...] = ()
    tasks: tuple[Callable[[Service], Coroutine[Any, Any, None]], ...] = ()
    """Run beside the calls until the worker stops, and are cancelled then."""
