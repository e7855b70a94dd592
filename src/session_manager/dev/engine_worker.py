"""The engine's functions under `engine::` that change something, and events about workers and functions."""

from __future__ import annotations

import asyncio
import unicodedata
import uuid
from typing import Any

from session_manager.dev import frames
from session_manager.dev.bindings import Binding, Rejected, TriggerType
from session_manager.dev.catalog import Catalog, Resident
from session_manager.dev.inputs import Input
from session_manager.dev.introspection import Introspection
from session_manager.dev.registry import Connection, Function, Handler, Refused
from session_manager.dev.router import Router, blank_message

WORKER = Resident("iii-engine-functions", "The functions under engine::.")

WORKERS_AVAILABLE = "engine::workers-available"
FUNCTIONS_AVAILABLE = "engine::functions-available"

_FUNCTIONS_PERIOD_S = 5.0
_TEXT_MAX = 280
_BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"

_REGISTER_WORKER = Input(
    "engine::workers::register",
    "RegisterWorkerInput",
    {
        "_caller_worker_id": "string",
        "runtime": "string?",
        "version": "string?",
        "name": "string?",
        "description": "string?",
        "os": "string?",
        "pid": "any=",
        "isolation": "string?",
        "namespace": "string?",
    },
)
_REGISTER_TRIGGER = Input(
    "engine::register_trigger",
    "RegisterTriggerInput",
    {
        "trigger_type": "string",
        "function_id": "string",
        "config": "any=",
        "metadata": "any=",
        "trigger_namespace": "string?",
    },
)
_UNREGISTER_TRIGGER = Input(
    "engine::unregister_trigger", "UnregisterTriggerInput", {"id": "string", "trigger_type": "string?"}
)


class _Subscribers:
    """Provider of one of the engine's own trigger types: takes every binding, remembers it."""

    def __init__(self) -> None:
        self.bindings: dict[str, Binding] = {}

    def bind(self, binding: Binding) -> None:
        self.bindings[binding.id] = binding

    def unbind(self, binding: Binding) -> None:
        self.bindings.pop(binding.id, None)


class EngineWorker:
    """The worker inside the engine that every other worker talks to first."""

    def __init__(self, router: Router, catalog: Catalog) -> None:
        self._router = router
        self._catalog = catalog
        self._registry = router.registry
        self._bindings = router.bindings
        self._workers, self._functions = _Subscribers(), _Subscribers()
        self._timer: asyncio.TimerHandle | None = None
        self._known: set[tuple[str, str]] = set()
        router.on_worker = self._worker_event
        for kind, text, provider in (
            (WORKERS_AVAILABLE, "A worker came, named itself, or went.", self._workers),
            (FUNCTIONS_AVAILABLE, "The set of functions changed.", self._functions),
        ):
            self._bindings.register_type(TriggerType(kind, frames.DEFAULT_NAMESPACE, text, provider))
        for given, description, serve in Introspection(catalog).served():
            self._register(given, description, _at_once(given, serve))
        self._register(_REGISTER_WORKER, "Name the calling worker and its namespace.", self._register_worker)
        self._register(_REGISTER_TRIGGER, "Bind a function beyond the caller's connection.", self._register_trigger)
        self._register(_UNREGISTER_TRIGGER, "Remove a binding, anybody's.", self._unregister_trigger)

    def start(self) -> None:
        """Watch the set of functions."""
        self._known = set(self._registry.functions)
        self._watch()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _register(self, given: Input, description: str, handler: Handler) -> None:
        self._registry.register(
            Function(
                id=given.function_id,
                namespace=frames.DEFAULT_NAMESPACE,
                handler=handler,
                worker_name=WORKER.name,
                description=description,
                request_format={"type": "object"},
            )
        )

    # --- workers ---

    async def _register_worker(self, data: Any, caller: Connection | None) -> Any:
        given = _REGISTER_WORKER.take(data)
        worker = self._registry.connections.get(given["_caller_worker_id"])
        if frames.blank(given["namespace"]):
            raise Refused("INVALID_NAMESPACE", blank_message("namespace"))
        if worker is None or not worker.alive:
            return {"success": False}
        namespace = worker.namespace or given["namespace"] or frames.DEFAULT_NAMESPACE
        name = _displayable(given["name"])
        if name is not None:
            owner = self._registry.claim_name(worker, namespace, name)
            if owner is not None:
                self._reject(worker, namespace, name, owner)
                return {"success": False}
        worker.name = name
        worker.description = _displayable(given["description"])
        worker.runtime = given["runtime"] or "unknown"
        worker.version, worker.os, worker.isolation = given["version"], given["os"], given["isolation"]
        worker.pid = given["pid"] if isinstance(given["pid"], int) else None
        self._router.resolve(worker, namespace)
        self._worker_event("worker_metadata_updated", worker)
        return {"success": True}

    def _reject(self, worker: Connection, namespace: str, name: str, owner: Connection) -> None:
        worker.send(
            frames.RegistrationRejected(
                code="WORKER_NAMESPACE_CONFLICT", namespace=namespace, worker_name=name, owner_worker_id=owner.id
            )
        )
        worker.buffer.clear()
        if worker.grace is not None:
            worker.grace.cancel()
        worker.peer.close()

    # --- bindings ---

    async def _register_trigger(self, data: Any, caller: Connection | None) -> Any:
        given = _REGISTER_TRIGGER.take(data)
        binding = Binding(
            id=str(uuid.uuid4()),
            trigger_type=given["trigger_type"],
            function_id=given["function_id"],
            config=given["config"],
            metadata=given["metadata"],
            trigger_namespace=given["trigger_namespace"],
        )
        try:
            await self._bindings.bind_for_good(binding)
        except Rejected as error:
            raise Refused("trigger_registration_failed", str(error)) from None
        return {"id": binding.id}

    async def _unregister_trigger(self, data: Any, caller: Connection | None) -> Any:
        given = _UNREGISTER_TRIGGER.take(data)
        return {"removed": self._bindings.unbind(given["id"])}

    # --- events ---

    def _worker_event(self, event: str, worker: Connection) -> None:
        self._fire(self._workers, {"event": event, "worker_id": worker.id})

    def _watch(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_FUNCTIONS_PERIOD_S, self._watch)
        now = set(self._registry.functions)
        if now != self._known:
            self._known = now
            rows = [self._catalog.function_row(known) for known in self._registry.functions.values()]
            self._fire(self._functions, {"event": "functions_changed", "functions": rows})

    def _fire(self, subscribers: _Subscribers, event: dict[str, Any]) -> None:
        for binding in self._router.disorder.shuffled(subscribers.bindings.values()):
            self._router.tell(binding.namespace, binding.function_id, event, binding.metadata)


def _at_once(given: Input, serve: Any) -> Handler:
    async def handler(data: Any, caller: Connection | None) -> Any:
        return serve(given.take(data))

    return handler


def _displayable(text: str | None) -> str | None:
    """A worker's name or description, without what could upset a terminal; None if nothing is left."""
    if text is None:
        return None
    kept = (char for char in text if unicodedata.category(char) not in ("Cc", "Zl", "Zp") and char not in _BIDI)
    return "".join(kept)[:_TEXT_MAX].strip() or None
