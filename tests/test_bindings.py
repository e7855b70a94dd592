"""What bindings ask for, and that those for other sessions cost an event nothing."""

from __future__ import annotations

from typing import Any

import pytest

from session_manager import bindings, filters
from session_manager.bindings import Binding, BindingTable, binding
from session_manager.errors import MalformedRequest
from session_manager.events import STORE_EVENTS, Created, Emission, MessageAdded, StatusChanged
from session_manager.model import CustomPayload, JsonObject, UserMessage


def added(session_id: str = "s", metadata: JsonObject | None = None) -> Emission:
    event = MessageAdded(
        session_id=session_id, entry_id="e", timestamp=1, parent_id=None, message=UserMessage(content=[], timestamp=1)
    )
    return Emission(event, metadata)


def table(*configs: Any, trigger_type: str = MessageAdded.trigger_type) -> BindingTable:
    made = BindingTable()
    for n, config in enumerate(configs):
        made.add(binding(f"b{n}", trigger_type, "f", config))
    return made


def ids(made: BindingTable, emission: Emission) -> list[str]:
    return sorted(one.id for one in made.matching(emission))


def test_all_filters_of_a_binding_must_hold() -> None:
    made = table(
        None,
        {},
        {"session_id": "s"},
        {"session_id": "other"},
        {"roles": ["user"]},
        {"roles": ["assistant"]},
        {"roles": []},
        {"metadata": {"owner": "ann"}},
        {"metadata": {"owner": "bob"}},
        {"metadata": {}},
        {"session_id": "s", "roles": ["user"], "metadata": {"owner": "ann", "n": 1}},
        {"session_id": None, "roles": None, "metadata": None},
    )
    assert ids(made, added(metadata={"n": 1, "owner": "ann"})) == ["b0", "b1", "b10", "b11", "b2", "b4", "b7", "b9"]


@pytest.mark.parametrize(
    ("wanted", "metadata", "match"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": None}, {}, False),
        ({"a": None}, {"a": None}, True),
        ({"a": {"x": 1}}, {"a": {"x": 1, "y": 2}}, False),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}, True),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"a": 1}, None, False),
        ({}, None, True),
    ],
)
def test_metadata_is_compared_deeply_and_in_type(wanted: Any, metadata: Any, match: bool) -> None:
    assert ids(table({"metadata": wanted}), added(metadata=metadata)) == (["b0"] if match else [])


def test_a_bookkeeping_record_matches_no_list_of_roles() -> None:
    record = Emission(
        MessageAdded(session_id="s", entry_id="e", timestamp=1, parent_id=None, custom=CustomPayload("note")), None
    )
    assert ids(table({"roles": ["custom"]}, {}), record) == ["b1"]


@pytest.mark.parametrize(
    ("trigger_type", "config", "field"),
    [
        ("session::message-added", {"unknown": None}, "unknown"),
        ("session::message-added", {"roles": ["robot"]}, "roles"),
        ("session::message-added", {"session_id": 1}, "session_id"),
        ("session::message-added", [], "array"),
        ("session::message-added", "x", "str"),
        ("session::created", {"session_id": "s"}, "session_id"),
        ("session::deleted", {"roles": []}, "roles"),
        ("session::meta-updated", {"metadata": []}, "metadata"),
    ],
)
def test_a_configuration_of_another_shape_is_refused_and_named(trigger_type: str, config: Any, field: str) -> None:
    with pytest.raises(MalformedRequest, match=field):
        binding("b", trigger_type, "f", config)


@pytest.mark.parametrize("config", [None, {}, {"anything": 1}, [], "x", 3])
def test_the_internal_feed_takes_any_configuration(config: Any) -> None:
    made = table(config, trigger_type=STORE_EVENTS)
    assert [one.id for one in made.relays()] == ["b0"]
    assert ids(made, added()) == []


def test_the_same_id_replaces_and_removal_leaves_nothing_behind() -> None:
    made = table({"session_id": "s"})
    made.add(binding("b0", MessageAdded.trigger_type, "f", {"metadata": {"owner": "ann"}}))
    assert ids(made, added()) == []
    assert ids(made, added(metadata={"owner": "ann"})) == ["b0"]
    made.remove("b0")
    made.remove("b0")
    assert (len(made), made._filed, made._asked) == (0, {}, {MessageAdded.trigger_type: {}})


def test_bindings_for_other_sessions_and_labels_are_not_even_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    made = table(
        *({"session_id": f"other{n}"} for n in range(5000)), *({"metadata": {"owner": f"o{n}"}} for n in range(5000))
    )
    looked_at: list[str] = []
    wants = Binding.wants

    def counted(self: Binding, emission: Emission) -> bool:
        looked_at.append(self.id)
        return wants(self, emission)

    monkeypatch.setattr(bindings.Binding, "wants", counted)
    assert ids(made, added("s", {"owner": "nobody"})) == []
    assert looked_at == []
    assert ids(made, added("other7", {"owner": "o7"})) == ["b5007", "b7"]
    assert looked_at == ["b7", "b5007"]


def test_labels_that_nobody_asks_for_cost_an_event_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Any] = []
    canonical = filters.canonical

    def noted(value: Any) -> bytes:
        encoded.append(value)
        return canonical(value)

    monkeypatch.setattr(bindings, "canonical", noted)
    made = table({}, {"session_id": "s"}, {"metadata": {"owner": "ann"}}, {"metadata": {"owner": "bob"}})
    made.remove("b3")
    encoded.clear()
    assert ids(made, added(metadata={"owner": "ann", "notes": ["long"] * 1000})) == ["b0", "b1", "b2"]
    assert encoded == ["ann"]
    made.remove("b2")
    encoded.clear()
    assert ids(made, added(metadata={"owner": "ann"})) == ["b0", "b1"]
    assert encoded == []


def test_a_type_hears_only_its_own_events() -> None:
    made = table({}, trigger_type=Created.trigger_type)
    status = StatusChanged(session_id="s", status="done", previous_status="idle", timestamp=1)
    assert ids(made, Emission(status, None)) == []
