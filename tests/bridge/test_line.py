"""A line: what it promises to the bridge, on either engine."""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from iii.iii import III
from websockets.asyncio.server import ServerConnection, serve

from session_manager.dev import EngineThread, Unkindness
from session_manager.edge import line as line_module
from session_manager.edge.failures import DISCONNECTED, EngineError, NameTaken, Undelivered
from session_manager.edge.frames import FRAME_BYTES, MESSAGE_BYTES
from session_manager.edge.line import Line
from session_manager.errors import MalformedRequest
from session_manager.model import decode, encode
from tests.bridge.test_outage import Network, networks
from tests.bridge.topology import BACK_SOON, Engine, engine_of, until
from tests.engines import free_port, on_both_engines
from tests.sdk import call, sdk_client

SOON = 30.0
"""Seconds within which everything happens that is promised to happen soon: far less than what is given up waiting for
takes here."""


@pytest.fixture(params=on_both_engines(of_its_own=True))
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    with engine_of(request.param, tmp_path / "engine") as made:
        yield made


@asynccontextmanager
async def line_to(url: str, name: str = "line", prepare: Callable[[Line], Any] | None = None) -> AsyncIterator[Line]:
    line = Line(url, name, "A line under test.")
    if prepare is not None:
        prepare(line)
    await line.open(SOON)
    try:
        yield line
    finally:
        await line.close()


class Far:
    """A worker with the SDK that a line calls."""

    def __init__(self) -> None:
        self.came: list[Any] = []
        self.go = asyncio.Event()

    async def echo(self, data: Any) -> Any:
        data.pop("_caller_worker_id", None)
        self.came.append(data)
        return data

    async def never(self, data: Any) -> Any:
        self.came.append(data)
        await asyncio.Event().wait()

    async def long(self, data: Any) -> Any:
        return {"text": "é" * data["characters"]}


@asynccontextmanager
async def far(url: str) -> AsyncIterator[Far]:
    async with sdk_client(url, "far", reconnection_config=BACK_SOON) as client:
        made = Far()
        for name in ("echo", "never", "long"):
            client.register_function(f"far::{name}", getattr(made, name))
        await listed(client, "far::long")
        yield made


async def listed(client: III, function_id: str) -> None:
    async def there() -> bool:
        return function_id in str(await call(client, "engine::functions::list", {}))

    await until(there, SOON, lambda: f"{function_id} is not listed")


async def test_a_line_to_this_machine_goes_through_no_proxy(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "elsewhere.example")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    async with line_to(engine.url) as line:
        assert line.connected


async def ask(line: Line, function_id: str, payload: Any, seconds: float = SOON) -> Any:
    return decode(await line.call(function_id, encode(payload), "default", seconds))


async def code_of(line: Line, function_id: str, payload: Any, seconds: float = SOON) -> str:
    with pytest.raises(Undelivered) as caught:
        await ask(line, function_id, payload, seconds)
    return caught.value.code


async def test_a_call_is_answered_or_says_why_not(engine: Engine) -> None:
    async with far(engine.url), line_to(engine.url) as line:
        assert await ask(line, "far::echo", {"é": [1, None]}) == {"é": [1, None]}
        assert await code_of(line, "far::nobody", {}) == "function_not_found"
        assert await code_of(line, "far::never", {}, 0.2) == "TIMEOUT"
        assert await code_of(line, "far::echo", {"text": "x" * MESSAGE_BYTES}) == "payload_too_large"
        assert await ask(line, "far::echo", {"n": 1}) == {"n": 1}
        assert not line._unanswered


async def test_many_calls_at_once_get_each_its_own_answer(engine: Engine) -> None:
    async with far(engine.url), line_to(engine.url) as line:
        answers = await asyncio.gather(*(ask(line, "far::echo", {"n": number}) for number in range(300)))
        assert answers == [{"n": number} for number in range(300)]


async def test_what_does_not_fit_into_one_frame_goes_and_comes_in_several(engine: Engine) -> None:
    async with far(engine.url), line_to(engine.url) as line:
        text = "é" * (FRAME_BYTES // 2 + 1)  # its characters straddle the borders of pieces
        assert await ask(line, "far::echo", {"text": "." + text}) == {"text": "." + text}
        came = await ask(line, "far::long", {"characters": FRAME_BYTES // 2 + 1})
        assert came["text"] == text


async def test_a_taken_name_is_refused_and_its_owner_stays(engine: Engine) -> None:
    async with far(engine.url), line_to(engine.url) as owner:
        with pytest.raises(NameTaken, match="another worker is connected under the name 'line'"):
            async with line_to(engine.url):
                pass
        assert await ask(owner, "far::echo", {"n": 1}) == {"n": 1}


async def test_no_environment_variable_changes_a_lines_name_or_namespace(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("III_WORKER_NAME", "somebody")
    monkeypatch.setenv("III_NAMESPACE", "elsewhere")
    async with line_to(engine.url) as line:
        worker = (await line.ask("engine::workers::info", {"name": "line", "namespace": "default"}, SOON))["worker"]
        assert (worker["name"], worker["namespace"]) == ("line", "default")
        assert worker["description"] == "A line under test."


async def test_where_no_engine_is_opening_says_so_in_time() -> None:
    url = f"ws://127.0.0.1:{free_port()}"
    async with asyncio.timeout(SOON):
        with pytest.raises(EngineError, match=f"no engine at {url}: "):
            await Line(url, "line", "").open(0.5)


async def test_where_somebody_listens_who_is_no_engine_opening_says_so_in_time() -> None:
    async with stand_in(ServerConnection.wait_closed) as url:
        async with asyncio.timeout(SOON):
            with pytest.raises(EngineError, match="does not answer"):
                await Line(url, "line", "").open(0.5)


async def test_calls_under_way_fail_at_once_when_the_engine_goes_and_later_ones_until_it_is_back(
    engine: Engine,
) -> None:
    async with far(engine.url) as there, line_to(engine.url) as line:
        states: list[bool] = []
        line.on_state(states.append)
        waiting = asyncio.create_task(code_of(line, "far::never", {"n": 0}, 120))
        await until(lambda: there.came, SOON, lambda: "the call does not arrive")
        engine.kill()
        async with asyncio.timeout(SOON):
            assert await waiting == DISCONNECTED
            assert await code_of(line, "far::echo", {"n": 1}, 120) == DISCONNECTED
        engine.start()
        await until(lambda: answered(line), SOON, lambda: "the line does not come back")
        assert {"n": 1} not in there.came, "what had failed was sent later"
        assert states == [False, True]


async def answered(line: Line) -> bool:
    try:
        return bool(await ask(line, "far::echo", {"n": 2}) == {"n": 2})
    except Undelivered:
        return False


async def test_what_a_line_serves_and_binds_is_there_again_after_the_engine_restarted(engine: Engine) -> None:
    came: list[Any] = []

    def prepare(line: Line) -> None:
        line.serve("line::hear", lambda data: came.append(json.loads(data)), "Hears.")

    async def fires() -> bool:
        bound = await call(client, "engine::registered-triggers::list", {"function_id": "line::hear"})
        return bool(bound["registered_triggers"])

    async with sdk_client(engine.url, "near", reconnection_config=BACK_SOON) as client:
        async with line_to(engine.url, prepare=prepare) as line:
            end = line.bind("engine::workers-available", "line::hear")
            await until(fires, SOON, lambda: "not bound")
            engine.kill()
            engine.start()
            await until(lambda: quietly(fires), SOON, lambda: "not bound again")
            came.clear()
            async with sdk_client(engine.url, "newcomer"):
                await until(lambda: came, SOON, lambda: "nothing is heard")
            end()

            async def ended() -> bool:
                return not await fires()

            await until(ended, SOON, lambda: "still bound")
        await until(lambda: gone(client), SOON, lambda: "a closed line still serves")


async def quietly(condition: Callable[[], Any]) -> bool:
    try:
        return bool(await condition())
    except Exception:  # the client is not back either
        return False


async def gone(client: III) -> bool:
    return "line::hear" not in str(await call(client, "engine::functions::list", {}))


async def test_callers_of_what_a_line_serves_are_answered_also_with_its_errors(engine: Engine) -> None:
    def refuse(data: bytes) -> None:
        raise MalformedRequest("no")

    def fail(data: bytes) -> None:
        raise KeyError("secret")

    def prepare(line: Line) -> None:
        line.serve("line::double", lambda data: 2 * json.loads(data)["n"], "Doubles.")
        line.serve("line::refuse", refuse, "Refuses.")
        line.serve("line::bug", fail, "Fails.")

    async with sdk_client(engine.url, "near") as client, line_to(engine.url, prepare=prepare):
        assert await call(client, "line::double", {"n": 21}) == 42
        with pytest.raises(Exception, match="invocation_failed: malformed request: no"):
            await call(client, "line::refuse", {})
        with pytest.raises(Exception, match="internal error") as caught:
            await call(client, "line::bug", {})
        assert "secret" not in str(caught.value)
        assert await call(client, "line::double", {"n": 1}) == 2


async def test_a_line_comes_back_under_its_name_although_the_engine_still_holds_the_connection_it_lost(
    engine: Engine,
) -> None:
    with networks() as ways:
        ways.append(Network(engine.url))
        async with far(engine.url), line_to(ways[0].url) as line:
            ways[0].silence()  # so that the engine does not learn of the cut
            line._say(b'{"type":"ping"}')
            await until(ways[0].holding.is_set, SOON, lambda: "nothing is held back")
            assert line._socket is not None
            line._socket.transport.abort()
            await until(lambda: not line.connected, SOON, lambda: "the line does not notice")
            line.url = engine.url
            await until(lambda: answered(line), SOON, lambda: "the line does not come back")
            known = await line.ask("engine::workers::info", {"name": "line", "namespace": "default"}, SOON)
            assert line._identity is not None
            assert known["worker"]["id"] == line._identity[0]


async def test_a_line_whose_name_was_taken_while_it_was_away_gets_it_back_when_it_is_free(engine: Engine) -> None:
    async with far(engine.url), line_to(engine.url) as line:
        line.url = f"ws://127.0.0.1:{free_port()}"
        assert line._socket is not None
        line._socket.transport.abort()
        await until(lambda: not line.connected, SOON, lambda: "the line does not notice")
        async with line_to(engine.url):
            line.url = engine.url
            await until(lambda: line._refused, SOON, lambda: "the line is not refused")
        await until(lambda: answered(line), SOON, lambda: "the line does not come back")
        await until(lambda: line.connected and not line._refused, SOON, lambda: "refused")


async def test_what_was_given_up_behind_a_stuck_connection_is_never_sent() -> None:
    with networks() as ways, EngineThread() as engine:
        ways.append(Network(engine.url))
        async with far(engine.url) as there, line_to(ways[0].url) as line:
            ways[0].silence()
            assert line._socket is not None
            stuffing = [
                asyncio.create_task(code_of(line, "far::echo", {"text": "x" * (8 << 20)}, 0.3)) for _ in range(3)
            ]
            await until(lambda: line._socket is not None and line._socket.paused, SOON, lambda: "it takes everything")
            assert await code_of(line, "far::echo", {"n": "late"}, 0.2) == "TIMEOUT"
            assert set(await asyncio.gather(*stuffing)) == {"TIMEOUT"}
            ways[0].speak()
            await until(lambda: answered(line), SOON, lambda: "the line does not come back")
            assert {"n": "late"} not in there.came


async def test_a_question_whose_answer_is_lost_is_asked_once_more_and_another_call_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(line_module, "LOST", 0.05)
    with EngineThread(unkindness=Unkindness(lost_replies=1.0)) as engine:
        async with far(engine.url) as there, line_to(engine.url) as line:
            for number, question, times in ((1, False, 1), (2, True, 2)):
                payload = b'{"n":%d}' % number
                asking = asyncio.create_task(line.call("far::echo", payload, "default", 300, question=question))
                await until(lambda: there.came.count({"n": number}) == times, SOON, lambda: f"{there.came}")  # noqa: B023 # awaited here
                await asyncio.sleep(4 * line_module.LOST)
                assert there.came.count({"n": number}) == times
                asking.cancel()
                await asyncio.wait({asking})
            assert await code_of(line, "far::echo", {"n": 3}, 0.2) == "TIMEOUT"
            assert not line._unanswered


async def test_an_answer_that_the_engine_may_lose_is_said_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[bytes] = []

    def prepare(line: Line) -> None:
        line.serve("line::double", lambda data: 2, "Doubles.")
        say = line._say

        def heard(frame: bytes) -> None:
            said.append(frame)
            say(frame)

        monkeypatch.setattr(line, "_say", heard)

    with EngineThread() as engine:
        async with sdk_client(engine.url, "near") as client, line_to(engine.url, prepare=prepare):
            assert await call(client, "line::double", {}) == 2
            await until(lambda: len(answers_in(said)) == 2, SOON, lambda: "once only")
            assert len(set(answers_in(said))) == 1


def answers_in(said: list[bytes]) -> list[bytes]:
    return [frame for frame in said if b"invocationresult" in frame]


# --- what stands in for an engine ---


@asynccontextmanager
async def stand_in(serves: Callable[[ServerConnection], Awaitable[None]]) -> AsyncIterator[str]:
    """Its URL."""
    async with serve(serves, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


async def answering(connection: ServerConnection) -> AsyncIterator[Any]:
    """Answers every call as if it had asked who the line is; gives the frames that came."""
    await connection.send('{"type":"workerregistered","worker_id":"w"}')
    async for message in connection:
        asked = json.loads(message)
        yield asked
        if "invocation_id" in asked and asked["type"] == "invokefunction":
            answer = {"type": "invocationresult", "invocation_id": asked["invocation_id"]}
            await connection.send(json.dumps(answer | {"result": {"worker": {"id": "w"}}}))


def with_nagle(connection: ServerConnection) -> None:
    """As the real engine sends: what is small waits until what went before is acknowledged."""
    kernel = connection.transport.get_extra_info("socket")
    kernel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)


class Turns:
    """Counts the turns of the event loop. There are thousands in the 40 ms for which the kernel may put an
    acknowledgement off, and a handful in a round in which nobody waits, however busy the machine is."""

    def __init__(self) -> None:
        self._all = 0
        self.rounds: list[int] = []

    async def count(self) -> None:
        while True:
            self._all += 1
            await asyncio.sleep(0)

    @contextmanager
    def round(self) -> Iterator[None]:
        before = self._all
        yield
        self.rounds.append(self._all - before)


@asynccontextmanager
async def counted() -> AsyncIterator[Turns]:
    turns = Turns()
    task = asyncio.create_task(turns.count())
    yield turns
    task.cancel()
    assert statistics.median(turns.rounds) < 100, turns.rounds


prompt = pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="this kernel cannot be told to acknowledge")


@prompt
async def test_answers_side_by_side_do_not_wait_for_each_others_acknowledgement() -> None:
    async def engine(connection: ServerConnection) -> None:
        with_nagle(connection)
        async for _ in answering(connection):
            pass

    async with stand_in(engine) as url, line_to(url) as line, counted() as turns:
        for _ in range(30):
            with turns.round():
                await asyncio.gather(*(ask(line, "any", {"n": number}) for number in range(3)))


@prompt
async def test_the_end_of_a_message_does_not_wait_for_the_acknowledgement_of_its_beginning() -> None:
    connections: list[ServerConnection] = []
    heard, message = asyncio.Event(), ('{"type":"invokefunction","invocation_id":"i"', ',"function_id":"line::hear"}')

    async def engine(connection: ServerConnection) -> None:
        with_nagle(connection)
        connections.append(connection)
        async for _ in answering(connection):
            pass

    def prepare(line: Line) -> None:
        line.serve("line::hear", lambda data: heard.set(), "Hears.")

    async with stand_in(engine) as url, line_to(url, prepare=prepare), counted() as turns:
        for _ in range(30):
            heard.clear()
            with turns.round():
                await connections[0].send(message)
                await heard.wait()


async def test_frames_that_make_no_sense_are_passed_over() -> None:
    async def odd(connection: ServerConnection) -> None:
        async for asked in answering(connection):
            if asked.get("function_id") == "engine::workers::register":
                for junk in ("", "[]", '{"type":7}', '{"type":"unheard-of"}', '{"type":"invocationresult"}', "\0"):
                    await connection.send(junk)
                await connection.send(b"\xff")

    async with stand_in(odd) as url, line_to(url) as line:
        assert await ask(line, "any", {}) == {"worker": {"id": "w"}}


async def test_a_token_is_shown_and_a_trace_handed_on_where_telemetry_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry import propagate

    monkeypatch.setenv("III_TOKEN", "secret")
    monkeypatch.setenv("SESSION_MANAGER_OTEL", "1")
    monkeypatch.setattr(propagate, "inject", lambda carrier: carrier.update(traceparent="00-1-2-01", other="x"))
    heads: list[Any] = []
    frames: list[Any] = []

    async def engine(connection: ServerConnection) -> None:
        assert connection.request is not None
        heads.append(connection.request.headers["Authorization"])
        frames.extend([frame async for frame in answering(connection)])

    async with stand_in(engine) as url, line_to(url) as line:
        await ask(line, "any", {})
    assert heads == ["Bearer secret"]
    assert frames[-1]["traceparent"] == "00-1-2-01"
    assert "other" not in frames[-1]
