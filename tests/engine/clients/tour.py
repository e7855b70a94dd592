"""The tour of the README with the Python SDK alone: create, watch, append, stream a reply, read, fork, list."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from iii import InitOptions, register_worker
from iii.errors import InvocationError

URL, UPDATES = sys.argv[1], int(sys.argv[2])
worker = register_worker(URL, InitOptions(worker_name="python-tour", otel={"enabled": False}))


def call(function_id: str, **payload: Any) -> Any:
    return worker.trigger({"function_id": function_id, "payload": payload})


def text(words: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": words}]


session_id = call("session::create", title="Tour", metadata={"owner": "python-tour"})["session_id"]

added: list[Any] = []
updated: list[Any] = []
elsewhere: list[Any] = []
finished = threading.Event()


async def take_added(event: Any) -> None:
    added.append(event)


async def take_updated(event: Any) -> None:
    updated.append(event)
    if event["revision"] == UPDATES:
        finished.set()


async def take_elsewhere(event: Any) -> None:
    elsewhere.append(event)


for name, take, trigger_type, config in (
    ("added", take_added, "session::message-added", {"session_id": session_id, "roles": ["assistant"]}),
    ("updated", take_updated, "session::message-updated", {"metadata": {"owner": "python-tour"}}),
    ("elsewhere", take_elsewhere, "session::message-updated", {"metadata": {"owner": "nobody"}}),
):
    worker.register_function(f"python-tour::{name}", take)
    worker.register_trigger({"type": trigger_type, "function_id": f"python-tour::{name}", "config": config})
while len(call("engine::registered-triggers::list", search="python-tour::")["registered_triggers"]) < 3:
    time.sleep(0.01)  # the bindings are made when the engine lists them

question = {"role": "user", "content": text("How far is Oslo from Bergen?"), "timestamp": 1}
asked = call("session::append", session_id=session_id, message=question)["entry_id"]
empty = {"role": "assistant", "content": [], "stop_reason": "end", "model": "m", "provider": "p", "timestamp": 2}
reply = call("session::append", session_id=session_id, message=empty)["entry_id"]
words = ""
for revision in range(1, UPDATES + 1):
    words += f"{revision} "
    call(
        "session::update-message",
        session_id=session_id,
        entry_id=reply,
        content=text(words),
        expected_revision=revision - 1,
    )
heard_last = finished.wait(15)
stale = call("session::update-message", session_id=session_id, entry_id=reply, content=[], expected_revision=1)

page = call("session::messages", session_id=session_id)
fork = call("session::fork", session_id=session_id, entry_id=asked, title="Another plan")["session_id"]
listed = call("session::list", metadata={"owner": "python-tour"})
try:
    refused = call("session::append", session_id="nobody", message=question)
except InvocationError as error:
    refused = error.message

print(
    json.dumps(
        {
            "session_id": session_id,
            "asked": asked,
            "reply": reply,
            "words": words,
            "heard_last": heard_last,
            "added": [[event["entry_id"], event["message"]["role"]] for event in added],
            "revisions": [event["revision"] for event in updated],
            "words_heard": updated[-1]["message"]["content"][0]["text"],
            "elsewhere": len(elsewhere),
            "stale": stale,
            "page": [[item["entry_id"], item["message"]["content"][0]["text"]] for item in page["messages"]],
            "fork": fork,
            "listed": [meta["session_id"] for meta in listed["sessions"]],
            "refused": refused,
        }
    )
)
worker.shutdown()
