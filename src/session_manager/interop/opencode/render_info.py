"""The session record of an export: as it came, with what was changed here since, or rendered. Pure."""

from __future__ import annotations

from typing import Literal

from session_manager.interop.opencode import ids, render_v2
from session_manager.interop.opencode.records import Generation, Record, obj, text
from session_manager.interop.opencode.sessions import metadata_of
from session_manager.interop.opencode.sidecar import KEY
from session_manager.model import JsonObject, SessionMeta

Form = Literal["1.18", "2.1"]

VERSION = "1.18.34"
"""The server version that exports of foreign sessions claim: the form they are written in."""


def opencode_id(meta: SessionMeta, info: JsonObject) -> str:
    """The id that a session has, or gets, in OpenCode."""
    if given := text(info, "id"):
        return given
    if ids.is_opencode_id(meta.session_id, "ses"):
        return meta.session_id
    return ids.session_id(meta.session_id, meta.created_at)


def exported_info(
    meta: SessionMeta,
    info: JsonObject,
    generation: Generation | None,
    target: Form,
    messages: list[Record],
    notes: list[str],
    *,
    upgrade: bool,
) -> JsonObject:
    """`info` is the record that came from OpenCode in the form of `generation`, which is None where none did. What is
    not as it was is told in `notes`."""
    same_form = (generation == "v1") == (target == "1.18")
    if generation is None or not same_form:
        return _v1_info(meta, info, messages) if target == "1.18" else _v2_info(meta, info, messages)
    if upgrade and generation == "v2":
        info = render_v2.upgraded_info(info)
    changed: JsonObject = {}
    if meta.title != text(info, "title"):
        changed["title"] = meta.title
        notes.append("the title was changed here")
    plain = {key: value for key, value in (meta.metadata or {}).items() if key != KEY}
    if plain != metadata_of(info, _added(meta)):
        changed["metadata"] = _own_metadata(meta)
        notes.append("the metadata were changed here")
    return {**info, **changed} if changed else info


def _added(meta: SessionMeta) -> JsonObject:
    """The metadata that the importing person added."""
    return obj(obj(meta.metadata or {}, KEY), "added")


def _own_metadata(meta: SessionMeta) -> JsonObject:
    """All others."""
    added = _added(meta)
    return {k: v for k, v in (meta.metadata or {}).items() if k != KEY and added.get(k, ...) != v}


def _sums(messages: list[Record]) -> tuple[int | float, JsonObject]:
    cost: int | float = 0
    tokens: JsonObject = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}
    for message in messages:
        info = obj(message, "info") or message
        spent = info.get("cost")
        cost += spent if isinstance(spent, int | float) else 0
        used = obj(info, "tokens")
        for key in ("input", "output", "reasoning"):
            tokens[key] += used[key] if isinstance(used.get(key), int) else 0
        for key in ("read", "write"):
            value = obj(used, "cache").get(key)
            tokens["cache"][key] += value if isinstance(value, int) else 0
    return cost, tokens


def _v1_info(meta: SessionMeta, info: JsonObject, messages: list[Record]) -> JsonObject:
    cost, tokens = _sums(messages)
    made: JsonObject = {
        "id": opencode_id(meta, info),
        "slug": ids.slug(meta.session_id),
        "projectID": text(info, "projectID", "global"),
        "directory": text(obj(info, "location"), "directory", "/"),
        "title": meta.title or "Untitled",
        "version": VERSION,
        "cost": cost,
        "tokens": tokens,
        "time": {"created": meta.created_at, "updated": meta.updated_at},
    }
    if text(info, "parentID"):
        made["parentID"] = info["parentID"]
    if own := _own_metadata(meta):
        made["metadata"] = own
    return made


def _v2_info(meta: SessionMeta, info: JsonObject, messages: list[Record]) -> JsonObject:
    cost, tokens = _sums(messages)
    time: JsonObject = {"created": meta.created_at, "updated": meta.updated_at}
    made: JsonObject = {
        "id": opencode_id(meta, info),
        "projectID": text(info, "projectID", "global"),
        "cost": cost,
        "tokens": tokens,
        "time": time,
        "title": meta.title,
        "location": {"directory": text(info, "directory", "/")},
    }
    outcome = {"done": "succeeded", "error": "failed"}.get(meta.status)
    if outcome is not None:
        made["outcome"] = outcome
        time["idle"] = meta.updated_at
    if text(info, "parentID"):
        made["parentID"] = info["parentID"]
    if own := _own_metadata(meta):
        made["metadata"] = own
    return made
