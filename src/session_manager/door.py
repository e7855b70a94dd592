"""What may come in: values that the engine can carry back, in sizes that can be served.

The engine silently drops a frame that holds a lone surrogate, NaN, an infinity or more than 127 levels of nesting, and
turns integers beyond 64 bits into floats. A stored value of that kind would make its own reads hang, so every door
(functions, raw store writes, imports, migrations) checks with `check` before anything else looks at the request.
"""

from __future__ import annotations

from functools import cache
from itertools import islice
from math import isfinite
from typing import Any, get_args

from session_manager.errors import MalformedRequest
from session_manager.model import ContentBlock, Message, MessageEntry, SessionMeta, encode

MAX_LEVELS = 96
"""Levels of nesting of one opaque value (arguments, details, data, metadata, origin): the value itself is the first."""

MAX_REQUEST_LEVELS = 108
"""Levels of a whole request. Replies and events wrap what is stored in a few more, still below the engine's 126."""

MAX_ID = 4096
"""Characters of a session or entry id."""

MAX_BODY = 60 << 20
"""Bytes of one entry's content as JSON, its origin included; the engine carries messages of 64 MiB."""

MAX_CHANGE = 256 << 20
"""Bytes of all entries that one call adds."""

MAX_BATCH = 10_000
"""Messages of one append-many."""

MAX_RECORD = 4 << 20
"""Characters of each text of a session record (title, description, draft), and bytes of its metadata as JSON."""

MAX_WHOLE_RECORD = 32 << 20
"""Bytes of a session record as JSON. It must go into a reply, also behind others on the page of a list."""

OPAQUE = frozenset({"arguments", "details", "data", "metadata", "origin", "session_metadata"})
"""Fields that hold any JSON value; inside them a field of such a name is just data."""

IDS = ("session_id", "entry_id", "parent_id", "from_entry_id", "after_entry_id", "forked_from", "id")
"""Fields of a request, of a raw entry or of a raw record that hold an id."""

PARTS: dict[str, tuple[str, ...]] = {
    "entry": MessageEntry.__struct_fields__,
    "meta": SessionMeta.__struct_fields__,
}
"""Fields of a request that are a raw entry or record, and what those have; a custom entry has no other ids."""

NAMES = frozenset(
    name for kind in (*get_args(Message), *get_args(ContentBlock)) for name in ("role", "type", *kind.__struct_fields__)
)
"""Keys that need no look, as most are."""

RECORD_TEXTS = ("title", "description", "draft", "status_reason", "reason")

INT_MIN, INT_MAX = -(2**63), 2**64 - 1

STEP = 8_000
"""Values looked at in one go, which takes some milliseconds; 128 characters of text count as one."""

HEAVY_STEPS = 4
"""A payload that takes more looks than these is heavy: to read and encode it in one go would take tens of
milliseconds."""

LITTLE = 1_500
"""A payload of so few values has no room for a part of a record that is too long, whatever its texts become as JSON:
a key and a value of `SHORT` characters that are all escaped are 2,400 bytes."""

SHORT = 200
"""Texts of so few characters count for nothing."""

LONG = 100_000
"""A text of more characters makes a request heavy."""

FEW = 16
"""Blocks of text that are looked at where they are met."""

PIECE = 1 << 20
"""Characters of a text that are looked at in one go."""

Path = tuple[Any, str | int] | None
"""Where a value is, from the inside out: (where its container is, its key or index there)."""


class _Refused(Exception):
    def __init__(self, why: str, path: Path) -> None:
        self.why, self.path = why, path


class Walk:
    """The look at one payload. A small one is done in one go; a big one takes several, so that whoever looks can let
    others do something in between."""

    __slots__ = ("_steps", "_todo", "heavy", "little", "long_texts")

    def __init__(self, payload: Any) -> None:
        self._todo: list[tuple[Any, int, bool, Path]] = [(payload, MAX_REQUEST_LEVELS, True, None)]
        self._steps = 0
        self.heavy = False
        """Whether there is more to the payload than can be encoded in a moment."""
        self.little = False
        """Whether there is so little in it that no part of a record can be too long."""
        self.long_texts = False

    def go(self) -> bool:
        """Looks at some thousand values; True when nothing is left. Raises MalformedRequest, naming the field, when
        the payload holds what cannot be carried."""
        try:
            done = self._go(STEP)
        except _Refused as refused:
            where = _written(refused.path)
            raise MalformedRequest(f"{refused.why} - at `{where}`" if where else refused.why) from None
        if not done:
            self._steps += 1
            self.heavy = self.heavy or self._steps >= HEAVY_STEPS
        return done

    def _go(self, room: int) -> bool:
        todo = self._todo
        while todo:
            if room <= 0:
                return False
            value, levels, typed, path = todo.pop()
            kind = type(value)
            if kind is dict or kind is _Pairs:
                if levels <= 0:
                    raise _too_deep(path)
                room -= len(value) + 1
                if len(value) > STEP:
                    pairs = value.items() if kind is dict else value
                    todo += [(_Pairs(part), levels, typed, path) for part in _parts(pairs)]
                    continue
                for key, inner in value.items() if kind is dict else value:
                    if key not in NAMES:
                        if type(key) is not str:
                            raise _Refused("a key is no text", path)
                        if len(key) > SHORT or not key.isascii():
                            room -= self._text(key, path)
                    inner_kind = type(inner)
                    if inner_kind is str:
                        if len(inner) > SHORT or not inner.isascii():
                            room -= self._text(inner, (path, key))
                    elif key == "content" and inner_kind is list and levels > 2 and (cost := _plain(inner)):
                        room -= cost
                    elif inner_kind is dict or inner_kind is list:
                        step = (path, key)
                        if typed and key in OPAQUE:
                            todo.append((inner, min(levels - 1, MAX_LEVELS), False, step))
                        else:
                            todo.append((inner, levels - 1, typed, step))
                    elif inner is not None and inner_kind is not bool:
                        why = _scalar(inner)
                        if why:
                            raise _Refused(why, (path, key))
            elif kind is list or kind is _Items:
                if levels <= 0:
                    raise _too_deep(path)
                room -= len(value) + 1
                first = 0
                if len(value) > STEP:
                    starts = range(0, len(value), STEP // 2)
                    todo += [(_Items(value[at : at + STEP // 2], at), levels, typed, path) for at in starts]
                    continue
                if kind is _Items:
                    first = value.first
                for index, inner in enumerate(value, first):
                    inner_kind = type(inner)
                    if inner_kind is dict or inner_kind is list:
                        todo.append((inner, levels - 1, typed, (path, index)))
                    elif inner_kind is str:
                        if len(inner) > SHORT or not inner.isascii():
                            room -= self._text(inner, (path, index))
                    elif inner is not None and inner_kind is not bool:
                        why = _scalar(inner)
                        if why:
                            raise _Refused(why, (path, index))
            elif kind is str:
                room -= self._text(value, path)
            elif value is not None and kind is not bool:
                why = _scalar(value)
                if why:
                    raise _Refused(why, path)
        self.heavy = self.heavy or room <= 0
        self.little = self._steps == 0 and room >= STEP - LITTLE
        return True

    def _text(self, text: str, path: Path) -> int:
        """Returns what the look cost, in values."""
        if len(text) > LONG:
            self.heavy = self.long_texts = True
        if text.isascii():
            return len(text) >> 7
        if len(text) > PIECE:
            starts = range(0, len(text), PIECE)
            self._todo += [(text[at : at + PIECE], 0, False, path) for at in starts]
            return len(starts)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _Refused("the text holds a lone surrogate, which is no character", path) from None
        return len(text) >> 7


class _Pairs(list[tuple[Any, Any]]):
    """Some of an object's keys and values."""


class _Items(list[Any]):
    """Some of a list's values, from the index `first` on."""

    def __init__(self, values: list[Any], first: int) -> None:
        super().__init__(values)
        self.first = first


def check_carried(payload: Any) -> Walk:
    """Raises MalformedRequest, naming the field, when `payload` holds what cannot be carried."""
    walk = Walk(payload)
    while not walk.go():
        pass
    return walk


def check(payload: Any) -> None:
    """The same, and when it holds what cannot be served in a field of a binding's or a session's own."""
    check_sizes(payload, ("session_id", "metadata"), little=check_carried(payload).little)


def check_metadata(metadata: Any) -> None:
    """The same for metadata that did not come in a request."""
    check({"metadata": metadata})


def check_sizes(payload: Any, known: tuple[str, ...], *, little: bool = False) -> None:
    """Raises MalformedRequest when an id, a batch or what belongs to a session record is too long, in the fields that
    are `known`; others are ignored. Where there is little in the payload only an id can be."""
    if type(payload) is not dict:
        return
    for name in _ids(known):
        if name in payload and type(payload[name]) is str and len(payload[name]) > MAX_ID:
            raise MalformedRequest(f"an id may have at most {MAX_ID} characters - at `{name}`")
    if "entry" in payload or "meta" in payload:
        for name, fields in PARTS.items():
            if name in known:
                check_sizes(payload.get(name), fields, little=little)
    if little:
        return
    messages = payload.get("messages")
    if "messages" in known and type(messages) is list and len(messages) > MAX_BATCH:
        raise MalformedRequest(f"at most {MAX_BATCH} messages may be appended at once - at `messages`")
    for name in RECORD_TEXTS:
        text = payload.get(name)
        if name in known and type(text) is str and len(text) > MAX_RECORD:
            raise MalformedRequest(f"the text may have at most {MAX_RECORD} characters - at `{name}`")
    metadata = payload.get("metadata")
    if "metadata" in known and type(metadata) is dict and len(encode(metadata)) > MAX_RECORD:
        raise MalformedRequest(f"the metadata may have at most {MAX_RECORD} bytes as JSON - at `metadata`")


@cache
def _ids(known: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in IDS if name in known)


def check_record(meta: SessionMeta) -> None:
    """Raises MalformedRequest when a record is more than a reply can hold, though each of its parts is not."""
    texts = (meta.title, meta.description, meta.draft or "", meta.status_reason or "")
    if sum(map(len, texts)) > MAX_RECORD and (size := len(encode(meta))) > MAX_WHOLE_RECORD:
        raise MalformedRequest(
            f"a session record may have at most {MAX_WHOLE_RECORD} bytes as JSON; this one would have {size}"
        )


def _plain(blocks: list[Any]) -> int:
    """What the look at a list costs that holds a few blocks of text and nothing else, as most content does; 0 where it
    is any other list, or must be looked at closely."""
    if len(blocks) > FEW:
        return 0
    cost = 1 + len(blocks)
    for block in blocks:
        if type(block) is not dict or len(block) != 2 or block.get("type") != "text":
            return 0
        text = block.get("text")
        if type(text) is not str or len(text) > LONG:
            return 0
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                return 0
        cost += 3 + (len(text) >> 7)
    return cost


def _scalar(value: Any) -> str | None:
    """Why a value that is no text, list, object, boolean or null cannot be carried."""
    kind = type(value)
    if kind is int:
        return None if INT_MIN <= value <= INT_MAX else "the integer does not fit in 64 bits"
    if kind is float:
        return None if isfinite(value) else "the number is not finite"
    return "the value is not JSON"


def _parts(pairs: Any) -> list[list[tuple[Any, Any]]]:
    remaining = iter(pairs)
    parts: list[list[tuple[Any, Any]]] = []
    while part := list(islice(remaining, STEP // 2)):
        parts.append(part)
    return parts


def _too_deep(path: Path) -> _Refused:
    return _Refused(f"values may nest at most {MAX_LEVELS} levels deep", path)


def _shown(key: object) -> str:
    return str(key).encode("utf-8", "backslashreplace").decode()[:40]


def _written(path: Path) -> str:
    steps: list[str] = []
    while path is not None:
        path, step = path
        steps.append(f"[{step}]" if type(step) is int else f".{_shown(step)}")
    return "".join(reversed(steps)).removeprefix(".")
