"""From events to deliveries: who is to receive what, decided where the events happen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from session_manager.bindings import BindingTable
from session_manager.delivery import Parcel
from session_manager.events import Emission, MessageUpdated

Post = Callable[[Sequence[Parcel]], None]
"""Hands parcels to the delivery component, wherever it runs; returns at once."""


class Hub(Struct):
    """Matches events with bindings. Each event is encoded at most once, however many receive it."""

    bindings: BindingTable
    post: Post

    def publish(self, emissions: Sequence[Emission]) -> None:
        """Tells local subscribers and all bridges."""
        if not self.bindings:
            return
        parcels: list[Parcel] = []
        relays = self.bindings.relays()
        for emission in emissions:
            payload = self._local(emission, parcels)
            if relays:
                envelope = emission.envelope(payload or emission.payload())
                session_id = emission.event.session_id
                parcels += [Parcel(relay, session_id, envelope, None) for relay in relays]
        if parcels:
            self.post(parcels)

    def is_heard(self, emissions: Sequence[Emission]) -> bool:
        """Whether there is anybody to be told of any of these."""
        if not self.bindings:
            return False
        return bool(self.bindings.relays()) or any(
            True for emission in emissions for _ in self.bindings.matching(emission)
        )

    def publish_locally(self, emissions: Sequence[Emission]) -> None:
        """Tells local subscribers only: for events that came from another instance."""
        parcels: list[Parcel] = []
        for emission in emissions:
            self._local(emission, parcels)
        if parcels:
            self.post(parcels)

    def _local(self, emission: Emission, parcels: list[Parcel]) -> bytes | None:
        event = emission.event
        payload: bytes | None = None
        merge = event.entry_id if isinstance(event, MessageUpdated) else None
        for binding in self.bindings.matching(emission):
            if payload is None:
                payload = emission.payload()
            parcels.append(Parcel(binding, event.session_id, payload, merge))
        return payload
