"""A second session-manager beside the first: it says why it cannot serve, and goes without a trace."""

from __future__ import annotations

import pytest

from tests.engine.conftest import Connect, Serve, Sink, user
from tests.sdk import call


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("session-manager", "another worker is connected under the name 'session-manager'"),
        ("another-store", "the session functions are served by another worker, 'session-manager'"),
    ],
)
@pytest.mark.parametrize("directory", ["worker", "second"])
async def test_a_second_store_leaves_and_the_first_keeps_functions_and_bindings(
    url: str, serve: Serve, connect: Connect, name: str, why: str, directory: str
) -> None:
    first, client = serve(url), await connect(url)
    await first.ready(client)
    early, late = Sink(client), Sink(client)
    early.bind({})
    changed = Sink(client, "configuration")
    changed.bind({"configuration_id": first.config_id})
    before = await call(client, "engine::triggers::info", {"id": "session::message-added"})
    second = serve(
        url, "--patience", "1", directory=directory, config_id=first.config_id, value=None, III_WORKER_NAME=name
    )
    assert second.wait(20) == 1
    last = second.said().splitlines()[-1]
    assert last == f"session-manager: {why}"
    assert "Traceback" not in second.said()
    if directory == "second":
        assert not (second.directory / "sessions.db").exists(), "it opened a database of its own"
    assert await call(client, "engine::triggers::info", {"id": "session::message-added"}) == before
    asked = {"function_ids": ["session::append", "session::store::put-meta"]}
    told = (await call(client, "engine::functions::info", asked))["functions"]
    assert [one["worker_name"] for one in told] == ["session-manager"] * 2
    late.bind({})
    await call(client, "session::ensure", {"session_id": "s"})
    while not (early.events and late.events):
        await call(client, "session::append", {"session_id": "s", "message": user("x")})
    assert not changed.events, "it touched the first one's configuration"


async def test_a_successor_waits_for_its_predecessor(url: str, serve: Serve, connect: Connect) -> None:
    first, client = serve(url), await connect(url)
    await first.ready(client)
    await call(client, "session::ensure", {"session_id": "s", "title": "kept"})
    second = serve(url, config_id=first.config_id, value=None)
    while "waiting" not in second.said():
        assert second.process is not None
        assert second.process.poll() is None, second.said()
        await call(client, "session::get", {"session_id": "s"})
    assert first.stop() == 0
    await second.ready(client)
    assert (await call(client, "session::get", {"session_id": "s"}))["meta"]["title"] == "kept"
