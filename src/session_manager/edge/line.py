"""A connection to an engine that lives on the event loop of whoever opened it.

The SDK's client has a thread and an event loop of its own, so a call on it crosses from the caller's thread to that one
and the answer crosses back, which costs more than everything else in a small call. A line has the engine's protocol in
short instead: it calls functions, serves a few and binds them, under a name of its own that no environment variable
changes. What a line is asked to do while there is no connection fails at once, and so do calls whose connection breaks;
nothing is kept to be sent later.
"""

from __future__ import annotations

import asyncio
import os
import platform
import random
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import structlog
from websockets.exceptions import WebSocketException

from session_manager import __version__
from session_manager.edge.environment import go_straight, telemetry
from session_manager.edge.failures import (
    DISCONNECTED,
    NameTaken,
    Undelivered,
    explained,
    no_answer,
    no_engine,
)
from session_manager.edge.frames import MESSAGE_BYTES, Frame, answer_head, failure, invocation, new_id, result
from session_manager.edge.websocket import Socket, connected
from session_manager.model import JsonObject, decode, encode

log = structlog.get_logger("session_manager.edge")

Handler = Callable[[bytes], Any]
"""Takes the JSON of a payload and returns, at once, what msgspec can encode. Raises SessionManagerError."""

PAUSE, LONGEST_PAUSE = 0.25, 5.0
"""Seconds between two attempts to connect: at first, and at most. A connection that lasted no longer than the latter
counts as a failed attempt."""

AGAIN = 0.02
"""Seconds after which an answer that may have come too soon for the engine is sent once more (see `haste`)."""

LOST = 0.5
"""Seconds after which a question is asked once more: its answer may have come too soon for the engine and be lost."""

CONFLICT = "FUNCTION_NAMESPACE_CONFLICT"


class _Incoming(Frame):
    worker_id: str | None = None
    reattach_token: str | None = None
    code_: str | None = msgspec.field(default=None, name="code")
    trigger_type: str | None = None


_read: Callable[[bytes], _Incoming] = msgspec.json.Decoder(_Incoming).decode


class Line:
    """One connection, made again whenever it broke. Everything runs on the event loop that `open` was called on."""

    def __init__(self, url: str, name: str, description: str, namespace: str = "default") -> None:
        self.url, self.name, self.namespace = url, name, namespace
        self._description = description
        self._socket: Socket | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._unanswered: dict[str, asyncio.Future[Frame | None]] = {}
        """None in place of an answer: the connection broke."""
        self._functions: dict[str, tuple[Handler, str]] = {}
        self._bindings: dict[str, JsonObject] = {}
        self._listeners: list[Callable[[bool], None]] = []
        self._identity: tuple[str, str | None] | None = None
        self._previous: tuple[str, str | None] | None = None
        """The worker id that the engine gave, with the token that proves it: of this connection and of the last."""
        self._refused = False
        self._traced = telemetry()

    # --- life ---

    async def open(self, seconds: float) -> None:
        """Returns once the engine knows the line by its name. Raises EngineError or NameTaken; then nothing is left."""
        go_straight(self.url)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        opened = await self._first(deadline)
        self._keeping = loop.create_task(self._keep(opened))
        try:
            await self._accepted(deadline)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            await asyncio.wait({keeping})

    @property
    def connected(self) -> bool:
        return self._socket is not None

    def on_state(self, listener: Callable[[bool], None]) -> None:
        """Is called with whether there is a connection, whenever that changes."""
        self._listeners.append(listener)

    async def _first(self, deadline: float) -> Socket:
        loop = asyncio.get_running_loop()
        while True:
            try:
                return await connected(self.url, self._take, self._expects, max(0.1, deadline - loop.time()))
            except Exception as error:
                if loop.time() > deadline:
                    raise no_engine(self.url, error) from None
                await asyncio.sleep(0.1)

    async def _accepted(self, deadline: float) -> None:
        """The answer to a call proves nothing: it may come before the refusal of the name."""
        loop = asyncio.get_running_loop()
        while loop.time() < deadline:
            if self._refused:
                raise NameTaken(self.name)
            try:
                asked = {"name": self.name, "namespace": self.namespace}
                known = await self.ask("engine::workers::info", asked, max(0.1, deadline - loop.time()))
            except Undelivered:
                known = None
            if known is not None and self._identity is not None and known["worker"]["id"] == self._identity[0]:
                return
            await asyncio.sleep(0.01)
        raise no_answer(self.url)

    async def _keep(self, opened: Socket | None) -> None:
        """Has a connection, from now on."""
        loop = asyncio.get_running_loop()
        pause = PAUSE
        try:
            while True:
                began = loop.time()
                if opened is not None:
                    self._attach(opened)
                    await opened.wait_closed()
                    self._detach()
                pause = PAUSE if loop.time() - began > LONGEST_PAUSE else pause
                await asyncio.sleep(pause * random.uniform(0.7, 1.3))  # noqa: S311 # nothing to guess here
                pause = min(2 * pause, LONGEST_PAUSE)
                opened = None
                try:
                    opened = await connected(self.url, self._take, self._expects, LONGEST_PAUSE)
                except Exception as error:  # whatever it is, the next attempt may do better
                    log.debug("no connection", engine=self.url, name=self.name, error=str(error))
        finally:
            self._detach()
            if opened is not None:
                await opened.close()

    def _attach(self, opened: Socket) -> None:
        """Introduces this line: first what it takes over from its last connection, and last its name, with which the
        engine takes everything in."""
        self._refused = False
        frames: list[JsonObject] = []
        if self._previous is not None:
            previous, token = self._previous
            frames.append({"type": "reattach", "previous_worker_id": previous, "reattach_token": token})
        for function_id, (_, description) in self._functions.items():
            frames.append(
                {
                    "type": "registerfunction",
                    "id": function_id,
                    "description": description,
                    "metadata": {"trace_hidden": True},
                    "request_format": {"type": "object"},
                    "response_format": {"type": "object"},
                }
            )
        frames += self._bindings.values()
        frames.append(
            {
                "type": "invokefunction",
                "function_id": "engine::workers::register",
                "action": {"type": "void"},
                "data": {
                    "runtime": "python",
                    "version": __version__,
                    "name": self.name,
                    "description": self._description,
                    "os": f"{platform.system()} {platform.release()} ({platform.machine()})",
                    "pid": os.getpid(),
                    "isolation": os.environ.get("III_ISOLATION") or None,
                    "namespace": self.namespace,
                },
            }
        )
        self._socket = opened
        for frame in frames:
            self._say(encode(frame))
        for listener in self._listeners:
            listener(True)

    def _detach(self) -> None:
        if self._socket is None:
            return
        self._socket = None
        self._previous, self._identity = self._identity or self._previous, None
        for answered in self._unanswered.values():
            if not answered.done():
                answered.set_result(None)
        for listener in self._listeners:
            listener(False)

    # --- calls ---

    async def call(
        self, function_id: str, payload: bytes, namespace: str, seconds: float, *, question: bool = False
    ) -> bytes:
        """Calls a function with JSON and returns the JSON of its result. A `question` changes nothing, so it may be
        asked twice. Raises Undelivered."""
        opened, loop = self._socket, asyncio.get_running_loop()
        if opened is None:
            raise Undelivered(DISCONNECTED)
        more = _trace() if self._traced else None
        invocation_id = new_id()
        frame = invocation(invocation_id, function_id, namespace, payload, more)
        if len(frame) > MESSAGE_BYTES:
            raise Undelivered("payload_too_large")
        answered: asyncio.Future[Frame | None] = loop.create_future()
        self._unanswered[invocation_id] = answered
        second: str | None = None

        def once_more() -> None:
            nonlocal second
            second = new_id()
            self._unanswered[second] = answered
            self._say(invocation(second, function_id, namespace, payload, more))

        timer = loop.call_later(LOST, once_more) if question else None
        try:
            async with asyncio.timeout(seconds):
                if opened.paused:
                    await opened.drain()  # what is given up while it waits here is never sent
                opened.put(frame)
                answer = await answered
        except TimeoutError:
            raise Undelivered("TIMEOUT") from None
        except (OSError, WebSocketException):
            raise Undelivered(DISCONNECTED) from None
        finally:
            del self._unanswered[invocation_id]
            if timer is not None:
                timer.cancel()
            if second is not None:
                del self._unanswered[second]
        code = DISCONNECTED if answer is None else answer.code()
        if answer is None or code is not None:
            raise Undelivered(code or DISCONNECTED)
        return bytes(answer.result)

    async def ask(self, function_id: str, payload: Any, seconds: float) -> Any:
        """A question to the engine itself, in plain values. Raises Undelivered."""
        return decode(await self.call(function_id, encode(payload), "default", seconds, question=True))

    # --- what is served ---

    def serve(self, function_id: str, handler: Handler, description: str) -> None:
        """Takes the calls of a function, now and after every reconnect. Before `open` only."""
        self._functions[function_id] = handler, description

    def bind(self, trigger_type: str, function_id: str) -> Callable[[], None]:
        """Binds a function of this line, now and after every reconnect. Returns what ends that."""
        id_ = str(uuid.uuid4())
        frame = {"id": id_, "trigger_type": trigger_type, "function_id": function_id, "config": {}}
        self._bindings[id_] = {"type": "registertrigger", **frame, "namespace": self.namespace}
        self._say(encode(self._bindings[id_]))

        def end() -> None:
            if self._bindings.pop(id_, None) is not None:
                self._say(encode({"type": "unregistertrigger", "id": id_, "trigger_type": trigger_type}))

        return end

    def _answer(self, frame: Frame) -> None:
        """Twice, for the engine may not have filed the call yet; of two answers the first counts."""
        handler, _ = self._functions.get(frame.function_id or "", (None, ""))
        try:
            if handler is None:
                tail = failure("function_not_found", "this worker does not serve it")
            else:
                tail = result(encode(handler(bytes(frame.data))))
        except Exception as error:
            tail = failure(*explained(error, frame.function_id))
        if frame.invocation_id is not None:
            self._say(answer_head(frame) + tail)
            asyncio.get_running_loop().call_later(AGAIN, self._say, answer_head(frame) + tail)

    # --- frames ---

    def _say(self, frame: bytes) -> None:
        """Sends a frame if there is a connection; nobody waits for it if there is none."""
        try:
            if self._socket is not None:
                self._socket.put(frame)
        except (OSError, WebSocketException):
            pass  # the connection is about to be found broken

    def _expects(self) -> bool:
        return any(not answered.done() for answered in self._unanswered.values())

    def _take(self, message: bytes) -> None:
        try:
            frame = _read(message)
            if frame.type == "invocationresult":
                answered = self._unanswered.get(frame.invocation_id or "")
                if answered is not None and not answered.done():
                    answered.set_result(frame)
            elif frame.type == "invokefunction":
                self._answer(frame)
            elif frame.type == "workerregistered" and frame.worker_id is not None:
                self._identity = frame.worker_id, frame.reattach_token
            elif frame.type == "registrationrejected":
                self._refused = self._refused or frame.code_ != CONFLICT
                log.warning("refused", name=self.name, code=frame.code_, function_id=frame.function_id)
            elif frame.type == "triggerregistrationresult" and bytes(frame.error) != b"null":
                log.warning("binding refused", name=self.name, trigger_type=frame.trigger_type, code=frame.code())
        except msgspec.MsgspecError:
            log.warning("a frame that cannot be read", name=self.name)
        except Exception:
            log.exception("a frame was not taken", name=self.name)


def _trace() -> JsonObject:
    """The trace that the call at hand belongs to."""
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return {key: carrier[key] for key in ("traceparent", "baggage") if key in carrier}
