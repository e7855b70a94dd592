"""The configuration worker: values with a schema, files that people edit, and events about both."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml

from tests.dev.client import Failed, Frame, Peer, eventually, peer, unique
from tests.dev.conftest import Place

SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "limit": {"type": "integer", "minimum": 1},
        "kind": {"oneOf": [{"$ref": "#/definitions/on"}, {"type": "null"}]},
    },
    "additionalProperties": False,
    "definitions": {"on": {"type": "object", "required": ["name"]}},
}


class Entry:
    """One configuration entry, and the events about it."""

    def __init__(self, worker: Peer, sink: str) -> None:
        self.id = unique("conf-")
        self.worker = worker
        self.sink = sink

    async def register(self, **given: Any) -> Any:
        filled = {"id": self.id, "name": "N", "description": "D", "schema": SCHEMA, **given}
        return await self.worker.call("configuration::register", filled)

    async def set(self, value: Any) -> Any:
        return await self.worker.call("configuration::set", {"id": self.id, "value": value})

    async def get(self, raw: bool = False) -> Any:
        found = await self.worker.call("configuration::get", {"id": self.id, "raw": raw})
        assert found["id"] == self.id
        return found["value"]

    async def watch(self, **config: Any) -> str:
        """Bind the sink; returns the binding's id."""
        binding = await self.worker.bind("configuration", self.sink, {"configuration_id": self.id, **config})
        await self.worker.settled()
        return binding

    def deliveries(self) -> list[Frame]:
        return self.worker.seen("invokefunction", function_id=self.sink)

    async def events(self, count: int) -> list[Frame]:
        """The events so far, once there are so many; no more may follow a moment later."""
        await self.worker.several(count, "invokefunction", function_id=self.sink)
        await self.worker.settled()
        found = [frame["data"] for frame in self.deliveries()]
        assert len(found) == count
        return found


@pytest.fixture
async def entry(calm_place: Place) -> AsyncIterator[Entry]:
    async with _entry(calm_place) as made:
        yield made


@pytest.fixture
async def edited(place: Place) -> AsyncIterator[Entry]:
    """An entry whose file will be edited."""
    async with _entry(place) as made:
        yield made


@asynccontextmanager
async def _entry(place: Place) -> AsyncIterator[Entry]:
    async with peer(place.url) as worker:
        sink = unique("sink::")
        await worker.introduce(unique("w"))
        await worker.register(sink, lambda event: None)
        await worker.settled()
        yield Entry(worker, sink)


async def test_a_registered_entry_comes_back_and_is_kept_as_yaml_without_its_schema(
    calm_place: Place, entry: Entry
) -> None:
    value = {"limit": "${UNSET:3}", "kind": {"name": "n", "a": [1, 1.5, None, True, "é\n", "7"]}}
    registered = await entry.register(initial_value=value, metadata={"m": 1})
    assert registered == {
        "id": entry.id,
        "name": "N",
        "description": "D",
        "schema": SCHEMA,
        "value": value,
        "metadata": {"m": 1},
    }
    stored = yaml.safe_load(calm_place.file(entry.id).read_text())
    assert stored == {"id": entry.id, "name": "N", "description": "D", "value": value, "metadata": {"m": 1}}
    assert await entry.get(raw=True) == value


async def test_without_a_value_a_stored_one_is_kept_and_a_new_entry_is_null(entry: Entry) -> None:
    assert (await entry.register())["value"] is None
    with pytest.raises(Failed) as invalid:
        await entry.get()
    assert invalid.value.code == "SCHEMA_INVALID"
    assert invalid.value.message == 'schema validation failed: null is not of type "object"'
    assert await entry.get(raw=True) is None
    await entry.set({"limit": 5})
    stricter = {**SCHEMA, "required": ["kind"]}
    again = await entry.register(schema=stricter, name="M")
    assert (again["value"], again["name"]) == ({"limit": 5}, "M")
    with pytest.raises(Failed, match="is a required property"):
        await entry.get()
    assert "metadata" not in await entry.register()
    assert (await entry.register(initial_value={"limit": 9}))["value"] == {"limit": 9}, "a given one replaces it"
    assert (await entry.register(initial_value=None))["value"] == {"limit": 9}, "null is no value"


async def test_setting_a_value_answers_with_the_old_and_the_new_one(calm_place: Place, entry: Entry) -> None:
    await entry.register()
    assert await entry.set({"limit": 1}) == {"old_value": None, "new_value": {"limit": 1}}
    assert await entry.set({"limit": "${SET_IN_ENGINE}"}) == {
        "old_value": {"limit": 1},
        "new_value": {"limit": "${SET_IN_ENGINE}"},
    }
    assert await entry.get() == {"limit": 7}
    assert yaml.safe_load(calm_place.file(entry.id).read_text())["value"] == {"limit": "${SET_IN_ENGINE}"}


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"limit": 0}, "0 is less than the minimum of 1"),
        ({"limit": 1.5}, '1.5 is not of type "integer"'),
        (None, 'null is not of type "object"'),
        (
            {"kind": {"nope": 1}},
            "{\"nope\":1} is not valid under any of the schemas listed in the 'oneOf' keyword",
        ),
        ({"zzz": 1}, "Additional properties are not allowed ('zzz' was unexpected)"),
        ({"b": 1, "a": 1}, "Additional properties are not allowed ('a', 'b' were unexpected)"),
        (
            {"limit": 0, "z": 1},
            "0 is less than the minimum of 1; Additional properties are not allowed ('z' was unexpected)",
        ),
        ({"limit": "${WORD_IN_ENGINE}"}, '"word" is not of type "integer"'),
    ],
)
async def test_an_invalid_value_is_refused_with_its_faults(entry: Entry, value: Any, fault: str) -> None:
    await entry.register(initial_value={"limit": 1})
    with pytest.raises(Failed) as refusal:
        await entry.set(value)
    assert refusal.value.code == "SCHEMA_INVALID"
    assert refusal.value.message == f"schema validation failed: {fault}"
    assert await entry.get() == {"limit": 1}
    if value is not None:
        with pytest.raises(Failed) as refusal:
            await entry.register(initial_value=value)
        assert refusal.value.code == "SCHEMA_INVALID"


@pytest.mark.parametrize(
    ("schema", "value", "fault"),
    [
        ({"type": ["object", "null"]}, 5, '5 is not of types "null", "object"'),
        ({"maximum": 1}, 2, "2 is greater than the maximum of 1"),
        ({"exclusiveMinimum": 1}, 1, "1 is less than or equal to the minimum of 1"),
        ({"exclusiveMaximum": 1}, 1, "1 is greater than or equal to the maximum of 1"),
        ({"multipleOf": 3}, 4, "4 is not a multiple of 3"),
        ({"minLength": 2}, "a", '"a" is shorter than 2 characters'),
        ({"maxLength": 1}, "abc", '"abc" is longer than 1 character'),
        ({"pattern": "^a$"}, "b", '"b" does not match "^a$"'),
        ({"enum": ["a", 3]}, "x", '"x" is not one of ["a",3]'),
        ({"const": {"b": 1, "a": 2}}, 5, '{"a":2,"b":1} was expected'),
        ({"required": ["a", "b"]}, {}, '"a" is a required property; "b" is a required property'),
        ({"required": ["it's", '"']}, {}, '"it\'s" is a required property; "\\"" is a required property'),
        ({"additionalProperties": False}, {"z": 1}, "False schema does not allow 1"),
        ({"minItems": 2}, [1], "[1] has less than 2 items"),
        ({"maxProperties": 1}, {"a": 1, "b": 2}, '{"a":1,"b":2} has more than 1 property'),
        ({"uniqueItems": True}, [1, 1], "[1,1] has non-unique elements"),
        ({"contains": {"type": "string"}}, [1], "None of [1] are valid under the given schema"),
        ({"anyOf": [{"type": "null"}]}, 5, "5 is not valid under any of the schemas listed in the 'anyOf' keyword"),
        (
            {"oneOf": [{"type": "integer"}, {"type": "number"}]},
            5,
            "5 is valid under more than one of the schemas listed in the 'oneOf' keyword",
        ),
        ({"not": {"type": "integer"}}, 5, '{"type":"integer"} is not allowed for 5'),
        (False, 1, "False schema does not allow 1"),
        ({"$ref": "#/nope"}, 1, "invalid JSON Schema: Pointer '/nope' does not exist"),
        (5, 1, 'invalid JSON Schema: 5 is not of types "boolean", "object"'),
        (
            {"type": "nope"},
            1,
            "invalid JSON Schema: \"nope\" is not valid under any of the schemas listed in the 'anyOf' keyword",
        ),
    ],
)
async def test_faults_are_worded_alike(entry: Entry, schema: Any, value: Any, fault: str) -> None:
    with pytest.raises(Failed) as refusal:
        await entry.register(schema=schema, initial_value=value)
    assert refusal.value.message == f"schema validation failed: {fault}"


async def test_an_unknown_entry_is_refused(entry: Entry) -> None:
    with pytest.raises(Failed) as refusal:
        await entry.set({})
    assert refusal.value.error == {
        "code": "NOT_REGISTERED",
        "message": f"configuration '{entry.id}' is not registered; call configuration::register first",
    }
    for function in ("get", "schema"):
        with pytest.raises(Failed) as refusal:
            await entry.worker.call(f"configuration::{function}", {"id": entry.id})
        assert refusal.value.error == {"code": "NOT_FOUND", "message": f"configuration '{entry.id}' not found"}


async def test_a_value_that_cannot_be_stored_is_not_in_force(calm_place: Place, entry: Entry) -> None:
    await entry.register(initial_value={"limit": 1})
    elsewhere = calm_place.directory.with_name("elsewhere")
    calm_place.directory.rename(elsewhere)
    try:
        with pytest.raises(Failed) as refusal:
            await entry.set({"limit": 2})
    finally:
        elsewhere.rename(calm_place.directory)
    assert refusal.value.code == "ADAPTER_ERROR"
    assert await entry.get() == {"limit": 1}


@pytest.mark.parametrize("bad", ["", "UPPER", "a b", "../up", "x" * 65, "é"])
async def test_an_id_that_is_no_file_name_is_refused(entry: Entry, bad: str) -> None:
    with pytest.raises(Failed) as refusal:
        await entry.register(id=bad)
    assert refusal.value.error == {
        "code": "INVALID_ID",
        "message": f"invalid configuration id '{bad}': must match [a-z0-9_-]{{1,64}}",
    }


async def test_placeholders_take_the_type_of_what_they_stand_for(entry: Entry) -> None:
    value = {
        "number": "${N:5}",
        "text": " ${N:5} x",
        "yes": "${Y:true}",
        "on": "${Y:on}",
        "octal": "${Y:007}",
        "float": "${Y:1.5}",
        "empty": "${Y:}",
        "null": "${Y:null}",
        "list": ["${SET_IN_ENGINE}", "${WORD_IN_ENGINE}-${SET_IN_ENGINE:1}"],
        "no": "$NOT {x}",
    }
    await entry.register(schema={}, initial_value=value)
    assert await entry.get() == {
        "number": 5,
        "text": " 5 x",
        "yes": True,
        "on": "on",
        "octal": "007",
        "float": 1.5,
        "empty": "",
        "null": None,
        "list": [7, "word-7"],
        "no": "$NOT {x}",
    }


async def test_a_value_with_an_unset_placeholder_is_stored_unchecked_and_cannot_be_read(entry: Entry) -> None:
    await entry.register()
    await entry.set({"limit": "${NOBODY_SET}", "zzz": "${NOR_THIS}"})
    with pytest.raises(Failed) as refusal:
        await entry.get()
    assert refusal.value.error == {
        "code": "EXPAND_FAILED",
        "message": f"configuration '{entry.id}' references unset environment variable(s) with no default: "
        "NOBODY_SET, NOR_THIS",
    }
    assert await entry.get(raw=True) == {"limit": "${NOBODY_SET}", "zzz": "${NOR_THIS}"}


async def test_entries_are_listed_without_their_values(entry: Entry) -> None:
    await entry.register(initial_value={}, metadata={"m": 1})
    view = {"id": entry.id, "name": "N", "description": "D", "schema": SCHEMA, "metadata": {"m": 1}}
    assert await entry.worker.call("configuration::schema", {"id": entry.id}) == view
    rows = (await entry.worker.call("configuration::list", {}))["configurations"]
    assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)
    assert view in rows


async def test_changes_are_events_with_placeholders_filled_in(entry: Entry) -> None:
    await entry.watch()
    await entry.register(initial_value={"limit": "${SET_IN_ENGINE}"}, metadata={"m": 1})
    (registered,) = await entry.events(1)
    assert registered == {
        "type": "configuration",
        "event_type": "configuration:registered",
        "id": entry.id,
        "name": "N",
        "description": "D",
        "schema": SCHEMA,
        "old_value": None,
        "new_value": {"limit": 7},
        "metadata": {"m": 1},
    }
    await entry.set({"limit": 2})
    updated = (await entry.events(2))[1]
    assert updated == {
        **registered,
        "event_type": "configuration:updated",
        "old_value": {"limit": 7},
        "new_value": {"limit": 2},
    }
    await entry.register()
    again = (await entry.events(3))[2]
    assert again["event_type"] == "configuration:updated", "though nothing changed"
    assert again["old_value"] == again["new_value"] == {"limit": 2}
    assert "metadata" not in again


async def test_a_binding_chooses_entries_and_events_and_carries_its_metadata(entry: Entry) -> None:
    other = Entry(entry.worker, entry.sink)
    await entry.worker.bind(
        "configuration",
        entry.sink,
        {"configuration_id": entry.id, "event_types": ["configuration:updated"]},
        metadata={"which": 1},
    )
    await entry.register(initial_value={})
    await other.register(initial_value={})
    await other.set({"limit": 3})
    await entry.set({"limit": 1})
    (event,) = await entry.events(1)
    assert event["new_value"] == {"limit": 1}
    assert entry.deliveries()[0]["metadata"] == {"which": 1}
    everything = Entry(entry.worker, unique("all::"))
    await entry.worker.register(everything.sink, lambda event: None)
    binding = await entry.worker.bind("configuration", everything.sink, {})
    await other.set({"limit": 4})
    await entry.worker.several(1, "invokefunction", function_id=everything.sink)
    await entry.worker.send("unregistertrigger", id=binding)
    await other.set({"limit": 5})
    await entry.worker.settled()
    values = [frame["data"]["new_value"] for frame in everything.deliveries()]
    assert values == [{"limit": 4}], "and none after it was removed"


async def test_a_condition_decides_with_false_only(entry: Entry) -> None:
    condition = unique("if::")
    verdicts: list[Any] = [False, True, None, "false"]
    await entry.register(initial_value={})
    await entry.worker.register(condition, lambda event: verdicts[event["new_value"]["limit"] - 1])
    await entry.watch(condition_function_id=condition)
    for limit in range(1, 5):
        await entry.set({"limit": limit})
        await entry.worker.several(limit, "invokefunction", function_id=condition)
    events = await entry.events(3)
    assert sorted(event["new_value"]["limit"] for event in events) == [2, 3, 4]


@pytest.mark.parametrize("config", [None, "text", {"configuration_id": 1}, {"event_types": "x"}])
async def test_a_binding_with_a_config_nobody_understands_is_refused(entry: Entry, config: Any) -> None:
    binding = await entry.worker.bind("configuration", entry.sink, config)
    refused = await entry.worker.frame("triggerregistrationresult", id=binding)
    assert refused["error"]["code"] == "trigger_registration_failed"
    message = refused["error"]["message"]
    assert message.startswith("Failed to parse configuration trigger config: invalid type: ")
    given = {"trigger_type": "configuration", "function_id": entry.sink, "config": config}
    with pytest.raises(Failed) as refusal:
        await entry.worker.call("engine::register_trigger", given)
    assert refusal.value.error == refused["error"]


async def test_a_binding_by_function_hears_of_changes_too(entry: Entry) -> None:
    given = {"trigger_type": "configuration", "function_id": entry.sink, "config": {"configuration_id": entry.id}}
    made = await entry.worker.call("engine::register_trigger", given)
    await entry.register(initial_value={})
    await entry.events(1)
    assert await entry.worker.call("engine::unregister_trigger", made) == {"removed": True}
    await entry.set({"limit": 1})
    await entry.events(1)


async def test_an_edit_by_hand_takes_effect_and_is_an_event(place: Place, edited: Entry) -> None:
    await edited.register(initial_value={"limit": 1})
    await edited.watch()
    place.edit(edited.id, place.file(edited.id).read_text().replace("limit: 1", "limit: 2"))
    (event,) = await edited.events(1)
    assert event["event_type"] == "configuration:updated"
    assert (event["old_value"], event["new_value"]) == ({"limit": 1}, {"limit": 2})
    assert event["schema"] == SCHEMA
    assert await edited.get() == {"limit": 2}


async def test_an_invalid_edit_is_no_event_and_the_old_value_stays(place: Place, edited: Entry) -> None:
    await edited.register(initial_value={"limit": 1})
    await edited.watch()
    place.edit(edited.id, place.file(edited.id).read_text().replace("limit: 1", "limit: 0"))
    # A valid edit of another entry shows when the directory has been read.
    marker = Entry(edited.worker, unique("marker::"))
    await edited.worker.register(marker.sink, lambda event: None)
    await marker.watch()
    place.edit(marker.id, f"id: {marker.id}\nname: N\ndescription: D\nvalue: {{}}\n")
    await marker.events(1)
    assert await edited.get() == {"limit": 1}
    await edited.events(0)
    assert await edited.set({"limit": 3}) == {"old_value": {"limit": 0}, "new_value": {"limit": 3}}


@pytest.mark.parametrize("how", ["corrupt", "missing"])
async def test_a_lost_file_drops_the_entry_and_a_repaired_one_has_no_schema(
    place: Place, edited: Entry, how: str
) -> None:
    await edited.register(initial_value={"limit": 1})
    await edited.watch()
    path = place.file(edited.id)
    good = path.read_text()
    if how == "corrupt":
        place.edit(edited.id, "id: [unclosed")
    else:
        path.unlink()
    (deleted,) = await edited.events(1)
    assert deleted["event_type"] == "configuration:deleted"
    assert (deleted["old_value"], deleted["new_value"]) == ({"limit": 1}, None)
    with pytest.raises(Failed) as gone:
        await edited.get()
    assert gone.value.code == "NOT_FOUND"
    place.edit(edited.id, good)
    registered = (await edited.events(2))[1]
    assert registered["event_type"] == "configuration:registered"
    assert registered["schema"] is None
    assert await edited.get() == {"limit": 1}
    with pytest.raises(Failed) as refusal:
        await edited.set({"limit": 2})
    assert refusal.value.code == "SCHEMA_UNAVAILABLE"
    await edited.register()
    await edited.set({"limit": 2})


async def test_a_restart_keeps_values_and_forgets_schemas_and_bindings(place: Place, edited: Entry) -> None:
    await edited.register(initial_value={"limit": 4})
    given = {"trigger_type": "configuration", "function_id": edited.sink, "config": {"configuration_id": edited.id}}
    made = await edited.worker.call("engine::register_trigger", given)
    place.restart()
    await edited.worker.closed.wait()
    assert edited.worker.close_code == 1006
    async with peer(place.url) as worker:
        await worker.introduce(unique("w"))
        after = Entry(worker, edited.sink)
        after.id = edited.id
        assert await after.get() == {"limit": 4}
        assert (await worker.call("configuration::schema", {"id": edited.id}))["schema"] is None
        with pytest.raises(Failed) as refusal:
            await after.set({"limit": 5})
        assert refusal.value.error == {
            "code": "SCHEMA_UNAVAILABLE",
            "message": f"configuration '{edited.id}' has no schema available yet; the owning worker must register "
            "before values can be set",
        }
        assert await worker.call("engine::unregister_trigger", made) == {"removed": False}
        await after.register()
        await after.set({"limit": 5})


async def test_values_survive_the_way_to_disk_and_back(place: Place, edited: Entry) -> None:
    words = ["on", "no", "~", "null", "1e3", "007", "1_000", "0x1f", "1:30", "2026-01-01", "", " pad ", "a: b", "#c"]
    value = {
        "words": [*words, "é\u2028\x7f\n\ttab", "- x", "'quote\"", "${HOME}", "=", "<<"],
        "numbers": [0, -1, 2**63, 1.5, 1.0, -0.0, 1e20, 1e-7, 0.1, 12345678.9, True, None],
        "nested": {"": {"deep": [[], {}, [[{}]]]}, "1": 1, "true": 2, "on": 3},
    }
    await edited.register(schema={}, initial_value=value)
    place.restart()
    async with peer(place.url) as worker:
        found = await worker.call("configuration::get", {"id": edited.id, "raw": True})
    assert json.dumps(found["value"], sort_keys=True) == json.dumps(value, sort_keys=True)


async def test_a_slow_subscriber_holds_up_no_writer(entry: Entry) -> None:
    silent = unique("silent::")
    await entry.register(initial_value={})
    await entry.worker.register(silent)
    await entry.worker.bind("configuration", silent, {"configuration_id": entry.id})
    await entry.worker.settled()
    for limit in range(1, 4):
        await entry.set({"limit": limit})
    delivered = await entry.worker.several(3, "invokefunction", function_id=silent)
    assert sorted(frame["data"]["new_value"]["limit"] for frame in delivered) == [1, 2, 3]


async def test_a_silent_subscriber_holds_up_the_other_subscribers_of_its_event(entry: Entry) -> None:
    """Each event goes to one subscriber after the other, in an order nobody knows."""
    worker = entry.worker
    for _ in range(8):
        one, silent = Entry(worker, ""), unique("silent::")
        sinks = [unique("sink::") for _ in range(8)]
        await one.register(initial_value={})
        await worker.register(silent)
        for sink in sinks:
            await worker.register(sink, lambda event: None)
        for function in (*sinks[:4], silent, *sinks[4:]):
            await worker.bind("configuration", function, {"configuration_id": one.id})
        await worker.settled()
        await one.set({"limit": 1})
        held = await worker.frame("invokefunction", function_id=silent)
        await worker.settled()
        before = sum(len(worker.seen("invokefunction", function_id=sink)) for sink in sinks)
        await worker.answer(held, result=None)
        for sink in sinks:
            await worker.frame("invokefunction", function_id=sink)
        if before < 8:
            return
    pytest.fail("the silent subscriber was always the last")


async def test_a_worker_can_take_an_engines_own_function_over_and_away(place: Place) -> None:
    function = "configuration::schema"
    async with peer(place.url) as client:
        async with peer(place.url) as thief:
            await thief.introduce(unique("w"))
            await thief.register(function, lambda data: "mine")
            await thief.settled()
            assert await client.call(function, {"id": "x"}) == "mine"
            assert not thief.seen("registrationrejected")

        async def gone() -> bool:
            try:
                await client.call(function, {"id": "x"})
            except Failed as error:
                return error.code == "function_not_found"
            return False

        await eventually(gone)
    place.restart()
    async with peer(place.url) as client:
        with pytest.raises(Failed, match="configuration 'x' not found"):
            await client.call(function, {"id": "x"})
