"""The engine's functions under `engine::` that tell who is there and what they offer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from session_manager.dev import frames
from session_manager.dev.catalog import Catalog, present, provider_name, type_row
from session_manager.dev.inputs import Input
from session_manager.dev.registry import Refused

_BATCH_MAX = 32

_FUNCTIONS = Input(
    "engine::functions::list",
    "FunctionsListInput",
    {
        "search": "string?",
        "prefix": "string?",
        "worker": "string?",
        "workers": "strings?",
        "include_internal": "boolean?",
    },
)
_FUNCTION = Input(
    "engine::functions::info",
    "FunctionInfoInput",
    {"function_id": "string?", "function_ids": "strings?", "namespace": "string?"},
)
_TYPES = Input(
    "engine::triggers::list",
    "TriggersListInput",
    {"search": "string?", "prefix": "string?", "worker": "string?", "include_internal": "boolean?"},
)
_TYPE = Input("engine::triggers::info", "TriggerInfoInput", {"id": "string", "namespace": "string?"})
_BINDINGS = Input(
    "engine::registered-triggers::list",
    "RegisteredTriggersListInput",
    {
        "search": "string?",
        "trigger_type": "string?",
        "function_id": "string?",
        "worker": "string?",
        "include_internal": "boolean?",
    },
)
_BINDING = Input("engine::registered-triggers::info", "RegisteredTriggerInfoInput", {"id": "string"})
_WORKERS = Input(
    "engine::workers::list",
    "WorkersListInput",
    {"search": "string?", "runtime": "string?", "status": "string?"},
)
_WORKER = Input("engine::workers::info", "WorkerInfoInput", {"name": "string", "namespace": "string?"})

Serve = Callable[[dict[str, Any]], Any]


class Introspection:
    """Lists, and details of single things. `served` pairs each input with what serves it."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._registry = catalog.registry
        self._bindings = catalog.bindings

    def served(self) -> list[tuple[Input, str, Serve]]:
        """Input, description and implementation of every function."""
        return [
            (_FUNCTIONS, "All functions, with the worker each belongs to.", self._list_functions),
            (_FUNCTION, "One function's schemas, owner and bindings, or up to 32 at once.", self._function_info),
            (_TYPES, "All trigger types.", self._list_types),
            (_TYPE, "One trigger type's schemas, provider and number of bindings.", self._type_info),
            (_BINDINGS, "All live bindings.", self._list_bindings),
            (_BINDING, "One live binding, with its function and its trigger type.", self._binding_info),
            (_WORKERS, "All workers.", self._list_workers),
            (_WORKER, "One worker with its functions, trigger types and bindings.", self._worker_info),
        ]

    # --- workers ---

    def _list_workers(self, given: dict[str, Any]) -> Any:
        rows = [
            self._catalog.worker_row(worker) for worker in self._registry.connections.values() if worker.pid is not None
        ]
        rows += [self._catalog.resident_row(resident) for resident in self._catalog.residents.values()]
        if given["runtime"] is not None:
            rows = [row for row in rows if row["runtime"] == given["runtime"]]
        if given["status"] is not None:
            rows = [row for row in rows if row["status"] == given["status"]]
        rows = [row for row in rows if _found(given["search"], row["name"] or "")]
        return {"workers": sorted(rows, key=lambda row: (row["name"] or row["id"], row["id"]))}

    def _worker_info(self, given: dict[str, Any]) -> Any:
        name = given["name"]
        places = sorted({worker.home for worker in self._registry.named(name)})
        if name in self._catalog.residents:
            places = sorted({frames.DEFAULT_NAMESPACE, *places})
        place = self._worker_place(name, given["namespace"], places)
        if name in self._catalog.residents and place == frames.DEFAULT_NAMESPACE:
            worker = None
            row = self._catalog.resident_row(self._catalog.residents[name]) | {"internal": True}
        else:
            worker = next(known for known in self._registry.named(name) if known.home == place)
            row = self._catalog.worker_row(worker) | {"internal": False}
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
            if (known.owner is worker if worker is not None else provider_name(known) == name)
        ]
        bound = self._bindings.matching(lambda known: known.namespace == place and known.function_id in ids)
        return {
            "worker": row,
            "functions": _sorted([self._catalog.function_row(known) for known in functions], "function_id"),
            "trigger_types": _sorted([type_row(known) for known in types], "id"),
            "registered_triggers": _sorted([self._catalog.binding_row(known) for known in bound], "id"),
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

    # --- functions ---

    def _list_functions(self, given: dict[str, Any]) -> Any:
        rows = [self._catalog.function_row(known) for known in self._registry.functions.values()]
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
            return self._catalog.function_detail(one, namespace)
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
                details.append(self._catalog.function_detail(function_id, namespace))
            except Refused:
                details.append({"function_id": function_id, "error": "not_found"})
        return {"functions": details}

    # --- trigger types and bindings ---

    def _list_types(self, given: dict[str, Any]) -> Any:
        rows = [type_row(known) for known in self._bindings.types.values()]
        if not given["include_internal"]:
            rows = [row for row in rows if not row["id"].startswith("engine::")]
        rows = [row for row in rows if row["id"].startswith(given["prefix"] or "")]
        if given["worker"] is not None:
            rows = [row for row in rows if row["worker_name"] == given["worker"]]
        rows = [row for row in rows if _found(given["search"], row["id"], row["description"])]
        return {"triggers": _sorted(rows, "id")}

    def _type_info(self, given: dict[str, Any]) -> Any:
        place = frames.DEFAULT_NAMESPACE if given["namespace"] is None else given["namespace"]
        detail = self._catalog.type_detail(place, given["id"])
        if detail is None:
            raise Refused("NOT_FOUND", f"Trigger type '{given['id']}' is not registered in namespace '{place}'.")
        return detail

    def _list_bindings(self, given: dict[str, Any]) -> Any:
        rows = [self._catalog.binding_row(known) for known in self._bindings.live.values()]
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
        row = self._catalog.binding_row(known)
        del row["config_summary"]
        try:
            function = self._catalog.function_detail(known.function_id, known.namespace)
        except Refused:
            function = None
        return present(**row, metadata=known.metadata) | {
            "config": known.config,
            "function": function,
            "trigger": self._catalog.type_detail(*known.provider),
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


def _sorted(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: str(row[key]))
