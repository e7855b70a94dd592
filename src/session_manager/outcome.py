"""What a rule is given, and what it decides, as a value. Rules never write, publish or log."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from msgspec import Struct

from session_manager.clock import Clock, Ids
from session_manager.errors import SessionNotFound
from session_manager.events import Emission, Event
from session_manager.model import SessionMeta
from session_manager.paging import Limits
from session_manager.store import Change, Store, View


class Outcome(Struct, frozen=True):
    reply: Any
    """A reply struct, or plain JSON values."""
    change: Change | None = None
    emissions: tuple[Emission, ...] = ()
    """To be told once the change is durable."""


class Early(Protocol):
    """The way for the reply to a change to leave as soon as the change is durable, before the event loop knows."""

    def say(self, reply: Any) -> None:
        """Makes a reply ready, in place of what was said before. Raises where it cannot be encoded."""

    def leave(self) -> None:
        """Sends it, from any thread, where that can be done at once; else whoever asked sends it, as without this. It
        never raises."""


class Reloader(Protocol):
    """What the functions about the worker's own configuration need of whoever holds it."""

    last_outcome: Literal["applied", "rejected"]
    last_error: str | None
    rejected_reloads: int

    async def reload(self) -> None:
        """Fetches the configuration anew and puts it into force. Raises when it cannot be fetched or understood."""


class Tools(Struct, frozen=True):
    """What a rule may use besides its request."""

    view: View
    """What the decision is based on: for a function that writes, ahead of what is durable."""
    store: Store
    """Durable reads of whole stretches."""
    clock: Clock
    ids: Ids
    limits: Limits
    reloader: Reloader

    async def record(self, session_id: str) -> SessionMeta:
        """The session's record, as the decision sees it. Raises SessionNotFound."""
        meta = (await self.view.session(session_id)).meta
        if meta is None:
            raise SessionNotFound(session_id)
        return meta


def told(event: Event, meta: SessionMeta, ready: bytes | None = None) -> tuple[Emission, ...]:
    """One event, filtered by the metadata that the session has in `meta`."""
    return (Emission(event, meta.metadata, ready),)
