"""Who serves the session functions, asked of an engine that may not know yet."""

from __future__ import annotations

from typing import Any, cast

import pytest

from session_manager.edge import ownership
from session_manager.edge.client import Client
from session_manager.edge.failures import EngineError
from session_manager.edge.ownership import FunctionsTaken, check_free, check_ours


class Told:
    """As much of a client as is asked: each answer names one owner of all functions, the last one again and again."""

    namespace = "default"

    def __init__(self, *owners: str | None) -> None:
        self.owners = list(owners)
        self.waits = 0

    def call_blocking(self, _: str, asked: Any) -> Any:
        owner = self.owners.pop(0) if len(self.owners) > 1 else self.owners[0]
        known = {} if owner is None else {"worker_name": owner}
        return {"functions": [{"function_id": id_, **known} for id_ in asked["function_ids"]]}

    def wait(self, _: float) -> None:
        self.waits += 1
        assert self.waits < 10, "asked without end"


def told(*owners: str | None) -> Client:
    return cast("Client", Told(*owners))


def test_what_the_engine_makes_up_of_functions_that_are_new_to_it_is_nobody_else() -> None:
    check_ours(told("session", None, "session", "mine"), "mine")


def test_another_worker_is_told_at_once() -> None:
    for check in (check_free, check_ours):
        with pytest.raises(FunctionsTaken, match="'other'"):
            check(told("other"), "mine")
    with pytest.raises(FunctionsTaken):
        check_free(told("session"), "mine")
    check_free(told(None), "mine")


def test_a_worker_of_that_very_name_is_told_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "PATIENCE", 0)
    with pytest.raises(FunctionsTaken, match="'session'"):
        check_ours(told("session"), "mine")
    with pytest.raises(EngineError, match="does not list"):
        check_ours(told(None), "mine")
    check_ours(told("session"), "session")
