"""A shorter way through the SDK for this worker's own calls and deliveries.

The SDK (0.25) spends some 100 us of CPU on a call with telemetry off: it decodes and encodes with `json`, copies every
payload to look for channel references, builds pydantic messages, and encodes an event once per subscriber. The frames
of the functions registered here are taken off before that: read and written with msgspec, stored JSON going into a
reply as it is. It also is the only way for a handler to answer with an error without a traceback and file paths.

It leans on what is private to the SDK: `_loop`, `_receive_loop`, `_handle_message`, `_set_connection_state`, `_ws`,
`_send_json` and `_engine_features` of `iii.III`; and on how a connection of websockets (14 to 17) is made:
`process_event`, `protocol`, `transport`, `send_data` and `drain`. Tests hold it to what is installed. With an engine
that knows observers, or with telemetry on, everything goes the SDK's own way.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from iii.iii import III
from iii.iii_constants import InitOptions
from websockets.exceptions import ConnectionClosed
from websockets.frames import Opcode
from websockets.protocol import State

from session_manager.edge.failures import Undelivered, explained
from session_manager.edge.frames import (
    AGAIN,
    FAREWELL,
    FRAME_BYTES,
    MESSAGE_BYTES,
    Frame,
    answer_head,
    failure,
    invocation,
    new_id,
    result,
)
from session_manager.model import JsonObject, decode, encode

Answer = Callable[[Any], Awaitable[Any]]
"""Takes the decoded payload and returns what msgspec can encode. Raises SessionManagerError for the caller."""

SOON, SOON_ALONE = 0.002, 0.0005
"""The engine files a call after it has sent it, and drops an answer that is back before that: the work is done and the
caller runs into its time-out. One immediate answer in 12,000 was lost so, and of pages of 19 KB, sixteen in flight, one
in 9,000. An answer that took less than `SOON` seconds, or `SOON_ALONE` where no other call was in hand lately, is
therefore sent once more, `AGAIN` seconds later; of two answers the first counts."""

SMALL, LARGE, AMONG = 16 << 10, 256 << 10, 0.05
"""Reading an answer twice costs the engine, so one of more than `SMALL` bytes is held back until `SOON` instead where
several calls were in hand at a time during the last `AMONG` seconds. Alone it is sent again up to `LARGE`: on a quiet
machine none of 14,000 pages was lost, with other programs about one in a thousand. Reading more than that takes the
engine longer than filing the call."""

CROWDED, SOON_IN_A_CROWD, GLANCE = 1.5, 0.05, 1.0
"""Where so many times more wants to run than there are processors, the engine is stopped between the two for longer
(one answer in 24,000 was lost at 3.5 times, though it took more than `SOON`); so answers that took up to
`SOON_IN_A_CROWD` seconds count as too soon there. The load is looked at every `GLANCE` seconds."""

RESEND = 0.01
"""Seconds before a delivery is tried again that met a broken connection."""


class _Crowd:
    """How soon an answer is too soon at present."""

    def __init__(self) -> None:
        self._crowded, self._looked = False, -GLANCE

    def soon(self, now: float, among: bool) -> float:
        if now - self._looked >= GLANCE:
            self._looked = now
            self._crowded = os.getloadavg()[0] > CROWDED * (os.cpu_count() or 1)
        if self._crowded:
            return SOON_IN_A_CROWD
        return SOON if among else SOON_ALONE


_read_frame = msgspec.json.Decoder(Frame).decode


class QuickClient(III):
    """The SDK's client. Everything runs on its event loop."""

    def __init__(self, address: str, options: InitOptions, *, quick: bool = True) -> None:
        self._quick = quick
        self._crowd, self._among = _Crowd(), 0.0
        self._answers: dict[str, Answer] = {}
        self._unanswered: dict[str, asyncio.Future[Frame]] = {}
        self._answering: set[asyncio.Task[Any]] = set()
        self._repeating: set[asyncio.Task[Any]] = set()
        self._flushing: Any = None
        """The connection on which something was said in this turn of the event loop that is about to go out."""
        self._opened = asyncio.Event()
        self._may_connect = asyncio.Event()
        self._connecting: asyncio.Task[Any] | None = None
        super().__init__(address, options)

    def connect(self) -> None:
        """Begins to open the connection, for the first time. What was registered before is known to the engine together
        with the name: nobody meets a worker that has none of its functions yet."""
        self._loop.call_soon_threadsafe(self._may_connect.set)

    @property
    def is_quick(self) -> bool:
        """Whether frames go the short way at present."""
        return self._quick and not self._engine_features

    def answer(self, function_id: str, answer: Answer) -> None:
        """Takes the calls of a function that is registered with the SDK as well."""
        self._answers[function_id] = answer

    async def deliver(
        self, function_id: str, payload: bytes, namespace: str, metadata: JsonObject | None, seconds: float
    ) -> None:
        """Calls a function with JSON that is already encoded and waits for its answer, whatever that is. While the
        connection is down it waits for it, and sends again what was unanswered when it broke. Raises Undelivered."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    await self._opened.wait()
                    try:
                        frame = await self._exchange(function_id, payload, namespace, metadata)
                        break
                    except _Broken:
                        await asyncio.sleep(RESEND)  # the connection is there, but it has just failed
        except TimeoutError:
            raise Undelivered("TIMEOUT") from None
        code = frame.code()
        if code in ("function_not_found", "invocation_stopped", "INVALID_NAMESPACE", "FORBIDDEN"):
            raise Undelivered(code)  # while a subscriber that fails has been told all the same

    async def _exchange(self, function_id: str, payload: bytes, namespace: str, metadata: JsonObject | None) -> Frame:
        """The frame that answers a call. Raises _Broken."""
        invocation_id = new_id()
        answered: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._unanswered[invocation_id] = answered
        more = None if metadata is None else {"metadata": metadata}
        try:
            if not await self._send_frame(invocation(invocation_id, function_id, namespace, payload, more)):
                raise _Broken
            return await answered
        finally:
            self._unanswered.pop(invocation_id, None)

    # --- what the SDK calls ---

    async def connect_async(self) -> None:
        self._connecting = asyncio.current_task()
        await self._may_connect.wait()
        await super().connect_async()

    async def shutdown_async(self) -> None:
        """An engine that hangs takes no connection, no close frame, nor what was to be sent before."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        if self._ws is not None:
            self._loop.call_later(FAREWELL, self._ws.transport.abort)
        await super().shutdown_async()

    async def _receive_loop(self) -> None:
        """Frames that go the short way are taken as they leave the protocol, ahead of the queues between."""
        ws = self._ws
        if ws is not None and self._quick:
            onward, send_each = ws.process_event, ws.send_data

            def process(event: Any) -> None:
                if not (event.opcode is Opcode.TEXT and event.fin and self._took(event.data)):
                    onward(event)

            def send_data() -> None:
                """What was said goes out in one write, also where the connection itself lets it go out: it does
                whenever something arrives."""
                if ws.state is not State.OPEN:
                    send_each()  # which knows the end of a connection
                elif said := ws.protocol.data_to_send():
                    ws.transport.writelines(said)

            ws.process_event, ws.send_data = process, send_data
        await super()._receive_loop()

    async def _handle_message(self, raw: str | bytes) -> None:
        if not self._took(raw):
            await super()._handle_message(raw)

    def _took(self, raw: str | bytes) -> bool:
        """Whether the frame goes the short way, and is on it."""
        frame = self._frame(raw)
        if frame is None or frame.invocation_id is None:
            return False
        if frame.type == "invokefunction":
            answer = self._answers.get(frame.function_id or "")
            if answer is not None:
                task = self._loop.create_task(self._answer(answer, frame))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
                return True
        elif frame.type == "invocationresult":
            answered = self._unanswered.get(frame.invocation_id)
            if answered is not None:
                if not answered.done():
                    answered.set_result(frame)
                return True
        return False

    def _frame(self, raw: str | bytes) -> Frame | None:
        """The frame, if it may go the short way."""
        if not self.is_quick:
            return None
        try:
            return _read_frame(raw)
        except msgspec.MsgspecError:
            return None  # whatever it is, the SDK knows what to make of it

    def _set_connection_state(self, state: Any) -> None:
        if state == "connected":
            self._opened.set()
        else:
            self._opened.clear()
            for answered in self._unanswered.values():
                if not answered.done():
                    answered.set_exception(_Broken())
        super()._set_connection_state(state)

    # --- answers ---

    async def _answer(self, answer: Answer, frame: Frame) -> None:
        began = time.monotonic()
        if len(self._answering) > 1:
            self._among = began + AMONG
        head = answer_head(frame)
        try:
            reply = head + result(encode(await answer(decode(frame.data))))
            if len(reply) > MESSAGE_BYTES:
                reply = head + failure(
                    "payload_too_large", f"the reply has {len(reply)} bytes, more than the engine takes"
                )
        except Exception as error:
            reply = head + failure(*explained(error, frame.function_id))
        now = time.monotonic()
        among = now < self._among
        early = self._crowd.soon(now, among) - (now - began)
        twice = len(reply) <= (SMALL if among else LARGE)
        if early > 0 and among and not twice:
            await asyncio.sleep(early)
        await self._send_frame(reply)
        if early > 0 and twice:
            asyncio.get_running_loop().call_later(AGAIN, self._say_again, reply)

    def _say_again(self, reply: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._send_frame(reply))
        self._repeating.add(task)
        task.add_done_callback(self._repeating.discard)

    async def _send_frame(self, frame: bytes) -> bool:
        """False when there is no connection: then nobody waits for an answer any more."""
        ws = self._ws
        if ws is None or ws.state is not State.OPEN:
            return False
        try:
            if len(frame) > FRAME_BYTES or ws.protocol.expect_continuation_frame:
                await self._send_json(ws, frame.decode())
            else:  # what `send` does, without the half of its cost that is for a close at the same time
                ws.protocol.send_text(frame)
                if len(self._answering) + len(self._unanswered) > 1:
                    self._flush_soon(ws)
                else:
                    ws.send_data()
                await ws.drain()
        except (ConnectionError, ConnectionClosed):
            return False
        return True

    def _flush_soon(self, ws: Any) -> None:
        """Lets what else is said in this turn of the event loop go out with it: a write costs more than it says."""
        if self._flushing is not ws:
            self._flushing = ws
            self._loop.call_soon(self._flush, ws)

    def _flush(self, ws: Any) -> None:
        self._flushing = None
        if ws.state is State.OPEN and not ws.transport.is_closing():  # else its end has sent it, or nothing can
            ws.send_data()


class _Broken(Exception):
    """The connection went away while an answer was awaited."""
