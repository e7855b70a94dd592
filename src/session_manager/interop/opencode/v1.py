"""Records of the first generation (`opencode export`), to entries and back. Pure.

| record | entries |
|---|---|
| user | `user` message with its texts and pictures; what OpenCode wrote itself, or hides from the model, is a custom
  message `opencode.synthetic` of its own |
| user with a compaction part | bookkeeping entry `opencode.compaction`, status `started` |
| assistant | `assistant` message, then one `function_result` per settled tool part |
| assistant with `summary: true` | bookkeeping entry `opencode.compaction`, status `completed`, `running` or `failed` |
| any other | bookkeeping entry `opencode.unknown` |
"""

from __future__ import annotations

from session_manager.interop.opencode import blocks
from session_manager.interop.opencode.blocks import Failure
from session_manager.interop.opencode.records import (
    Record,
    created,
    first_time,
    info_of,
    obj,
    objects,
    record_id,
    text,
    whole,
)
from session_manager.interop.opencode.sidecar import Draft, kept, sidecar
from session_manager.model import (
    AssistantMessage,
    ContentBlock,
    CustomMessage,
    FunctionCallBlock,
    FunctionResultMessage,
    Json,
    JsonObject,
    TextBlock,
    UserMessage,
    encode,
)

COMPACTION = "opencode.compaction"
SYNTHETIC = "opencode.synthetic"
UNKNOWN = "opencode.unknown"


def to_entries(record: Record, *, settled: bool, overflowed: bool, lossy: list[str]) -> list[Draft]:
    """The entries of a record, the first of them under the record's own id. What entries cannot show (it is still in
    the record that they carry) is told in `lossy`.

    `settled`: whether a later assistant message shows that this one will not go on. `overflowed`: whether a compaction
    because of overflow follows.
    """
    info = info_of(record)
    parts = objects(record, "parts")
    role = info.get("role")
    if role == "user":
        return _user(record, info, parts, lossy)
    if role == "assistant" and info.get("summary") is True:
        return [_summary(record, info, parts)]
    if role == "assistant":
        return _assistant(record, info, parts, settled=settled, overflowed=overflowed, lossy=lossy)
    lossy.append(f"message {record_id(record)} is of unknown role {role!r}")
    return [bookkeeping(record, UNKNOWN, {})]


def bookkeeping(record: Record, custom_type: str, data: JsonObject) -> Draft:
    plain = Draft(record_id(record), created(record) or 0, None, encode({"custom_type": custom_type, "data": data}))
    whole_data = {**data, "opencode": kept(record, "v1", [plain])}
    return Draft(plain.id, plain.timestamp, None, encode({"custom_type": custom_type, "data": whole_data}))


# --- user ---


def _user(record: Record, info: JsonObject, parts: list[JsonObject], lossy: list[str]) -> list[Draft]:
    at = created(record) or 0
    shown: list[ContentBlock] = []
    hidden: list[ContentBlock] = []
    compaction: JsonObject | None = None
    for part in parts:
        kind = part.get("type")
        if kind == "text":
            aside = part.get("synthetic") is True or part.get("ignored") is True
            (hidden if aside else shown).append(TextBlock(text(part, "text")))
        elif kind == "file":
            shown.append(blocks.attachment(text(part, "mime"), text(part, "url"), text(part, "filename")))
            _tell_file(part, lossy)
        elif kind == "subtask":
            shown.append(TextBlock(text(part, "prompt")))
        elif kind == "compaction":
            compaction = part
    id_ = record_id(record)
    if compaction is not None and not shown and not hidden:
        data: JsonObject = {"status": "started", "reason": "auto" if compaction.get("auto") is True else "manual"}
        if compaction.get("overflow") is True:
            data["overflow"] = True
        return [bookkeeping(record, COMPACTION, data)]
    if hidden and not shown:
        plain = Draft(id_, at, "custom", encode(_synthetic(hidden, at, {})))
        return [Draft(id_, at, "custom", encode(_synthetic(hidden, at, {"opencode": kept(record, "v1", [plain])})))]
    drafts = [Draft(id_, at, "user", encode(UserMessage(shown, at)))]
    if hidden:
        drafts.append(Draft(f"{id_}/synthetic", at, "custom", encode(_synthetic(hidden, at))))
    return _with_sidecar(record, drafts)


def _synthetic(content: list[ContentBlock], at: int, details: Json = None) -> CustomMessage:
    words = "\n".join(block.text for block in content if isinstance(block, TextBlock))
    return CustomMessage(SYNTHETIC, content, at, display=words or None, details=details)


def _tell_file(part: JsonObject, lossy: list[str]) -> None:
    if text(part, "url").startswith("file:"):
        lossy.append(f"part {text(part, 'id')}: the attached file is a path on the machine that recorded it")


def _with_sidecar(record: Record, drafts: list[Draft]) -> list[Draft]:
    id_ = record_id(record)
    return [drafts[0], sidecar(record, "v1", drafts, f"{id_}/origin"), *drafts[1:]]


# --- assistant ---


def _summary(record: Record, info: JsonObject, parts: list[JsonObject]) -> Draft:
    error = obj(info, "error")
    data: JsonObject = {
        "status": "failed" if error else "completed" if "completed" in obj(info, "time") else "running",
        "summary": "".join(text(part, "text") for part in parts if part.get("type") == "text"),
        "model": {"id": text(info, "modelID"), "providerID": text(info, "providerID")},
        "request_id": text(info, "parentID"),
    }
    if (known := blocks.usage(obj(info, "tokens"), info.get("cost"))) is not None:
        data["usage"] = known
    if error:
        data["error"] = blocks.error_text(error)
    return bookkeeping(record, COMPACTION, data)


def _assistant(
    record: Record, info: JsonObject, parts: list[JsonObject], *, settled: bool, overflowed: bool, lossy: list[str]
) -> list[Draft]:
    at = created(record) or 0
    finish = text(info, "finish")
    error = obj(info, "error")
    settled = settled or bool(error) or "completed" in obj(info, "time")
    content: list[ContentBlock] = []
    results: list[Draft] = []
    for part in parts:
        kind = part.get("type")
        if kind == "text":
            content.append(TextBlock(text(part, "text")))
        elif kind == "reasoning":
            content.append(blocks.thinking(text(part, "text"), obj(part, "metadata")))
        elif kind == "file":
            content.append(blocks.attachment(text(part, "mime"), text(part, "url"), text(part, "filename")))
            _tell_file(part, lossy)
        elif kind == "tool":
            content.append(FunctionCallBlock(text(part, "callID"), text(part, "tool"), obj(part, "state").get("input")))
            result = _result(part, at, settled=settled)
            if result is not None:
                place = text(part, "id") or f"{record_id(record)}/{len(content) - 1}"
                results.append(Draft(place, result.timestamp, "function_result", encode(result)))
            if part.get("tool") == "invalid":
                lossy.append(f"part {text(part, 'id')}: the arguments were lost when OpenCode recorded the call")
    message = AssistantMessage(
        content=content,
        stop_reason="end",
        model=text(info, "modelID"),
        provider=text(info, "providerID"),
        timestamp=at,
        native_stop_reason=finish or None,
        usage=blocks.usage(obj(info, "tokens"), info.get("cost")),
        agent=blocks.AGENT,
    )
    failure = _failure(error) if error else None
    if failure is None and not finish and overflowed:
        failure = Failure("context_overflow", "the context was too long for the model")
    blocks.settle(message, finish, failure)
    return _with_sidecar(record, [Draft(record_id(record), at, "assistant", encode(message)), *results])


def _result(part: JsonObject, at: int, *, settled: bool) -> FunctionResultMessage | None:
    """The answer to a tool call; None while the tool may still run."""
    state = obj(part, "state")
    status = state.get("status")
    time = obj(state, "time")
    ended = first_time(time, "end", "start")
    message = FunctionResultMessage(
        function_call_id=text(part, "callID"),
        function_id=text(part, "tool"),
        content=[],
        timestamp=at if ended is None else ended,
    )
    if status == "completed":
        message.content = [TextBlock(text(state, "output"))]
        message.content += [
            blocks.attachment(text(file, "mime"), text(file, "url"), text(file, "filename"))
            for file in objects(state, "attachments")
        ]
    elif status == "error":
        message.content = [TextBlock(text(state, "error"))]
        message.is_error = True
    elif settled:
        blocks.interrupt(message)
        return message
    else:
        return None
    details = {key: state[key] for key in ("title", "metadata", "time") if key in state}
    message.details = details or None
    return message


_NAMED: dict[str, Failure] = {
    "ProviderAuthError": Failure("auth_expired", ""),
    "ContextOverflowError": Failure("context_overflow", ""),
    "MessageAbortedError": Failure(None, "", aborted=True),
}


def _failure(error: JsonObject) -> Failure:
    name = text(error, "name")
    message = blocks.error_text(error)
    if name in _NAMED:
        return Failure(_NAMED[name].kind, message, aborted=_NAMED[name].aborted)
    if name == "APIError":
        data = obj(error, "data")
        kind = blocks.kind_of_status(whole(data, "statusCode"))
        if kind in (None, "permanent") and data.get("isRetryable") is True:
            kind = "transient"
        if kind == "permanent" and blocks.says_overflow(message):
            kind = "context_overflow"
        return Failure(kind or "permanent", message)
    return Failure("permanent", message)


def overflowed_before(record: Record) -> bool:
    """Whether this record says that the turn before it did not fit the model's context."""
    return any(part.get("type") == "compaction" and part.get("overflow") is True for part in objects(record, "parts"))
