"""Every store gives the same replies, errors and events as the shortest one, whatever is called in whatever order."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from session_manager.errors import SessionManagerError
from session_manager.events import STORE_EVENTS
from session_manager.stores.sqlite import forks
from tests.bridged import Bridged
from tests.conftest import ADAPTERS, BRIDGES
from tests.stage import InProcess

TIMES = st.sampled_from([0, 5, 5, 6, 1000, -1])
MET = st.integers(0, 30)
"""One of the ids that replies have told, by its number, from the latest back."""
SESSIONS = st.one_of(st.sampled_from(["s", "t", "S", "é"]), MET)
ENTRIES = st.one_of(st.sampled_from(["a", "b", "c", "d", "", "nobody"]), MET)
TEXTS = st.sampled_from(["", "x", "hello\0", "漢字", "y" * 300])
LABELS = st.sampled_from([{}, {"a": 1}, {"a": 1.0}, {"a": True}, {"a": 1, "b": [None]}, {"b": {"c": {}}}])
ORIGINS = st.sampled_from([None, {}, {"by": "me"}])
STATUSES = st.sampled_from(["idle", "working", "done", "error"])


OLD, NEW = -(2**63), 2**63 - 1
"""The times of entries and of records that are put there as they are: a bridge to a main instance that takes no hints
takes an entry that is newer than the record for an append that was never finished."""

ENTRY_KEYS = ("entry_id", "parent_id", "from_entry_id", "after_entry_id")


def maybe(strategy: Any) -> Any:
    return st.one_of(st.none(), strategy)


def id_of(one: Any, met: Sequence[str]) -> Any:
    """What a rule was given for an id: itself, or one that was met."""
    return met[-1 - one % len(met)] if type(one) is int else one


def blocks(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}]


@st.composite
def a_message(draw: Any) -> dict[str, Any]:
    text, kind = draw(TEXTS), draw(st.integers(0, 3))
    if kind == 0:
        return {"role": "user", "content": blocks(text), "timestamp": 1}
    if kind == 1:
        usage = draw(maybe(st.just({"input": 1})))
        return {
            "role": "assistant", "content": blocks(text), "stop_reason": "end", "model": "m", "provider": "p",
            "timestamp": 1, "usage": usage,
        }  # fmt: skip
    if kind == 2:
        details = draw(maybe(LABELS))
        return {
            "role": "function_result", "function_call_id": "c", "function_id": "f", "content": [], "timestamp": 1,
            "details": details,
        }  # fmt: skip
    return {"role": "custom", "custom_type": "t", "content": blocks(text), "timestamp": 1}


class Clock:
    def __init__(self) -> None:
        self.time = 0

    def now(self) -> int:
        return self.time


class Ids:
    """Ids that are the same on every stage."""

    def __init__(self) -> None:
        self._sessions, self._entries = itertools.count(), itertools.count()

    def session(self) -> str:
        return f"s_{next(self._sessions):032x}"

    def entry(self) -> str:
        return f"e_{next(self._entries):032x}"

    def entries(self, count: int) -> list[str]:
        return [self.entry() for _ in range(count)]

    def prefix(self) -> str:
        return f"e_{next(self._entries):023x}f"


class Stores(RuleBasedStateMachine):
    """All stores side by side; the memory store is the measure."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.base = Path(tempfile.mkdtemp(prefix="stores-"))
        self.clock = Clock()
        self.stages: dict[str, InProcess] = {}
        self.heard: dict[str, list[Any]] = {}
        self.cursors: list[str] = []
        self.made: list[str] = ["s"]
        self.met: list[str] = ["a"]
        for name in (*ADAPTERS, *BRIDGES):
            (self.base / name).mkdir()
            if name in BRIDGES:
                stage: InProcess = Bridged(self.base / name, hints=BRIDGES[name], clock=self.clock, ids=Ids())
            else:
                stage = InProcess(ADAPTERS[name], self.base / name, clock=self.clock, ids=Ids())
            self.loop.run_until_complete(stage.__aenter__())
            self.heard[name] = []
            self.loop.run_until_complete(stage.bind(STORE_EVENTS, {}, self.heard[name].append))
            self.stages[name] = stage

    def teardown(self) -> None:
        for stage in self.stages.values():
            self.loop.run_until_complete(stage.__aexit__())
        self.loop.close()
        shutil.rmtree(self.base)

    def call(self, function: str, **payload: Any) -> Any:
        """The reply or error, the same from every store."""
        for key in payload.keys() & {"session_id", *ENTRY_KEYS}:
            payload[key] = id_of(payload[key], self.made if key == "session_id" else self.met)

        async def ask(stage: InProcess) -> tuple[str, Any]:
            try:
                return "reply", await stage.call(f"session::{function}", payload)
            except SessionManagerError as error:
                return "error", str(error)

        answers = {name: self.loop.run_until_complete(ask(stage)) for name, stage in self.stages.items()}
        kind, reply = answers["memory"]
        for name, answer in answers.items():
            assert answer == (kind, reply), f"{name} and memory differ on {function} {payload}"
        return reply if kind == "reply" else None

    @invariant()
    def the_same_events_were_told(self) -> None:
        for stage in self.stages.values():
            self.loop.run_until_complete(stage.settle())
        for name, heard in self.heard.items():
            assert heard == self.heard["memory"], f"{name} and memory told different events"
        for heard in self.heard.values():
            heard.clear()

    @initialize()
    def there_is_a_conversation(self) -> None:
        self.call("ensure", session_id="s")
        for id_ in ("a", "b"):
            self.call(
                "append", session_id="s", entry_id=id_, message={"role": "user", "content": blocks(id_), "timestamp": 1}
            )

    @rule(time=TIMES)
    def time_passes(self, time: int) -> None:
        self.clock.time = time

    # --- sessions ---

    @rule(session_id=SESSIONS, title=maybe(TEXTS), metadata=maybe(LABELS))
    def ensure(self, **payload: Any) -> None:
        self.call("ensure", **payload)

    @rule(title=maybe(TEXTS), metadata=maybe(LABELS))
    def create(self, **payload: Any) -> None:
        reply = self.call("create", **payload)
        self.made.append(reply["session_id"])

    @rule(session_id=SESSIONS, title=maybe(TEXTS), description=maybe(TEXTS), metadata=maybe(LABELS))
    def set_meta(self, **payload: Any) -> None:
        self.call("set-meta", **payload)

    @rule(session_id=SESSIONS, draft=maybe(TEXTS))
    def set_draft(self, **payload: Any) -> None:
        self.call("set-draft", **payload)

    @rule(session_id=SESSIONS, status=STATUSES, reason=maybe(TEXTS))
    def set_status(self, **payload: Any) -> None:
        self.call("set-status", **payload)

    @rule(session_id=SESSIONS)
    def delete(self, session_id: str) -> None:
        self.call("delete", session_id=session_id)

    @rule(
        order=st.sampled_from([None, "created_asc", "created_desc", "updated_desc"]),
        limit=maybe(st.integers(0, 3)),
        status=maybe(STATUSES),
        metadata=maybe(LABELS),
        data=st.data(),
    )
    def list(self, data: Any, **payload: Any) -> None:
        if self.cursors and data.draw(st.booleans()):
            payload["cursor"] = data.draw(st.sampled_from(self.cursors))
        self.keep_cursor(self.call("list", **payload))

    def keep_cursor(self, reply: Any) -> None:
        if reply is not None and "next_cursor" in reply:
            self.cursors.append(reply["next_cursor"])

    def meet(self, *ids: str) -> None:
        self.met += [id_ for id_ in ids if id_ not in self.met]

    # --- entries ---

    @rule(
        session_id=SESSIONS,
        entry_id=maybe(ENTRIES),
        parent_id=maybe(ENTRIES),
        message=maybe(a_message()),
        origin=ORIGINS,
        custom=maybe(st.just({"custom_type": "c", "data": {"k": [1]}})),
    )
    def append(self, message: Any, custom: Any, **payload: Any) -> None:
        if message is None and custom is None:
            message = {"role": "user", "content": [], "timestamp": 1}
        reply = self.call("append", message=message, custom=None if message is not None else custom, **payload)
        if reply is not None:
            self.meet(reply["entry_id"])

    @rule(session_id=SESSIONS, messages=st.lists(a_message(), max_size=4), parent_id=maybe(ENTRIES), origin=ORIGINS)
    def append_many(self, **payload: Any) -> None:
        reply = self.call("append-many", **payload)
        if reply is not None:
            self.meet(*reply["entry_ids"])

    @rule(
        session_id=SESSIONS,
        entry_id=ENTRIES,
        text=TEXTS,
        expected_revision=maybe(st.integers(0, 2)),
        usage=maybe(st.just({"output": 2})),
        details=maybe(LABELS),
        origin=ORIGINS,
    )
    def update_message(self, text: str, **payload: Any) -> None:
        self.call("update-message", content=blocks(text), **payload)

    @rule(
        session_id=SESSIONS,
        limit=maybe(st.integers(0, 3)),
        roles=maybe(st.lists(st.sampled_from(["user", "assistant", "function_result", "custom"]), max_size=2)),
        from_entry_id=maybe(ENTRIES),
        after_entry_id=maybe(ENTRIES),
        include_custom=maybe(st.booleans()),
        data=st.data(),
    )
    def messages(self, data: Any, **payload: Any) -> None:
        if self.cursors and data.draw(st.booleans()):
            payload["cursor"] = data.draw(st.sampled_from(self.cursors))
        reply = self.call("messages", **payload)
        self.keep_cursor(reply)
        if reply is not None:
            self.meet(*(item["entry_id"] for item in reply["messages"]))

    @rule(session_id=SESSIONS, entry_id=ENTRIES)
    def get_message(self, **payload: Any) -> None:
        self.call("get-message", **payload)

    @rule(session_id=SESSIONS, entry_id=ENTRIES, title=maybe(TEXTS))
    def fork(self, **payload: Any) -> None:
        reply = self.call("fork", **payload)
        if reply is not None:
            self.made.append(reply["session_id"])
            told = self.call("messages", session_id=reply["session_id"], include_custom=True)
            self.meet(*(item["entry_id"] for item in told["messages"]))

    @rule(session_id=SESSIONS, entry_id=ENTRIES)
    def set_active_leaf(self, **payload: Any) -> None:
        self.call("set-active-leaf", **payload)

    # --- below the rules ---

    @rule(
        session_id=SESSIONS,
        id_=ENTRIES,
        parent_id=maybe(ENTRIES),
        revision=st.sampled_from([0, 1, 2**63, 2**64 - 1]),
        message=a_message(),
        custom=st.booleans(),
    )
    def put_entry(self, session_id: str, id_: str, parent_id: Any, revision: int, message: Any, custom: bool) -> None:
        id_, parent_id = id_of(id_, self.met), id_of(parent_id, self.met)
        entry: dict[str, Any] = {"id": id_, "parent_id": parent_id, "timestamp": OLD, "revision": revision}
        if custom:
            entry |= {"kind": "custom", "custom_type": "c", "data": None}
        else:
            entry |= {"kind": "message", "message": message}
        self.call("store::put-entry", session_id=session_id, entry=entry)

    @rule(
        session_id=SESSIONS,
        title=TEXTS,
        status=STATUSES,
        created_at=st.sampled_from([-(2**63), 0, 2**63 - 1]),
        updated_at=st.sampled_from([NEW, NEW - 1]),
        count=st.sampled_from([0, 7, 2**64 - 1]),
        metadata=maybe(LABELS),
    )
    def put_meta(self, session_id: Any, count: int, metadata: Any, **fields: Any) -> None:
        fields["session_id"] = id_of(session_id, self.made)
        meta = {**fields, "description": "", "message_count": count}
        self.call("store::put-meta", meta=meta if metadata is None else {**meta, "metadata": metadata})

    @rule(
        session_id=SESSIONS,
        function=st.sampled_from(
            ["delete-meta", "delete-entries", "delete-active-leaf", "get-meta", "get-active-leaf"]
        ),
    )
    def raw(self, function: str, session_id: str) -> None:
        self.call(f"store::{function}", session_id=session_id)

    @rule(session_id=SESSIONS, entry_id=ENTRIES)
    def raw_leaf(self, **payload: Any) -> None:
        self.call("store::set-active-leaf", **payload)

    @rule()
    def everything(self) -> None:
        self.call("store::list-metas")
        for session_id in ("t", "S", "é", *self.made):
            self.call("store::list-entries", session_id=session_id)
            self.call("get", session_id=session_id)
            self.call("messages", session_id=session_id, include_custom=True)

    @rule()
    def reopen(self) -> None:
        for stage in self.stages.values():
            self.loop.run_until_complete(stage.restart())


class Sharing(Stores):
    """The same where every fork shares its rows with its source, as forks of long paths do."""

    def __init__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(forks, "SHARED_FROM", 1)
        super().__init__()

    def teardown(self) -> None:
        super().teardown()
        self.patch.undo()


HURRIED = settings(max_examples=25, stateful_step_count=40, suppress_health_check=list(HealthCheck))
"""The same examples every time; who looks for new ones runs the long one."""
Stores.TestCase.settings = HURRIED
TestStores: Any = Stores.TestCase
Sharing.TestCase.settings = HURRIED
TestSharing: Any = Sharing.TestCase


class Thorough(Stores):
    """The same for longer."""


class ThoroughSharing(Sharing):
    """The same for longer."""


THOROUGH = settings(HURRIED, max_examples=150, stateful_step_count=60, derandomize=False)
Thorough.TestCase.settings = ThoroughSharing.TestCase.settings = THOROUGH
TestThorough: Any = pytest.mark.long(Thorough.TestCase)
TestThoroughSharing: Any = pytest.mark.long(ThoroughSharing.TestCase)
