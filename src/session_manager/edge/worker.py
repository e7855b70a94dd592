"""The worker on an engine: connections, registrations, and an orderly end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

import structlog

from session_manager.bindings import TRIGGER_TYPES, Binding, BindingTable
from session_manager.clock import RandomIds, SystemClock
from session_manager.config import (
    DATA_DIR,
    InvalidConfiguration,
    base_directory,
)
from session_manager.delivery import Delivery, Parcel
from session_manager.dispatch import Service
from session_manager.edge.absence import Absence
from session_manager.edge.account import Account
from session_manager.edge.client import PASSING, Client, InvocationError
from session_manager.edge.configuration import ConfigurationEntry, Unavailable
from session_manager.edge.extras import ExtraFunction, Extras
from session_manager.edge.failures import EngineError, NameTaken
from session_manager.edge.ownership import check_free, check_ours
from session_manager.edge.runtimes import Runtimes
from session_manager.edge.subscriptions import Subscriptions
from session_manager.edge.waiting import Pause, probe, sleep, wait
from session_manager.errors import StorageError, Unready
from session_manager.functions import FUNCTIONS, Function
from session_manager.hub import Hub
from session_manager.model import JsonObject
from session_manager.outcome import Early
from session_manager.reload import Configurator
from session_manager.schema import function_schema, trigger_schema
from session_manager.store import Store
from session_manager.stores import where

log = structlog.get_logger("session_manager.worker")

DESCRIPTION = "Conversation database: typed entries in branching sessions, with every change pushed to subscribers."

DELIVERY_TIMEOUT = 30.0
"""Seconds after which a delivery counts as failed; until then it takes one of its binding's places."""

CALLS, STORE, DELIVERIES, ACCOUNT = 5.0, 6.5, 7.5, 8.0
"""Seconds from the beginning of the end by which each of its steps is through or given up. What one leaves of its time
is the next one's. The connections take another second at most."""

ANSWERS = 2.0
"""Most seconds that the end waits for the answers of subscribers, some of which run a whole agent turn first."""

T = TypeVar("T")


class Worker:
    """session-manager on one engine. `failed` is set when the engine has turned the connection down for good."""

    def __init__(
        self, url: str, name: str, seed: JsonObject | None, extras: Extras | None = None, pause: Pause = sleep
    ) -> None:
        self._url, self._name, self._seed, self._extras, self._pause = url, name, seed, extras or Extras(), pause
        self._clients: list[Client] = []
        self._tasks: list[concurrent.futures.Future[None]] = []
        self.failed = False
        self._bindings = BindingTable()
        self._absence = Absence()
        self._delivery = Delivery(self._send)
        self._hub = Hub(self._bindings, self._post)
        files, file = base_directory() / DATA_DIR, f"told-{quote(name, safe='')}"
        self._account = Account(self._hub, files / f"{file}.db", self._backlog, self._under_way)
        self._runtimes = Runtimes(url, name, self._account, files / f"{file}.intents")
        self._closing = False
        self._serving = asyncio.Event()

    # --- start ---

    def start(self) -> None:
        """Raises EngineError, InvalidConfiguration or StorageError, and GivenUp where `pause` says so; then nothing is
        left running."""
        try:
            self._start()
        except BaseException:
            self._end()
            raise

    def _start(self) -> None:
        try:
            self._deliveries = self._connected("-deliveries", "Deliveries of session-manager's events.")
        except NameTaken:
            raise NameTaken(self._name) from None
        check_free(self._deliveries, self._name)
        self._calls = self._connected("", DESCRIPTION, self._register_functions)
        check_ours(self._deliveries, self._name)
        self._subscriptions = Subscriptions(
            self._bindings, self._calls, self._deliveries, self._absence, self._delivery.forget
        )
        self._entry = ConfigurationEntry(self._calls, self._seed)
        self._calls.on_state(self._state)
        self._deliveries.on_state(self._deliveries_state)
        self._calls.run(self._open())
        self._register_trigger_types()
        self._calls.run(self._catch_up())
        self._calls.run(self._bindings_back())
        self._tasks = [
            asyncio.run_coroutine_threadsafe(_attended(task), self._calls.loop)
            for task in (self._account.keep(self._own_store), *(task(self._service) for task in self._extras.tasks))
        ]

    def _connected(self, suffix: str, description: str, prepare: Callable[[Client], None] | None = None) -> Client:
        client = Client(self._url, self._name + suffix, description, prepare=prepare, pause=self._pause)
        self._clients.append(client)
        return client

    async def _open(self) -> None:
        await self._account.open()
        try:
            await self._entry.register(again=self._account.past is not None)
            self._configurator = Configurator(self._entry.fetch, self._runtimes, self._account.tell_locally)
            runtime = await self._configurator.start()
        except InvocationError as error:
            kind = EngineError if error.code in PASSING else InvalidConfiguration
            raise kind(f"the configuration cannot be registered: {error}") from None
        except Unavailable as error:
            raise EngineError(str(error)) from None
        except InvalidConfiguration as error:
            raise InvalidConfiguration(f"the stored configuration is not valid: {error}") from None
        self._service = Service(runtime, SystemClock(), RandomIds(), self._configurator)
        self._configurator.service = self._service
        await self._account.begin(self._own_store())
        self._serving.set()
        log.info(
            "serving", worker=self._name, namespace=self._calls.namespace, engine=self._url, store=self.store_place
        )

    @property
    def store_place(self) -> str:
        """Where conversations are kept, for people."""
        return where(self._configurator.configuration.adapter, base_directory())

    async def _catch_up(self) -> None:
        """The configuration may have changed after it was read and before the binding that tells of it was there."""
        try:
            await self._configurator.reload()
        except (Unavailable, InvalidConfiguration) as error:
            log.warning("the configuration cannot be read again; what was read at first stays", error=str(error))

    def _own_store(self) -> Store | None:
        runtime = self._service.runtime
        return runtime.store if runtime.owns_store else None

    def _register_functions(self, calls: Client) -> None:
        """Before the connection opens, so that whoever waits for the worker's name finds its functions; calls that
        come before everything is ready wait for it."""
        for function in FUNCTIONS:
            schema = function_schema(function)
            handle = partial(self._handle, function)
            calls.register_function(
                function.id,
                handle,
                function.description,
                function.metadata,
                schema["request_schema"],
                schema["response_schema"],
                handle if function.kind.writes else None,
            )
        for extra in self._extras.functions:
            calls.register_function(
                extra.id,
                partial(self._answer_extra, extra),
                extra.description,
                {"trace_hidden": True},
                extra.request_schema,
                extra.response_schema,
            )

    def _register_trigger_types(self) -> None:
        """Only when the functions are ours: the engine would hand all bindings of a type to whoever registers it
        last."""
        for trigger_type in TRIGGER_TYPES:
            schema = trigger_schema(trigger_type)
            self._calls.register_trigger_type(
                trigger_type.id,
                trigger_type.description,
                schema["config_schema"],
                schema.get("payload_schema"),
                self._subscriptions.owner_of(trigger_type.id),
            )
        self._calls.bind(
            "configuration",
            "session::on-config-change",
            {
                "configuration_id": self._entry.id,
                "event_types": ["configuration:updated", "configuration:registered"],
            },
        )

    # --- calls ---

    async def _handle(self, function: Function, data: Any, early: Early | None = None) -> Any:
        await self._may_serve()
        if type(data) is dict:
            data.pop("_caller_worker_id", None)
        return await self._service.answer(function, data, early)

    async def _answer_extra(self, extra: ExtraFunction, data: Any) -> Any:
        await self._may_serve()
        return await extra.answer(self._service, data)

    async def _may_serve(self) -> None:
        """Raises StorageError for what comes too late."""
        if self._closing:
            raise StorageError("the worker is shutting down; try again")
        await self._serving.wait()

    # --- events ---

    async def _bindings_back(self) -> None:
        """Until then events are held."""
        await self._subscriptions.back()
        self._account.ready()

    def _post(self, parcels: Sequence[Parcel]) -> None:
        self._deliveries.loop.call_soon_threadsafe(self._delivery.take, parcels)

    async def _send(self, to: Binding, payload: bytes) -> None:
        await self._absence.deliver(
            to.id,
            lambda: self._deliveries.deliver(to.function_id, payload, to.namespace, to.extra, DELIVERY_TIMEOUT),
        )

    async def _backlog(self) -> int:
        """The longest queue of deliveries, once what was published is in it. On the calls' loop."""
        await self._account.told_all()
        return await self._of_deliveries(self._waiting())

    async def _waiting(self) -> int:
        return self._delivery.backlog()

    async def _under_way(self) -> set[str]:
        """Sessions with deliveries that are not answered yet, once what was published is among them. On the calls'
        loop."""
        await self._account.told_all()
        return await self._of_deliveries(self._unanswered())

    async def _unanswered(self) -> set[str]:
        return self._delivery.under_way()

    async def _of_deliveries(self, asked: Coroutine[Any, Any, T]) -> T:
        """What a coroutine returns on the loop of the deliveries."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked, self._deliveries.loop))

    # --- connection ---

    def _state(self, state: str) -> None:
        """On the calls' loop."""
        if state == "connected":
            self._subscriptions.replayed()
            self._calls.loop.create_task(self._reconnected())
        elif state == "failed":
            self.failed = True
        if not self._closing:
            log.info("engine connection", state=state)

    def _deliveries_state(self, state: str) -> None:
        """Without its deliveries the worker is of no use."""
        if state == "connected":
            self._absence.reconnected()
        elif state == "failed":
            self.failed = True

    async def _reconnected(self) -> None:
        await asyncio.gather(self._subscriptions.reconnected(), self._register_configuration_again())

    async def _register_configuration_again(self) -> None:
        """An engine that restarted has forgotten the schema; without it nobody can change the configuration."""
        try:
            await self._entry.fetch()
        except Unavailable as error:
            log.warning("the configuration schema could not be registered again", error=str(error))

    # --- end ---

    def stop(self) -> None:
        """Finishes running calls, then the store, then deliveries, then the account, then the connections. At most ten
        seconds, and whatever fails on the way, for a thread that a connection keeps would keep the process alive."""
        self._end()
        log.info("stopped", worker=self._name)

    def _end(self) -> None:
        self._closing = True
        if not self._clients:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._wind_up(), self._clients[-1].loop).result()
        finally:
            with concurrent.futures.ThreadPoolExecutor() as pool:  # each may have to wait for an engine that hangs
                list(pool.map(Client.shutdown, self._clients))

    async def _wind_up(self) -> None:
        """One step after another. The store first, for it may have events to tell, and a bridge hears some until it is
        closed; the account last, which notes whether all of them have been delivered."""
        began = asyncio.get_running_loop().time()
        for task in self._tasks:
            task.cancel()
        clean = True
        if self._serving.is_set():
            clean &= await _through("calls", self._service.finished(), began + CALLS)
            clean &= await _through("store", self._service.runtime.store.close(), began + STORE)
        clean &= await _through("deliveries", self._delivered(), began + DELIVERIES)
        await _through("account", self._account.close(clean=clean), began + ACCOUNT)

    async def _delivered(self) -> None:
        """Raises TimeoutError when something is left that was to be delivered."""
        try:
            await self._account.told_all()
            left = await self._of_deliveries(self._delivery.drain(ANSWERS))
        finally:
            self._deliveries.loop.call_soon_threadsafe(self._delivery.close)
        if left:
            raise TimeoutError(f"{left} left")


async def _through(what: str, step: Awaitable[None], deadline: float) -> bool:
    """Whether a step of the end was taken, in time and to its own end. Nothing that befalls it keeps the next one from
    being taken."""
    try:
        async with asyncio.timeout_at(deadline):
            await step
    except TimeoutError as error:
        log.warning("given up at the end", what=what, reason=str(error) or "it takes too long")
    except Exception:
        log.exception("failed at the end", what=what)
    else:
        return True
    return False


async def _attended(task: Coroutine[Any, Any, None]) -> None:
    try:
        await task
    except Exception:
        log.exception("what runs beside the calls has ended in a way that it should not")


def start(
    url: str,
    name: str,
    seed: JsonObject | None,
    patience: float,
    extras: Extras | None = None,
    pause: Pause = sleep,
) -> Worker:
    """Starts the worker. Waits so many seconds for the engine, and tries again for as long where it fails or a name, a
    function or the database is still held by another: an engine can hold on to a dead connection, and a predecessor
    may be shutting down. What waiting does not cure it does not wait for: a configuration that is not valid, a store
    that cannot be opened. Raises EngineError, InvalidConfiguration or StorageError, and GivenUp where `pause` says so.
    """
    probe(url, patience, pause)
    deadline, seconds = time.monotonic() + patience, 0.25
    while True:
        worker = Worker(url, name, seed, extras, pause)
        try:
            worker.start()
        except (EngineError, Unready) as error:
            left = deadline - time.monotonic()
            if left <= 0:
                raise
            log.warning("waiting", reason=str(error), seconds=round(left))
            wait(pause, min(seconds, left), str(error))
            seconds = min(seconds * 2, 4.0)
        else:
            return worker
