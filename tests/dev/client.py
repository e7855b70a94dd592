"""A client that speaks the wire protocol frame by frame, so that tests see exactly what an engine sends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

Frame = dict[str, Any]

PATIENCE_S = 30.0
"""Far more than anything takes: who waits in vain for so long has found a fault."""


def unique(prefix: str) -> str:
    """An id no other test uses."""
    return f"{prefix}{uuid.uuid4().hex[:10]}"


class Failed(Exception):
    """A call was answered with an error."""

    def __init__(self, error: Frame) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: str = error["code"]
        self.message: str = error["message"]
        self.error = error


class Peer:
    """One raw connection. Everything the engine sends is kept in `frames`, in order."""

    def __init__(self, ws: ClientConnection) -> None:
        self._ws = ws
        self.frames: list[Frame] = []
        #: Answers to deliveries, by function id; a function without one stays silent.
        self.answers: dict[str, Callable[[Any], Any]] = {}
        self.closed = asyncio.Event()
        self._news = asyncio.Event()
        self._answering: list[asyncio.Task[None]] = []
        self._reader = asyncio.create_task(self._read())

    @property
    def close_code(self) -> int | None:
        return self._ws.close_code

    @property
    def worker_id(self) -> str:
        return str(self.frames[0]["worker_id"])

    async def _read(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            async for text in self._ws:
                frame = json.loads(text)
                self.frames.append(frame)
                if frame["type"] == "invokefunction" and frame["function_id"] in self.answers:
                    self._answering.append(asyncio.create_task(self._answer_soon(frame)))
                self._news.set()
        self.closed.set()
        self._news.set()

    async def _answer_soon(self, delivery: Frame) -> None:
        # The real engine files a call after it has sent it: an answer that comes sooner is lost.
        await asyncio.sleep(0.002)
        with contextlib.suppress(ConnectionClosed):
            await self.answer(delivery, result=self.answers[delivery["function_id"]](delivery["data"]))

    async def send(self, kind: str, **fields: Any) -> None:
        await self._ws.send(json.dumps({"type": kind, **fields}))

    async def send_raw(self, message: str | bytes | list[str]) -> None:
        """One message as it is; a list is one message in fragments."""
        await self._ws.send(message)

    async def send_at_once(self, messages: list[bytes]) -> None:
        """Several text messages, or what pretends to be text, in one write, so that the engine reads them together."""
        for message in messages:
            self._ws.protocol.send_text(message)
        self._ws.transport.write(b"".join(self._ws.protocol.data_to_send()))

    def stop_reading(self) -> None:
        """Let what the engine sends pile up."""
        self._ws.transport.pause_reading()

    def read_on(self) -> None:
        self._ws.transport.resume_reading()

    async def ping(self) -> None:
        await asyncio.wait_for(await self._ws.ping(), PATIENCE_S)

    async def close(self) -> None:
        await self._ws.close()
        await self._reader

    def cut(self) -> None:
        """Drop the socket without a close frame."""
        self._ws.transport.abort()

    # -- what a worker does

    async def claim(self, name: str, namespace: str | None = None, **more: Any) -> None:
        """Ask for a name, as the SDKs do: nobody answers."""
        data = {"runtime": "test", "version": "0", "name": name, "pid": 1, "namespace": namespace, **more}
        await self.send("invokefunction", function_id="engine::workers::register", action={"type": "void"}, data=data)

    async def introduce(self, name: str, namespace: str | None = None, **more: Any) -> None:
        """Name the worker and its namespace; it is known when this returns."""
        await self.claim(name, namespace, **more)
        await eventually(lambda: self._known(name, namespace))

    async def _known(self, name: str, namespace: str | None) -> bool:
        try:
            found = await self.call("engine::workers::info", {"name": name, "namespace": namespace or "default"})
        except Failed:
            return False
        return bool(found["worker"]["id"] == self.worker_id)

    async def register(self, function_id: str, answer: Callable[[Any], Any] | None = None, **more: Any) -> None:
        if answer is not None:
            self.answers[function_id] = answer
        await self.send("registerfunction", id=function_id, **more)

    async def provide(self, trigger_type: str, **more: Any) -> None:
        await self.send("registertriggertype", id=trigger_type, description="a test's", **more)

    async def bind(self, trigger_type: str, function_id: str, config: Any, **more: Any) -> str:
        binding_id = str(uuid.uuid4())
        await self.send(
            "registertrigger", id=binding_id, trigger_type=trigger_type, function_id=function_id, config=config, **more
        )
        return binding_id

    async def acknowledge(self, bound: Frame, error: Frame | None = None) -> None:
        fields = {key: bound[key] for key in ("id", "trigger_type", "function_id")}
        await self.send("triggerregistrationresult", **fields, **({"error": error} if error else {}))

    async def answer(self, delivery: Frame, **outcome: Any) -> None:
        fields = {key: delivery[key] for key in ("invocation_id", "function_id")}
        await self.send("invocationresult", **fields, **outcome)

    # -- what a client does

    async def start(self, function_id: str, data: Any, **more: Any) -> str:
        """Send a call and do not wait; returns its invocation id."""
        invocation_id = str(uuid.uuid4())
        await self.send("invokefunction", invocation_id=invocation_id, function_id=function_id, data=data, **more)
        return invocation_id

    async def result(self, invocation_id: str, seconds: float = PATIENCE_S) -> Frame:
        """The result frame of a call."""
        return await self.frame("invocationresult", seconds, invocation_id=invocation_id)

    async def call(self, function_id: str, data: Any, seconds: float = PATIENCE_S, **more: Any) -> Any:
        """The result of a call; raises Failed, and TimeoutError when there is no answer."""
        frame = await self.result(await self.start(function_id, data, **more), seconds)
        if "error" in frame:
            raise Failed(frame["error"])
        return frame.get("result")

    def seen(self, kind: str, **fields: Any) -> list[Frame]:
        """The frames that have arrived with that type and those fields."""
        return [frame for frame in self.frames if frame["type"] == kind and fields.items() <= frame.items()]

    async def frame(self, kind: str, seconds: float = PATIENCE_S, **fields: Any) -> Frame:
        """The first frame with that type and those fields, arrived or still to come; raises TimeoutError."""
        return (await self.several(1, kind, seconds, **fields))[0]

    async def several(self, count: int, kind: str, seconds: float = PATIENCE_S, **fields: Any) -> list[Frame]:
        """The frames with that type and those fields, once there are so many; raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while len(found := self.seen(kind, **fields)) < count:
                self._news.clear()
                if self.closed.is_set():
                    raise TimeoutError(f"the connection is closed ({self.close_code})")
                await self._news.wait()
        return found

    async def settled(self) -> None:
        """Return when the engine has taken every frame sent so far; calls and answers may still be on their way."""
        await self.call("engine::unregister_trigger", {"id": "none"})


@asynccontextmanager
async def peer(url: str) -> AsyncIterator[Peer]:
    """A connection that has been greeted."""
    async with connect(url, compression=None, max_size=None, ping_interval=None, proxy=None) as ws:
        one = Peer(ws)
        await one.frame("workerregistered")
        try:
            yield one
        finally:
            one.cut()
            await one.closed.wait()


async def eventually(check: Callable[[], Any], seconds: float = PATIENCE_S) -> Any:
    """The first true value of `check` (or of what it returns to be awaited), asked again and again."""
    async with asyncio.timeout(seconds):
        while True:
            value = check()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return value
            await asyncio.sleep(0.01)
