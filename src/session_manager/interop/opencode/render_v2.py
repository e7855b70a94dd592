"""Entries to records of 2.1, for entries that have no original in that form; and records of the early second
generation to records of 2.1. Pure.

2.1 drops what is not settled when it imports, so everything rendered here is.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from session_manager.interop.opencode import blocks, ids
from session_manager.interop.opencode.records import Record, info_of, is_v1, obj, objects, text
from session_manager.interop.opencode.render_v1 import NO_RESULT
from session_manager.model import (
    AssistantMessage,
    ContentBlock,
    CustomMessage,
    Entry,
    FunctionCallBlock,
    FunctionResultMessage,
    ImageBlock,
    Json,
    JsonObject,
    TextBlock,
    ThinkingBlock,
    UserMessage,
    encode,
)


class Writer(Struct):
    """What the records of one session share."""

    store_session: str
    agent: str = "build"
    count: int = 0
    notes: list[str] = field(default_factory=list)

    def saw(self, record: Record) -> None:
        """Takes notice of a record that went out as it was."""
        self.agent = text(record, "agent", self.agent)

    def user(self, entry: Entry, message: UserMessage, hint: Record | None) -> Record:
        words, files = self._split(entry, message.content)
        record: Record = {
            **self._start(entry, message.timestamp, hinted=hint is not None),
            "type": "user",
            "text": words,
        }
        if files:
            record["files"] = files
        if hint is not None and not is_v1(hint):
            record.update({key: hint[key] for key in ("agents", "skills", "metadata") if key in hint})
        return record

    def custom(self, entry: Entry, message: CustomMessage) -> Record:
        words, files = self._split(entry, message.content)
        if files:
            self.notes.append(f"entry {entry.id}: pictures of a custom message have no place")
        mark: JsonObject = {"custom_type": message.custom_type, "entry_id": entry.id}
        if message.details is not None:
            mark["details"] = message.details
        record = {
            **self._start(entry, message.timestamp),
            "type": "synthetic",
            "text": words,
            "metadata": {"store": mark},
        }
        if message.display is not None:
            record["description"] = message.display
        return record

    def assistant(
        self, entry: Entry, message: AssistantMessage, results: dict[str, FunctionResultMessage], hint: Record | None
    ) -> Record:
        at = message.timestamp
        ended = max([at, *(result.timestamp for result in results.values())])
        content: list[JsonObject] = []
        for block in message.content:
            if isinstance(block, TextBlock):
                content.append({"type": "text", "text": block.text})
            elif isinstance(block, ThinkingBlock):
                thought: JsonObject = {"type": "reasoning", "text": block.text}
                if block.signature is not None:
                    thought["native"] = {message.provider or "store": {"signature": block.signature}}
                content.append(thought)
            elif isinstance(block, FunctionCallBlock):
                content.append(self._tool(entry, block, results.get(block.id), at))
            else:
                self.notes.append(f"entry {entry.id}: a {_name(block)} block of an assistant has no place")
        record: Record = self._start(entry, at, hinted=hint is not None)
        record["time"] = {"created": at, "completed": ended}
        model: JsonObject = {"id": message.model, "providerID": message.provider}
        agent = self.agent
        if hint is not None:
            if not is_v1(hint):
                record.update({key: hint[key] for key in ("snapshot", "native", "metadata") if key in hint})
                model = {**obj(hint, "model"), **model}
            agent = text(info_of(hint), "agent", agent)
        self.agent = agent
        record.update(
            {
                "type": "assistant",
                "agent": agent,
                "model": model,
                "content": content,
                "finish": blocks.FINISH.get(message.stop_reason, "error"),
                "cost": blocks.cost_of(message.usage),
                "tokens": blocks.tokens_of(message.usage),
            }
        )
        if message.native_stop_reason is not None and message.native_stop_reason != record["finish"]:
            record["rawFinish"] = message.native_stop_reason
        if message.stop_reason in ("error", "aborted"):
            record["error"] = _error(message)
        return record

    def _tool(self, entry: Entry, call: FunctionCallBlock, result: FunctionResultMessage | None, at: int) -> JsonObject:
        arguments: Json = call.arguments if isinstance(call.arguments, dict) else {"arguments": call.arguments}
        if not isinstance(call.arguments, dict):
            self.notes.append(f"entry {entry.id}: arguments of call {call.id} are no object")
        content = [] if result is None else [item for block in result.content if (item := _item(block)) is not None]
        details = result.details if result is not None and isinstance(result.details, dict) else {}
        state: JsonObject = {"status": "completed", "input": arguments, "content": content}
        if obj(details, "metadata"):
            state["metadata"] = details["metadata"]
        if result is None or result.is_error:
            words = " ".join(text(item, "text") for item in content) if content else NO_RESULT
            kind = "tool.interrupted" if result is None or details.get("synthesized") is True else "tool.execution"
            state.update({"status": "error", "error": {"type": kind, "message": words}})
            del state["content"]
        elif not content:
            state["content"] = [{"type": "text", "text": ""}]
        ended = result.timestamp if result is not None else at
        time: JsonObject = {"created": at, "ran": at, "completed": ended}
        return {"type": "tool", "id": call.id, "name": call.function_id, "state": state, "time": time}

    def _split(self, entry: Entry, content: list[ContentBlock]) -> tuple[str, list[JsonObject]]:
        words: list[str] = []
        files: list[JsonObject] = []
        for block in content:
            if isinstance(block, TextBlock):
                words.append(block.text)
            elif isinstance(block, ImageBlock):
                files.append({"data": block.data, "mime": block.mime, "source": {"type": "inline"}})
            else:
                self.notes.append(f"entry {entry.id}: a {_name(block)} block became text")
                words.append(encode(block).decode())
        return "\n".join(words), files

    def _start(self, entry: Entry, at: int, *, hinted: bool = False) -> Record:
        self.count += 1
        id_ = entry.id
        if not hinted and not ids.is_opencode_id(id_, "msg"):
            id_ = ids.message_id(self.store_session, entry.id, entry.timestamp, self.count)
        return {"id": id_, "time": {"created": at}}


def _name(block: ContentBlock) -> str:
    return str(block.__struct_config__.tag)


def _item(block: ContentBlock) -> JsonObject | None:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    if isinstance(block, ImageBlock):
        return {"type": "file", "uri": f"data:{block.mime};base64,{block.data}", "mime": block.mime}
    return {"type": "text", "text": encode(block).decode()}


_TYPES = {
    "auth_expired": "provider.auth",
    "rate_limited": "provider.rate-limit",
    "context_overflow": "provider.context-overflow",
    "transient": "provider.transport",
}


def _error(message: AssistantMessage) -> JsonObject:
    kind = "aborted" if message.stop_reason == "aborted" else _TYPES.get(message.error_kind or "", "provider.unknown")
    return {"type": kind, "message": message.error_message or "unknown error"}


# --- the early form to 2.1 ---


def upgraded(record: Record) -> Record:
    """A record of the early second generation in the form of 2.1. What 2.1 has no field for is left out."""
    kind = record.get("type")
    record = dict(record)
    if kind == "user":
        if "files" in record:
            record["files"] = [_file(file) for file in objects(record, "files")]
        if "agents" in record:
            record["agents"] = [_mention(agent) for agent in objects(record, "agents")]
    elif kind == "assistant":
        record["content"] = [_block(block) for block in objects(record, "content")]
        error = obj(record, "error")
        if error.get("type") == "unknown":
            record["error"] = {**error, "type": _error_type(text(error, "message"))}
    elif kind == "compaction" and "status" not in record:
        record.pop("recent", None)
        record["status"] = "completed"
    elif kind == "shell" and "callID" in record:
        printed = text(record, "output")
        size = len(printed.encode())
        record["shellID"] = record.pop("callID")
        record.setdefault("status", "exited")
        record["output"] = {"output": printed, "cursor": size, "size": size, "truncated": False}
    elif kind == "synthetic":
        record.pop("sessionID", None)
    return record


def upgraded_info(info: JsonObject) -> JsonObject:
    """The session record in the form of 2.1."""
    revert = obj(info, "revert")
    if not revert:
        return info
    files = [{("file" if key == "path" else key): file[key] for key in file} for file in objects(revert, "files")]
    changed = {key: value for key, value in revert.items() if key != "diff"}
    return {**info, "revert": {**changed, "files": files} if files else changed}


def _indented(value: Json) -> str:
    return msgspec.json.format(encode(value), indent=2).decode()


def _error_type(message: str) -> str:
    """2.1 says what kind of error it was; the early form only in words."""
    if message.rstrip(".").endswith("interrupted"):
        return "aborted"
    status = blocks.http_status(message)
    if status is None:
        return "unknown"
    named = {401: "provider.auth", 403: "provider.auth", 404: "provider.not-found", 429: "provider.rate-limit"}
    return named.get(status, "provider.internal" if status >= 500 else "provider.invalid-request")


def _file(file: JsonObject) -> JsonObject:
    rest: JsonObject = {key: file[key] for key in ("mime", "name", "description") if key in file}
    parts = blocks.data_url(text(file, "uri"))
    if parts is not None:
        rest = {"data": parts[1], "mime": parts[0], **{k: v for k, v in rest.items() if k != "mime"}}
        rest["source"] = {"type": "inline"}
    else:
        rest = {"data": "", **rest, "source": {"type": "uri", "uri": text(file, "uri")}}
    if "source" in file:
        rest["mention"] = file["source"]
    return rest


def _mention(agent: JsonObject) -> JsonObject:
    return {("mention" if key == "source" else key): value for key, value in agent.items()}


def _block(block: JsonObject) -> JsonObject:
    if block.get("type") != "tool":
        rest = {key: value for key, value in block.items() if key not in ("id", "providerMetadata")}
        if "providerMetadata" in block:
            rest["native"] = block["providerMetadata"]
        return rest
    block = dict(block)
    provider = obj(block, "provider")
    block.pop("provider", None)
    if "executed" in provider:
        block["executed"] = provider["executed"]
    native = provider.get("metadata") or provider.get("resultMetadata")
    if native:
        block["native"] = native
    block["state"] = _state(obj(block, "state"))
    return block


def _state(state: JsonObject) -> JsonObject:
    status = state.get("status")
    if status == "pending":
        return {**state, "status": "streaming"}
    answer = {key: state[key] for key in ("structured", "result") if state.get(key)}
    kept = {k: v for k, v in state.items() if k not in ("structured", "result", "outputPaths", "attachments")}
    if "structured" in answer:
        kept["metadata"] = answer["structured"]
    if not kept.get("content"):
        kept.pop("content", None)
        if status == "completed":
            words = next((_indented(answer[key]) for key in ("structured", "result") if key in answer), "")
            kept["content"] = [{"type": "text", "text": words}]
    return kept


def unavailable(record: Record) -> list[str]:
    """What is said of files whose content is not in the record, but on the machine where it was made."""
    return [
        f"message {text(record, 'id')}: the content of {text(obj(file, 'source'), 'uri')} is not here"
        for file in objects(record, "files")
        if file.get("data") == "" and obj(file, "source").get("type") == "uri"
    ]
