"""What the engine shows of workers, functions, trigger types and bindings: one row or one detail each."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from session_manager.dev import frames
from session_manager.dev.bindings import Binding, Bindings, TriggerType
from session_manager.dev.registry import Connection, Function, Refused, Registry

#: The version the loopback engine reports: the real one it behaves like.
VERSION = "0.23.0-rc.4"

_SUMMARY_MAX = 80


@dataclass(frozen=True)
class Resident:
    """A worker inside the engine."""

    name: str
    description: str


class Catalog:
    """Rows and details, made when asked for."""

    def __init__(self, registry: Registry, bindings: Bindings, residents: Iterable[Resident]) -> None:
        self.registry = registry
        self.bindings = bindings
        self.residents = {resident.name: resident for resident in residents}
        self._started_ms = int(time.time() * 1000)

    def worker_row(self, worker: Connection) -> dict[str, Any]:
        """A connected worker in a list."""
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

    def resident_row(self, resident: Resident) -> dict[str, Any]:
        """One of the engine's own workers in a list."""
        count = sum(known.worker_name == resident.name for known in self.registry.functions.values())
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

    def function_detail(self, function_id: str, namespace: str | None) -> dict[str, Any]:
        """One function with its schemas and bindings; raises Refused."""
        places = self.registry.namespaces_of(function_id)
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
        function = self.registry.functions[place, function_id]
        bound = self.bindings.matching(lambda known: known.namespace == place and known.function_id == function_id)
        return self.function_row(function) | present(
            request_schema=function.request_format,
            response_schema=function.response_format,
            registered_triggers=[
                {"id": known.id, "trigger_type": known.trigger_type, "config": known.config} for known in bound
            ],
        )

    def function_row(self, function: Function) -> dict[str, Any]:
        """A function in a list."""
        return present(
            function_id=function.id,
            namespace=function.namespace,
            worker_name=self.owner_name(function.namespace, function.id),
            description=function.description,
            metadata=function.metadata,
        )

    def owner_name(self, namespace: str, function_id: str) -> str:
        """The name of the worker a function belongs to, or the first part of its id."""
        function = self.registry.functions.get((namespace, function_id))
        name = None
        if function is not None:
            name = function.worker_name if function.owner is None else function.owner.name
        return name or function_id.split("::")[0]

    def type_detail(self, namespace: str, type_id: str) -> dict[str, Any] | None:
        """One trigger type with its schemas and number of bindings."""
        known = self.bindings.types.get((namespace, type_id))
        if known is None:
            return None
        return type_row(known) | present(
            configuration_schema=known.request_format,
            request_schema=known.call_format,
            instance_count=sum(binding.trigger_type == type_id for binding in self.bindings.live.values()),
        )

    def binding_row(self, known: Binding) -> dict[str, Any]:
        """A binding in a list."""
        summary = frames.encode_value(known.config).decode()
        return {
            "id": known.id,
            "trigger_type": known.trigger_type,
            "function_id": known.function_id,
            "worker_name": self.owner_name(known.namespace, known.function_id),
            "config": known.config,
            "config_summary": summary if len(summary) <= _SUMMARY_MAX else summary[:_SUMMARY_MAX] + "…",
        }


def provider_name(known: TriggerType) -> str:
    """The name of the worker that provides a type, or the first part of its id."""
    owner = known.owner
    return (owner.name if owner is not None else None) or known.id.split("::")[0]


def type_row(known: TriggerType) -> dict[str, Any]:
    """A trigger type in a list."""
    return {
        "id": known.id,
        "namespace": known.namespace,
        "worker_name": provider_name(known),
        "description": known.description,
    }


def present(**fields: Any) -> dict[str, Any]:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}
