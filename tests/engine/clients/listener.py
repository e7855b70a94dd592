"""A subscriber with the Python SDK: prints "bound", then a line for each message that is added to a session."""

from __future__ import annotations

import sys
from typing import Any

from iii import InitOptions, register_worker

URL, SESSION, NAME = sys.argv[1:]


async def take(event: Any) -> None:
    print(event["entry_id"], event["parent_id"], flush=True)


worker = register_worker(URL, InitOptions(worker_name=NAME, otel={"enabled": False}))
worker.register_function(f"{NAME}::take", take)
asked = {"trigger_type": "session::message-added", "function_id": f"{NAME}::take", "config": {"session_id": SESSION}}
worker.trigger({"function_id": "engine::register_trigger", "payload": asked})
print("bound", flush=True)
sys.stdin.read()
worker.shutdown()
