"""Entries to records of the first generation, for entries that have no original in that form: sessions that never
came from OpenCode, messages edited here, and those of the second generation. Pure.

The records have every field that `opencode import` insists on. What the form has no place for is told in `notes`.
"""

from __future__ import annotations

from msgspec import Struct, field

from session_manager.interop.opencode import blocks, ids
from session_manager.interop.opencode.records import Record, info_of, is_assistant, is_v1, obj, objects, text
from session_manager.model import (
    AssistantMessage,
    ContentBlock,
    CustomMessage,
    Entry,
    FunctionCallBlock,
    FunctionResultBlock,
    FunctionResultMessage,
    ImageBlock,
    JsonObject,
    TextBlock,
    ThinkingBlock,
    UserMessage,
    encode,
)

NO_RESULT = "[no result was recorded]"


class Writer(Struct):
    """What the records of one session share."""

    store_session: str
    session_id: str
    directory: str = "/"
    agent: str = "build"
    model: tuple[str, str] = ("unknown", "unknown")
    """Provider and model of the turn that a message belongs to."""
    last_user: str = ""
    count: int = 0
    notes: list[str] = field(default_factory=list)

    def saw(self, record: Record) -> None:
        """Takes notice of a record that went out as it was."""
        if is_v1(record):
            info = info_of(record)
            self.agent = text(info, "agent", self.agent)
            if not is_assistant(record):
                self.last_user = text(info, "id")

    def user(self, entry: Entry, message: UserMessage, hint: Record | None) -> Record:
        id_ = self._id(entry, hint)
        parts = _Parts(self, entry, id_, hint)
        for block in message.content:
            parts.add(block)
        self.last_user = id_
        return {"info": self._user_info(id_, message.timestamp, hint), "parts": parts.done()}

    def custom(self, entry: Entry, message: CustomMessage) -> Record:
        """A custom message: text that OpenCode shows the model but not the person, marked as what it was."""
        id_ = self._id(entry)
        parts = _Parts(self, entry, id_, None)
        mark: JsonObject = {"custom_type": message.custom_type, "entry_id": entry.id}
        if message.display is not None:
            mark["display"] = message.display
        if message.details is not None:
            mark["details"] = message.details
        for block in message.content or [TextBlock("")]:
            parts.add(block, synthetic=True, mark=mark)
        self.last_user = id_
        return {"info": self._user_info(id_, message.timestamp, None), "parts": parts.done()}

    def assistant(
        self, entry: Entry, message: AssistantMessage, results: dict[str, FunctionResultMessage], hint: Record | None
    ) -> Record:
        id_ = self._id(entry, hint)
        self.model = (message.provider, message.model)
        parts = _Parts(self, entry, id_, hint)
        ended = message.timestamp
        for block in message.content:
            if isinstance(block, FunctionCallBlock):
                result = results.get(block.id)
                ended = max(ended, result.timestamp if result else 0)
                parts.tool(block, result, message.timestamp)
            else:
                parts.add(block)
        info: JsonObject = (
            dict(info_of(hint))
            if hint is not None and is_v1(hint)
            else {
                "id": id_,
                "sessionID": self.session_id,
                "role": "assistant",
                "time": {"created": message.timestamp, "completed": ended},
                "parentID": self.last_user or id_,
                "mode": self.agent,
                "agent": self.agent,
                "path": {"cwd": self.directory, "root": self.directory},
            }
        )
        info["modelID"], info["providerID"] = message.model, message.provider
        info["cost"], info["tokens"] = blocks.cost_of(message.usage), blocks.tokens_of(message.usage)
        info.pop("finish", None)
        info.pop("error", None)
        finish = message.native_stop_reason if hint is not None else None
        finish = finish or blocks.FINISH.get(message.stop_reason)
        if finish is not None and (message.stop_reason != "error" or hint is not None):
            info["finish"] = finish
        if message.stop_reason in ("error", "aborted"):
            info["error"] = _error(message)
        return {"info": info, "parts": parts.done()}

    def _user_info(self, id_: str, at: int, hint: Record | None) -> JsonObject:
        if hint is not None and is_v1(hint):
            return info_of(hint)
        provider, model = self.model
        return {
            "id": id_,
            "sessionID": self.session_id,
            "role": "user",
            "time": {"created": at},
            "agent": self.agent,
            "model": {"providerID": provider, "modelID": model},
        }

    def _id(self, entry: Entry, hint: Record | None = None) -> str:
        self.count += 1
        if hint is not None or ids.is_opencode_id(entry.id, "msg"):
            return entry.id
        return ids.message_id(self.store_session, entry.id, entry.timestamp, self.count)


class _Parts:
    """The parts of one message. With a hint (the original of a message that was edited) its part ids are used again,
    and its parts that no block stands for stay."""

    def __init__(self, writer: Writer, entry: Entry, message_id: str, hint: Record | None) -> None:
        self._writer = writer
        self._entry = entry
        self._message_id = message_id
        self._parts: list[JsonObject] = []
        old = objects(hint, "parts") if hint is not None and is_v1(hint) else []
        content = {"text", "reasoning", "tool", "file", "subtask"}
        self._old = [part for part in old if part.get("type") in content]
        first = next((n for n, part in enumerate(old) if part.get("type") in content), len(old))
        self._before, self._behind = old[:first], [p for p in old[first:] if p.get("type") not in content]

    def add(self, block: ContentBlock, *, synthetic: bool = False, mark: JsonObject | None = None) -> None:
        if isinstance(block, TextBlock):
            part: JsonObject = {"type": "text", "text": block.text}
            if synthetic:
                part["synthetic"] = True
            if mark is not None:
                part["metadata"] = {"store": mark}
        elif isinstance(block, ImageBlock):
            part = {"type": "file", "mime": block.mime, "url": f"data:{block.mime};base64,{block.data}"}
        elif isinstance(block, ThinkingBlock):
            at = self._entry.timestamp
            part = {"type": "reasoning", "text": block.text, "time": {"start": at, "end": at}}
            if block.signature is not None:
                part["metadata"] = {"store": {"signature": block.signature}}
        else:
            self._writer.notes.append(f"entry {self._entry.id}: a {_name(block)} block became text")
            part = {"type": "text", "text": encode(block).decode(), "synthetic": True}
        self._put(part, part["type"])

    def tool(self, call: FunctionCallBlock, result: FunctionResultMessage | None, at: int) -> None:
        arguments = call.arguments if isinstance(call.arguments, dict) else {"arguments": call.arguments}
        if not isinstance(call.arguments, dict):
            self._writer.notes.append(f"entry {self._entry.id}: arguments of call {call.id} are no object")
        details = result.details if result is not None and isinstance(result.details, dict) else {}
        time = {"start": at, "end": result.timestamp if result is not None else at}
        if isinstance(details.get("time"), dict) and {"start", "end"} <= details["time"].keys():
            time = details["time"]
        state: JsonObject
        if result is None or result.is_error:
            words = NO_RESULT if result is None else _words(result.content)
            state = {"status": "error", "input": arguments, "error": words, "time": time}
        else:
            state = {
                "status": "completed",
                "input": arguments,
                "output": _words(result.content),
                "title": text(details, "title"),
                "metadata": obj(details, "metadata"),
                "time": time,
            }
            files = [block for block in result.content if isinstance(block, ImageBlock)]
            if files:
                state["attachments"] = [
                    {
                        **self._place(len(self._parts) + 100 + n),
                        "type": "file",
                        "mime": file.mime,
                        "url": f"data:{file.mime};base64,{file.data}",
                    }
                    for n, file in enumerate(files)
                ]
        self._put({"type": "tool", "callID": call.id, "tool": call.function_id, "state": state}, "tool")

    def _put(self, part: JsonObject, kind: str) -> None:
        index = next((n for n, old in enumerate(self._old) if old.get("type") == kind), None)
        if index is not None:
            old = self._old.pop(index)
            part = {**part, "id": old["id"], "sessionID": old["sessionID"], "messageID": old["messageID"]}
        else:
            part = {**part, **self._place(len(self._parts))}
        self._parts.append(part)

    def _place(self, index: int) -> JsonObject:
        at = self._entry.timestamp
        return {
            "id": ids.part_id(self._writer.store_session, self._entry.id, at, index),
            "sessionID": self._writer.session_id,
            "messageID": self._message_id,
        }

    def done(self) -> list[JsonObject]:
        return [*self._before, *self._parts, *self._behind]


def _name(block: ContentBlock) -> str:
    return str(block.__struct_config__.tag)


def _words(content: list[ContentBlock]) -> str:
    words = [
        block.text
        if isinstance(block, TextBlock | ThinkingBlock)
        else _words(block.content)
        if isinstance(block, FunctionResultBlock)
        else ""
        for block in content
    ]
    return "\n".join(word for word in words if word)


def _error(message: AssistantMessage) -> JsonObject:
    words = message.error_message or "unknown error"
    if message.stop_reason == "aborted":
        return {"name": "MessageAbortedError", "data": {"message": words}}
    if message.error_kind == "auth_expired":
        return {"name": "ProviderAuthError", "data": {"providerID": message.provider, "message": words}}
    if message.error_kind == "context_overflow":
        return {"name": "ContextOverflowError", "data": {"message": words}}
    if message.error_kind == "rate_limited":
        return {"name": "APIError", "data": {"message": words, "statusCode": 429, "isRetryable": True}}
    if message.error_kind == "transient":
        return {"name": "APIError", "data": {"message": words, "isRetryable": True}}
    return {"name": "UnknownError", "data": {"message": words}}
