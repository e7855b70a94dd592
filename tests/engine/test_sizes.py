"""Messages up to what the engine carries, beyond it, and pages of them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from iii.errors import InvocationError

from tests.dev.client import eventually
from tests.engine.conftest import REAL_OR_LONG, Connect, Serve, Sink, user
from tests.node import NoNode, run_node
from tests.sdk import call

MB = 1_000_000


def text_of(message: dict[str, Any]) -> str:
    return str(message["content"][0]["text"])


@pytest.mark.parametrize("url", REAL_OR_LONG, indirect=True)
@pytest.mark.parametrize("size", [1 * MB, 17 * MB, 60 * MB])
async def test_a_large_message_comes_back_whole_and_reaches_subscribers(
    url: str, serve: Serve, connect: Connect, size: int
) -> None:
    worker, client, subscriber = serve(url), await connect(url), await connect(url)
    await worker.ready(client)
    await call(client, "session::ensure", {"session_id": "s"})
    sink = Sink(subscriber)
    await sink.bind_by_function({})
    asked = {"session_id": "s", "message": user("x" * size), "entry_id": "large"}
    assert (await call(client, "session::append", asked, timeout_ms=60_000))["entry_id"] == "large"
    await call(client, "session::append", {"session_id": "s", "message": user("small"), "entry_id": "small"})
    got = await call(client, "session::get-message", {"session_id": "s", "entry_id": "large"}, timeout_ms=60_000)
    assert text_of(got["entry"]["message"]) == "x" * size
    page = await call(client, "session::messages", {"session_id": "s"}, timeout_ms=60_000)
    assert page["messages"][0]["entry_id"] == "large"
    await eventually(lambda: sink.entries() == ["large", "small"], 30)
    assert len(text_of(sink.events[0]["message"])) == size


@pytest.mark.parametrize("url", REAL_OR_LONG, indirect=True)
@pytest.mark.parametrize("size", [62 * MB, 66 * MB, 67_108_000, 70 * MB])
async def test_a_message_that_the_engine_cannot_carry_on_is_refused_and_harms_nobody(
    url: str, serve: Serve, connect: Connect, size: int
) -> None:
    worker, client, subscriber, other = serve(url), await connect(url), await connect(url), await connect(url)
    await worker.ready(client)
    await call(client, "session::ensure", {"session_id": "s"})
    sink = Sink(subscriber)
    await sink.bind_by_function({})
    asked = {"session_id": "s", "message": user("x" * size), "entry_id": "large"}
    refused = ""
    try:
        await call(client, "session::append", asked, timeout_ms=60_000)
    except InvocationError as error:
        refused = str(error)
    assert not refused or "payload_too_large" in refused or "an entry may have at most" in refused
    one = await call(other, "session::append", {"session_id": "s", "message": user("small"), "entry_id": "small"})
    assert one["entry_id"] == "small"
    await eventually(lambda: "small" in sink.entries(), 60)
    if not refused:
        got = await call(client, "session::get-message", {"session_id": "s", "entry_id": "large"}, timeout_ms=60_000)
        assert len(text_of(got["entry"]["message"])) == size
    else:
        asked = {"session_id": "s", "entry_id": "large"}
        assert await call(client, "session::get-message", asked) is None
    assert len((await call(other, "session::messages", {"session_id": "s"}, timeout_ms=60_000))["messages"]) >= 1


async def test_pages_of_megabyte_entries_stay_small_and_hold_each_entry_once(
    url: str, serve: Serve, connect: Connect
) -> None:
    worker, client = serve(url), await connect(url)
    await worker.ready(client)
    await call(client, "session::ensure", {"session_id": "s"})
    for number in range(40):
        asked = {"session_id": "s", "message": user("y" * MB), "entry_id": f"e{number}"}
        await call(client, "session::append", asked, timeout_ms=15_000)
    seen: list[str] = []
    question: dict[str, Any] = {"session_id": "s", "limit": 50}
    while True:
        page = await call(client, "session::messages", question, timeout_ms=15_000)
        assert len(json.dumps(page)) < 16 << 20
        assert page["messages"]
        seen += [message["entry_id"] for message in page["messages"]]
        if "next_cursor" not in page:
            break
        question["cursor"] = page["next_cursor"]
    assert sorted(seen) == sorted(f"e{number}" for number in range(40))


SCRIPT = """
import { registerWorker } from 'iii-sdk'

const [url, name] = process.argv.slice(2)
const iii = registerWorker(url, { workerName: name, otel: { enabled: false } })
const call = (function_id, payload, timeoutMs = 20000) => iii.trigger({ function_id, payload, timeoutMs })
const user = (text) => ({ role: 'user', content: [{ type: 'text', text }], timestamp: 1 })
const session_id = 'node'
await call('session::ensure', { session_id })
const outcomes = {}
for (const mb of [1, 17, 60, 70]) {
  const entry_id = `node-${mb}`
  try {
    const reply = await call('session::append', { session_id, entry_id, message: user('n'.repeat(mb * 1e6)) }, 10000)
    outcomes[mb] = reply.entry_id === entry_id ? 'stored' : reply
  } catch (error) {
    outcomes[mb] = error.code ?? String(error)
  }
}
const read = {}
for (const mb of [1, 17, 60]) {
  for (let attempt = 1; ; attempt++) {
    try {
      const got = await call('session::get-message', { session_id, entry_id: `python-${mb}` })
      read[mb] = got.entry.message.content[0].text.length
      break
    } catch (error) {
      if (attempt === 3) throw error
      await new Promise((resolve) => setTimeout(resolve, 1000))
    }
  }
}
console.log(JSON.stringify({ outcomes, read }))
await iii.shutdown()
process.exit(0)
"""


@pytest.mark.parametrize("url", REAL_OR_LONG, indirect=True)
async def test_node_reads_what_python_wrote_and_survives_what_it_cannot_send(
    url: str, serve: Serve, connect: Connect
) -> None:
    worker, client = serve(url), await connect(url)
    await worker.ready(client)
    await call(client, "session::ensure", {"session_id": "node"})
    for size in (1, 17, 60):
        asked = {"session_id": "node", "message": user("p" * size * MB), "entry_id": f"python-{size}"}
        await call(client, "session::append", asked, timeout_ms=60_000)
    try:
        printed = await asyncio.to_thread(run_node, SCRIPT, url, "node-client", seconds=120)
    except NoNode as reason:
        pytest.skip(str(reason))
    told = json.loads(printed.splitlines()[-1])
    assert told["read"] == {"1": 1 * MB, "17": 17 * MB, "60": 60 * MB}
    assert told["outcomes"]["1"] == "stored"
    for size in (17, 60, 70):
        got = await call(
            client, "session::get-message", {"session_id": "node", "entry_id": f"node-{size}"}, timeout_ms=60_000
        )
        assert (got is not None) == (told["outcomes"][str(size)] == "stored"), told["outcomes"]
        assert got is None or len(text_of(got["entry"]["message"])) == size * MB
    assert told["outcomes"]["70"] != "stored"
