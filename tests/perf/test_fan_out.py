"""What an event costs: one encoding for all who hear it, nothing for those who do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from session_manager.bindings import Binding, BindingTable
from session_manager.delivery import Parcel
from session_manager.events import STORE_EVENTS, Emission, MessageAdded
from session_manager.hub import Hub
from session_manager.model import TextBlock, UserMessage


class Counted(MessageAdded):
    """An event that remembers how often it was encoded."""

    trigger_type = MessageAdded.trigger_type

    def payload(self) -> bytes:
        ENCODED.append(self.entry_id)
        return super().payload()


class Visited(Binding, frozen=True):
    """A binding that remembers how often it was asked."""

    def wants(self, emission: Emission) -> bool:
        ASKED.append(self.id)
        return super().wants(emission)


ENCODED: list[str] = []
ASKED: list[str] = []


@pytest.fixture(autouse=True)
def _forgetful() -> None:
    ENCODED.clear()
    ASKED.clear()


def added(entry_id: str = "e", size: int = 8 << 10, metadata: dict[str, Any] | None = None) -> Emission:
    message = UserMessage([TextBlock("x" * size)], 1)
    event = Counted(session_id="s", entry_id=entry_id, timestamp=1, parent_id=None, message=message)
    return Emission(event, metadata)


def hub(*bindings: Binding) -> tuple[Hub, list[Parcel]]:
    table, parcels = BindingTable(), list[Parcel]()
    for binding in bindings:
        table.add(binding)

    def post(some: Sequence[Parcel]) -> None:
        parcels.extend(some)

    return Hub(table, post), parcels


def heard(number: int, **config: Any) -> Binding:
    return Visited(f"b{number}", MessageAdded.trigger_type, "f", **config)


def test_an_event_is_encoded_once_for_fifty_subscribers() -> None:
    made, parcels = hub(*(heard(number) for number in range(50)))
    for number in range(20):
        made.publish([added(f"e{number}")])
    assert len(parcels) == 50 * 20
    assert len(ENCODED) == len(set(ENCODED)) == 20
    assert len({id(parcel.payload) for parcel in parcels}) == 20, "a copy of the bytes for each subscriber"


def test_an_event_is_encoded_once_for_subscribers_and_bridges_together() -> None:
    relays = [Binding(f"r{number}", STORE_EVENTS, "f") for number in range(5)]
    made, parcels = hub(*relays, *(heard(number) for number in range(5)))
    made.publish([added()])
    assert len(parcels) == 10
    assert len(ENCODED) == 1
    envelopes = {id(parcel.payload) for parcel in parcels if parcel.binding.trigger_type == STORE_EVENTS}
    assert len(envelopes) == 1, "a copy of the envelope for each bridge"


def test_an_event_that_nobody_hears_is_not_encoded() -> None:
    made, parcels = hub(*(heard(number, session_id="other") for number in range(10)))
    made.publish([added()])
    assert parcels == []
    assert ENCODED == []


def test_bindings_for_other_sessions_are_not_looked_at() -> None:
    made, parcels = hub(
        heard(-1, session_id="s"), *(heard(number, session_id=f"other-{number}") for number in range(10_000))
    )
    made.publish([added()])
    assert [parcel.binding.id for parcel in parcels] == ["b-1"]
    assert ASKED == ["b-1"]


def test_bindings_for_other_labels_are_not_looked_at() -> None:
    made, parcels = hub(
        heard(-1, metadata={"owner": "u"}), *(heard(number, metadata={"owner": number}) for number in range(10_000))
    )
    made.publish([added(metadata={"owner": "u", "app": "a"})])
    assert [parcel.binding.id for parcel in parcels] == ["b-1"]
    assert ASKED == ["b-1"]


def test_bindings_to_other_events_are_not_looked_at() -> None:
    others = (Visited(f"o{number}", "session::deleted", "f") for number in range(1_000))
    made, parcels = hub(heard(0), *others)
    made.publish([added()])
    assert len(parcels) == 1
    assert ASKED == ["b0"]
