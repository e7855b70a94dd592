"""Records of the second generation, to entries and back. Pure.

One mapping serves the early form inside OpenCode 1.x and the form of 2.1: the kinds and their tags are the same, and
where fields differ both are looked for.

| kind | entry |
|---|---|
| user | `user` message: text, pictures, a line of text for other files |
| assistant | `assistant` message, then one `function_result` per settled tool |
| synthetic, system, skill, shell | custom message `opencode.<kind>`: the model sees it |
| compaction, agent-switched, model-switched, location-switched, idle | bookkeeping entry `opencode.<kind>` |
| any other | bookkeeping entry `opencode.unknown` |
"""

from __future__ import annotations

from collections.abc import Callable

from session_manager.interop.opencode import blocks
from session_manager.interop.opencode.blocks import Failure
from session_manager.interop.opencode.records import (
    Generation,
    Record,
    created,
    first_time,
    obj,
    objects,
    text,
    whole,
)
from session_manager.interop.opencode.sidecar import Draft, kept, sidecar
from session_manager.model import (
    AssistantMessage,
    ContentBlock,
    CustomMessage,
    Entry,
    ErrorKind,
    FunctionCallBlock,
    FunctionResultMessage,
    ImageBlock,
    JsonObject,
    TextBlock,
    UserMessage,
    decode_message,
    encode,
)

UNKNOWN = "opencode.unknown"


def to_entries(record: Record, generation: Generation, *, settled: bool, lossy: list[str]) -> list[Draft]:
    """The entries of a record of the session's `generation`, the first of them under the record's own id.
    `settled`: whether a later assistant message shows that this one will not go on."""
    kind = record.get("type")
    if kind == "user":
        return _user(record, generation, lossy)
    if kind == "assistant":
        return _assistant(record, generation, settled=settled, lossy=lossy)
    if kind in _CUSTOM:
        return [_custom_message(record, generation, f"opencode.{kind}", *_CUSTOM[kind](record))]
    if kind in _BOOKKEEPING:
        name = f"opencode.{str(kind).replace('-', '_')}"
        return [_bookkeeping(record, generation, name, _BOOKKEEPING[kind](record))]
    lossy.append(f"message {text(record, 'id')} is of unknown kind {kind!r}")
    return [_bookkeeping(record, generation, UNKNOWN, {})]


def _at(record: Record) -> int:
    return created(record) or 0


def _bookkeeping(record: Record, generation: Generation, custom_type: str, data: JsonObject) -> Draft:
    plain = Draft(text(record, "id"), _at(record), None, encode({"custom_type": custom_type, "data": data}))
    whole_data = {**data, "opencode": kept(record, generation, [plain])}
    return Draft(plain.id, plain.timestamp, None, encode({"custom_type": custom_type, "data": whole_data}))


def _custom_message(
    record: Record, generation: Generation, custom_type: str, words: str, display: str, details: JsonObject
) -> Draft:
    at = _at(record)
    message = CustomMessage(custom_type, [TextBlock(words)], at, display=display or None, details=details)
    plain = Draft(text(record, "id"), at, "custom", encode(message))
    message.details = {**details, "opencode": kept(record, generation, [plain])}
    return Draft(plain.id, at, "custom", encode(message))


def _shell(record: Record) -> tuple[str, str, JsonObject]:
    output = record.get("output")
    printed = output if isinstance(output, str) else text(obj(record, "output"), "output")
    command = text(record, "command")
    details: JsonObject = {key: record[key] for key in ("status", "exit") if key in record}
    return f"$ {command}\n{printed}", command, details


_CUSTOM: dict[object, Callable[[Record], tuple[str, str, JsonObject]]] = {
    "synthetic": lambda record: (text(record, "text"), text(record, "description"), {}),
    "system": lambda record: (text(record, "text"), text(record, "description"), {}),
    "skill": lambda record: (
        text(record, "text"),
        text(record, "name"),
        {key: record[key] for key in ("skill", "name") if key in record},
    ),
    "shell": _shell,
}
"""Kind -> text for the model, text for people, details."""


def _compaction(record: Record) -> JsonObject:
    data: JsonObject = {
        "status": text(record, "status", "completed"),
        **{key: record[key] for key in ("reason", "summary", "model") if key in record},
    }
    if (known := blocks.usage(obj(record, "tokens"), record.get("cost"))) is not None:
        data["usage"] = known
    if "error" in record:
        data["error"] = blocks.error_text(obj(record, "error"))
    return data


def _taken(*keys: str) -> Callable[[Record], JsonObject]:
    return lambda record: {key: record[key] for key in keys if key in record}


_BOOKKEEPING: dict[object, Callable[[Record], JsonObject]] = {
    "compaction": _compaction,
    "agent-switched": _taken("agent", "previous"),
    "model-switched": _taken("model", "previous"),
    "location-switched": _taken("location", "previous", "projectID", "subpath"),
    "idle": _taken("outcome", "error"),
    # Not a kind of message in OpenCode: its log records usage outside of any message, and sums must match.
    "usage": _taken("source", "cost", "tokens"),
}


# --- user ---


def _user(record: Record, generation: Generation, lossy: list[str]) -> list[Draft]:
    content: list[ContentBlock] = [TextBlock(text(record, "text"))]
    for file in objects(record, "files"):
        content.append(_file(file))
        if text(file, "uri").startswith("file:"):
            lossy.append(f"message {text(record, 'id')}: an attached file is a path on the machine that recorded it")
    at = _at(record)
    draft = Draft(text(record, "id"), at, "user", encode(UserMessage(content, at)))
    if user_record(draft) == record:
        return [draft]
    return [draft, sidecar(record, generation, [draft], f"{draft.id}/origin")]


def _file(file: JsonObject) -> ContentBlock:
    mime, name = text(file, "mime"), text(file, "name")
    if "data" in file:
        if mime.startswith("image/"):
            return ImageBlock(mime, text(file, "data"))
        return blocks.placeholder(mime, name or text(obj(file, "source"), "uri"))
    return blocks.attachment(mime, text(file, "uri"), name)


def user_record(draft: Draft | Entry) -> Record | None:
    """The record of a user message that is nothing but text and needs nothing else kept; None for any other."""
    message = _plain_user(draft)
    if message is None:
        return None
    return {"id": draft.id, "time": {"created": draft.timestamp}, "type": "user", "text": message}


def _plain_user(draft: Draft | Entry) -> str | None:
    message = decode_message(draft.body)
    if not isinstance(message, UserMessage) or len(message.content) != 1 or message.timestamp != draft.timestamp:
        return None
    block = message.content[0]
    return block.text if isinstance(block, TextBlock) else None


# --- assistant ---


def _assistant(record: Record, generation: Generation, *, settled: bool, lossy: list[str]) -> list[Draft]:
    id_, at = text(record, "id"), _at(record)
    model = obj(record, "model")
    finish = text(record, "finish")
    error = obj(record, "error")
    settled = settled or bool(error) or "completed" in obj(record, "time")
    early = generation == "v2"
    content: list[ContentBlock] = []
    results: list[Draft] = []
    seen: dict[str, int] = {}
    for block in objects(record, "content"):
        kind = block.get("type")
        if kind == "text":
            content.append(TextBlock(text(block, "text")))
        elif kind == "reasoning":
            native = obj(block, "native") or obj(block, "providerMetadata")
            content.append(blocks.thinking(text(block, "text"), native))
        elif kind == "tool":
            call = text(block, "id")
            content.append(FunctionCallBlock(call, text(block, "name"), obj(block, "state").get("input")))
            seen[call] = seen.get(call, 0) + 1
            result = _result(block, at, settled=settled)
            if result is not None:
                suffix = "" if seen[call] == 1 else f"/{seen[call]}"
                results.append(Draft(f"{id_}/{call}{suffix}", result.timestamp, "function_result", encode(result)))
    message = AssistantMessage(
        content=content,
        stop_reason="end",
        model=text(model, "id"),
        provider=text(model, "providerID"),
        timestamp=at,
        native_stop_reason=text(record, "rawFinish") or finish or None,
        usage=blocks.usage(obj(record, "tokens"), record.get("cost"), zero_is_unknown=early),
        agent=blocks.AGENT,
    )
    retry = obj(record, "retry")
    if retry:
        message.warnings = [f"attempt {whole(retry, 'attempt') or 0} after: {blocks.error_text(obj(retry, 'error'))}"]
    blocks.settle(message, finish, _failure(error) if error else None)
    if early and finish and "cost" in record:
        lossy.append(f"message {id_}: this server did not record cost")
    drafts = [Draft(id_, at, "assistant", encode(message)), *results]
    return [drafts[0], sidecar(record, generation, drafts, f"{id_}/origin"), *results]


def _result(block: JsonObject, at: int, *, settled: bool) -> FunctionResultMessage | None:
    """The answer to a tool call; None while the tool may still run."""
    state = obj(block, "state")
    status = state.get("status")
    ended = first_time(obj(block, "time"), "completed", "ran", "created")
    message = FunctionResultMessage(
        function_call_id=text(block, "id"),
        function_id=text(block, "name"),
        content=_tool_content(state),
        timestamp=at if ended is None else ended,
    )
    if status == "error":
        words = blocks.error_text(obj(state, "error"))
        message.content = [*message.content, TextBlock(words)]
        message.is_error = True
    elif status == "completed":
        if not message.content:
            # A tool that answers with data only: its JSON is what the model was given.
            answer = state.get("structured") or state.get("result")
            if answer is not None:
                message.content = [TextBlock(encode(answer).decode())]
    elif settled:
        blocks.interrupt(message)
        return message
    else:
        return None
    details = {key: state[key] for key in ("metadata", "structured", "outputPaths") if state.get(key)}
    if "time" in block:
        details["time"] = block["time"]
    message.details = details or None
    return message


def _tool_content(state: JsonObject) -> list[ContentBlock]:
    content: list[ContentBlock] = []
    for item in objects(state, "content"):
        if item.get("type") == "text":
            content.append(TextBlock(text(item, "text")))
        elif item.get("type") == "file":
            content.append(blocks.attachment(text(item, "mime"), text(item, "uri"), text(item, "name")))
    return content


_TYPED: dict[str, ErrorKind] = {
    "provider.auth": "auth_expired",
    "provider.rate-limit": "rate_limited",
    "provider.context-overflow": "context_overflow",
    "provider.transport": "transient",
    "provider.timeout": "transient",
    "provider.internal": "transient",
}


def _failure(error: JsonObject) -> Failure:
    kind, message = text(error, "type"), blocks.error_text(error)
    if kind == "aborted":
        return Failure(None, message, aborted=True)
    if kind in _TYPED:
        return Failure(_TYPED[kind], message)
    if kind != "unknown":
        return Failure("permanent", message)
    # The early form calls every error "unknown"; what happened is only in its words.
    if message.rstrip(".").endswith("interrupted"):
        return Failure(None, message, aborted=True)
    if blocks.says_overflow(message):
        return Failure("context_overflow", message)
    judged = blocks.kind_of_status(blocks.http_status(message))
    if judged is None and message.startswith("Failed to read") and "stream" in message:
        judged = "transient"
    return Failure(judged or "permanent", message)
