"""Where the entries of a session go in its chain, over those that are stored already. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from session_manager.interop.opencode.sessions import ORIGIN_BYTES, Group
from session_manager.interop.opencode.sidecar import Draft, fingerprint, kept_in
from session_manager.model import Entry, JsonObject, decode


class Placement:
    """Puts groups of entries into a chain, over what is stored already."""

    def __init__(self, stored: Mapping[str, Entry]) -> None:
        self._stored = stored
        self.added: list[Entry] = []
        self.updated: list[Entry] = []
        self.moved: list[Entry] = []
        """Entries whose only change is the entry before them."""
        self.unchanged = 0
        self.skipped: list[str] = []

    def put(self, group: Group, parent: str | None) -> str | None:
        """Places a group behind `parent`; gives its last entry's id. Stored entries keep their order (results of a
        session that was followed live are in the order in which the tools ended); new ones come behind them."""
        there = [self._stored[draft.id] for draft in group.drafts if draft.id in self._stored]
        drafts = {draft.id: draft for draft in group.drafts}
        if there and _edited(there) and not all(_same(entry, drafts[entry.id]) for entry in there):
            self.skipped.append(f"message {group.record_id} was edited here and stays as it is")
            for entry in _in_order(there):
                parent = self._keep(entry, None, parent)
            return parent
        for entry in _in_order(there):
            parent = self._keep(entry, drafts.pop(entry.id), parent)
        for draft in drafts.values():
            self.added.append(draft.at(parent, ORIGIN_BYTES))
            parent = draft.id
        return parent

    def news(self) -> bool:
        """Whether any entry would be written."""
        return bool(self.added or self.updated or self.moved)

    def put_alone(self, entry: Entry) -> None:
        """An entry outside of any path."""
        there = self._stored.get(entry.id)
        if there is None:
            self.added.append(entry)
        elif _events_of(there) == _events_of(entry)[: len(_events_of(there))] and there.body != entry.body:
            self.updated.append(msgspec.structs.replace(entry, revision=there.revision + 1))
        else:
            self.unchanged += 1

    def _keep(self, entry: Entry, draft: Draft | None, parent: str | None) -> str:
        if draft is not None and not _same(entry, draft):
            changed = msgspec.structs.replace(
                entry, parent_id=parent, role=draft.role, body=draft.body, revision=entry.revision + 1
            )
            self.updated.append(changed)
        elif entry.parent_id != parent:
            self.moved.append(msgspec.structs.replace(entry, parent_id=parent))
        else:
            self.unchanged += 1
        return entry.id


def _in_order(entries: list[Entry]) -> list[Entry]:
    """Entries of one group as the chain has them: each behind the one that it names, others where they stand."""
    behind = {entry.parent_id: entry for entry in reversed(entries)}
    ids = {entry.id for entry in entries}
    ordered: list[Entry] = []
    for start in entries:
        if start.parent_id in ids:
            continue
        at: Entry | None = start
        while at is not None and at not in ordered:
            ordered.append(at)
            at = behind.get(at.id)
    return ordered + [entry for entry in entries if entry not in ordered]


def _same(entry: Entry, draft: Draft) -> bool:
    if entry.role != draft.role:
        return False
    return entry.body == draft.body or bool(decode(entry.body) == decode(draft.body))


def _edited(group: list[Entry]) -> bool:
    """Whether a person changed the entries since they were imported."""
    for entry in group:
        value = kept_in(entry)
        if value is not None:
            named = value.get("entry_ids")
            covered = [e for e in group if e.id in named] if isinstance(named, list) else [entry]
            return bool(fingerprint(covered) != value["mapped_sha256"])
    return any(entry.revision > 0 for entry in group)


def _events_of(entry: Entry) -> list[JsonObject]:
    return list(decode(entry.body)["data"]["events"])
