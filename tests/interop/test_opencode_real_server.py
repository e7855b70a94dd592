"""A real OpenCode 1.18 server: sessions with tool calls made by a scripted model, followed live, read again, taken out,
and brought into another OpenCode. Skipped where the binary is missing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from session_manager.interop.opencode.client import Server as Client
from session_manager.interop.opencode.exports import as_json, export_session
from session_manager.interop.opencode.follow import Mirror
from session_manager.interop.opencode.servers import read_server
from session_manager.interop.opencode.sessions import Refused, SourceSession
from session_manager.interop.opencode.targets import StoreTarget
from session_manager.stores.memory import MemoryStore
from tests.interop.opencode_server import Home, Json, Provider, Server, find_binary
from tests.interop.support import bring_in, differences, messages
from tests.interop.test_opencode_export import foreign

BINARY = find_binary()

pytestmark = pytest.mark.skipif(
    BINARY is None, reason="no OpenCode: npm install opencode-linux-x64, or name its binary in OPENCODE_BIN"
)
pytest.importorskip("opencode", reason="the extra [opencode] is not installed")

MODEL = {"id": "scripted", "providerID": "mock"}


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    provider = Provider()
    yield provider
    provider.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, provider: Provider) -> Home:
    assert BINARY is not None
    return Home(tmp_path_factory.mktemp("opencode"), BINARY, provider.url)


@asynccontextmanager
async def following(url: str, store: MemoryStore) -> AsyncIterator[Mirror]:
    client = Client(url)
    mirror = Mirror(client, StoreTarget(store))
    task = asyncio.create_task(mirror.run())
    try:
        yield mirror
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.05)


def first_turn(server: Server, session_id: str, words: str) -> None:
    server.call("POST", f"/session/{session_id}/message", {"parts": [{"type": "text", "text": words}]})


async def second_engine(server: Server, words: str) -> str:
    """A session of the second engine with one turn; its id. Now and then, on a busy machine, that engine of 1.18 takes
    a prompt and never starts on it; then another session is tried."""
    rows: Json = []
    for _ in range(4):
        made = await asyncio.to_thread(server.call, "POST", "/api/session", {"model": MODEL})
        session_id: str = made["data"]["id"]
        await asyncio.to_thread(server.call, "POST", f"/api/session/{session_id}/prompt", {"prompt": {"text": words}})
        listing = f"/api/session/{session_id}/message?order=asc&limit=100"
        for attempt in range(300):
            rows = (await asyncio.to_thread(server.call, "GET", listing))["data"]
            kinds = [row["type"] for row in rows]
            if kinds[-1:] == ["assistant"] and rows[-1].get("finish") in ("stop", "error"):
                return session_id
            if attempt > 100 and "assistant" not in kinds:
                break
            await asyncio.sleep(0.1)
    raise TimeoutError(f"the turn did not end: {rows}")


async def read_all(server: Server) -> dict[str, SourceSession]:
    client = Client(server.url)
    await client.open()
    try:
        sources: dict[str, SourceSession] = {}
        async for source in read_server(client):
            assert not isinstance(source, Refused)
            sources[source.id] = source
        return sources
    finally:
        await client.close()


async def test_a_session_of_each_engine_followed_read_exported_and_taken_back(
    home: Home, provider: Provider, tmp_path: Path
) -> None:
    store = MemoryStore()
    server = Server(home)
    try:
        async with following(server.url, store) as mirror:
            await until(lambda: mirror.progress.connected)
            first = (await asyncio.to_thread(server.call, "POST", "/session", {}))["id"]
            await asyncio.to_thread(first_turn, server, first, "Use them. [[tools]]")
            await asyncio.to_thread(first_turn, server, first, "And now [[slow]]")
            second = await second_engine(server, "Use them. [[tools]]")
            wanted_first = await asyncio.to_thread(server.call, "GET", f"/session/{first}/message")
            wanted_second = (
                await asyncio.to_thread(server.call, "GET", f"/api/session/{second}/message?order=asc&limit=200")
            )["data"]
            await asyncio.sleep(1)
            seen = mirror.progress

        # What was followed is what the server lists, in both engines.
        export = await export_session(store, first)
        assert list(differences(export.document["messages"], wanted_first)) == []
        assert export.rendered == 0
        export = await export_session(store, second)
        assert list(differences(export.document["messages"], wanted_second)) == []
        assert seen.reconnects == 0
        roles = [message["role"] for message in await messages(store, first)]
        assert roles[:5] == ["user", "assistant", "function_result", "function_result", "assistant"]
        # The server may put a note on changed instructions between them.
        roles = [message["role"] for message in await messages(store, second) if message["role"] != "custom"]
        assert roles == ["user", "assistant", "function_result", "function_result", "assistant"]
        for session_id in (first, second):
            meta = (await store.session(session_id)).meta
            assert meta is not None
            assert meta.status == "done"

        # Words that came slowly came as updates.
        slow = [e for e in await store.entries(first) if b"word19" in e.body and e.role == "assistant"]
        assert slow
        assert slow[0].revision > 3

        # Read again from the server: nothing is new but the record itself.
        sources = await read_all(server)
        assert {first, second} <= set(sources)
        for source in sources.values():
            plan = await bring_in(store, source)
            assert (plan.added, plan.updated) == ([], [])
        fresh = MemoryStore()
        for source in sources.values():
            await bring_in(fresh, source)
            again = await bring_in(fresh, source)
            assert again.change is None
        theirs = await asyncio.to_thread(home.export, first, tmp_path / "theirs.json")
        ours = await export_session(fresh, first)
        assert list(differences(ours.document, theirs)) == []
    finally:
        server.close()

    # Into an empty home, and out of it again: the same but for the place.
    assert BINARY is not None
    other = Home(tmp_path / "other", BINARY, provider.url)
    file = tmp_path / "session.json"
    file.write_bytes(as_json(ours.document))
    imported = await asyncio.to_thread(other.run, "import", str(file))
    assert imported.returncode == 0, imported.stderr
    back = await asyncio.to_thread(other.export, first, tmp_path / "back.json")
    assert list(differences(_without_place(back), _without_place(ours.document))) == []

    # A session of the second engine, rendered in the first one's form, is taken too.
    rendered = await export_session(fresh, second, "1.18")
    assert rendered.rendered > 0
    file.write_bytes(as_json(rendered.document))
    imported = await asyncio.to_thread(other.run, "import", str(file))
    assert imported.returncode == 0, imported.stderr
    back = await asyncio.to_thread(other.export, second, tmp_path / "back2.json")
    assert list(differences(_without_place(back), _without_place(rendered.document))) == []


async def test_a_session_of_our_own_is_taken(tmp_path: Path, provider: Provider) -> None:
    assert BINARY is not None
    home = Home(tmp_path / "home", BINARY, provider.url)
    export = await export_session(await foreign(), "s_0011", "1.18")
    file = tmp_path / "ours.json"
    file.write_bytes(as_json(export.document))
    imported = await asyncio.to_thread(home.run, "import", str(file))
    assert imported.returncode == 0, imported.stderr
    back = await asyncio.to_thread(home.export, export.document["info"]["id"], tmp_path / "back.json")
    assert list(differences(_without_place(back), _without_place(export.document))) == []


def _without_place(document: Json) -> Json:
    copy = json.loads(json.dumps(document))
    for key in ("directory", "projectID", "path"):
        copy["info"].pop(key, None)
    return copy


async def test_a_mirror_survives_restarts_of_either_side(home: Home) -> None:
    store = MemoryStore()
    server = Server(home)
    port = server.port
    try:
        session_id = server.call("POST", "/session", {})["id"]
        first_turn(server, session_id, "One. [[hello]]")
        async with following(server.url, store) as mirror:
            await until(lambda: mirror.progress.connected)
        # While nobody follows, the conversation goes on.
        await asyncio.to_thread(first_turn, server, session_id, "Two. [[tools]]")
        async with following(server.url, store) as mirror:
            await until(lambda: mirror.progress.connected)
            # The server goes, and comes back with more.
            await asyncio.to_thread(server.close)
            await until(lambda: mirror.progress.reconnects > 0)
            server = await asyncio.to_thread(Server, home, port)
            await asyncio.to_thread(first_turn, server, session_id, "Three. [[hello]]")
            wanted = await asyncio.to_thread(server.call, "GET", f"/session/{session_id}/message")
            await until(lambda: mirror.progress.connected)
            await asyncio.sleep(1.5)
        export = await export_session(store, session_id)
        assert list(differences(export.document["messages"], wanted)) == []
        ids = [entry.id for entry in await store.entries(session_id)]
        assert len(ids) == len(set(ids))
    finally:
        server.close()
