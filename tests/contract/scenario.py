"""Runs scenario files (FORMAT.md) on anything that can take their steps."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

SCENARIOS = Path(__file__).parent / "scenarios"
MISSING = object()
KINDS = {"string": str, "int": int, "object": dict, "array": list, "bool": bool, "null": type(None)}


class Stage(Protocol):
    """Where scenarios are played."""

    async def call(self, function_id: str, payload: Any) -> Any:
        """The reply. Raises an exception whose text is what a caller sees."""

    async def bind(self, trigger_type: str, config: Any, receive: Callable[[Any], None]) -> str:
        """The id of a new binding. Raises when it is refused."""

    async def unbind(self, binding_id: str) -> None: ...

    async def settle(self) -> None:
        """Waits until the events of earlier calls have arrived."""

    async def restart(self) -> None: ...

    async def set_config(self, changes: dict[str, Any]) -> None:
        """Lays keys over the configuration and waits for the reload. Raises when the value is refused."""

    async def reset(self) -> None:
        """Puts the configuration back."""

    def special(self, value: dict[str, Any], scenario: str) -> Any:
        """What `$tmp`, `$initial` and `$engine_url` stand for."""


class Mismatch(AssertionError):
    pass


def all_scenarios() -> list[tuple[str, dict[str, Any]]]:
    return [
        (path.stem, scenario)
        for path in sorted(SCENARIOS.glob("*.json"))
        for scenario in json.loads(path.read_text(encoding="utf-8"))["scenarios"]
    ]


def match(want: Any, got: Any, at: str = "$") -> None:
    """Raises Mismatch unless `got` is as `want` describes it."""
    if isinstance(want, dict) and len(want) == 1 and next(iter(want)).startswith("$"):
        _matcher(*next(iter(want.items())), got, at)
    elif got is MISSING:
        raise Mismatch(f"{at} is missing, wanted {want!r}")
    elif isinstance(want, dict):
        if not isinstance(got, dict):
            raise Mismatch(f"{at} is no object: {got!r}")
        for key, value in want.items():
            match(value, got.get(key, MISSING), f"{at}.{key}")
    elif isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            raise Mismatch(f"{at}: {got!r} is not {want!r}")
        for n, (a, b) in enumerate(zip(want, got, strict=True)):
            match(a, b, f"{at}[{n}]")
    elif want != got or (isinstance(want, bool) != isinstance(got, bool)):
        raise Mismatch(f"{at}: {got!r} is not {want!r}")


def _matcher(name: str, argument: Any, got: Any, at: str) -> None:
    if name == "$absent":
        if got is not MISSING:
            raise Mismatch(f"{at} is there: {got!r}")
        return
    if got is MISSING:
        raise Mismatch(f"{at} is missing")
    met: Callable[[], bool] = {
        "$any": lambda: True,
        "$type": lambda: type(got) is KINDS[argument],
        "$len": lambda: len(got) == argument,
        "$gte": lambda: type(got) is int and got >= argument,
        "$regex": lambda: isinstance(got, str) and re.search(argument, got) is not None,
    }[name]
    if not met():
        raise Mismatch(f"{at}: {got!r} is not {name} {argument!r}")


def matches(want: Any, got: Any) -> bool:
    try:
        match(want, got)
    except Mismatch:
        return False
    return True


def assign(wants: list[Any], events: list[Any]) -> None:
    """Raises Mismatch unless every wanted event can be given one of its own."""
    edges = [[n for n, event in enumerate(events) if matches(want, event)] for want in wants]
    owner: dict[int, int] = {}

    def place(want: int, tried: set[int]) -> bool:
        for event in edges[want]:
            if event not in tried:
                tried.add(event)
                if event not in owner or place(owner[event], tried):
                    owner[event] = want
                    return True
        return False

    for n, want in enumerate(wants):
        if not place(n, set()):
            raise Mismatch(f"no event is {want!r}; there came {events!r}")


class Play:
    """One scenario on a stage."""

    def __init__(self, stage: Stage, scenario: dict[str, Any]) -> None:
        self.stage, self.scenario = stage, scenario
        self.saved: dict[str, Any] = {}
        self.bindings: dict[str, str] = {}
        self.sinks: dict[str, list[Any]] = {}
        self.configured = False

    async def run(self) -> None:
        try:
            for n, step in enumerate(self.scenario["steps"], 1):
                try:
                    await self.step(step)
                except Mismatch as mismatch:
                    raise Mismatch(f"step {n} {json.dumps(step)[:200]}: {mismatch}") from None
        finally:
            for binding_id in self.bindings.values():
                await self.stage.unbind(binding_id)
            if self.configured:
                await self.stage.reset()

    def resolve(self, value: Any) -> Any:
        if isinstance(value, dict):
            if set(value) == {"$ref"}:
                return copy.deepcopy(self.saved[value["$ref"]])
            if set(value) & {"$tmp", "$initial", "$engine_url"}:
                return self.stage.special(value, self.scenario["name"])
            return {key: self.resolve(inner) for key, inner in value.items()}
        return [self.resolve(inner) for inner in value] if isinstance(value, list) else value

    async def step(self, step: dict[str, Any]) -> None:
        if "call" in step:
            await self.call(step)
        elif "bind" in step:
            await self.bind(step)
        elif "unbind" in step:
            await self.stage.unbind(self.bindings.pop(step["unbind"]))
        elif "events" in step:
            await self.stage.settle()
            sink, wants = self.sinks[step["events"]], self.resolve(step["expect"])
            events = list(sink)
            sink.clear()
            assign(wants, events)
            if step.get("exact") and len(events) != len(wants):
                raise Mismatch(f"{len(events)} events came, wanted {len(wants)}: {events!r}")
        elif "restart" in step:
            await self.stage.restart()
        else:
            self.configured = True
            try:
                await self.stage.set_config(self.resolve(step["set_config"]))
            except Exception as error:
                if "config-worker-may-refuse" not in self.scenario.get("tags", []):
                    raise Mismatch(f"configuration refused: {error}") from None

    async def call(self, step: dict[str, Any]) -> None:
        try:
            reply = await self.stage.call(step["call"], self.resolve(step["with"]))
        except Exception as error:
            text = str(error)
            if "error" not in step:
                raise Mismatch(f"failed: {text}") from error
            malformed = step["error"] == "malformed"
            if ("session/" in text) if malformed else (step["error"] not in text):
                raise Mismatch(f"wanted {step['error']}, got {text}") from error
            return
        if "error" in step:
            raise Mismatch(f"wanted {step['error']}, got {reply!r}")
        if "expect" in step:
            match(self.resolve(step["expect"]), reply)
        for name, path in step.get("save", {}).items():
            value = reply
            for key, index in re.findall(r"\.([A-Za-z_]+)|\[(\d+)\]", path):
                value = value[key] if key else value[int(index)]
            self.saved[name] = value

    async def bind(self, step: dict[str, Any]) -> None:
        sink = self.sinks.setdefault(step.get("as", ""), [])
        try:
            binding_id = await self.stage.bind(step["bind"], self.resolve(step["config"]), sink.append)
        except Exception as error:
            if not step.get("rejected"):
                raise Mismatch(f"binding refused: {error}") from None
            return
        self.bindings[step.get("as", "")] = binding_id
        if step.get("rejected"):
            raise Mismatch("the binding was accepted")


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Waits for a condition, and fails when it does not come."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
        await asyncio.sleep(0.002)
