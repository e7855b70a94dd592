"""Two threads say whole messages on one connection, and an answer may leave while the event loop is busy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.frames import Frame, Opcode

from session_manager.edge.outlet import Early, Outlet


def framed(text: bytes) -> bytes:
    return Frame(Opcode.TEXT, text).serialize(mask=True)


class Line:
    """Both ends of a connection; what arrives at the other one."""

    def __init__(self, ws: ClientConnection, far: ServerConnection) -> None:
        self.ws, self.far = ws, far
        self.outlet = Outlet(ws)
        lost = ws.connection_lost

        def connection_lost(reason: Exception | None) -> None:
            self.outlet.lost()
            lost(reason)

        ws.__dict__.update(send_data=self.outlet.send_data, connection_lost=connection_lost)

    def say(self, text: bytes) -> None:
        self.ws.protocol.send_text(text)
        self.ws.send_data()

    async def heard(self) -> bytes:
        async with asyncio.timeout(20):
            return await self.far.recv(decode=False)


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    far: asyncio.Future[ServerConnection] = asyncio.get_running_loop().create_future()

    async def take(connection: ServerConnection) -> None:
        far.set_result(connection)
        await connection.wait_closed()

    async with serve(take, "127.0.0.1", 0, compression=None, max_size=None, max_queue=2) as server:
        port = server.sockets[0].getsockname()[1]
        async with connect(f"ws://127.0.0.1:{port}", compression=None) as ws:
            yield Line(ws, await far)


async def test_a_message_leaves_from_a_thread_while_the_event_loop_is_busy(line: Line) -> None:
    left: list[bool] = []
    thread = threading.Thread(target=lambda: left.append(line.outlet.aside(framed(b"now"))))
    thread.start()
    thread.join()  # the event loop does nothing meanwhile
    assert left == [True]
    assert await line.heard() == b"now"


async def test_messages_of_both_threads_arrive_whole(line: Line) -> None:
    """Also while the other end takes them slowly, so that some of what is said waits."""
    aside, said, stopped = list[bytes](), list[bytes](), threading.Event()

    def speak() -> None:
        number = 0
        while not stopped.is_set():
            text = b"aside %d " % number + b"x" * (number % 3000)
            if line.outlet.aside(framed(text)):
                aside.append(text)
                number += 1

    thread = threading.Thread(target=speak)
    thread.start()
    heard: list[bytes] = []
    try:
        for number in range(300):
            text = b"said %d " % number + b"y" * (number * 997 % 100_000)
            line.say(text)
            said.append(text)
            if number % 3 == 0:
                heard.append(await line.heard())
    finally:
        stopped.set()
        thread.join()
    while len(heard) < len(aside) + len(said):
        heard.append(await line.heard())
    assert [text for text in heard if text.startswith(b"said")] == said
    assert [text for text in heard if text.startswith(b"aside")] == aside
    assert aside


async def test_nothing_leaves_aside_while_the_event_loop_writes(line: Line) -> None:
    """It may be in the middle of a message."""
    transport, left = line.ws.transport, list[str]()

    class Slow:
        def writelines(self, pieces: list[bytes]) -> None:
            aside.start()
            aside.join(0.05)
            left.append("said")
            transport.writelines(pieces)

        def __getattr__(self, name: str) -> Any:
            return getattr(transport, name)

    def leave() -> None:
        line.outlet.aside(framed(b"aside"))
        left.append("aside")

    aside = threading.Thread(target=leave)
    line.ws.transport = Slow()  # type: ignore[assignment]
    line.say(b"said")
    aside.join()
    line.ws.transport = transport
    assert left == ["said", "aside"]
    assert [await line.heard(), await line.heard()] == [b"said", b"aside"]


class Narrow:
    """A socket whose kernel takes only so many bytes."""

    def __init__(self, kernel: Any, room: int) -> None:
        self._kernel, self._room = kernel, room

    def send(self, data: bytes) -> int:
        if not self._room:
            raise BlockingIOError
        return int(self._kernel.send(data[: self._room]))

    def detach(self) -> int:
        return int(self._kernel.detach())


async def test_the_end_of_a_message_that_left_in_part_goes_before_all_else(line: Line) -> None:
    whole = line.outlet._socket
    line.outlet._socket = Narrow(whole, 5)  # type: ignore[assignment]
    assert line.outlet.aside(framed(b"first"))
    line.outlet._socket = whole
    assert not line.outlet.aside(framed(b"in its midst"))
    line.say(b"second")
    assert [await line.heard(), await line.heard()] == [b"first", b"second"]
    assert line.outlet.aside(framed(b"third"))
    assert await line.heard() == b"third"


async def test_the_end_of_a_message_that_left_in_part_goes_by_itself(line: Line) -> None:
    line.outlet._socket = Narrow(line.outlet._socket, 5)  # type: ignore[assignment]
    assert await asyncio.to_thread(line.outlet.aside, framed(b"alone"))
    assert await line.heard() == b"alone"


async def test_nothing_is_sent_by_a_kernel_that_takes_nothing(line: Line) -> None:
    line.outlet._socket = Narrow(line.outlet._socket, 0)  # type: ignore[assignment]
    assert not line.outlet.aside(framed(b"no"))
    line.say(b"yes")
    assert await line.heard() == b"yes"


async def test_nothing_leaves_aside_while_something_waits_in_the_transport(line: Line) -> None:
    line.say(b"y" * (20 << 20))
    assert line.ws.transport.get_write_buffer_size()
    assert not line.outlet.aside(framed(b"no"))
    assert len(await line.heard()) == 20 << 20


async def test_nothing_leaves_aside_between_the_parts_of_a_message(line: Line) -> None:
    line.ws.protocol.send_text(b"one ", fin=False)
    line.ws.send_data()
    assert not line.outlet.aside(framed(b"no"))
    line.ws.protocol.send_continuation(b"message", fin=True)
    assert not line.outlet.aside(framed(b"no")), "said, but not sent"
    line.ws.send_data()
    assert await line.heard() == b"one message"


async def test_nothing_leaves_aside_once_the_connection_ends(line: Line) -> None:
    closing = asyncio.create_task(line.ws.close())
    await asyncio.sleep(0)
    assert not line.outlet.aside(framed(b"no"))
    await closing
    assert line.outlet._socket is None
    assert not line.outlet.aside(framed(b"no"))


async def test_an_early_answer_says_what_was_said_last_and_when_it_left(line: Line) -> None:
    early = Early(line.outlet, b'{"answer":1,')
    early.leave()
    was_left = early.left_at is not None
    assert not was_left, "nothing was said"
    early.say({"n": 1})
    early.say({"n": 2})
    await asyncio.to_thread(early.leave)
    assert early.left_at is not None
    assert await line.heard() == b'{"answer":1,"result":{"n":2}}'


async def test_an_early_answer_stays_when_it_is_told_to_unless_it_has_left(line: Line) -> None:
    early = Early(line.outlet, b'{"answer":1,')
    early.say({"n": 1})
    assert early.stay()
    early.leave()
    assert early.left_at is None
    early.say({"n": 2})
    early.leave()
    assert not early.stay()
    assert await line.heard() == b'{"answer":1,"result":{"n":2}}'


async def test_a_long_answer_does_not_leave_early(line: Line) -> None:
    early = Early(line.outlet, b'{"answer":1,')
    early.say("x" * (1 << 20))
    early.leave()
    assert early.left_at is None


async def test_an_answer_that_cannot_leave_is_left_to_the_event_loop(line: Line) -> None:
    line.say(b"y" * (20 << 20))
    early = Early(line.outlet, b'{"answer":1,')
    early.say({"n": 1})
    early.leave()
    assert early.left_at is None
    assert len(await line.heard()) == 20 << 20


async def test_of_a_connection_that_has_ended_at_once_nothing_is_asked(line: Line) -> None:
    line.ws.transport.abort()
    assert not Outlet(line.ws).aside(framed(b"no"))
    await line.ws.wait_closed()
    assert not Outlet(line.ws).aside(framed(b"no"))
