"""A subscriber in a process of its own: binds functions to session::message-added, answers at once, and writes
down when each event came.

`python -m bench.wire.subscriber URL NAME BINDINGS CONFIG` says `bound`, then `hearing` once every binding has had an
event; a line on its input makes it tell what came, and start anew.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid

import msgspec
from msgspec import Struct

from bench.wire.line import Line


class Event(Struct):
    entry_id: str


_read = msgspec.json.Decoder(Event).decode


async def serve(url: str, name: str, bindings: int, config: str) -> None:
    came: list[tuple[str, int]] = []
    unheard = {f"bench::{name}::{number}" for number in range(bindings)}

    def receive(function_id: str, payload: bytes) -> bytes:
        came.append((_read(payload).entry_id, time.monotonic_ns()))
        if unheard:
            unheard.discard(function_id)
            if not unheard:
                print("hearing", flush=True)
        return b"null"

    line = await Line(url, f"bench-{name}", receive).open()
    for function_id in sorted(unheard):
        line.write(msgspec.json.encode({"type": "registerfunction", "id": function_id}))
    for function_id in sorted(unheard):  # the connection's own, so that they go with it
        bound = {"type": "registertrigger", "id": str(uuid.uuid4()), "trigger_type": "session::message-added"}
        line.write(msgspec.json.encode({**bound, "function_id": function_id, "config": json.loads(config)}))
    await line.call("engine::functions::list", {})
    print("bound", flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(came), flush=True)
        came.clear()
    line.close()


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        run = asyncio.run
    else:
        run = uvloop.run
    run(serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
