"""The way to the main instance, as the store needs it."""

from __future__ import annotations

from typing import Protocol


class MainError(Exception):
    """The main instance did not do it; the text says why and holds nothing of the content."""


class MainSilent(MainError):
    """No answer came in time: whether the call was carried out is not known."""


class Main(Protocol):
    async def open(self) -> None:
        """Connects. Raises MainError."""

    async def call(self, function_id: str, payload: bytes) -> bytes:
        """Calls one of its functions with JSON and returns the JSON of the reply. Raises MainError, in bounded time."""

    async def close(self) -> None:
        """Lets go of what the way needs."""
