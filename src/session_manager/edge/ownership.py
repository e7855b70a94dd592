"""Who serves the session functions.

The engine refuses a function that another worker has and goes on, and hands trigger types, with all their bindings, to
whoever registers them last. So a worker asks before it takes them.
"""

from __future__ import annotations

import time

from session_manager.edge.client import Client, InvocationError
from session_manager.edge.failures import EngineError
from session_manager.functions import FUNCTIONS

ASKED_AT_ONCE = 32
"""Functions that one question to the engine may name."""

PATIENCE = 10.0
"""Seconds that the engine has to list what was registered."""


class FunctionsTaken(EngineError):
    """Another worker serves session functions in this namespace."""


def check_free(client: Client, name: str) -> None:
    """Raises FunctionsTaken when another worker than `name` has a function."""
    _refuse_others(_owners(client), name)


def check_ours(client: Client, name: str) -> None:
    """Waits until the engine says that `name` has the functions. Raises FunctionsTaken when another has."""
    deadline = time.monotonic() + PATIENCE
    while True:
        owners = _owners(client)
        if all(owners.get(function.id) == name for function in FUNCTIONS):
            return
        late = time.monotonic() > deadline
        _refuse_others({id_: owner for id_, owner in owners.items() if late or not _is_unknown(id_, owner)}, name)
        if late:
            raise EngineError("the engine does not list the functions that were registered")
        client.wait(0.02)


def _is_unknown(function_id: str, owner: str | None) -> bool:
    """Of a function that was registered a moment ago the engine may not know whose it is, and makes up a name from the
    beginning of its id."""
    return owner == function_id.partition("::")[0]


def _refuse_others(owners: dict[str, str | None], name: str) -> None:
    for owner in owners.values():
        if owner not in (None, name):
            raise FunctionsTaken(f"the session functions are served by another worker, {owner!r}")


def _owners(client: Client) -> dict[str, str | None]:
    """The workers that serve the functions, as the engine tells."""
    owners: dict[str, str | None] = {}
    for first in range(0, len(FUNCTIONS), ASKED_AT_ONCE):
        some = [function.id for function in FUNCTIONS[first : first + ASKED_AT_ONCE]]
        asked = {"function_ids": some, "namespace": client.namespace}
        try:
            told = client.call_blocking("engine::functions::info", asked)["functions"]
        except InvocationError as error:
            raise EngineError(f"the engine does not tell who serves the functions: {error}") from None
        owners |= {one["function_id"]: one.get("worker_name") for one in told}
    return owners
