"""All session types of OpenCode 2.1 are accounted for, and the account is true."""

from __future__ import annotations

import copy
import importlib
import json

import pytest

from session_manager.interop.opencode.effects import HANDLERS
from session_manager.interop.opencode.events import read_event
from session_manager.interop.opencode.replay import Replay
from session_manager.interop.opencode.sessions import Refused
from session_manager.interop.opencode.sources import read
from tests.interop.catalogue import DOCS, EVENTS, LIVE_ONLY, NAMES, OTHERS, row, table
from tests.interop.support import Json, load
from tests.interop.test_opencode_export import walk

ALL = load("synthetic_2.1/all_events.json")
SESSION = ALL[0]["durable"]["aggregateID"]


def test_160_of_160_are_accounted_for() -> None:
    assert len(NAMES) == len(set(NAMES)) == 160
    for name in NAMES:
        where, test = row(name)
        assert where
        module, function = test.split("::")
        assert hasattr(importlib.import_module(f"tests.interop.{module}"), function), test
    assert set(OTHERS) <= set(NAMES)
    assert {f"Session{name}EventData" for name in EVENTS} <= set(NAMES)


def test_the_page_says_so() -> None:
    assert DOCS.read_text() == table(), "run python -m tests.interop.catalogue"


def test_the_names_are_those_of_the_sdk() -> None:
    types = pytest.importorskip("opencode.types", reason="the extra [opencode] is not installed")
    assert [name for name in NAMES if not hasattr(types, name)] == []


def test_the_recorded_data_hold_every_type_that_is_data() -> None:
    """What the table says of durable events and of documents is shown on data that the SDK knows as those types."""
    types = pytest.importorskip("opencode.types", reason="the extra [opencode] is not installed")
    pydantic = pytest.importorskip("pydantic")
    read_transfer = types.SessionTransferData.model_validate(load("synthetic_2.1/all_kinds.transfer.json"))
    read_durable = pydantic.TypeAdapter(types.SessionEventDurable).validate_python
    seen = {type(model).__name__ for model in walk(read_transfer)}
    for raw in ALL:
        seen |= {type(model).__name__ for model in walk(read_durable(raw))}
    wanted = {
        f"Session{name}Event{part}" for name in EVENTS if name not in LIVE_ONLY for part in ("Data", "Durable")
    } & set(NAMES)
    wanted |= {
        "SessionForkBoundaryBefore",
        "SessionForkBoundaryThrough",
        "SessionInfo",
        "SessionInfoFork",
        "SessionInfoTime",
        "SessionInboxItemUser",
        "SessionInboxItemSynthetic",
        "SessionInboxUserPayload",
        "SessionInboxSyntheticPayload",
        "SessionRevert",
        "SessionStructuredError",
        "SessionStructuredErrorResponse",
        "SessionShellEndedEventDataOutput",
        "SessionTransferData",
    }
    assert wanted - seen == set()


EFFECTLESS = {"session.deleted", "session.inbox.delivery.changed", "session.inbox.enqueued", "session.inbox.cancelled"}
"""Durable events that change neither a message nor the record, but what the replay knows besides."""


@pytest.mark.parametrize("name", sorted(set(EVENTS) - LIVE_ONLY))
def test_every_durable_event_does_what_the_table_says(name: str) -> None:
    """Each leaves a mark, in the records, the session's record, or what else a mirror keeps."""
    event_name = EVENTS[name][0]
    assert event_name in HANDLERS
    replay = Replay(SESSION)
    marks = []
    for raw in ALL:
        event = read_event(raw)
        assert event is not None
        before = state(replay)
        replay.apply(event)
        if event.name == event_name:
            after = state(replay)
            marks.append([part for part in before if before[part] != after[part]])
    assert marks
    assert any(marks), event_name
    if event_name not in EFFECTLESS and not event_name.startswith("session.execution.started"):
        assert any(set(mark) & {"records", "info"} for mark in marks), (event_name, marks)


def state(replay: Replay) -> Json:
    return copy.deepcopy(
        {
            "records": replay.list(),
            "info": replay.info,
            "pending": replay.pending,
            "status": replay.status,
            "deleted": replay.deleted,
        }
    )


def live(type_: str, **data: Json) -> Json:
    return {"id": "evt_live", "created": 9, "type": type_, "data": {"sessionID": SESSION, **data}}


def in_the_middle() -> Replay:
    """An answer that is being written: a thought, words, and a running tool."""
    replay = Replay(SESSION)
    message = "msg_227600000005Synthetic00005"
    step = {"assistantMessageID": message}
    for raw in [
        *ALL[:13],
        live("session.reasoning.started", **step, ordinal=0),
        live("session.text.started", **step, ordinal=0),
        live("session.tool.input.started", **step, id="c1", name="t"),
        live("session.tool.called", **step, id="c1", input={}),
        live("session.tool.input.started", **step, id="c2", name="t"),
        live("session.compaction.started", reason="auto"),
    ]:
        event = read_event(raw)
        assert event is not None
        replay.apply(event)
    return replay


STEP = {"assistantMessageID": "msg_227600000005Synthetic00005"}
LIVE_EVENTS: dict[str, tuple[Json, str, str]] = {
    "TextDelta": (live("session.text.delta", **STEP, ordinal=0, delta="abc"), "SessionTextDeltaEvent", "abc"),
    "ReasoningDelta": (
        live("session.reasoning.delta", **STEP, ordinal=0, delta="abc"), "SessionReasoningDeltaEvent", "abc",
    ),
    "ToolInputDelta": (
        live("session.tool.input.delta", **STEP, id="c2", delta="abc"), "SessionToolInputDeltaEvent", "abc",
    ),
    "ToolProgress": (
        live("session.tool.progress", **STEP, id="c1", metadata={"p": "abc"}), "SessionToolProgressEvent", "abc",
    ),
    "CompactionDelta": (live("session.compaction.delta", text="abc"), "SessionCompactionDeltaEvent", "abc"),
    "Idle": (live("session.idle"), "SessionIdleEvent", ""),
    "UsageUpdated": (
        live(
            "session.usage.updated",
            cost=1.0,
            tokens={"input": 1, "output": 1, "reasoning": 1, "cache": {"read": 1, "write": 1}},
        ),
        "SessionUsageUpdatedEvent",
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(LIVE_ONLY))
def test_every_live_event_does_what_the_table_says(name: str) -> None:
    types = pytest.importorskip("opencode.types", reason="the extra [opencode] is not installed")
    raw, model, mark = LIVE_EVENTS[name]
    getattr(types, model).model_validate(raw)  # it is what the SDK calls by that name
    event = read_event(raw)
    assert event is not None
    assert event.seq is None
    replay = in_the_middle()
    before = json.dumps(replay.list())
    replay.apply(event)
    after = json.dumps(replay.list())
    if mark:
        assert mark in after
        assert mark not in before
    else:
        assert after == before
    assert replay.unknown == {}


@pytest.mark.parametrize(
    ("status", "now"),
    [
        ({"type": "busy"}, "working"),
        ({"type": "retry", "attempt": 1, "message": "slow", "next": 5}, "working"),
        ({"type": "idle"}, None),
    ],
)
def test_a_status_that_a_server_says_is_the_status(status: Json, now: str | None) -> None:
    types = pytest.importorskip("opencode.types", reason="the extra [opencode] is not installed")
    raw = live("session.status", status=status)
    types.SessionStatusUpdated.model_validate(raw)
    event = read_event(raw)
    assert event is not None
    replay = Replay(SESSION)
    replay.apply(event)
    assert replay.status == now


@pytest.mark.parametrize("kind", ["user", "synthetic", "compaction", "move"])
def test_input_waits_and_is_delivered_or_not(kind: str) -> None:
    place = {"projectID": "p", "location": {"directory": "/q"}}
    payload = {"user": {"text": "hi"}, "synthetic": {"text": "hi"}, "compaction": {}, "move": place}[kind]
    item = {"type": kind, "payload": payload, "delivery": "queue"}
    enqueued = read_event(live("session.inbox.enqueued", inboxID="msg_q", item=item))
    delivered = read_event(live("session.inbox.delivered", inboxID="msg_q"))
    cancelled = read_event(live("session.inbox.cancelled", inboxID="msg_q"))
    assert enqueued is not None
    assert delivered is not None
    assert cancelled is not None
    for last in (delivered, cancelled):
        replay = Replay(SESSION)
        replay.apply(enqueued)
        assert replay.pending["msg_q"]["payload"] == payload
        assert replay.list() == []
        replay.apply(last)
        assert replay.pending == {}
        made = [(record["id"], record["type"], record["text"]) for record in replay.list()]
        comes = last is delivered and kind in ("user", "synthetic")
        assert made == ([("msg_q", kind, "hi")] if comes else [])


@pytest.mark.parametrize(
    "answer",
    [
        {"data": {"text": "generated"}},
        {"data": {"interrupted": True}},
        {"range": {"from": 1, "to": 2}, "activity": [], "models": [], "tools": {"type": "none"}},
    ],
)
def test_what_is_outside_of_a_session_is_in_no_document(answer: Json) -> None:
    """Answers to commands and statistics are no sessions, and are refused as such."""
    with pytest.raises(Refused):
        read(json.dumps(answer).encode(), "test")
