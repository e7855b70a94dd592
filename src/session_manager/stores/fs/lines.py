"""The lines of a session's file: what they mean, and how they are written.

A file is a log: read from the first line to the last, the last record, the last leaf and the last line of each entry
are what counts. One change writes its entries, its leaf and its record in this order, which is what earlier versions
of the worker read and write.

What they do not have is a change that is there wholly or not at all. Here every line of what is brought to disk at
once but its last begins with a space, which JSON allows and earlier versions overlook: a line with a space counts once
a line without one has followed. So what was cut off at whatever byte is found out, and counts for nothing. Nor does
what a power loss left of the last such group: a disk may keep its end and lose, as zeros, what is before.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from session_manager.door import MAX_LEVELS, check
from session_manager.errors import MalformedRequest
from session_manager.model import Entry, SessionMeta, WireEntry, decode, encode, entry_from_wire
from session_manager.store import Change
from session_manager.stores.memory import Kept

OPEN = b" "
"""How a line begins that counts only with the lines behind it."""

HOLE = b"\0"
"""How a line may begin whose beginning the disk has lost: whether it had a space is not known."""

WHITE = b" \t\r"


class _MetaLine(Struct, tag_field="type", tag="meta"):
    meta: SessionMeta


class _EntryLine(Struct, tag_field="type", tag="entry"):
    entry: WireEntry


class _LeafLine(Struct, tag_field="type", tag="leaf"):
    entry_id: str | None


class _AppendLine(Struct, tag_field="type", tag="append"):
    """Of later versions: an entry, the leaf that it becomes, and the record, in one line."""

    entry: WireEntry
    meta: SessionMeta


class _CommitLine(Struct, tag_field="type", tag="commit"):
    """Of later versions: bookkeeping for their own use."""


_Line: TypeAlias = _MetaLine | _EntryLine | _LeafLine | _AppendLine | _CommitLine

_decode_line: Callable[[bytes], _Line] = msgspec.json.Decoder(_Line).decode

_Key: TypeAlias = str | int
"""What a line sets: an entry, by its id, or one of these."""
_META, _LEAF = 0, 1


class Notice(Struct, frozen=True):
    """Something in a file that could not be taken as it is. The text holds nothing of the conversation."""

    line: int
    why: str
    lost: bool = False
    """Whether something of the file is not served."""


class Replayed(Struct):
    kept: Kept
    size: int
    """Bytes that count. What is behind them is a change that was cut off."""
    compact: bytes
    """The same content in as few lines: those that count, as they are, and those that only others understand."""
    notices: list[Notice]


class _Unreadable(Exception):
    pass


def replay(data: bytes) -> Replayed:
    """What a file holds. Raises UnicodeDecodeError when it is not UTF-8, but for a character cut off at its end."""
    codecs.getincrementaldecoder("utf-8")().decode(data)
    lines = data.split(b"\n")
    kept, notices = Kept(), list[Notice]()
    owners: dict[_Key, int] = {}
    foreign: list[int] = []
    waiting: list[tuple[int, _Line | None]] = []
    size = end = 0
    torn = closed = False
    """Whether a line that waits cannot be read; whether they wait only for more to follow."""
    holes = False

    def count() -> None:
        for at, waited in waiting:
            if waited is None or isinstance(waited, _CommitLine):
                foreign.append(at)
            else:
                _apply(kept, waited, at, owners)
        waiting.clear()

    for number, line in enumerate(lines):
        if line.strip(WHITE):
            if closed:  # others were brought to disk behind them, so that is not a power loss
                count()
                size, torn, closed = end, False, False
            record: _Line | None = None
            try:
                record = _read(line, number, notices)
            except _Unreadable as unreadable:
                if number == len(lines) - 1:
                    break
                notices.append(Notice(number + 1, f"skipped: {unreadable}", lost=True))
                torn = True
            waiting.append((number, record))
            if line.startswith((OPEN, HOLE)):
                holes = holes or line.startswith(HOLE)
            elif torn and len(waiting) > 1:
                closed = True
            else:
                count()
                torn = False
        elif number == len(lines) - 1:
            break
        end = min(end + len(line) + 1, len(data))
        if not waiting:
            size = end
    if size < len(data):
        first = data.count(b"\n", 0, size) + 1
        notices = [notice for notice in notices if notice.line < first]
        notices.append(Notice(first, "a change that was cut off begins here; it is left out"))
    keep = sorted({*owners.values(), *foreign})
    compact = b"".join(lines[number].strip(WHITE) + b"\n" for number in keep)
    return Replayed(kept, size, data[:size] if holes else compact, notices)


def _apply(kept: Kept, line: _Line, number: int, owners: dict[_Key, int]) -> None:
    if isinstance(line, _EntryLine | _AppendLine):
        entry = entry_from_wire(line.entry)
        kept.entries[entry.id] = entry
        owners[entry.id] = number
    if isinstance(line, _LeafLine | _AppendLine):
        kept.leaf = line.entry_id if isinstance(line, _LeafLine) else line.entry.id
        owners[_LEAF] = number
    if isinstance(line, _MetaLine | _AppendLine):
        kept.meta = line.meta
        owners[_META] = number


def _read(line: bytes, number: int, notices: list[Notice]) -> _Line:
    try:
        record = _decode_line(line)
    except msgspec.ValidationError as error:
        record = _without_files(line, str(error))
        notices.append(Notice(number + 1, "an attached file, which this version does not know, is left out"))
    except msgspec.DecodeError as error:
        raise _Unreadable(str(error)) from None
    if line.count(b"{") + line.count(b"[") > MAX_LEVELS:
        try:
            check(decode(line))
        except MalformedRequest as error:
            raise _Unreadable(str(error)) from None
    return record


def _without_files(line: bytes, why: str) -> _Line:
    """The entry without the blocks of type `file` that later versions know. Raises _Unreadable when it has none."""
    try:
        value = decode(line)
        content = value["entry"]["message"]["content"]
        if not _drop_files(content):
            raise _Unreadable(why)
        record: _Line = msgspec.convert(value, _Line)
    except (msgspec.MsgspecError, LookupError, TypeError):
        raise _Unreadable(why) from None
    return record


def _drop_files(content: list[Any]) -> bool:
    kept = [block for block in content if not (isinstance(block, dict) and block.get("type") == "file")]
    found = len(kept) < len(content)
    content[:] = kept
    for block in content:
        if isinstance(block, dict) and block.get("type") == "function_result":
            found = _drop_files(block["content"]) or found
    return found


# --- writing ---


def change_lines(*changes: Change) -> bytes:
    """The lines that add changes of one session, which drop nothing, to its file, all of them or none."""
    lines: list[bytes] = []
    for change in changes:
        lines += [_entry_line(entry) for entry in change.entries]
        lines += [] if change.leaf is None else [_leaf_line(change.leaf)]
        lines += [] if change.meta is None else [_meta_line(change.meta)]
    return _together(lines)


def whole_lines(kept: Kept) -> bytes:
    """All the lines of a file that holds just this."""
    entries = sorted(kept.entries.values(), key=lambda entry: entry.id.encode())
    lines = [] if kept.meta is None else [_meta_line(kept.meta)]
    lines += [_entry_line(entry) for entry in entries]
    lines += [] if kept.leaf is None else [_leaf_line(kept.leaf)]
    return b"".join(line + b"\n" for line in lines)


def _together(lines: list[bytes]) -> bytes:
    return b"".join(OPEN + line + b"\n" for line in lines[:-1]) + b"".join(line + b"\n" for line in lines[-1:])


def _meta_line(meta: SessionMeta) -> bytes:
    return encode(_MetaLine(meta))


def _leaf_line(leaf: str) -> bytes:
    return encode(_LeafLine(leaf))


def _entry_line(entry: Entry) -> bytes:
    """The entry's place and its content, which is not looked into."""
    content = b'"message":%b}' % entry.body if entry.role is not None else entry.body[1:]
    origin = b"" if entry.origin is None else b'"origin":%b,' % entry.origin
    place = {
        "kind": "custom" if entry.role is None else "message",
        "id": entry.id,
        "parent_id": entry.parent_id,
        "timestamp": entry.timestamp,
        "revision": entry.revision,
    }
    line = b'{"type":"entry","entry":%b,%b%b}' % (encode(place)[:-1], origin, content)
    return line if b"\n" not in line else encode(decode(line))  # content that another program laid out in lines
