"""Who is connected, under which name, and which functions are whose."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from session_manager.dev import frames

Key = tuple[str, str]
"""A namespace and an id in it."""

Handler = Callable[[Any, "Connection | None"], Awaitable[Any]]
"""A function of the engine itself: payload and caller in, result out; raises Refused."""


class Refused(Exception):
    """An error answer of one of the engine's own functions."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.body = frames.ErrorBody(code, message)


class Peer(Protocol):
    """The socket end a connection writes to."""

    def send(self, text: bytes) -> None:
        """Queue one text message; silently nothing once the peer is gone."""

    def close(self) -> None:
        """Say goodbye with a close frame."""

    def abort(self) -> None:
        """Drop the socket without a word."""


@dataclass(eq=False)
class Connection:
    """One worker's connection, from the socket's opening to its end."""

    peer: Peer
    ip_address: str | None = None
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    token: str = field(default_factory=lambda: str(uuid.uuid4()))
    connected_at_ms: int = field(default_factory=lambda: int(time.time() * 1000))
    #: None until the worker has said where it belongs, or the grace is over.
    namespace: str | None = None
    #: Registrations that wait for the namespace.
    buffer: list[frames.Inbound] = field(default_factory=list)
    grace: asyncio.TimerHandle | None = None
    alive: bool = True
    name: str | None = None
    description: str | None = None
    version: str | None = None
    runtime: str | None = None
    os: str | None = None
    pid: int | None = None
    isolation: str | None = None
    function_ids: set[str] = field(default_factory=set)
    #: Calls this worker has made or is running, by invocation id.
    invocations: set[str] = field(default_factory=set)
    #: Bindings made by function call that wait for this provider's word.
    acks: dict[str, asyncio.Future[frames.ErrorBody | None]] = field(default_factory=dict)

    @property
    def home(self) -> str:
        """The namespace its registrations belong to."""
        return self.namespace or frames.DEFAULT_NAMESPACE

    def send(self, frame: frames.Frame) -> None:
        if self.alive:
            self.peer.send(frames.encode(frame))


@dataclass(frozen=True)
class Function:
    """A function somebody can call: a worker's, or (with a handler) the engine's own."""

    id: str
    namespace: str
    owner: Connection | None = None
    handler: Handler | None = None
    #: Name of the engine's own worker it belongs to, where there is no owner.
    worker_name: str | None = None
    description: str | None = None
    request_format: Any = None
    response_format: Any = None
    metadata: Any = None


class Registry:
    """Connections, their names, and functions by namespace and id."""

    def __init__(self) -> None:
        self.connections: dict[str, Connection] = {}
        self.functions: dict[Key, Function] = {}
        self._names: dict[Key, Connection] = {}

    def claim_name(self, connection: Connection, namespace: str, name: str) -> Connection | None:
        """Take a worker name, or get the live connection that holds it."""
        owner = self._names.get((namespace, name))
        if owner is not None and owner is not connection and owner.alive:
            return owner
        self._names[namespace, name] = connection
        return None

    def register(self, function: Function) -> Connection | None:
        """Add or replace a function, or get the other live connection that owns it."""
        known = self.functions.get((function.namespace, function.id))
        if known is not None and known.owner is not None and known.owner is not function.owner and known.owner.alive:
            return known.owner
        self.functions[function.namespace, function.id] = function
        if function.owner is not None:
            function.owner.function_ids.add(function.id)
        return None

    def unregister(self, connection: Connection, function_id: str) -> None:
        """Remove a function if it is this connection's; the answer to a repeated or foreign request is nothing."""
        connection.function_ids.discard(function_id)
        known = self.functions.get((connection.home, function_id))
        if known is not None and known.owner is connection:
            del self.functions[connection.home, function_id]

    def remove(self, connection: Connection) -> None:
        """Forget a connection, its name and its functions."""
        for function_id in list(connection.function_ids):
            self.unregister(connection, function_id)
        if connection.name is not None and self._names.get((connection.home, connection.name)) is connection:
            del self._names[connection.home, connection.name]
        self.connections.pop(connection.id, None)

    def namespaces_of(self, function_id: str) -> list[str]:
        """Where a function id is registered."""
        return sorted(namespace for namespace, known in self.functions if known == function_id)

    def named(self, name: str) -> Iterator[Connection]:
        """The connections under a name, one per namespace at most."""
        return (connection for connection in self.connections.values() if connection.name == name)
