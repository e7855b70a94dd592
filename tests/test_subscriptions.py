"""Bindings after a reconnect: the engine brings them again, and never tells which are gone."""

from __future__ import annotations

import asyncio
from typing import Any

from session_manager.bindings import Binding, BindingTable
from session_manager.edge.absence import Absence
from session_manager.edge.subscriptions import REPLAY, Subscriptions
from tests.clockwork import Clockwork, clockwork
from tests.contract.scenario import until


class Engine:
    """As much of a client as is asked for, on an engine that started at `since`."""

    def __init__(self) -> None:
        self.since = 1
        self.known: list[str] = []
        self.loop = asyncio.get_running_loop()

    async def call(self, function_id: str, payload: Any, *, seconds: float) -> Any:
        if function_id == "engine::workers::list":
            return {"workers": [{"connected_at_ms": self.since}]}
        assert function_id == "engine::registered-triggers::list"
        return {"registered_triggers": [{"id": id_} for id_ in self.known]}


def binding(id_: str) -> Binding:
    return Binding(id_, "session::created", f"test::{id_}")


async def bound(*ids: str) -> tuple[Engine, Subscriptions, BindingTable]:
    engine: Any = Engine()
    table = BindingTable()
    subscriptions = Subscriptions(table, engine, engine, Absence(), lambda binding_id: None)
    await subscriptions.back()
    for id_ in ids:
        subscriptions.bound(binding(id_))
    return engine, subscriptions, table


@clockwork
async def test_a_binding_that_is_not_brought_again_is_gone() -> None:
    _, subscriptions, table = await bound("a", "b")
    subscriptions.replayed()
    again = asyncio.create_task(subscriptions.reconnected())
    await asyncio.sleep(0)
    assert table.ids() == {"a", "b"}, "the engine gets a moment to bring them"
    subscriptions.bound(binding("b"))
    await again
    assert table.ids() == {"b"}


@clockwork
async def test_at_the_start_bindings_are_waited_for_as_long_as_they_come() -> None:
    """There may be many thousands."""
    engine, subscriptions, table = await bound()
    engine.known = [f"b{number}" for number in range(8)] + ["refused"]
    waiting = asyncio.create_task(subscriptions.back())
    for id_ in engine.known[:-1]:
        await asyncio.sleep(0.4 * REPLAY)  # all of them take longer than the pause for which one is waited
        assert not waiting.done()
        subscriptions.bound(binding(id_))
    await waiting
    assert len(table) == 8


@clockwork
async def test_bindings_that_came_while_this_process_had_no_turn_are_not_the_last_ones() -> None:
    engine, subscriptions, table = await bound()
    engine.known = ["a", "b"]
    waiting = asyncio.create_task(subscriptions.back())
    await asyncio.sleep(0.5 * REPLAY)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Clockwork)
    loop.lose(REPLAY)
    subscriptions.bound(binding("a"))
    await asyncio.sleep(0.5 * REPLAY)
    assert not waiting.done()
    subscriptions.bound(binding("b"))
    await waiting
    assert len(table) == 2


@clockwork
async def test_nobody_waits_for_bindings_that_are_all_there() -> None:
    _, subscriptions, table = await bound("a")
    subscriptions.replayed()
    subscriptions.bound(binding("a"))
    began = asyncio.get_running_loop().time()
    await subscriptions.reconnected()
    assert asyncio.get_running_loop().time() == began
    assert table.ids() == {"a"}


@clockwork
async def test_a_binding_that_came_back_after_a_second_restart_of_the_engine_stays() -> None:
    engine, subscriptions, table = await bound("a", "b")
    waiting = []
    for since in (2, 3):
        engine.since = since
        subscriptions.replayed()
        waiting.append(asyncio.create_task(subscriptions.reconnected()))
        await asyncio.sleep(0)
    subscriptions.bound(binding("a"))
    await asyncio.gather(*waiting)
    await until(lambda: table.ids() == {"a"})
