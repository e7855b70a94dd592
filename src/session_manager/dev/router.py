"""What the engine does with each frame: calls to where they belong, answers to who waits for them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import structlog

from session_manager.dev import frames
from session_manager.dev.bindings import Binding, Bindings, Rejected, TriggerType
from session_manager.dev.registry import Connection, Function, Handler, Refused, Registry
from session_manager.dev.unkind import Disorder

log = structlog.get_logger(__name__)

Settle = Callable[[Any, frames.ErrorBody | None], None]
"""Takes the outcome of a call: its result, or why there is none."""

ENQUEUE_PROVIDER = "iii::queue::enqueue"

_BUFFERED = (
    frames.RegisterFunction,
    frames.UnregisterFunction,
    frames.RegisterTriggerType,
    frames.RegisterTrigger,
    frames.UnregisterTrigger,
    frames.RegisterService,
)


@dataclass(frozen=True)
class Invocation:
    """A call that runs on a worker."""

    settle: Settle
    runner: Connection


class Router:
    """Routes frames between connections. One event loop, no locks."""

    def __init__(self, registry: Registry, bindings: Bindings, disorder: Disorder) -> None:
        self.registry = registry
        self.bindings = bindings
        self.disorder = disorder
        #: Told of a connection's coming, naming and going.
        self.on_worker: Callable[[str, Connection], None] = lambda event, connection: None
        self._running: dict[str, Invocation] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # --- connections ---

    def connect(self, connection: Connection, grace_s: float) -> None:
        """Greet a new connection and wait `grace_s` for it to name its namespace."""
        self.registry.connections[connection.id] = connection
        connection.grace = asyncio.get_running_loop().call_later(
            grace_s, self.resolve, connection, frames.DEFAULT_NAMESPACE
        )
        connection.send(frames.WorkerRegistered(worker_id=connection.id, reattach_token=connection.token))
        self.on_worker("worker_connected", connection)

    def resolve(self, connection: Connection, namespace: str) -> None:
        """Fix a connection's namespace, once, and let its buffered registrations through in order."""
        if connection.grace is not None:
            connection.grace.cancel()
        if connection.namespace is not None or not connection.alive:
            return
        connection.namespace = namespace
        buffered, connection.buffer = connection.buffer, []
        for frame in buffered:
            self._dispatch(connection, frame)

    def disconnect(self, connection: Connection) -> None:
        """Clean up after a connection: calls it runs end as stopped, its bindings and types go. Repeatable."""
        if not connection.alive:
            return
        connection.alive = False
        if connection.grace is not None:
            connection.grace.cancel()
        self.registry.remove(connection)
        for invocation_id in self.disorder.shuffled(connection.invocations):
            stopped = self._running.pop(invocation_id, None)
            if stopped is not None:
                stopped.settle(None, frames.ErrorBody("invocation_stopped", "Invocation stopped"))
        connection.invocations.clear()
        self.bindings.remove(connection)
        self.on_worker("worker_disconnected", connection)

    def stop(self) -> None:
        """Give up what still runs inside the engine."""
        for task in self._tasks:
            task.cancel()

    # --- frames ---

    def receive(self, connection: Connection, frame: frames.Inbound) -> None:
        """Take a frame from a worker; registrations wait for the connection's namespace."""
        if connection.namespace is None and isinstance(frame, _BUFFERED):
            connection.buffer.append(frame)
        else:
            self._dispatch(connection, frame)

    def _dispatch(self, connection: Connection, frame: frames.Inbound) -> None:
        match frame:
            case frames.InvokeFunction():
                self._invoke(connection, frame)
            case frames.InvocationResult():
                self._answer(connection, frame)
            case frames.RegisterFunction():
                self._register_function(connection, frame)
            case frames.UnregisterFunction():
                self.registry.unregister(connection, frame.id)
            case frames.RegisterTriggerType():
                self._register_type(connection, frame)
            case frames.RegisterTrigger():
                self._bind(connection, frame)
            case frames.UnregisterTrigger():
                self.bindings.unbind(frame.id)
            case frames.TriggerRegistrationResult():
                self._acknowledge(connection, frame)
            case frames.Reattach():
                self._reattach(connection, frame)
            case frames.Ping():
                connection.send(frames.Pong())
            case _:
                pass

    # --- calls ---

    def _invoke(self, caller: Connection, frame: frames.InvokeFunction) -> None:
        waits = None if isinstance(frame.action, frames.VoidAction) else frame.invocation_id

        def settle(result: Any, error: frames.ErrorBody | None) -> None:
            if waits is None:
                return
            answer = frames.InvocationResult(waits, frame.function_id, result, error, frame.traceparent, frame.baggage)
            caller.invocations.discard(waits)
            self.disorder.soon(lambda: caller.send(answer))

        if frames.blank(frame.namespace):
            settle(None, frames.ErrorBody("INVALID_NAMESPACE", blank_message("namespace")))
            return
        if isinstance(frame.action, frames.EnqueueAction):
            missing = f"Function {ENQUEUE_PROVIDER} not found in namespace {frames.DEFAULT_NAMESPACE}"
            settle(None, frames.ErrorBody("enqueue_error", f"No queue provider is installed. (underlying: {missing})"))
            return
        data = frame.data
        if isinstance(data, dict):
            data = {**data, "_caller_worker_id": caller.id}
        invocation_id = waits or str(uuid.uuid4())

        def start() -> None:
            try:
                function = self.find(frame.namespace, frame.function_id)
            except Refused as refusal:
                settle(None, refusal.body)
                return
            if waits is not None:
                caller.invocations.add(waits)
            self._run(function, caller, invocation_id, data, frame, settle)

        self.disorder.soon(start)

    def find(self, namespace: str | None, function_id: str) -> Function:
        """The function of that id in exactly that namespace (`default` for None); raises Refused."""
        place = namespace or frames.DEFAULT_NAMESPACE
        function = self.registry.functions.get((place, function_id))
        if function is None:
            known = self.registry.namespaces_of(function_id)
            hint = f" It is registered in namespace(s): {', '.join(known)}." if known else ""
            raise Refused("function_not_found", f"Function {function_id} not found in namespace {place}.{hint}")
        return function

    def call(self, namespace: str, function_id: str, data: Any, metadata: Any = None) -> asyncio.Future[Any]:
        """Call a function on the engine's own behalf; the future raises Refused."""
        outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def settle(result: Any, error: frames.ErrorBody | None) -> None:
            if outcome.done():
                return
            if error is None:
                outcome.set_result(result)
            else:
                outcome.set_exception(Refused(error.code, error.message))

        def start() -> None:
            function = self.registry.functions.get((namespace, function_id))
            if function is None:
                missing = f"Function {function_id} not found in namespace {namespace}"
                settle(None, frames.ErrorBody("function_not_found", missing))
                return
            frame = frames.InvokeFunction(function_id=function_id, data=data, metadata=metadata)
            self._run(function, None, str(uuid.uuid4()), data, frame, settle)

        self.disorder.soon(start)
        return outcome

    def tell(self, namespace: str, function_id: str, data: Any, metadata: Any = None) -> None:
        """Call a function on the engine's own behalf and forget what becomes of it."""
        self.call(namespace, function_id, data, metadata).add_done_callback(lambda done: done.exception())

    def _run(
        self,
        function: Function,
        caller: Connection | None,
        invocation_id: str,
        data: Any,
        frame: frames.InvokeFunction,
        settle: Settle,
    ) -> None:
        if function.owner is None:
            assert function.handler is not None
            self._spawn(_answer_by(function.handler, data, caller, settle))
            return
        self._running[invocation_id] = Invocation(settle, function.owner)
        function.owner.invocations.add(invocation_id)
        function.owner.send(
            frames.InvokeFunction(
                function_id=function.id,
                data=data,
                invocation_id=invocation_id,
                metadata=frame.metadata,
                traceparent=frame.traceparent,
                baggage=frame.baggage,
            )
        )

    def _answer(self, worker: Connection, frame: frames.InvocationResult) -> None:
        worker.invocations.discard(frame.invocation_id)
        if self.disorder.loses_reply():
            return
        invocation = self._running.pop(frame.invocation_id, None)
        if invocation is None:
            return
        invocation.runner.invocations.discard(frame.invocation_id)
        invocation.settle(None if frame.error else frame.result, frame.error)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- registrations ---

    def _register_function(self, worker: Connection, frame: frames.RegisterFunction) -> None:
        reserved = frame.id.startswith("engine::") and worker.home != frames.DEFAULT_NAMESPACE
        owner_id = ""
        if not reserved:
            owner = self.registry.register(
                Function(
                    id=frame.id,
                    namespace=worker.home,
                    owner=worker,
                    description=frame.description,
                    request_format=frame.request_format,
                    response_format=frame.response_format,
                    metadata=frame.metadata,
                )
            )
            if owner is None:
                return
            owner_id = owner.id
        worker.send(
            frames.RegistrationRejected(
                code="FUNCTION_NAMESPACE_CONFLICT",
                namespace=worker.home,
                function_id=frame.id,
                owner_worker_id=owner_id,
            )
        )

    def _register_type(self, worker: Connection, frame: frames.RegisterTriggerType) -> None:
        if frames.blank(frame.namespace):
            log.error("a trigger type with an empty namespace is ignored", trigger_type=frame.id)
            return
        self.bindings.register_type(
            TriggerType(
                id=frame.id,
                namespace=frame.namespace or worker.home,
                description=frame.description,
                provider=worker,
                request_format=frame.trigger_request_format,
                call_format=frame.call_request_format,
            )
        )

    def _bind(self, worker: Connection, frame: frames.RegisterTrigger) -> None:
        for field in ("namespace", "trigger_namespace"):
            if frames.blank(getattr(frame, field)):
                _tell_failed(worker, frame, frames.ErrorBody("INVALID_NAMESPACE", blank_message(field)))
                return
        binding = Binding(
            id=frame.id,
            trigger_type=frame.trigger_type,
            function_id=frame.function_id,
            config=frame.config,
            metadata=frame.metadata,
            owner=worker,
            namespace=frame.namespace or frames.DEFAULT_NAMESPACE,
            trigger_namespace=frame.trigger_namespace,
            home=worker.home,
        )
        try:
            self.bindings.bind(binding)
        except Rejected as error:
            _tell_failed(worker, frame, frames.ErrorBody("trigger_registration_failed", str(error)))

    def _acknowledge(self, provider: Connection, frame: frames.TriggerRegistrationResult) -> None:
        rejected = self.bindings.acknowledge(provider, frame)
        if rejected is not None and rejected.owner is not None and frame.error is not None:
            _tell_failed(rejected.owner, rejected, frame.error)

    def _reattach(self, connection: Connection, frame: frames.Reattach) -> None:
        old = self.registry.connections.get(frame.previous_worker_id)
        if old is None or old is connection or frame.reattach_token != old.token:
            return
        self.disconnect(old)
        old.peer.abort()


def blank_message(field: str) -> str:
    """What a namespace that was named and left empty is answered with."""
    return (
        f"`{field}` is empty: it was named and left blank. Give it a name, or omit it to use "
        f"`{frames.DEFAULT_NAMESPACE}`."
    )


def _tell_failed(owner: Connection, binding: frames.RegisterTrigger | Binding, error: frames.ErrorBody) -> None:
    owner.send(frames.TriggerRegistrationResult(binding.id, binding.trigger_type, binding.function_id, error))


async def _answer_by(handler: Handler, data: Any, caller: Connection | None, settle: Settle) -> None:
    try:
        result = await handler(data, caller)
    except Refused as refusal:
        settle(None, refusal.body)
    except Exception as error:
        log.exception("a function of the engine failed")
        settle(None, frames.ErrorBody("invocation_error", str(error)))
    else:
        settle(result, None)
