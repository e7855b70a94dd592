"""The engine's own functions under `engine::`: who is there, what they offer, and bindings that nobody owns."""

from __future__ import annotations

import asyncio
import time
import unicodedata
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from session_manager.dev import frames
from session_manager.dev.bindings import Binding, Bindings, Rejected, TriggerType
from session_manager.dev.inputs import Input
from session_manager.dev.registry import Connection, Function, Refused, Registry
from session_manager.dev.router import Router, blank_message

#: The version the loopback engine reports: the real one it behaves like.
VERSION = "0.23.0-rc.4"

WORKERS_AVAILABLE = "engine::workers-available"
FUNCTIONS_AVAILABLE = "engine::functions-available"

_FUNCTIONS_PERIOD_S = 5.0
_BATCH_MAX = 32
_SUMMARY_MAX = 80
_TEXT_MAX = 280
_BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"

_INPUTS = {
    given.function_id: given
    for given in (
        Input(
            "engine::functions::list",
            "FunctionsListInput",
            {
                "search": "string?",
                "prefix": "string?",
                "worker": "string?",
                "workers": "strings?",
                "include_internal": "boolean?",
            },
        ),
        Input(
            "engine::functions::info",
            "FunctionInfoInput",
            {"function_id": "string?", "function_ids": "strings?", "namespace": "string?"},
        ),
        Input(
            "engine::triggers::list",
            "TriggersListInput",
            {"search": "string?", "prefix": "string?", "worker": "string?", "include_internal": "boolean?"},
        ),
        Input("engine::triggers::info", "TriggerInfoInput", {"id": "string", "namespace": "string?"}),
        Input(
            "engine::registered-triggers::list",
            "RegisteredTriggersListInput",
            {
                "search": "string?",
                "trigger_type": "string?",
                "function_id": "string?",
                "worker": "string?",
                "include_internal": "boolean?",
            },
        ),
        Input("engine::registered-triggers::info", "RegisteredTriggerInfoInput", {"id": "string"}),
        Input(
            "engine::workers::list",
            "WorkersListInput",
            {"search": "string?", "runtime": "string?", "status": "string?"},
        ),
        Input("engine::workers::info", "WorkerInfoInput", {"name": "string", "namespace": "string?"}),
        Input(
            "engine::register_trigger",
            "RegisterTriggerInput",
            {
                "trigger_type": "string",
                "function_id": "string",
                "config": "any=",
                "metadata": "any=",
                "trigger_namespace": "string?",
            },
        ),
        Input("engine::unregister_trigger", "UnregisterTriggerInput", {"id": "string", "trigger_type": "string?"}),
        Input(
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
        ),
    )
}

_DESCRIPTIONS = {
    "engine::functions::list": "All functions, with the worker each belongs to.",
    "engine::functions::info": "One function's schemas, owner and bindings, or up to 32 at once.",
    "engine::triggers::list": "All trigger types.",
    "engine::triggers::info": "One trigger type's schemas, provider and number of bindings.",
    "engine::registered-triggers::list": "All live bindings.",
    "engine::registered-triggers::info": "One live binding, with its function and its trigger type.",
    "engine::workers::list": "All workers.",
    "engine::workers::info": "One worker with its functions, trigger types and bindings.",
    "engine::register_trigger": "Bind a function to a trigger type, beyond the caller's connection.",
    "engine::unregister_trigger": "Remove a binding, anybody's.",
    "engine::workers::register": "Name the calling worker and its namespace.",
}


@dataclass(frozen=True)
class Resident:
    """A worker inside the engine."""

    name: str
    description: str


class _Subscribers:
    """Provider of one of the engine's own trigger types: takes every binding, remembers it."""

    def __init__(self) -> None:
        self.bindings: dict[str, Binding] = {}

    def bind(self, binding: Binding) -> None:
        self.bindings[binding.id] = binding

    def unbind(self, binding: Binding) -> None:
        self.bindings.pop(binding.id, None)


class Introspection:
    """Registers the `engine::` functions and trigger types and serves them."""

    def __init__(self, router: Router, residents: Iterable[Resident]) -> None:
        self._router = router
        self._registry: Registry = router.registry
        self._bindings: Bindings = router.bindings
        self._started_ms = int(time.time() * 1000)
        own = Resident("iii-engine-functions", "The functions under engine::.")
        self._residents = {resident.name: resident for resident in (own, *residents)}
        self._workers, self._functions = _Subscribers(), _Subscribers()
        self._timer: asyncio.TimerHandle | None = None
        router.on_worker = self._worker_event
        for kind, text, provider in (
            (WORKERS_AVAILABLE, "A worker came, named itself, or went.", self._workers),
            (FUNCTIONS_AVAILABLE, "The set of functions changed.", self._functions),
        ):
            self._bindings.register_type(TriggerType(kind, frames.DEFAULT_NAMESPACE, text, provider))
        for function_id, serve in self._served().items():
            self._registry.register(
                Function(
                    id=function_id,
                    namespace=frames.DEFAULT_NAMESPACE,
                    handler=serve,
                    worker_name=own.name,
                    description=_DESCRIPTIONS[function_id],
                    request_format={"type": "object"},
                )
            )

    def start(self) -> None:
        """Watch the set of functions."""
        self._known = set(self._registry.functions)
        self._watch()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # -- serving

    def _served(self) -> dict[str, Any]:
        def plain(function_id: str, serve: Callable[[dict[str, Any]], Any]) -> Any:
            async def handler(data: Any, caller: Connection | None) -> Any:
                return serve(_INPUTS[function_id].take(data))

            return handler

        served: dict[str, Any] = {
            function_id: plain(function_id, serve)
            for function_id, serve in {
                "engine::functions::list": self._list_functions,
                "engine::functions::info": self._function_info,
                "engine::triggers::list": self._list_types,
                "engine::triggers::info": self._type_info,
                "engine::registered-triggers::list": self._list_bindings,
                "engine::registered-triggers::info": self._binding_info,
                "engine::workers::list": self._list_workers,
                "engine::workers::info": self._worker_info,
                "engine::unregister_trigger": self._unregister_trigger,
            }.items()
        }
        served["engine::register_trigger"] = self._register_trigger
        served["engine::workers::register"] = self._register_worker
        return served

    # -- workers

    async def _register_worker(self, data: Any, caller: Connection | None) -> Any:
        given = _INPUTS["engine::workers::register"].take(data)
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

    def _list_workers(self, given: dict[str, Any]) -> Any:
        rows = [self._worker_row(worker) for worker in self._registry.connections.values() if worker.pid is not None]
        rows += [self._resident_row(resident) for resident in self._residents.values()]
        if given["runtime"] is not None:
            rows = [row for row in rows if row["runtime"] == given["runtime"]]
        if given["status"] is not None:
            rows = [row for row in rows if row["status"] == given["status"]]
        rows = [row for row in rows if _found(given["search"], row["name"] or "")]
        return {"workers": sorted(rows, key=lambda row: (row["name"] or row["id"], row["id"]))}

    def _worker_info(self, given: dict[str, Any]) -> Any:
        name = given["name"]
        places = sorted({worker.home for worker in self._registry.named(name)})
        if name in self._residents:
            places = sorted({frames.DEFAULT_NAMESPACE, *places})
        place = self._worker_place(name, given["namespace"], places)
        if name in self._residents and place == frames.DEFAULT_NAMESPACE:
            worker = None
            row = self._resident_row(self._residents[name]) | {"internal": True}
        else:
            worker = next(known for known in self._registry.named(name) if known.home == place)
            row = self._worker_row(worker) | {"internal": False}
            if worker.pid is not None:
                row["pid"] = worker.pid
        functions = [
            known
            for known in self._registry.functions.values()
            if known.namespace == place and (known.owner is worker if worker is not None else known.worker_name == name)
        ]
        ids = {known.id for known in functions}
        types = [
            known
            for known in self._bindings.types.values()
            if (known.owner is worker if worker is not None else _provider_name(known) == name)
        ]
        bound = self._bindings.matching(lambda known: known.namespace == place and known.function_id in ids)
        return {
            "worker": row,
            "functions": _sorted([self._function_row(known) for known in functions], "function_id"),
            "trigger_types": _sorted([_type_row(known) for known in types], "id"),
            "registered_triggers": _sorted([self._binding_row(known) for known in bound], "id"),
        }

    def _worker_place(self, name: str, wanted: str | None, places: list[str]) -> str:
        if wanted is not None and wanted in places:
            return wanted
        if wanted is None and frames.DEFAULT_NAMESPACE in places:
            return frames.DEFAULT_NAMESPACE
        if wanted is None and len(places) == 1:
            return places[0]
        if not places:
            raise Refused("NOT_FOUND", f"Worker '{name}' is not connected.")
        where = f"it is connected in namespace(s): {', '.join(places)}."
        if wanted is None:
            raise Refused("NOT_FOUND", f"Worker '{name}' is ambiguous: {where} Pass `namespace` to disambiguate.")
        raise Refused("NOT_FOUND", f"Worker '{name}' is not connected in the requested namespace; {where}")

    def _worker_row(self, worker: Connection) -> dict[str, Any]:
        return {
            "name": worker.name,
            "description": worker.description,
            "version": worker.version,
            "id": worker.id,
            "namespace": worker.home,
            "runtime": worker.runtime,
            "os": worker.os,
            "status": "connected",
            "function_count": len(worker.function_ids),
            "connected_at_ms": worker.connected_at_ms,
            "active_invocations": len(worker.invocations),
            "isolation": worker.isolation,
            "ip_address": worker.ip_address,
        }

    def _resident_row(self, resident: Resident) -> dict[str, Any]:
        count = sum(known.worker_name == resident.name for known in self._registry.functions.values())
        return {
            "name": resident.name,
            "description": resident.description,
            "version": VERSION,
            "id": resident.name,
            "namespace": frames.DEFAULT_NAMESPACE,
            "runtime": "engine",
            "os": None,
            "status": "available",
            "function_count": count,
            "connected_at_ms": self._started_ms,
            "active_invocations": 0,
            "isolation": "in-process",
            "ip_address": None,
        }

    # -- functions

    def _list_functions(self, given: dict[str, Any]) -> Any:
        rows = [self._function_row(known) for known in self._registry.functions.values()]
        if not given["include_internal"]:
            rows = [row for row in rows if not _internal(row)]
        rows = [row for row in rows if row["function_id"].startswith(given["prefix"] or "")]
        if given["worker"] is not None or given["workers"]:
            wanted = {given["worker"], *(given["workers"] or ())}
            rows = [row for row in rows if row["worker_name"] in wanted]
        search = given["search"]
        rows = [row for row in rows if _found(search, row["function_id"], row.get("description", ""))]
        return {"functions": sorted(rows, key=lambda row: (_rank(search, row["function_id"]), row["function_id"]))}

    def _function_info(self, given: dict[str, Any]) -> Any:
        one, many, namespace = given["function_id"], given["function_ids"], given["namespace"]
        if one is not None and many is not None:
            raise Refused("INVALID_ARGUMENTS", "pass either `function_id` or `function_ids`, not both")
        if one is not None:
            return self._function_detail(one, namespace)
        if many is None:
            raise Refused("INVALID_ARGUMENTS", "missing field `function_id` (or `function_ids` for a batch)")
        ids = list(dict.fromkeys(many))
        if not ids:
            raise Refused("INVALID_ARGUMENTS", "`function_ids` must be a non-empty array of function ids")
        if len(ids) > _BATCH_MAX:
            raise Refused("INVALID_ARGUMENTS", f"too many function_ids (max {_BATCH_MAX})")
        details = []
        for function_id in ids:
            try:
                details.append(self._function_detail(function_id, namespace))
            except Refused:
                details.append({"function_id": function_id, "error": "not_found"})
        return {"functions": details}

    def _function_detail(self, function_id: str, namespace: str | None) -> dict[str, Any]:
        places = self._registry.namespaces_of(function_id)
        place = namespace
        if place is None:
            default = frames.DEFAULT_NAMESPACE
            place = default if default in places else places[0] if len(places) == 1 else None
        if place not in places:
            if not places:
                raise Refused("NOT_FOUND", f"Function '{function_id}' is not registered.")
            raise Refused(
                "NOT_FOUND",
                f"Function '{function_id}' is ambiguous: it is registered in namespace(s): {', '.join(places)}. "
                "Pass `namespace` to select one.",
            )
        assert place is not None
        function = self._registry.functions[place, function_id]
        bound = self._bindings.matching(lambda known: known.namespace == place and known.function_id == function_id)
        return self._function_row(function) | _present(
            request_schema=function.request_format,
            response_schema=function.response_format,
            registered_triggers=[
                {"id": known.id, "trigger_type": known.trigger_type, "config": known.config} for known in bound
            ],
        )

    def _function_row(self, function: Function) -> dict[str, Any]:
        return _present(
            function_id=function.id,
            namespace=function.namespace,
            worker_name=self._owner_name(function.namespace, function.id),
            description=function.description,
            metadata=function.metadata,
        )

    def _owner_name(self, namespace: str, function_id: str) -> str:
        function = self._registry.functions.get((namespace, function_id))
        name = None
        if function is not None:
            name = function.worker_name if function.owner is None else function.owner.name
        return name or function_id.split("::")[0]

    # -- trigger types and bindings

    def _list_types(self, given: dict[str, Any]) -> Any:
        rows = [_type_row(known) for known in self._bindings.types.values()]
        if not given["include_internal"]:
            rows = [row for row in rows if not row["id"].startswith("engine::")]
        rows = [row for row in rows if row["id"].startswith(given["prefix"] or "")]
        if given["worker"] is not None:
            rows = [row for row in rows if row["worker_name"] == given["worker"]]
        rows = [row for row in rows if _found(given["search"], row["id"], row["description"])]
        return {"triggers": _sorted(rows, "id")}

    def _type_info(self, given: dict[str, Any]) -> Any:
        place = given["namespace"] or frames.DEFAULT_NAMESPACE
        detail = self._type_detail(place, given["id"])
        if detail is None:
            raise Refused("NOT_FOUND", f"Trigger type '{given['id']}' is not registered in namespace '{place}'.")
        return detail

    def _type_detail(self, namespace: str, type_id: str) -> dict[str, Any] | None:
        known = self._bindings.types.get((namespace, type_id))
        if known is None:
            return None
        return _type_row(known) | _present(
            configuration_schema=known.request_format,
            request_schema=known.call_format,
            instance_count=sum(binding.trigger_type == type_id for binding in self._bindings.live.values()),
        )

    def _list_bindings(self, given: dict[str, Any]) -> Any:
        rows = [self._binding_row(known) for known in self._bindings.live.values()]
        if not given["include_internal"]:
            rows = [row for row in rows if not row["function_id"].startswith("engine::")]
        for field, column in (("trigger_type",) * 2, ("function_id",) * 2, ("worker", "worker_name")):
            if given[field] is not None:
                rows = [row for row in rows if row[column] == given[field]]
        rows = [row for row in rows if _found(given["search"], row["id"], row["trigger_type"], row["function_id"])]
        return {"registered_triggers": _sorted(rows, "id")}

    def _binding_info(self, given: dict[str, Any]) -> Any:
        known = self._bindings.live.get(given["id"])
        if known is None:
            raise Refused("NOT_FOUND", f"Registered trigger '{given['id']}' was not found.")
        row = self._binding_row(known)
        del row["config_summary"]
        try:
            function = self._function_detail(known.function_id, known.namespace)
        except Refused:
            function = None
        return _present(**row, metadata=known.metadata) | {
            "config": known.config,
            "function": function,
            "trigger": self._type_detail(*known.provider),
        }

    def _binding_row(self, known: Binding) -> dict[str, Any]:
        summary = frames.encode_value(known.config).decode()
        return {
            "id": known.id,
            "trigger_type": known.trigger_type,
            "function_id": known.function_id,
            "worker_name": self._owner_name(known.namespace, known.function_id),
            "config": known.config,
            "config_summary": summary if len(summary) <= _SUMMARY_MAX else summary[:_SUMMARY_MAX] + "…",
        }

    async def _register_trigger(self, data: Any, caller: Connection | None) -> Any:
        given = _INPUTS["engine::register_trigger"].take(data)
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

    def _unregister_trigger(self, given: dict[str, Any]) -> Any:
        return {"removed": self._bindings.unbind(given["id"])}

    # -- events

    def _worker_event(self, event: str, worker: Connection) -> None:
        self._fire(self._workers, {"event": event, "worker_id": worker.id})

    def _watch(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_FUNCTIONS_PERIOD_S, self._watch)
        now = set(self._registry.functions)
        if now != self._known:
            self._known = now
            rows = [self._function_row(known) for known in self._registry.functions.values()]
            self._fire(self._functions, {"event": "functions_changed", "functions": rows})

    def _fire(self, subscribers: _Subscribers, event: dict[str, Any]) -> None:
        for binding in self._router.disorder.shuffled(subscribers.bindings.values()):
            self._router.tell(binding.namespace, binding.function_id, event, binding.metadata)


def _provider_name(known: TriggerType) -> str:
    owner = known.owner
    return (owner.name if owner is not None else None) or known.id.split("::")[0]


def _type_row(known: TriggerType) -> dict[str, Any]:
    return {
        "id": known.id,
        "namespace": known.namespace,
        "worker_name": _provider_name(known),
        "description": known.description,
    }


def _internal(row: dict[str, Any]) -> bool:
    metadata = row.get("metadata")
    hidden = isinstance(metadata, dict) and metadata.get("internal") is True
    return hidden or row["function_id"].startswith("engine::")


def _found(needle: str | None, *texts: str) -> bool:
    return not needle or any(needle.lower() in text.lower() for text in texts)


def _rank(needle: str | None, function_id: str) -> int:
    """Hits at the start of an id or of one of its parts come first, then other hits in ids, then in descriptions."""
    if not needle:
        return 0
    wanted, known = needle.lower(), function_id.lower()
    if known.startswith(wanted) or wanted in known.split("::"):
        return 0
    return 1 if wanted in known else 2


def _present(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _sorted(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: str(row[key]))


def _displayable(text: str | None) -> str | None:
    """A worker's name or description, without what could upset a terminal; None if nothing is left."""
    if text is None:
        return None
    kept = (char for char in text if unicodedata.category(char) not in ("Cc", "Zl", "Zp") and char not in _BIDI)
    return "".join(kept)[:_TEXT_MAX].strip() or None
