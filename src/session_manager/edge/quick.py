"""A shorter way through the SDK for this worker's own calls and deliveries.

The SDK (0.25) spends some 100 us of CPU on a call with telemetry off: it decodes and encodes with `json`, copies every
payload to look for channel references, builds pydantic messages, and encodes an event once per subscriber. The frames
of the functions registered here are taken off before that: read and written with msgspec, stored JSON going into a
reply as it is. It also is the only way for a handler to answer with an error without a traceback and file paths.

It leans on what is private to the SDK: `_loop`, `_receive_loop`, `_handle_message`, `_set_connection_state`, `_ws`,
`_send_json` and `_engine_features` of `iii.III`; and, with `outlet`, on how a connection of websockets (14 to 17) is
made: `process_event`, `protocol`, `transport`, `connection_lost`, `send_data` and `drain`. Tests hold it to what is
installed. With an engine that knows observers, or with telemetry on, everything goes the SDK's own way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
from iii.iii import III
from iii.iii_constants import InitOptions
from websockets.exceptions import ConnectionClosed
from websockets.frames import Opcode
from websockets.protocol import State

from session_manager.edge.failures import Undelivered, explained
from session_manager.edge.frames import (
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
from session_manager.edge.haste import AMONG, LARGE, SMALL, Again, Crowd
from session_manager.edge.outlet import Early, Outlet
from session_manager.model import JsonObject, decode, encode

Answer = Callable[[Any], Awaitable[Any]]
"""Takes the decoded payload and returns what msgspec can encode. Raises SessionManagerError for the caller."""


class EarlyAnswer(Protocol):
    """The same, with a way for what it is about to return to leave before."""

    async def __call__(self, payload: Any, /, *, early: Early) -> Any: ...


HEARD = 5.0
"""Most seconds that calls wait for one whose answer has left before them. It is at its end."""

RESEND = 0.01
"""Seconds before a delivery is tried again that met a broken connection."""


_read_frame = msgspec.json.Decoder(Frame).decode


class QuickClient(III):
    """The SDK's client. Everything runs on its event loop."""

    def __init__(self, address: str, options: InitOptions, *, quick: bool = True) -> None:
        self._quick = quick
        self._crowd, self._among, self._again = Crowd(), 0.0, Again(self._say_again)
        self._answers: dict[str, tuple[Answer, EarlyAnswer | None]] = {}
        self._unanswered: dict[str, asyncio.Future[Frame]] = {}
        self._answering: set[asyncio.Task[Any]] = set()
        self._repeating: set[asyncio.Task[Any]] = set()
        self._outlet: Outlet | None = None
        self._early: Early | None = None
        """Of the call that was alone when it came."""
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

    def answer(self, function_id: str, answer: Answer, early: EarlyAnswer | None = None) -> None:
        """Takes the calls of a function that is registered with the SDK as well; with `early`, where there is one, each
        that comes while no other is in hand."""
        self._answers[function_id] = answer, early

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
        self._again.end()
        if self._repeating:
            await asyncio.wait(self._repeating, timeout=FAREWELL)
        await super().shutdown_async()

    async def _receive_loop(self) -> None:
        """Frames that go the short way are taken as they leave the protocol, ahead of the queues between."""
        ws = self._ws
        if ws is not None and self._quick:
            onward, lost = ws.process_event, ws.connection_lost
            outlet = self._outlet = Outlet(ws)

            def process(event: Any) -> None:
                if not (event.opcode is Opcode.TEXT and event.fin and self._took(event.data)):
                    onward(event)

            def connection_lost(reason: Exception | None) -> None:
                outlet.lost()
                lost(reason)

            ws.process_event, ws.connection_lost, ws.send_data = process, connection_lost, outlet.send_data
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
            answers = self._answers.get(frame.function_id or "")
            if answers is not None:
                task = self._loop.create_task(self._answer(*answers, frame))
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

    async def _answer(self, answer: Answer, early_answer: EarlyAnswer | None, frame: Frame) -> None:
        began = time.monotonic()
        head = answer_head(frame)
        early: Early | None = None
        await self._heard(self._early)
        if len(self._answering) > 1:
            self._among = began + AMONG
        elif early_answer is not None and self._outlet is not None:
            early = self._early = Early(self._outlet, head)
            answer = partial(early_answer, early=early)
        try:
            reply = head + result(encode(await answer(decode(frame.data))))
            if len(reply) > MESSAGE_BYTES:
                reply = head + failure(
                    "payload_too_large", f"the reply has {len(reply)} bytes, more than the engine takes"
                )
        except Exception as error:
            reply = head + failure(*explained(error, frame.function_id))
        finally:
            if early is not None:
                self._early = None
        left_at = None if early is None else early.left_at
        if early is not None and left_at is not None:
            reply = early.answer
        now = left_at or time.monotonic()
        among = now < self._among
        rush = self._crowd.soon(now, among) - (now - began)
        twice = len(reply) <= (SMALL if among else LARGE)
        if left_at is None:
            if rush > 0 and among and not twice:
                await asyncio.sleep(rush)
            await self._send_frame(reply)
        if rush > 0 and twice:
            self._again.add(reply)

    async def _heard(self, early: Early | None) -> None:
        """Waits until the event loop has heard of a change whose answer has left early, for that may be why there is
        something to do now."""
        if early is not None and early.left_at is not None:
            await asyncio.wait({early.task}, timeout=HEARD)

    async def alone(self) -> None:
        """Waits as well, and keeps an answer that is about to leave from leaving early."""
        early = self._early
        if early is not None and not early.stay():
            await self._heard(early)

    def _say_again(self, replies: Sequence[bytes]) -> None:
        async def say() -> None:
            for reply in replies:
                await self._send_frame(reply)

        task = asyncio.get_running_loop().create_task(say())
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
                if self._repeating or len(self._answering) + len(self._unanswered) > 1:
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
