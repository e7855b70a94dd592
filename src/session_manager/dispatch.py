"""The road of every call: payload, door, typed request, lock, rule, one atomic change, events out, reply."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from session_manager import bulk, door
from session_manager.clock import Clock, Ids
from session_manager.errors import MalformedRequest, NotServed, Outdated, StorageError
from session_manager.events import Emission
from session_manager.functions import FUNCTIONS, Function, Kind
from session_manager.locks import SessionLocks
from session_manager.model import decode, encode
from session_manager.outcome import Early, Outcome, Reloader, Tools
from session_manager.paging import Limits
from session_manager.store import Change, Store, View

log = structlog.get_logger("session_manager.dispatch")

Publish = Callable[[Sequence[Emission]], None]
"""Takes the events of one durable change, in order; returns at once and never raises."""

ATTEMPTS = 3
"""How often a call is decided whose change was outdated before it was stored."""


class Runtime(Struct, frozen=True):
    """A store in use, and where its events go. It is replaced as a whole when the configuration changes."""

    store: Store
    publish: Publish
    limits: Limits
    expect: Publish | None = None
    """Is told the same events earlier: when their change is handed to the store, which may fail yet."""
    owns_store: bool = True
    """Whether the store is this instance's own, so that it serves the store protocol to others."""
    announced: Callable[[str], Awaitable[None]] | None = None
    """Waits until the events of a session that were published so far have left for whoever tells them, or could not at
    once. None where `publish` itself tells everybody."""
    concern: Callable[[Sequence[Emission]], bool] = lambda _: True
    """Whether anybody is to be told of these events. Where nobody is, a reply may leave before them."""
    replayed: Callable[[], None] = lambda: None
    """Is called when subscribers were told all that the store held when it was put into force while calls ran."""


class _Call(Struct, frozen=True):
    """A call on its way."""

    runtime: Runtime
    function: Function
    request: Any
    early: Early | None


class Service:
    """Answers calls. A call that runs when the runtime is replaced finishes on the one it began on."""

    def __init__(self, runtime: Runtime, clock: Clock, ids: Ids, reloader: Reloader) -> None:
        self.runtime = runtime
        self._clock, self._ids, self._reloader = clock, ids, reloader
        self._locks = SessionLocks()
        self._functions: Mapping[str, Function] = {function.id: function for function in FUNCTIONS}
        self._running: dict[int, int] = {}
        """Calls on their way, per store."""
        self._unattended: set[asyncio.Future[Outcome]] = set()

    async def call(self, function_id: str, payload: Any) -> Any:
        """The reply of one function as plain JSON values. Raises SessionManagerError."""
        return decode(encode(await self.answer(self._functions[function_id], payload)))

    async def answer(self, function: Function, payload: Any, early: Early | None = None) -> Any:
        """The reply as something to be encoded: a reply struct, or plain values with stored JSON in them as it is. It
        may have left by way of `early` before."""
        request = await read(function.read_as or function.request, payload)
        runtime = self.runtime
        # A reload waits for the calls on the store that it replaces, so it must not be one of them.
        store = 0 if function.kind is Kind.SETTINGS else id(runtime.store)
        self._running[store] = self._running.get(store, 0) + 1
        try:
            return await self._answer(_Call(runtime, function, request, early))
        except msgspec.MsgspecError as error:
            raise StorageError("what is stored cannot be read") from error
        finally:
            self._running[store] -= 1
            if not self._running[store]:
                del self._running[store]

    async def finished(self, runtime: Runtime | None = None) -> None:
        """Waits for the calls that run on a runtime's store, or on any."""
        while self._running if runtime is None else id(runtime.store) in self._running:  # noqa: ASYNC110 # at the end only
            await asyncio.sleep(0.005)

    async def _answer(self, call: _Call) -> Any:
        runtime, kind = call.runtime, call.function.kind
        if kind in (Kind.RAW, Kind.RAW_READ) and not runtime.owns_store:
            raise NotServed("store functions are served only by the instance that owns the store, not by a bridge")
        if kind is Kind.WRITE:
            outcome = await self._write_locked(call, call.request.session_id)  # every such request names its session
        elif kind in (Kind.FRESH, Kind.RAW):
            outcome = await self._write(call)
        else:
            outcome = await self._decide(call, runtime.store)
        if outcome.emissions and runtime.announced is not None:
            await runtime.announced(outcome.emissions[0].event.session_id)  # a reply does not overtake its events
        return outcome.reply

    async def _write_locked(self, call: _Call, session_id: str) -> Outcome:
        if not call.runtime.store.pipelines:
            # The lock must be held until the change is durable, also when nobody waits for it any more.
            whole = asyncio.ensure_future(self._write_in_turn(call, session_id))
            self._unattended.add(whole)
            whole.add_done_callback(self._unattended.discard)
            return await asyncio.shield(whole)
        return await self._write_in_turn(call, session_id)

    async def _write_in_turn(self, call: _Call, session_id: str) -> Outcome:
        store = call.runtime.store
        async with self._locks.hold(session_id):
            view = store.ahead()
            try:
                outcome = await self._decide(call, view)
            except Exception:
                await store.settled(view, session_id)
                raise
            if outcome.change is None:
                durable: Awaitable[Any] = store.settled(view, session_id)
            else:
                durable = _commit(call, view, outcome)
            if not store.pipelines:
                await durable
                return outcome
        await durable
        return outcome

    async def _write(self, call: _Call) -> Outcome:
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(Outdated):
                return await self._write_once(call)
        return await self._write_once(call)

    async def _write_once(self, call: _Call) -> Outcome:
        view = call.runtime.store.ahead()
        outcome = await self._decide(call, view)
        if outcome.change is not None:
            await _commit(call, view, outcome)
        elif outcome.emissions:
            call.runtime.publish(outcome.emissions)
        return outcome

    async def _decide(self, call: _Call, view: View) -> Outcome:
        runtime = call.runtime
        tools = Tools(view, runtime.store, self._clock, self._ids, runtime.limits, self._reloader)
        return await call.function.rule(tools, call.request)


def _commit(call: _Call, view: View, outcome: Outcome) -> Awaitable[Any]:
    """Hands the change over; its events leave once it is durable, whether or not anybody still waits for it."""
    assert outcome.change is not None
    _check_sizes(outcome.change)
    runtime, emissions = call.runtime, outcome.emissions
    if emissions and runtime.expect is not None:
        runtime.expect(emissions)
    told = partial(_tell, runtime.publish, emissions) if emissions else None
    early = None
    if call.early is not None and not (emissions and runtime.concern(emissions)):
        call.early.say(outcome.reply)
        early = call.early.leave
    return runtime.store.commit(view, outcome.change, told, early)


def _tell(publish: Publish, emissions: Sequence[Emission]) -> None:
    """Whoever publishes must not raise; if it does all the same, the store and the caller are none the worse."""
    try:
        publish(emissions)
    except Exception:
        log.exception("events of a change could not be told", session_id=emissions[0].event.session_id)


def _check_sizes(change: Change) -> None:
    """Raises MalformedRequest when an entry is too big to be read again, or all of them to be written at once."""
    sizes = change.sizes()
    largest, whole = max(sizes, default=0), sum(sizes)
    if largest > door.MAX_BODY:
        raise MalformedRequest(f"an entry may have at most {door.MAX_BODY} bytes as JSON; this one has {largest}")
    if whole > door.MAX_CHANGE and len(change.entries) <= door.MAX_BATCH:
        raise MalformedRequest(f"one call may add at most {door.MAX_CHANGE} bytes as JSON; this one adds {whole}")


async def read(of: type[Struct], payload: Any) -> Struct:
    """The typed request. Raises MalformedRequest, naming the field. Others get their turn while a big one is read."""
    walk = door.Walk(payload)
    while not walk.go():  # noqa: ASYNC110 # it waits for nothing: others get their turn
        await asyncio.sleep(0)
    door.check_sizes(payload, of.__struct_fields__, little=walk.little)
    try:
        request = msgspec.convert(payload, of)
    except msgspec.ValidationError as error:
        raise MalformedRequest.of(error) from None
    return await bulk.lightened(request, long_texts=walk.long_texts) if walk.heavy else request
