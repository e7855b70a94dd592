"""Unmodified SDK clients for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from iii import InitOptions, register_worker
from iii.iii import III


async def open_client(url: str, name: str, **options: Any) -> III:
    """An SDK client, its socket open; `options` are those of `InitOptions`. To be closed with `close_client`."""
    settings = InitOptions(worker_name=name, otel={"enabled": False}, **options)
    return await asyncio.to_thread(register_worker, url, settings)


async def close_client(client: III) -> None:
    """Shut a client down, its event loop included, which the SDK leaves open."""
    await asyncio.to_thread(client.shutdown)
    client._loop.close()


@asynccontextmanager
async def sdk_client(url: str, name: str, **options: Any) -> AsyncIterator[III]:
    """An SDK client for a while."""
    client = await open_client(url, name, **options)
    try:
        yield client
    finally:
        await close_client(client)


async def call(client: III, function_id: str, payload: Any, **more: Any) -> Any:
    """Call a function from any event loop; `more` are further keys of the request (default time-out: 5 s)."""
    request = {"function_id": function_id, "payload": payload, "timeout_ms": 5000, **more}
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(client.trigger_async(request), client._loop))
