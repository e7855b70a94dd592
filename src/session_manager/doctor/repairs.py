"""What can be done about a session's findings, as one change: nothing that is stored is altered but the record, and
what cannot be reached any more is copied to a new branch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from session_manager.clock import Ids
from session_manager.doctor.conversations import Patient
from session_manager.doctor.findings import Finding
from session_manager.model import (
    AssistantMessage,
    Entry,
    FunctionCallBlock,
    FunctionResultMessage,
    SessionMeta,
    TextBlock,
    encode,
)
from session_manager.store import Change, Drop

KEPT = frozenset({"parent-missing", "cycle", "entry-damaged"})
"""Kinds of damage that stay where they are, beside the branch that is mended; so they are found again."""


class Treatment(Struct):
    """The change, and the findings with what it does about each."""

    change: Change
    findings: list[Finding]


def treat(
    patient: Patient, findings: Sequence[Finding], now: int, ids: Ids, salvage: Callable[[], SessionMeta]
) -> Treatment:
    """`salvage` gives what can still be told of a damaged record."""
    meta, leaf = patient.meta, patient.leaf
    added: list[Entry] = []
    rescued: set[str] = set()
    """Entries whose findings are dealt with."""
    done: dict[str, str] = {}
    kinds = {finding.kind for finding in findings}

    if "record-damaged" in kinds:
        meta = salvage()
        done["record-damaged"] = "put a record back from what can still be told; the old bytes are in the backup"
    if "entries-without-record" in kinds:
        times = [entry.timestamp for entry in patient.entries.values()] or [now]
        meta = SessionMeta(patient.session_id, "", "", "idle", min(times), max(times), 0)
        done["entries-without-record"] = "made a record"
    if kinds & {"leaf-gone", "leaf-missing"} and patient.entries:
        leaf = patient.resting_leaf()
        made = f"made {leaf!r} the active leaf" if leaf is not None else "there is no active leaf any more"
        done["leaf-gone"] = done["leaf-missing"] = made
    if leaf is not None and patient.has(leaf):
        cut, root, wrong = _cut_off(patient, leaf)
        for id_ in cut:
            if id_ not in patient.damaged:
                parent = added[-1].id if added else root
                copy = msgspec.structs.replace(patient.entries[id_], id=ids.entry(), parent_id=parent, revision=0)
                added.append(copy)
        end = added[-1].id if added else root
        if cut and end is not None:
            leaf, rescued = end, set(cut)
            what = f"copied the {len(added)} entries that are whole to a new branch and made it active"
            if wrong is not None:
                done[wrong] = what
            done["entry-damaged"] = f"{what if added else 'made the entry before it the active leaf'}; its bytes stay"
    if meta is not None and "stuck-working" in kinds:
        meta = msgspec.structs.replace(meta, status="error", status_reason="interrupted", updated_at=now)
        done["stuck-working"] = "set the status to error, interrupted"
    if meta is not None and leaf is not None and "call-without-result" in kinds and not added:
        added += _answers(patient, leaf, findings, now, ids)
        if added:
            leaf = added[-1].id
            done["call-without-result"] = "added a result that says the call was interrupted"
    more = sum(entry.role is not None for entry in added)
    messages = sum(entry.role is not None for entry in patient.entries.values()) + more
    if meta is not None and patient.damaged:  # how many of those were messages, only the record knows
        meta = msgspec.structs.replace(meta, message_count=max(messages, meta.message_count + more))
    elif meta is not None:
        if meta.message_count != messages:
            meta = msgspec.structs.replace(meta, message_count=messages)
        done["count-wrong"] = done["record-without-entries"] = f"the count is now {messages}, and so many there are"
    change = Change(
        patient.session_id,
        meta=meta if meta != patient.meta else None,
        leaf=leaf if leaf != patient.leaf else None,
        entries=tuple(added),
        drops=frozenset({Drop.LEAF} if leaf is None and patient.leaf is not None else ()),
    )
    return Treatment(
        change,
        [
            msgspec.structs.replace(finding, repaired=done[finding.kind])
            if finding.kind in done and (finding.kind not in KEPT or finding.entry_id in rescued)
            else finding
            for finding in findings
        ],
    )


def _cut_off(patient: Patient, leaf: str) -> tuple[list[str], str | None, str | None]:
    """What of the path to `leaf` cannot be shown with what is before it, the entry to hang it on instead, and what is
    wrong with its links, if anything."""
    reachable, wrong = patient.path(leaf)
    if wrong is not None:
        return reachable, patient.newest(before=set(reachable)), wrong
    for place, id_ in enumerate(reachable):
        if id_ in patient.damaged:
            return reachable[place:], reachable[place - 1] if place else None, None
    return [], None, None


def _answers(patient: Patient, leaf: str, findings: Sequence[Finding], now: int, ids: Ids) -> list[Entry]:
    """Results for the calls of the last assistant message of the path, if only results follow it."""
    open_in = {finding.entry_id for finding in findings if finding.kind == "call-without-result"}
    last: Entry | None = None
    answered: set[str] = set()
    for id_ in reversed(patient.path(leaf)[0]):
        entry = patient.entries[id_]
        if entry.role == "function_result":
            message = entry.message()
            assert isinstance(message, FunctionResultMessage)
            answered.add(message.function_call_id)
        elif entry.role is not None:
            last = entry
            break
    if last is None or last.role != "assistant" or open_in != {last.id}:
        return []
    said = last.message()
    assert isinstance(said, AssistantMessage)
    made: list[Entry] = []
    for block in said.content:
        if isinstance(block, FunctionCallBlock) and block.id not in answered:
            content = [TextBlock("The call was interrupted; there is no result.")]
            result = FunctionResultMessage(block.id, block.function_id, list(content), now, is_error=True)
            parent = made[-1].id if made else leaf
            made.append(Entry(ids.entry(), parent, now, "function_result", encode(result)))
    return made
