"""A connection to an engine, as far as this worker needs the SDK.

What is private to the SDK (0.25) is used here and in `quick` and nowhere else.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import time
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

from iii import InitOptions, InvocationError, RegistrationRejectedError
from iii.iii_constants import ReconnectionConfig
from iii.iii_types import InvocationResultMessage
from iii.invocation_context import current_invocation
from iii.triggers import TriggerHandler

from session_manager.edge.environment import go_straight, telemetry
from session_manager.edge.failures import GivenUp, NameTaken, explained, no_answer
from session_manager.edge.quick import EarlyAnswer, QuickClient
from session_manager.edge.waiting import GLANCE, Pause, sleep, wait
from session_manager.model import JsonObject, decode, encode

__all__ = ["Client", "InvocationError", "TriggerHandler"]  # what of the SDK all others need

Handler = Callable[[Any], Awaitable[Any]]

RECONNECT = ReconnectionConfig(initial_delay_ms=250, max_delay_ms=5000)
"""An engine that restarts is found again within seconds; the SDK's own cap is 30 s."""

ANSWER = 10.0
"""Seconds in which something that listens must turn out to be an engine that knows this connection."""

PASSING = frozenset({"TIMEOUT", "function_not_found", "invocation_stopped", "SHUTDOWN"})
"""Codes of an InvocationError of which nobody is to blame who was called: the same call may succeed later."""

CLEANUP = 2.0
"""Seconds that what was given up may take to leave nothing behind."""


class Client:
    """One connection. Its handlers and listeners run on its event loop, `loop`."""

    def __init__(
        self,
        url: str,
        name: str,
        description: str,
        *,
        prepare: Callable[[Client], None] | None = None,
        pause: Pause = sleep,
    ) -> None:
        """Connects, in the namespace that the environment names. `prepare` registers what is to be there from the
        first moment on. Raises EngineError where no engine answers within `ANSWER`, and GivenUp where `pause` says
        so."""
        go_straight(url)
        self.url, self.name, self._pause = url, name, pause
        self.namespace = os.environ.get("III_NAMESPACE") or "default"
        options = InitOptions(
            worker_name=name,
            worker_description=description,
            otel={"enabled": telemetry()},
            reconnection_config=RECONNECT,
        )
        self._iii = QuickClient(url, options, quick=not telemetry())
        self.loop: asyncio.AbstractEventLoop = self._iii._loop
        try:
            if prepare is not None:
                prepare(self)
            self._iii.connect()
            self._wait_accepted()
        except BaseException:
            self.shutdown()
            raise

    def _wait_accepted(self) -> None:
        """Returns once the engine knows this connection by its name. Raises NameTaken or EngineError. The answer to a
        call proves nothing: it may come before the refusal of the name."""
        asked = {"name": self.name, "namespace": self.namespace}
        deadline = time.monotonic() + ANSWER
        while time.monotonic() < deadline:
            state = self._iii.get_connection_state()
            if state == "failed":
                raise NameTaken(self.name)
            if state == "connected":
                try:
                    known = self.call_blocking("engine::workers::info", asked, seconds=2.0)
                except InvocationError:
                    pass
                else:
                    if known["worker"]["id"] == self._iii.worker_id:
                        return
            self.wait(0.01)
        raise no_answer(self.url)

    # --- calls ---

    async def call(
        self,
        function_id: str,
        payload: Any,
        *,
        seconds: float = 30.0,
        namespace: str | None = None,
        metadata: JsonObject | None = None,
    ) -> Any:
        """Calls a function and returns its reply. Raises InvocationError or NameTaken. From any event loop."""
        request: JsonObject = {
            "function_id": function_id,
            "payload": payload,
            "timeout_ms": max(1, int(seconds * 1000)),
        }
        if namespace is not None:
            request["namespace"] = namespace
        if metadata is not None:
            request["metadata"] = metadata
        try:
            return await self._iii.trigger_async(request)
        except RegistrationRejectedError:
            raise NameTaken(self.name) from None

    async def deliver(
        self, function_id: str, payload: bytes, namespace: str, metadata: JsonObject | None, seconds: float
    ) -> None:
        """Calls a function with JSON text and waits for its answer. Raises when it cannot be reached."""
        if self._iii.is_quick:
            await self._iii.deliver(function_id, payload, namespace, metadata, seconds)
        else:
            await self.call(function_id, decode(payload), seconds=seconds, namespace=namespace, metadata=metadata)

    def call_blocking(self, function_id: str, payload: Any, *, seconds: float = 5.0) -> Any:
        """The same from the main thread."""
        return self.run(self.call(function_id, payload, seconds=seconds))

    def run(self, coroutine: Any) -> Any:
        """Runs a coroutine on the connection's event loop, from the main thread, and returns what it returns. Raises
        GivenUp, where it is told to end meanwhile; then the coroutine is cancelled."""
        tasks: list[Any] = []

        async def attended() -> Any:
            tasks.append(asyncio.current_task())
            return await coroutine

        result = asyncio.run_coroutine_threadsafe(attended(), self.loop)
        try:
            while not concurrent.futures.wait((result,), GLANCE).done:
                self.wait(0)
        except GivenUp:
            self.loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            concurrent.futures.wait((result,), CLEANUP)
            raise
        return result.result()

    def wait(self, seconds: float) -> None:
        """Waits so many seconds, or less, for the engine. Raises GivenUp when it is told to end."""
        wait(self._pause, seconds, str(no_answer(self.url)))

    async def alone(self) -> None:
        """On the connection's loop: waits until it has heard of every change whose answer has left. No other leaves
        before what the caller does next without waiting."""
        await self._iii.alone()

    # --- registrations ---

    def register_function(
        self,
        function_id: str,
        handler: Handler,
        description: str,
        metadata: JsonObject,
        request: Any,
        response: Any,
        early: EarlyAnswer | None = None,
    ) -> None:
        """`early` is the handler once more, for calls whose answer may leave early."""
        self._iii.register_function(
            function_id,
            self._answering(function_id, handler),
            description=description,
            metadata=metadata,
            request_format=request,
            response_format=response,
            local_dispatch=False,
        )
        self._iii.answer(function_id, handler, early)

    def _answering(self, function_id: str, handler: Handler) -> Handler:
        """The handler for when calls go the SDK's own way."""

        async def answer(data: Any) -> Any:
            try:
                return decode(encode(await handler(data)))
            except Exception as error:
                await self._answer_error(function_id, *explained(error, function_id))
            return None

        return answer

    async def _answer_error(self, function_id: str, code: str, message: str) -> None:
        """Answers the running invocation; the engine drops the second answer that the SDK will send."""
        invocation = current_invocation()
        assert invocation is not None
        await self._iii._send(
            InvocationResultMessage(
                invocation_id=invocation.invocation_id,
                function_id=function_id,
                error={"code": code, "message": message},
            )
        )

    def register_trigger_type(
        self, id_: str, description: str, config: JsonObject, payload: JsonObject | None, handler: TriggerHandler[Any]
    ) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self._iii.register_trigger_type(
                {
                    "id": id_,
                    "description": description,
                    "trigger_request_format": config,
                    "call_request_format": payload,
                },
                handler,
            )

    def bind(self, trigger_type: str, function_id: str, config: JsonObject) -> Callable[[], None]:
        """Binds a function of this connection, now and after every reconnect. Returns what ends that."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            trigger = self._iii.register_trigger({"type": trigger_type, "function_id": function_id, "config": config})
        end: Callable[[], None] = trigger.unregister
        return end

    # --- life ---

    def on_state(self, listener: Callable[[str], None]) -> None:
        """`connected`, `disconnected`, `reconnecting`, `failed`: called on the connection's loop at every change from
        now on. The SDK also tells the present state, here and now, which is no change."""
        present = True

        def changed(state: str) -> None:
            if not present:
                listener(state)

        self._iii.add_connection_state_listener(changed)
        present = False

    def shutdown(self) -> None:
        """Closes the connection and ends its thread. From another thread."""
        self._iii.shutdown()
        if not self.loop.is_running():
            self.loop.close()  # the SDK leaves it, with its sockets
