"""The bridge on the main instance's engine: connections of its own, the relay, and catching up after a gap.

Two connections beside the worker's own, one for store calls and one for the relay, so that neither waits for the
other's acknowledgements. Both are lines, with names that nobody else has.

Everything here runs on the event loop that `open` was called on, the one of the worker's calls.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from session_manager.announce import Announcer
from session_manager.catchup import gist
from session_manager.config import BridgeConfig
from session_manager.edge.account import Account
from session_manager.edge.failures import Undelivered
from session_manager.edge.line import Line
from session_manager.edge.way import Way, connect
from session_manager.errors import MalformedRequest, SessionManagerError, StorageError
from session_manager.events import STORE_EVENTS, Emission, Envelope, Event, open_envelope
from session_manager.intents import Intents
from session_manager.model import JsonObject
from session_manager.store import check_answers
from session_manager.stores.bridge import BridgeStore, MainError
from session_manager.stores.bridge.store import together

log = structlog.get_logger("session_manager.bridge")

PUBLISH = "session::store::publish-events"

WATCH = 1.0
"""Seconds between two looks at whether the relay is bound and which worker the main instance is."""

FIRST = 0.05
"""The same while the relay is being bound for the first time."""

PASSES = (0.0, 3.0, 6.0)
"""Seconds after the end of a gap at which the store is compared with what was told. What differs twice in a row is
told: what was merely on its way has come by then. The engine does not say when the main instance has taken a binding
in, so once is not enough; whatever happens after the last but one counts as heard."""

REBIND = 5.0
"""Seconds without the binding, while the main instance is there, after which it is made anew."""

DOUBT = 2.0
"""Seconds that a change which failed is left alone before its outcome is looked up: most are tried again by then."""

DOUBTS = 10_000
"""Sessions with changes in doubt that are remembered."""

ECHO = 0.2
"""Seconds that a reply waits for the events of its change to come back."""

FLUSH, LAST, QUIET = 2.0, 0.5, 0.05
"""Seconds that the end waits for events that are not told yet, and for their echo; how long it must have been quiet."""


class Bridge:
    """A store over the main instance (`store`), and its events both ways."""

    def __init__(self, config: BridgeConfig, name: str, account: Account, intents: Path) -> None:
        self._config, self._account, self._told = config, account, account.told
        self._name = f"{name}-bridge-{secrets.token_hex(4)}"
        self._way = Way(config, f"{self._name}-store")
        self._intents = Intents(intents)
        self.store = BridgeStore(_Closing(self), self.doubt, self._intents.begin)
        self.announcer = Announcer(self._tell, self.doubt, all_told=self._intents.done)
        self._relay_id = f"session::bridge::recv::{secrets.token_hex(16)}"
        relayed = f"{self._name}-relay", "Relay of a session-manager bridge."
        self._relay = Line(config.url, *relayed, config.namespace)
        told = "Takes the main instance's events for the subscribers of this bridge."
        self._relay.serve(self._relay_id, self._receive, told)
        self._unbind: Callable[[], None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._present: tuple[Any, ...] | None = None
        """Which main instance the relay was bound to when that was looked at last."""
        self._passes: list[float] = []
        """When the store is to be compared with what was told."""
        self._replaying = False
        """Whether subscribers are being told all that is there: what differs meanwhile says nothing."""
        self._differed: dict[str, frozenset[tuple[object, ...]]] = {}
        """What differed at the last comparison and was not told, by session."""
        self._heard: set[str] = set()
        self._heard_before: set[str] = set()
        self._doubts: dict[str, tuple[float, frozenset[str] | None]] = {}
        """Since when, and of which entries; None stands for all of them."""
        self._echoes: dict[str, tuple[Any, asyncio.Future[None]]] = {}
        """The last event published of each session that a caller may wait for."""
        account.unsure.add(self._unsure)
        self._connected = 0
        self._absent_since: float | None = None
        self._last_event = 0.0

    # --- life ---

    async def open(self, *, replayed: bool) -> None:
        """Connects and attaches the relay. `replayed`: all that is there will be told. Otherwise it counts as told,
        unless it is known from the past what was. Raises StorageError; then nothing is left."""
        past = None if replayed else self._account.past
        self._loop = asyncio.get_running_loop()
        try:
            await together(self._learn(known=replayed or past is not None), self._connect_relay())
            left = await self._intents.open()
        except BaseException:
            await self.closed()
            raise
        self._relay.on_state(self._relay_changed)
        self._unbind = self._relay.bind(STORE_EVENTS, self._relay_id)
        for session_id in left:
            self._doubts[session_id] = (float("-inf"), None)
        self._replaying = replayed
        self._watching = self._loop.create_task(self._watch())

    async def _learn(self, *, known: bool) -> None:
        await self.store.open()
        if not known:
            self._told.learn(await self.store.metas())

    async def _connect_relay(self) -> None:
        try:
            await connect(self._relay)
        except MainError as error:
            raise StorageError(str(error)) from error

    async def _flush(self) -> None:
        """Tells the main instance what is not told yet, and waits until its echo has probably come."""
        left = await self.announcer.drain(FLUSH)
        if left:
            log.warning("events given up at the end", changes=left)
        deadline = self._loop.time() + LAST
        while self._loop.time() < min(deadline, self._last_event + QUIET):  # noqa: ASYNC110 # once, at the end
            await asyncio.sleep(0.01)

    async def closed(self) -> None:
        """Is called by the store, which is closed last."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        await self._flush()
        if self._present is None or self._passes or await self._look() != self._present:
            self._account.owed |= self._unsure()
        self._account.unsure.discard(self._unsure)
        await asyncio.gather(self._intents.close(), self._relay.close(), self._way.close())

    def replayed(self) -> None:
        """All that is there has been told, but for what happened before the main instance took the binding in."""
        self._replaying = False
        if self._present is not None:
            self._attached(self._present)

    # --- events ---

    def publish(self, emissions: Sequence[Emission]) -> None:
        """Tells the main instance, which tells everybody."""
        if emissions:
            self._last_event = self._loop.time()
            event = emissions[-1].event
            self._echoes[event.session_id] = _mark(event), self._loop.create_future()
            self.announcer.publish(emissions)

    async def announced(self, session_id: str) -> None:
        """Waits until what was published of a session has come back, so that it is on its way to local subscribers;
        not for long, and not while it cannot be told or the relay is not there."""
        told = await self.announcer.announced(session_id)
        mark, echo = self._echoes.get(session_id, (None, None))
        if echo is not None and told and self._relay.connected:
            await asyncio.wait({echo}, timeout=ECHO)
            await self._account.told_all()
        if mark is not None and self._echoes.get(session_id, (None, None))[0] == mark:
            del self._echoes[session_id]

    async def _tell(self, payload: bytes) -> None:
        try:
            await self._way.call(PUBLISH, payload)
        except MainError as error:
            raise StorageError(f"{PUBLISH}: {error}") from error

    def _receive(self, data: bytes) -> JsonObject:
        """The relay function."""
        try:
            emission = open_envelope(_read_envelope(data))
        except msgspec.ValidationError as error:
            raise MalformedRequest.of(error) from None
        if emission is not None:
            self._hear(emission)
        return {"ok": True}

    def _hear(self, emission: Emission) -> None:
        self._last_event = self._loop.time()
        session_id = emission.event.session_id
        self._heard.add(session_id)
        self._account.publish_locally([emission])
        mark, echo = self._echoes.get(session_id, (None, None))
        if echo is not None and not echo.done() and mark == _mark(emission.event):
            echo.set_result(None)

    def doubt(self, session_id: str, entry_ids: frozenset[str]) -> None:
        """Remembers that something of a session may have happened without being told."""
        _, entries = self._doubts.pop(session_id, (0.0, frozenset[str]()))
        if len(self._doubts) >= DOUBTS:
            del self._doubts[next(iter(self._doubts))]
        self._doubts[session_id] = (self._loop.time(), None if entries is None else entries | entry_ids)

    # --- watching ---

    def _relay_changed(self, connected: bool) -> None:
        self._connected += connected
        log.info("relay connection", connected=connected)

    async def _watch(self) -> None:
        while (present := await self._look()) is None:
            self._rebind(self._loop.time())
            await asyncio.sleep(FIRST)
        self._attached(present)
        while True:
            try:
                await self._watch_once()
            except SessionManagerError as error:
                log.warning("the bridge will look again", error=str(error))
                await asyncio.sleep(WATCH)
            except Exception:
                log.exception("watching the main instance failed in a way that it should not")
                await asyncio.sleep(WATCH)

    async def _watch_once(self) -> None:
        now = self._loop.time()
        due = bool(self._passes) and now >= self._passes[0] and not self._replaying
        await self._settle_doubts(now if due else now - DOUBT)  # first, for catching up tells only this side
        if due:
            await self._catch_up(last=len(self._passes) == 1)
            del self._passes[0]
        await asyncio.sleep(WATCH)
        seen = await self._look()
        if seen is None or seen != self._present:
            self._account.owed |= self._unsure()
        if seen is None:
            self._present = None
            self._rebind(self._loop.time())
            return
        self._absent_since = None
        if seen != self._present:
            log.info("attached to the main instance again", main=seen[0])
            self._attached(seen)
        if not self._passes:  # until then, what is heard may be all that was heard of its session
            self._heard_before, self._heard = self._heard, set()

    def _attached(self, main: tuple[Any, ...]) -> None:
        self._present, self._differed = main, {}
        self._passes = [self._loop.time() + seconds for seconds in PASSES]

    def _unsure(self) -> set[str]:
        """Sessions that were heard of since it was last known that nothing was missed."""
        return self._heard | self._heard_before

    async def _look(self) -> tuple[Any, ...] | None:
        """Which worker the main instance is, over which connection; None while the relay is not bound to it."""
        asked = {"function_ids": [self._relay_id, PUBLISH], "namespace": self._config.namespace}
        try:
            infos = (await self._relay.ask("engine::functions::info", asked, 2.0))["functions"]
            found = {info["function_id"]: info for info in infos}
            bound = any(
                trigger["trigger_type"] == STORE_EVENTS
                for trigger in found[self._relay_id].get("registered_triggers", ())
            )
            owner = found[PUBLISH].get("worker_name")
            if not bound or owner is None:
                return None
            named = {"name": owner, "namespace": self._config.namespace}
            worker = (await self._relay.ask("engine::workers::info", named, 2.0))["worker"]
        except (Undelivered, KeyError, TypeError):
            return None
        return worker.get("id"), worker.get("connected_at_ms"), self._connected

    def _rebind(self, now: float) -> None:
        """Makes the binding anew when it alone is missing for long: anybody may have removed it."""
        self._absent_since = self._absent_since or now
        if now - self._absent_since < REBIND or not self._relay.connected:
            return
        self._absent_since = now
        if self._unbind is not None:
            self._unbind()
        self._unbind = self._relay.bind(STORE_EVENTS, self._relay_id)

    async def _catch_up(self, *, last: bool = False) -> None:
        """Tells what differs from what local subscribers were told, and did at the comparison before. The `last` one
        looks at nothing else."""
        owed, before = self._account.owed, self._differed
        if not last:
            owed |= self._unsure()
            looked_at = [*self._told.changed(await self.store.metas()), *sorted(owed)]
        else:
            looked_at = list(before)
        differed = dict[str, frozenset[tuple[object, ...]]]()
        events = 0
        for session_id in dict.fromkeys(looked_at):
            await self._account.room()
            emissions = await self._difference(session_id)
            if emissions is None:
                owed.add(session_id)  # for the next time
                continue
            gists = before.get(session_id, ())
            missed = [emission for emission in emissions if gist(emission.event) in gists]
            if missed:
                await self._tell_missed(session_id, missed)
                events += len(missed)
            if last or len(missed) == len(emissions):
                owed.discard(session_id)
            else:
                owed.add(session_id)
                differed[session_id] = frozenset(gist(emission.event) for emission in emissions)
        self._differed = differed
        log.info("compared with the main instance", events=events)

    async def _tell_missed(self, session_id: str, emissions: Sequence[Emission]) -> None:
        """Tells local subscribers; or everybody, where others may have missed it too: what only this side was told
        would not be looked for any more."""
        if session_id in self._doubts or self.announcer.is_telling(session_id):
            self.announcer.publish(emissions)
        else:
            await self._account.tell_locally(emissions)

    async def _settle_doubts(self, until: float) -> None:
        """Looks up what became of changes that failed by then, and tells everybody what nobody was told."""
        due = [session_id for session_id, (since, _) in self._doubts.items() if since <= until]
        for session_id in due:
            entry_ids = self._doubts[session_id][1]
            emissions = await self._difference(session_id, entry_ids)
            self._doubts.pop(session_id, None)
            if emissions is None:
                self._doubts[session_id] = (self._loop.time(), entry_ids)  # later, and behind the others
            elif emissions:
                self.announcer.publish(emissions)
            else:
                self._intents.done(session_id)

    async def _difference(self, session_id: str, entry_ids: frozenset[str] | None = None) -> Sequence[Emission] | None:
        """What nobody was told of a session; None where that one cannot be read, which must not keep others waiting.
        Raises StorageError when the main instance does not answer at all."""
        try:
            return await self._told.difference(self.store, session_id, entry_ids)
        except (SessionManagerError, msgspec.MsgspecError) as error:
            await check_answers(self.store)
            log.warning("what happened to a session cannot be told", session_id=session_id, error=str(error))
            return None


_read_envelope = msgspec.json.Decoder(Envelope).decode


def _mark(event: Event) -> tuple[Any, ...]:
    """What makes an event of a session this one."""
    return type(event), getattr(event, "entry_id", None), getattr(event, "timestamp", None)


class _Closing:
    """The way to the main instance for the store of a bridge: closing it closes the bridge."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self.call = bridge._way.call
        self.open = bridge._way.open

    async def close(self) -> None:
        await self._bridge.closed()
