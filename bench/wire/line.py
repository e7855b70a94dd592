"""A lean client: one connection to an engine, frames encoded beforehand, replies met in callbacks. What is measured
with it is the engine and who answers, and as little as possible of this process."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw, Struct
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

encode = msgspec.json.Encoder().encode


class Incoming(Struct):
    type: str
    invocation_id: str | None = None
    function_id: str | None = None
    data: Raw = Raw(b"null")
    result: Raw = Raw(b"null")
    error: Raw = Raw(b"")


_read = msgspec.json.Decoder(Incoming).decode

Handler = Callable[[str, bytes], bytes]
"""Takes a function id and its payload and returns the JSON of the result."""


class Refused(Exception):
    """The call was answered with an error."""


class Line(asyncio.Protocol):
    def __init__(self, url: str, name: str, handler: Handler | None = None) -> None:
        self._url, self._name, self._handler = url, name, handler
        self._ws = ClientProtocol(parse_uri(url), max_size=None)
        self._parts: list[bytes] = []
        self._waiting: dict[str, Callable[[Incoming], None]] = {}
        self._numbers = itertools.count(1)
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self) -> Line:
        uri = parse_uri(self._url)
        await asyncio.get_running_loop().create_connection(lambda: self, uri.host, uri.port)
        await asyncio.wait_for(self._opened, 10)
        who = {"runtime": "python", "version": "0", "name": self._name, "os": "", "pid": os.getpid()}
        who |= {"isolation": None, "namespace": None}
        self.write(
            encode(
                {
                    "type": "invokefunction",
                    "function_id": "engine::workers::register",
                    "action": {"type": "void"},
                    "data": who,
                }
            )
        )
        await self.call("engine::functions::list", {})
        return self

    def close(self) -> None:
        self._ws.send_close(1000)
        self._flush()
        self._transport.close()

    # --- asyncio's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._ws.send_request(self._ws.connect())
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._ws.receive_data(data)
        for event in self._ws.events_received():
            if isinstance(event, Response):
                self._opened.set_result(None)
            elif isinstance(event, Frame):
                self._frame(event)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        for waiting in list(self._waiting.values()):
            waiting(Incoming("invocationresult", error=Raw(b'{"code":"closed"}')))

    def _frame(self, frame: Frame) -> None:
        if frame.opcode not in (Opcode.TEXT, Opcode.CONT, Opcode.BINARY):
            return
        whole: bytes | bytearray | memoryview = frame.data
        if self._parts or not frame.fin:
            self._parts.append(bytes(frame.data))
            if not frame.fin:
                return
            whole = b"".join(self._parts)
            self._parts.clear()
        message = _read(whole)
        if message.type == "invocationresult":
            waiting = self._waiting.pop(message.invocation_id or "", None)
            if waiting is not None:
                waiting(message)
        elif message.type == "invokefunction" and self._handler is not None:
            result = self._handler(message.function_id or "", bytes(message.data))
            if message.invocation_id is not None:
                self._ws.send_text(
                    b'{"type":"invocationresult","invocation_id":"%b","function_id":"%b","result":%b}'
                    % (message.invocation_id.encode(), (message.function_id or "").encode(), result)
                )

    def _flush(self) -> None:
        data = self._ws.data_to_send()
        if data:
            self._transport.write(b"".join(data))

    def write(self, text: bytes) -> None:
        self._ws.send_text(text)
        self._flush()

    # --- calls ---

    def send(self, head: bytes, tail: bytes, answered: Callable[[Incoming], None]) -> None:
        """A frame in two parts with the invocation's id between them (see `frame`)."""
        invocation_id = f"00000000-0000-4000-8000-{next(self._numbers) & 0xFFFFFFFFFFFF:012x}"
        self._waiting[invocation_id] = answered
        self.write(head + invocation_id.encode() + tail)

    async def call(self, function_id: str, payload: Any, patience: float = 60.0) -> Any:
        """The result of one call. Raises Refused."""
        done: asyncio.Future[Incoming] = asyncio.get_running_loop().create_future()
        head, tail = frame(function_id, payload)
        self.send(head, tail, lambda message: None if done.done() else done.set_result(message))
        message = await asyncio.wait_for(done, patience)
        if message.error:
            raise Refused(f"{function_id}: {bytes(message.error).decode()[:300]}")
        return msgspec.json.decode(message.result)

    async def one_by_one(self, frames: Callable[[int], tuple[bytes, bytes]], count: int, pace: float = 0.0) -> Calls:
        """Each call after the reply of the one before, and not sooner than `pace` seconds after it was sent."""
        calls = Calls()
        loop = asyncio.get_running_loop()
        for index in range(count):
            head, tail = frames(index)
            done: asyncio.Future[None] = loop.create_future()

            def answered(message: Incoming, done: asyncio.Future[None] = done) -> None:
                if message.error:
                    calls.refuse(message)
                if not done.done():
                    done.set_result(None)

            start = time.monotonic_ns()
            calls.sent.append(start)
            self.send(head, tail, answered)
            try:
                await asyncio.wait_for(done, 10)
            except TimeoutError:
                calls.lost += 1
                continue
            end = time.monotonic_ns()
            calls.times.append((end - start) / 1e3)
            rest = pace - (end - start) / 1e9
            if pace and rest > 0:
                await asyncio.sleep(rest)
        return calls

    async def at_once(self, frames: Callable[[int], tuple[bytes, bytes]], count: int, in_flight: int) -> Calls:
        """So many calls, `in_flight` of them on their way at any time. The rate counts until the last reply."""
        calls = Calls()
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        prepared = [frames(index) for index in range(count)]
        prepared.reverse()
        started: dict[int, int] = {}
        left = count

        def go() -> None:
            if not prepared:
                return
            head, tail = prepared.pop()
            number = len(prepared)
            started[number] = time.monotonic_ns()
            self.send(head, tail, lambda message: answered(number, message))

        def answered(number: int, message: Incoming) -> None:
            nonlocal left
            now = time.monotonic_ns()
            calls.times.append((now - started.pop(number)) / 1e3)
            calls.last = now
            if message.error:
                calls.refuse(message)
            left -= 1
            if left == 0 and not finished.done():
                finished.set_result(None)
            go()

        cpu = time.process_time()
        begin = time.monotonic_ns()
        for _ in range(min(in_flight, count)):
            go()
        done = 0
        while not finished.done():
            await asyncio.wait({finished}, timeout=5)
            if not finished.done() and left == count - done:
                break  # five seconds without a reply: those are lost
            done = count - left
        calls.lost = left
        calls.elapsed = max(1e-9, (calls.last - begin) / 1e9)
        calls.cpu = (time.process_time() - cpu) / max(1, count)
        return calls


class Calls:
    """What became of a number of calls. Times are microseconds."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.sent: list[int] = []
        self.refused = self.lost = self.last = 0
        self.refusal = ""
        self.elapsed = self.cpu = 0.0

    def refuse(self, message: Incoming) -> None:
        self.refused += 1
        self.refusal = self.refusal or bytes(message.error).decode()[:300]

    @property
    def rate(self) -> float:
        return len(self.times) / self.elapsed


def frame(function_id: str, payload: Any) -> tuple[bytes, bytes]:
    """The two parts of a call; its id goes between them."""
    return (
        b'{"type":"invokefunction","invocation_id":"',
        b'","function_id":%b,"data":%b}' % (encode(function_id), encode(payload)),
    )
