"""Pieces that both generations share: pictures, usage, error kinds, stop reasons."""

from __future__ import annotations

import re

from session_manager.interop.opencode.records import obj, text, whole
from session_manager.model import (
    AssistantMessage,
    ContentBlock,
    ErrorKind,
    FunctionResultMessage,
    ImageBlock,
    JsonObject,
    StopReason,
    TextBlock,
    ThinkingBlock,
    Usage,
)

AGENT = "opencode"
"""What `agent` says of an imported assistant message: the field names the agent system. OpenCode's own agents (build,
plan, …) are in the record."""

UNFINISHED = "left unfinished"
NO_REASON = "the provider gave no reason for stopping"

_DATA_URL = re.compile(r"data:([^;,]+)((?:;[^;,]+)*);base64,")


def data_url(url: str) -> tuple[str, str] | None:
    """Media type and base64 text of a `data:` URL; None for any other."""
    found = _DATA_URL.match(url)
    return None if found is None else (found[1], url[found.end() :])


def attachment(mime: str, url: str, name: str) -> ContentBlock:
    """A picture as it is; anything else as a line of text that says what was attached."""
    parts = data_url(url)
    if mime.startswith("image/") and parts is not None:
        return ImageBlock(mime, parts[1])
    return placeholder(mime, name or ("" if parts is not None else url))


def placeholder(mime: str, name: str) -> TextBlock:
    return TextBlock(f"[attachment: {name or 'unnamed'}{f', {mime}' if mime else ''}]")


def thinking(words: str, native: JsonObject) -> ThinkingBlock:
    """A thought. Its signature is taken over only when the provider's data holds exactly one."""
    found = [
        value
        for scope in native.values()
        if isinstance(scope, dict)
        for key, value in scope.items()
        if key in ("signature", "reasoningEncryptedContent") and isinstance(value, str)
    ]
    return ThinkingBlock(words, found[0] if len(found) == 1 else None)


def usage(tokens: JsonObject, cost: object, *, zero_is_unknown: bool = False) -> Usage | None:
    """Token counts are disjoint on both sides, so they are taken over as they are. Cost is in US dollars."""
    cache = obj(tokens, "cache")
    known = Usage(
        input=_count(tokens, "input"),
        output=_count(tokens, "output"),
        reasoning=_count(tokens, "reasoning"),
        cache_read=_count(cache, "read"),
        cache_write=_count(cache, "write"),
        cost_usd=_cost(cost, zero_is_unknown=zero_is_unknown),
    )
    return None if known == Usage() else known


def _count(at: JsonObject, key: str) -> int | None:
    count = whole(at, key)
    return None if count is None or count < 0 else count


def _cost(cost: object, *, zero_is_unknown: bool) -> float | None:
    if isinstance(cost, bool) or not isinstance(cost, int | float) or (zero_is_unknown and cost == 0):
        return None
    return float(cost)


def tokens_of(known: Usage | None) -> JsonObject:
    """Usage in OpenCode's form; unknown counts are 0 there."""
    known = known or Usage()
    return {
        "input": known.input or 0,
        "output": known.output or 0,
        "reasoning": known.reasoning or 0,
        "cache": {"read": known.cache_read or 0, "write": known.cache_write or 0},
    }


def cost_of(known: Usage | None) -> int | float:
    """Cost in OpenCode's form: a whole number of dollars is written as an integer."""
    cost = (known.cost_usd if known else None) or 0
    return int(cost) if cost == int(cost) else cost


class Failure:
    """What became of an assistant's turn, in the canonical terms."""

    def __init__(self, kind: ErrorKind | None, message: str, *, aborted: bool = False) -> None:
        self.kind = kind
        self.message = message
        self.aborted = aborted


_STOP: dict[str, StopReason] = {
    "stop": "end",
    "length": "length",
    "tool-calls": "function_call",
    "content-filter": "error",
}


def settle(message: AssistantMessage, finish: str, failure: Failure | None) -> None:
    """Sets stop reason and error of `message` from OpenCode's `finish` ("" when it has none) and the failure."""
    warnings: list[str] = []
    if failure is not None:
        message.error_message = failure.message or None
    if failure is not None and failure.aborted:
        message.stop_reason = "aborted"
    elif failure is not None and failure.kind is not None and finish != "length":
        message.stop_reason, message.error_kind = "error", failure.kind
    elif finish in _STOP:
        message.stop_reason = _STOP[finish]
        if finish == "content-filter":
            message.error_kind = "permanent"
    elif finish == "error":
        message.stop_reason, message.error_kind = "error", "permanent"
    elif finish:
        message.stop_reason = "end"
        warnings.append(NO_REASON)
    else:
        message.stop_reason = "aborted"
        warnings.append(UNFINISHED)
    if warnings:
        message.warnings = [*(message.warnings or []), *warnings]


def interrupt(result: FunctionResultMessage) -> None:
    """Makes a result that says that there will be none: every call must have one where a model is to read on."""
    result.content = [TextBlock("[the tool was interrupted]")]
    result.is_error = True
    result.details = {"synthesized": True}


FINISH: dict[StopReason, str] = {"end": "stop", "length": "length", "function_call": "tool-calls", "error": "error"}
"""OpenCode's word for a stop reason; aborted turns have none."""


def kind_of_status(status: int | None) -> ErrorKind | None:
    """The error kind of an HTTP status; None when there is none to judge by."""
    if status is None:
        return None
    if status in (401, 403):
        return "auth_expired"
    if status == 429:
        return "rate_limited"
    if status in (408, 409) or status >= 500:
        return "transient"
    return "permanent"


_HTTP = re.compile(r"HTTP (\d{3})\b")


def http_status(message: str) -> int | None:
    """The HTTP status that an error text of the early second generation names."""
    found = _HTTP.search(message)
    return int(found[1]) if found else None


def says_overflow(message: str) -> bool:
    lowered = message.lower()
    return "context_length_exceeded" in lowered or "context length" in lowered


def error_text(error: JsonObject) -> str:
    """The message of an error record, or its name when it has none."""
    data = obj(error, "data")
    return text(data, "message") or text(error, "message") or text(error, "name") or text(error, "type")
