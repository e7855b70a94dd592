"""The tour with the Node SDK: create, append, stream a reply and watch it arrive."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.engine.conftest import Connect, Serve
from tests.node import NoNode, run_node
from tests.sdk import call

UPDATES = 100

SCRIPT = """
import { registerWorker } from 'iii-sdk'

const [url, updates] = process.argv.slice(2)
const iii = registerWorker(url, { workerName: 'node-tour', otel: { enabled: false } })
const call = (function_id, payload) => iii.trigger({ function_id, payload })

const { session_id, meta } = await call('session::create', { title: 'Node', metadata: { from: 'node' } })
const heard = { added: [], updated: [], other: [] }
let finished
const last = new Promise((resolve) => { finished = resolve })
const listen = (name, take, type, config) => {
  iii.registerFunction(`node-tour::${name}`, async (event) => { take(event); return null })
  iii.registerTrigger({ type, function_id: `node-tour::${name}`, config })
}
listen('added', (e) => heard.added.push(e), 'session::message-added', { session_id, roles: ['assistant'] })
listen('updated', (e) => {
  heard.updated.push(e)
  if (e.revision === Number(updates)) finished()
}, 'session::message-updated', { metadata: { from: 'node' } })
listen('other', (e) => heard.other.push(e), 'session::message-updated', { metadata: { from: 'elsewhere' } })
// The bindings are made when the engine lists them.
for (;;) {
  const listed = await call('engine::registered-triggers::list', { search: 'node-tour::' })
  if (listed.registered_triggers.length === 3) break
}

const text = (words) => [{ type: 'text', text: words }]
const asked = await call('session::append', {
  session_id, message: { role: 'user', content: text('hello'), timestamp: Date.now() } })
const reply = await call('session::append', {
  session_id,
  message: {
    role: 'assistant', content: [], timestamp: Date.now(), stop_reason: 'end', model: 'm', provider: 'p' } })
let words = ''
for (let n = 1; n <= Number(updates); n++) {
  words += `${n} `
  const { revision } = await call('session::update-message', {
    session_id, entry_id: reply.entry_id, content: text(words), expected_revision: n - 1 })
  if (revision !== n) throw new Error(`revision ${revision} after ${n} updates`)
}
await last
const fork = await call('session::fork', { session_id, entry_id: asked.entry_id })
const stale = await call('session::update-message', {
  session_id, entry_id: reply.entry_id, content: [], expected_revision: 1 })
console.log(JSON.stringify({
  session_id, status: meta.status, entry_id: reply.entry_id, asked: asked.entry_id, words, fork, stale,
  added: heard.added.map((e) => [e.entry_id, e.message.role]),
  revisions: heard.updated.map((e) => e.revision),
  words_heard: heard.updated.at(-1).message.content[0].text,
  other: heard.other.length }))
await iii.shutdown()
process.exit(0)
"""


async def test_a_node_client_creates_appends_streams_and_watches(url: str, serve: Serve, connect: Connect) -> None:
    worker, client = serve(url), await connect(url)
    await worker.ready(client)
    try:
        printed = await asyncio.to_thread(run_node, SCRIPT, url, str(UPDATES), seconds=60)
    except NoNode as reason:
        pytest.skip(str(reason))
    told = json.loads(printed.splitlines()[-1])
    assert told["status"] == "idle"
    assert told["stale"] == {"updated": False, "revision": UPDATES}
    assert told["added"] == [[told["entry_id"], "assistant"]]
    assert told["other"] == 0
    assert told["revisions"] == sorted(told["revisions"])
    assert told["revisions"][-1] == UPDATES
    assert told["words_heard"] == told["words"]
    page = await call(client, "session::messages", {"session_id": told["session_id"]})
    assert page["messages"][-1]["message"]["content"] == [{"type": "text", "text": told["words"]}]
    forked = await call(client, "session::messages", {"session_id": told["fork"]["session_id"]})
    assert len(forked["messages"]) == 1
