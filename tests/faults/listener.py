"""A subscriber in a process of its own: python -m tests.faults.listener URL NAME.

Reads commands, one JSON value a line: a list of `[trigger type, configuration]` to be bound, or null to unbind all of
them. Answers each with `[]`, and writes what it is told as `[trigger type, event]`, both in the order in which they
came to pass.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from iii.iii import III

from tests.dev.client import unique
from tests.sdk import call, sdk_client


def say(*what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class Listener:
    def __init__(self, client: III, seconds: float) -> None:
        self._client, self._seconds = client, seconds
        self._bindings: list[str] = []
        self._functions: dict[str, str] = {}

    def _function(self, kind: str) -> str:
        """The function that takes events of this type: the same at every binding."""
        if kind not in self._functions:
            self._functions[kind] = unique("listener::")

            async def take(event: dict[str, Any]) -> None:
                event.pop("_caller_worker_id", None)
                await asyncio.sleep(self._seconds)
                say(kind, event)

            self._client.register_function(self._functions[kind], take)
        return self._functions[kind]

    async def bind(self, what: list[tuple[str, Any]]) -> None:
        for kind, config in what:
            asked = {"trigger_type": kind, "function_id": self._function(kind), "config": config}
            self._bindings.append((await call(self._client, "engine::register_trigger", asked))["id"])

    async def unbind(self) -> None:
        while self._bindings:
            await call(self._client, "engine::unregister_trigger", {"id": self._bindings.pop()})


async def main(url: str, name: str, seconds: float) -> None:
    async with sdk_client(url, name) as client:
        listener = Listener(client, seconds)
        while line := await asyncio.to_thread(sys.stdin.readline):
            what = json.loads(line)
            await (listener.unbind() if what is None else listener.bind(what))
            say()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
