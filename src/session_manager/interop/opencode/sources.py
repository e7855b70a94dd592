"""Files of OpenCode, to sessions. A file is refused whole, with the reason, when any of it cannot be kept.

What is understood, told by content and never by name:

* `{info, messages}`: `opencode export` of 1.x, and the transfer document of 2.1;
* a message list: an array of records, or `{data: […]}` as servers answer;
* an event log: an array of events, `{data: […]}`, one event per line, or a recorded stream of server-sent events. A
  log may tell of several sessions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from session_manager.door import MAX_LEVELS, check
from session_manager.errors import MalformedRequest
from session_manager.interop.opencode.events import Event, read_event, sse_data
from session_manager.interop.opencode.records import (
    Generation,
    Record,
    generation_of,
    info_of,
    is_v1,
    text,
)
from session_manager.interop.opencode.replay import Gap, Replay
from session_manager.interop.opencode.sessions import Refused, SourceSession
from session_manager.model import Json, JsonObject

SUFFIXES = (".json", ".jsonl", ".ndjson", ".sse")
"""The files that are read of a directory."""

Raw = msgspec.Raw

TOO_DEEP = f"values may nest at most {MAX_LEVELS} levels deep"


def find_files(path: Path) -> list[Path]:
    """The file itself, or what a directory and those below it hold that could be sessions, by name."""
    if path.is_dir():
        return sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file())
    return [path]


def read_file(path: Path, session_id: str | None = None) -> list[SourceSession]:
    """The sessions of a file. Raises Refused."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Refused(f"the file cannot be read: {error.strerror or error}") from None
    return read(data, str(path), session_id)


def read(data: bytes, label: str, session_id: str | None = None) -> list[SourceSession]:
    """The sessions in the bytes of a file. `session_id` is for message lists of the second generation, which do not
    name their session. Raises Refused.

    The records of a document stay JSON text until each is looked at, so that a session of any length needs little
    more memory than its file.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    head = data[:200].lstrip()
    if not head:
        raise Refused("the file is empty")
    if head.startswith((b"data:", b"event:", b"id:", b":")):
        return _log(_stream(data), label)
    if head.startswith(b"["):
        return _list(_decode(data, "the file", list[Raw]), label, session_id)
    if not head.startswith(b"{"):
        raise Refused("this is no JSON")
    try:
        document = msgspec.json.decode(data, type=dict[str, Raw])
    except (msgspec.DecodeError, RecursionError):
        lines = data.splitlines()
        if len(lines) > 1 and _is_object(lines[0]):
            return _log((_decode(line, f"line {n}") for n, line in enumerate(lines, 1) if line.strip()), label)
        document = _decode(data, "the file", dict[str, Raw])
    return _document(document, label, session_id)


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


def _document(document: dict[str, Raw], label: str, session_id: str | None) -> list[SourceSession]:
    if "info" in document and "messages" in document:
        info = _decode(document["info"], "info")
        messages = _decode(document["messages"], "messages", list[Raw])
        if not isinstance(info, dict):
            raise Refused("info is no object")
        return [_session(info, messages, label)]
    if "data" in document:
        try:
            rows = msgspec.json.decode(document["data"], type=list[Raw])
        except msgspec.ValidationError:
            raise Refused("this is a session record without its messages") from None
        return _list(rows, label, session_id)
    if "messages" in document:
        raise Refused("info is missing: without it the session has no id")
    if "type" in document and ("data" in document or "properties" in document):
        return _log([_decode(msgspec.json.encode(document), "the event")], label)
    if text({key: _decode(value, key) for key, value in document.items() if key == "id"}, "id").startswith("ses"):
        raise Refused("this is a session record without its messages")
    raise Refused("this is no session, message list or event log of OpenCode")


def _list(rows: list[Raw], label: str, session_id: str | None) -> list[SourceSession]:
    if not rows:
        if session_id is None:
            raise Refused("an empty list does not say which session it is of")
        return [_session({"id": session_id}, rows, label)]
    first = _decode(rows[0], "element 0")
    if not isinstance(first, dict):
        raise Refused("the elements of the list are no objects")
    if _looks_like_event(first):
        return _log((_decode(row, f"element {n}") for n, row in enumerate(rows)), label)
    if "request" in first and "response" in first:
        raise Refused("these are recorded requests and answers, not a message list")
    if not is_record(first):
        raise Refused("this is no message list or event log of OpenCode")
    if is_v1(first):
        named = text(info_of(first), "sessionID")
        if session_id is not None and named != session_id:
            raise Refused(f"the list is of session {named}, not {session_id}")
        session_id = named
    if not session_id:
        raise Refused("a message list of the second generation does not name its session: give its id (--session)")
    source = _session({"id": session_id}, rows, label)
    source.warnings.append("a message list has no session record: title, model and the like are unknown")
    return [source]


def _looks_like_event(value: JsonObject) -> bool:
    return "type" in value and ("data" in value or "properties" in value) and "time" not in value


def is_record(value: Json) -> bool:
    """Whether the value has the shape of a message of either generation."""
    if not isinstance(value, dict):
        return False
    if is_v1(value):
        return isinstance(value["info"], dict) and isinstance(value.get("parts"), list)
    return isinstance(value.get("type"), str) and isinstance(value.get("id"), str)


def _session(info: JsonObject, messages: list[Raw], label: str) -> SourceSession:
    def records() -> Iterator[Record]:
        for index, raw in enumerate(messages):
            record = _decode(raw, f"message {index}")
            if not is_record(record):
                raise Refused(f"message {index} is of neither generation of OpenCode")
            yield record

    source = SourceSession(info=info, records=records, label=label)
    source.generation = session_generation(info, records(), source.warnings)
    return source


def session_generation(info: JsonObject, records: Iterable[Record], warnings: list[str]) -> Generation:
    """The generation of a session, by its record and its messages; the first one when it holds messages of both, and
    then a warning. What both second engines could have written counts as 2.1, which is the one that writes files."""
    seen = {generation_of(record) for record in records}
    if "v1" in seen and len(seen) > 1:
        warnings.append("the session holds messages of both generations; they are put in order of time")
    of_1x = "slug" in info or "directory" in info
    if "v1" in seen or (of_1x and not seen):
        return "v1"
    return "v2" if "v2" in seen or of_1x else "2.1"


# --- event logs ---


def _stream(data: bytes) -> Iterator[Json]:
    lines = data.decode("utf-8", "replace").splitlines()
    for number, event in enumerate(sse_data(lambda: iter(lines))):
        yield _decode(event.encode(), f"event {number}")


def _log(events: Iterable[Json], label: str) -> list[SourceSession]:
    """The sessions that a log tells of. Events without a place in the log count only where nothing else is there."""
    raw: dict[str, list[tuple[JsonObject, Event]]] = {}
    for number, value in enumerate(events):
        if not isinstance(value, dict):
            raise Refused(f"event {number} is no object")
        event = read_event(value)
        if event is not None:
            raw.setdefault(event.session_id, []).append((value, event))
    sources = [source for session_id, told in raw.items() if (source := _replayed(session_id, told, label)) is not None]
    if not sources:
        raise Refused("the log tells of no session")
    return sources


def _replayed(session_id: str, told: list[tuple[JsonObject, Event]], label: str) -> SourceSession | None:
    durable = [(value, event) for value, event in told if event.seq is not None]
    if durable:
        # Two readings of one log may overlap; the place of each event is what counts.
        places = {event.seq or 0: (value, event) for value, event in durable}
        told = [places[seq] for seq in sorted(places)]
    elif not any(event.name in _WHOLE for _, event in told):
        return None
    replay = Replay(session_id)
    try:
        for _, event in told:
            replay.apply(event)
    except Gap as gap:
        raise Refused(str(gap)) from None
    source = from_replay(replay, label, [value for value, _ in told])
    if source.status == "working":
        source.status = None  # nobody works on what a file tells of
    return source


_WHOLE = {"message.updated", "session.created", "session.updated"}


def from_replay(replay: Replay, label: str, log: list[JsonObject] | None) -> SourceSession:
    """The session that a replay has come to."""
    warnings = [f"{count} events of unknown kind {name}" for name, count in sorted(replay.unknown.items())]
    if len(replay.info) == 1:
        warnings.append("the log has no session record: title, model and the like are unknown")
    if replay.forked:
        warnings.append("the session began as a fork: what was before it is in the log of its source")
    if replay.pending:
        warnings.append(f"{len(replay.pending)} inputs were never delivered")
    records = replay.list()
    source = SourceSession(
        info=replay.info, records=lambda: iter(records), label=label, status=replay.status, log=log, warnings=warnings
    )
    source.generation = session_generation(replay.info, records, warnings)
    if replay.early and source.generation == "2.1":
        source.generation = "v2"
    return source


# --- JSON ---


def _decode(data: bytes | Raw, what: str, type_: type = object) -> Json:
    """Raises Refused, saying what is wrong, for what is no JSON or cannot be carried."""
    try:
        return msgspec.json.decode(data, type=type_) if type_ is not object else msgspec.json.decode(data)
    except msgspec.ValidationError as error:
        why = str(error)
    except msgspec.DecodeError as error:
        why = str(error)
    except RecursionError:
        why = TOO_DEEP
    # The fast decoder does not say what is wrong with values that JSON can write and nobody can keep.
    try:
        check({"data": json.loads(bytes(data))})
    except MalformedRequest as refused:
        why = str(refused)
    except RecursionError:
        why = TOO_DEEP
    except ValueError as error:
        why = str(error)
    raise Refused(f"{what}: {why}")
