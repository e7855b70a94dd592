"""An unmodified Node SDK as worker, as client and as binder."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.dev.client import peer, unique
from tests.node import NoNode, node_sdk, run_node

SCRIPT = """
import { registerWorker, TriggerAction } from 'iii-sdk'

const [url, id] = process.argv.slice(2)
const iii = registerWorker(url, { workerName: `node-${id}`, otel: { enabled: false } })
const events = []
let done
const all = new Promise((resolve) => { done = resolve })

iii.registerFunction(`node-${id}::greet`, async (input) => ({ greeting: `Hello, ${input.name}!` }))
iii.registerFunction(`node-${id}::sink`, async (event) => {
  events.push(event.n)
  if (events.length === 100) done()
  return null
})
const binding = iii.registerTrigger({ type: `t-${id}`, function_id: `node-${id}::sink`, config: { every: 1 } })
const refused = iii.registerTrigger({ type: `t-${id}`, function_id: `node-${id}::sink`, config: { refuse: true } })

const twice = await iii.trigger({ function_id: `py-${id}::twice`, payload: { n: 21 } })
const nothing = await iii.trigger({ function_id: `py-${id}::nothing`, payload: {} })
let error
try {
  await iii.trigger({ function_id: `py-${id}::fail`, payload: {} })
} catch (caught) {
  error = { code: caught.code, message: caught.message }
}
let missing
try {
  await iii.trigger({ function_id: `py-${id}::missing`, payload: {} })
} catch (caught) {
  missing = caught.code
}
await iii.trigger({ function_id: `py-${id}::fire`, payload: {}, action: TriggerAction.Void() })
await all
binding.unregister()
refused.unregister()
await iii.trigger({ function_id: `py-${id}::done`, payload: {} })
console.log(JSON.stringify({ twice, nothing: nothing ?? null, error, missing, events }))
await iii.shutdown()
process.exit(0)
"""


async def test_a_node_worker_is_called_calls_and_binds(url: str) -> None:
    try:
        await asyncio.to_thread(node_sdk)
    except NoNode as reason:
        pytest.skip(str(reason))
    run = unique("")
    trigger_type = f"t-{run}"
    async with peer(url) as worker:
        await worker.introduce(f"py-{run}")
        await worker.register(f"py-{run}::twice", lambda data: {"n": data["n"] * 2})
        await worker.register(f"py-{run}::nothing", lambda data: None)
        await worker.register(f"py-{run}::done", lambda data: True)
        await worker.register(f"py-{run}::fail")
        await worker.register(f"py-{run}::fire")
        await worker.provide(trigger_type)
        await worker.settled()
        node = asyncio.ensure_future(asyncio.to_thread(run_node, SCRIPT, url, run))

        bindings = await worker.several(2, "registertrigger")
        (bound,) = [frame for frame in bindings if frame["config"] == {"every": 1}]
        (refused,) = [frame for frame in bindings if frame["config"] == {"refuse": True}]
        assert bound["trigger_type"] == trigger_type
        await worker.acknowledge(bound)
        await worker.acknowledge(refused, {"code": "trigger_registration_failed", "message": "no"})

        assert await worker.call(f"node-{run}::greet", {"name": "you"}) == {"greeting": "Hello, you!"}
        row = (await worker.call("engine::workers::list", {"search": f"node-{run}"}))["workers"][0]
        assert row["runtime"] == "node"

        failing = await worker.frame("invokefunction", function_id=f"py-{run}::fail")
        await worker.answer(failing, error={"code": "session/not_found", "message": "session/not_found: s_1"})
        await worker.frame("invokefunction", function_id=f"py-{run}::fire")
        for n in range(100):
            await worker.call(bound["function_id"], {"n": n})
        gone = await worker.frame("unregistertrigger", id=bound["id"])
        assert gone["trigger_type"] == trigger_type
        printed = json.loads((await node).splitlines()[-1])  # the SDK prints too
    assert printed["twice"] == {"n": 42}
    assert printed["nothing"] is None
    assert printed["error"]["code"] == "session/not_found"
    assert "session/not_found: s_1" in printed["error"]["message"]
    assert printed["missing"] == "function_not_found"
    assert printed["events"] == list(range(100))
