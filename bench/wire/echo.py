"""The least that a worker can do: Python functions that give back what they got, or what they were told to keep.
A process of its own, on the Python SDK as it is, telemetry off, on uvloop like the worker."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from typing import Any


def main() -> None:
    try:
        import uvloop
    except ImportError:
        pass
    else:
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    from iii import InitOptions, register_worker

    kept: dict[str, Any] = {}

    async def echo(data: Any) -> Any:
        return data

    async def keep(data: Any) -> Any:
        kept["page"] = data["page"]
        return {"ok": True}

    async def page(data: Any) -> Any:
        return kept["page"]

    client = register_worker(sys.argv[1], InitOptions(worker_name="bench-echo", otel={"enabled": False}))
    client.register_function("bench::echo", echo)
    client.register_function("bench::keep", keep)
    client.register_function("bench::page", page)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    stop.wait()
    client.shutdown()


if __name__ == "__main__":
    main()
