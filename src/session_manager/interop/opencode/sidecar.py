"""The original of a record, kept beside what it was mapped to.

Messages have no room for all that OpenCode records (parts, snapshots, provider data, times of tools). So the record
goes, as it came, into

* a bookkeeping entry of type `opencode.origin` right behind the first entry of a user or assistant record, or
* `details` (custom messages) or `data` (bookkeeping entries) under the key `opencode`.

Either way it is an object `{generation, mapped_sha256, record, refs?, entry_ids?}`. `mapped_sha256` is over what the
record was mapped to; as long as the stored entries have that hash, the record is what they came from. Long texts and
base64 that the entries hold already are replaced by references; `refs` is true when there are any.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from session_manager.interop.opencode.blocks import data_url
from session_manager.interop.opencode.records import Generation, Record
from session_manager.model import Entry, Json, JsonObject, Role, decode, encode

SIDECAR = "opencode.origin"
KEY = "opencode"

REF = "$opencode.ref"
LONG = 256
"""Texts shorter than this (in characters) are not worth a reference."""


class Draft(msgspec.Struct, frozen=True):
    """An entry that has no place in a chain yet."""

    id: str
    timestamp: int
    role: Role | None
    body: bytes

    def at(self, parent_id: str | None, origin: bytes | None) -> Entry:
        return Entry(self.id, parent_id, self.timestamp, self.role, self.body, 0, origin)


def fingerprint(entries: Iterable[Draft | Entry]) -> str:
    """SHA-256 in hex over ids and content, whatever the order of entries and of keys. What this module keeps in a
    custom message or bookkeeping entry does not count."""
    digest = hashlib.sha256()
    for entry in sorted(entries, key=lambda entry: entry.id):
        digest.update(msgspec.json.encode([entry.id, entry.role, bare(entry)], order="sorted"))
        digest.update(b"\n")
    return digest.hexdigest()


def bare(entry: Draft | Entry) -> JsonObject:
    """The content of an entry without the record that is kept in it."""
    body: JsonObject = decode(entry.body)
    for field in ("details", "data"):
        inside = body.get(field)
        if isinstance(inside, dict) and KEY in inside and entry.role in (None, "custom"):
            body[field] = {key: value for key, value in inside.items() if key != KEY}
    return body


def kept(record: Record, generation: Generation, mapped: list[Draft]) -> JsonObject:
    """What is kept of `record` beside the entries that it was mapped to."""
    bodies = [bare(draft) for draft in mapped]
    value: JsonObject = {"generation": generation, "mapped_sha256": fingerprint(mapped), "record": record}
    places = _long_texts(bodies)
    # A record that itself holds our mark is stored as it is: then there is nothing to mistake.
    if places and REF.encode() not in encode(record):
        short = _shorten(record, places)
        if short != record:
            value["record"], value["refs"] = short, True
    return value


def sidecar(record: Record, generation: Generation, mapped: list[Draft], id_: str) -> Draft:
    """The bookkeeping entry for a record that was mapped to messages. Goes right behind the first of them."""
    value = kept(record, generation, mapped)
    value["entry_ids"] = [draft.id for draft in mapped]
    return Draft(id_, mapped[0].timestamp, None, encode({"custom_type": SIDECAR, "data": value}))


def kept_in(entry: Draft | Entry) -> JsonObject | None:
    """What an entry keeps of its record; None when it keeps nothing."""
    if entry.role not in (None, "custom"):
        return None
    body: JsonObject = decode(entry.body)
    inside = body.get("data" if entry.role is None else "details")
    if not isinstance(inside, dict):
        return None
    value = inside if body.get("custom_type") == SIDECAR else inside.get(KEY)
    return value if isinstance(value, dict) and "mapped_sha256" in value and "record" in value else None


def original(value: JsonObject, entries: list[Draft | Entry]) -> Record | None:
    """The record of `value`, if `entries` are what it was mapped to; None when they were changed since."""
    if fingerprint(entries) != value.get("mapped_sha256"):
        return None
    record = value["record"]
    if value.get("refs"):
        order = value.get("entry_ids")
        if isinstance(order, list):
            place = {id_: n for n, id_ in enumerate(order)}
            entries = sorted(entries, key=lambda entry: place.get(entry.id, len(place)))
        record = _restore(record, [bare(entry) for entry in entries])
    return record if isinstance(record, dict) else None


Path = list[str | int]


def _long_texts(bodies: list[JsonObject]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for number, body in enumerate(bodies):
        stack: list[tuple[Json, Path]] = [(body, [number])]
        while stack:
            value, path = stack.pop()
            if isinstance(value, str):
                if len(value) >= LONG:
                    found.setdefault(value, path)
            elif isinstance(value, dict):
                stack += [(inner, [*path, key]) for key, inner in value.items()]
            elif isinstance(value, list):
                stack += [(inner, [*path, index]) for index, inner in enumerate(value)]
    return found


def _shorten(value: Json, places: dict[str, Path]) -> Json:
    if isinstance(value, str):
        if len(value) < LONG:
            return value
        if (place := places.get(value)) is not None:
            return {REF: place}
        if (parts := data_url(value)) is not None and (place := places.get(parts[1])) is not None:
            return {REF: place, "prefix": value[: -len(parts[1])]}
        return value
    if isinstance(value, dict):
        return {key: _shorten(inner, places) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shorten(inner, places) for inner in value]
    return value


def _restore(value: Json, bodies: list[JsonObject]) -> Json:
    if isinstance(value, dict):
        path = value.get(REF)
        if isinstance(path, list):
            found: Json = bodies
            try:
                for step in path:
                    found = found[step]
            except (KeyError, IndexError, TypeError):
                return value
            prefix = value.get("prefix", "")
            return prefix + found if isinstance(found, str) and isinstance(prefix, str) else value
        return {key: _restore(inner, bodies) for key, inner in value.items()}
    if isinstance(value, list):
        return [_restore(inner, bodies) for inner in value]
    return value


def remains(value: JsonObject, entries: list[Draft | Entry]) -> Record | None:
    """What is left of a record whose entries were changed, for what the entries cannot say (agent, path, part ids).
    Texts that only the entries held are empty in it."""
    order = value.get("entry_ids")
    if isinstance(order, list):
        place = {id_: n for n, id_ in enumerate(order)}
        entries = sorted(entries, key=lambda entry: place.get(entry.id, len(place)))
    record = _restore(value["record"], [bare(entry) for entry in entries]) if value.get("refs") else value["record"]
    record = _blanked(record) if value.get("refs") else record
    return record if isinstance(record, dict) else None


def _blanked(value: Json) -> Json:
    if isinstance(value, dict):
        return "" if REF in value else {key: _blanked(inner) for key, inner in value.items()}
    return [_blanked(inner) for inner in value] if isinstance(value, list) else value
