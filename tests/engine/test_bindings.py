"""Bindings: made either way, refused, across namespaces, and after everything that can go has gone and come back."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Any

import pytest
from iii.errors import InvocationError
from iii.iii import III

from tests.dev.client import eventually, unique
from tests.engine.conftest import Connect, Place, Serve, Sink, user
from tests.sdk import call


async def append_until(client: III, session_id: str, *sinks: Sink, seconds: float = 20, **more: Any) -> None:
    """Appends messages until every sink has heard of one that was appended here."""
    appended: set[str] = set()
    async with asyncio.timeout(seconds):
        while not all(appended & set(sink.entries()) for sink in sinks):
            try:
                asked = {"session_id": session_id, "message": user("again")}
                appended.add((await call(client, "session::append", asked, **more))["entry_id"])
            except InvocationError:  # the worker or the engine is not back yet
                pass
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_bindings_outlive_a_restart_of_the_worker(
    url: str, serve: Serve, connect: Connect, number: signal.Signals
) -> None:
    worker, client = serve(url), await connect(url)
    await worker.ready(client)
    await call(client, "session::ensure", {"session_id": "s", "metadata": {"a": 1}})
    all_, one, other = Sink(client), Sink(client), Sink(client)
    made = all_.bind({})
    id_ = await one.bind_by_function({"session_id": "s", "metadata": {"a": 1}}, metadata={"mine": [1]})
    await other.bind_by_function({"metadata": {"a": 2}})
    await append_until(client, "s", all_, one)
    worker.signal(number)
    assert worker.wait(10) == (0 if number is signal.SIGTERM else -number)
    worker.start()
    await worker.ready(client)
    await append_until(client, "s", all_, one)
    assert {str(more) for more in one.metadata} == {"{'mine': [1]}"}
    assert not other.events

    made.unregister()
    assert await call(client, "engine::unregister_trigger", {"id": id_}) == {"removed": True}
    late = Sink(client)
    await late.bind_by_function({"session_id": "s"})
    await append_until(client, "s", late)
    assert not set(late.entries()) & {*all_.entries(), *one.entries()}, "an unbound function was called"


async def test_after_an_engine_restart_connections_bindings_are_back_and_functions_are_forgotten(
    place: Place, serve: Serve, connect: Connect
) -> None:
    worker, client = serve(place.url), await connect(place.url)
    await worker.ready(client)
    await call(client, "session::ensure", {"session_id": "s"})
    owned, orphan = Sink(client), Sink(client)
    owned.bind({"session_id": "s"})
    await orphan.bind_by_function({"session_id": "s"})
    await append_until(client, "s", owned, orphan)
    await asyncio.to_thread(place.restart)
    await worker.ready(client)
    before = len(orphan.events)
    await append_until(client, "s", owned)
    again = Sink(client)
    await again.bind_by_function({"session_id": "s"})
    await append_until(client, "s", owned, again)
    assert len(orphan.events) == before, "a binding that the engine has forgotten was still served"


@pytest.mark.parametrize("away", [0.0, 3.0])
async def test_the_worker_serves_again_within_seconds_of_the_engines_return(
    place: Place, serve: Serve, connect: Connect, away: float
) -> None:
    worker, client = serve(place.url), await connect(place.url)
    await worker.ready(client)
    sink = Sink(client)
    sink.bind({})
    await call(client, "session::ensure", {"session_id": "s"})
    place.kill()
    await asyncio.sleep(away)
    place.start()
    await append_until(client, "s", sink, seconds=8)
    assert "Traceback" not in worker.said()


REFUSED: list[Any] = [{"session": "s"}, {"session_id": 1}, {"roles": ["robot"]}, {"metadata": []}, "all"]


async def test_a_refused_binding_is_told_to_the_binder(
    url: str, serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    worker, client = serve(url), await connect(url)
    await worker.ready(client)
    for config in REFUSED:
        sink = Sink(client)
        with pytest.raises(InvocationError) as refused:
            await sink.bind_by_function(config)
        assert refused.value.code == "trigger_registration_failed"
        assert "the configuration of a session::message-added trigger" in refused.value.message
        caplog.clear()
        with caplog.at_level(logging.ERROR, "iii.iii"):
            sink.bind(config)
            await eventually(lambda: "Trigger registration failed" in caplog.text)
        assert "the configuration of a session::message-added trigger" in caplog.text
    assert "Traceback" not in caplog.text + worker.said()


async def test_a_worker_in_a_namespace_serves_binders_in_others(url: str, serve: Serve, connect: Connect) -> None:
    project, elsewhere = unique("project-"), unique("elsewhere-")
    worker = serve(url, namespace=project)
    inside, beside, outside = (
        await connect(url, namespace=project),
        await connect(url, namespace=elsewhere),
        await connect(url),
    )
    await worker.ready(inside)
    await call(inside, "session::ensure", {"session_id": "s"})
    with pytest.raises(InvocationError, match=f"It is registered in namespace.*{project}"):
        await call(outside, "session::get", {"session_id": "s"})
    assert (await call(outside, "session::get", {"session_id": "s"}, namespace=project))["meta"]["session_id"] == "s"
    sinks = [Sink(client) for client in (inside, beside, outside, outside)]
    sinks[0].bind({})
    sinks[1].bind({}, trigger_namespace=project)
    sinks[2].bind({}, trigger_namespace=project)
    await sinks[3].bind_by_function({}, trigger_namespace=project)
    await append_until(inside, "s", *sinks)
    assert (await call(inside, "session::config-status", {}))["last_outcome"] == "applied"


async def test_two_workers_in_two_namespaces_do_not_meet(url: str, serve: Serve, connect: Connect) -> None:
    first, second = unique("first-"), unique("second-")
    one, two = serve(url, directory="1", namespace=first), serve(url, directory="2", namespace=second)
    at_one, at_two = await connect(url, namespace=first), await connect(url, namespace=second)
    await one.ready(at_one)
    await two.ready(at_two)
    sink_one, sink_two = Sink(at_one), Sink(at_two)
    sink_one.bind({})
    sink_two.bind({})
    await call(at_one, "session::ensure", {"session_id": "s"})
    await call(at_two, "session::ensure", {"session_id": "s"})
    await append_until(at_one, "s", sink_one)
    await append_until(at_two, "s", sink_two)
    assert not set(sink_one.entries()) & set(sink_two.entries())
