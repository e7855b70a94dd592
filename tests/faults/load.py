"""A mixed load on one database, and the check of what it was told.

64 tasks work side by side on sessions of their own and on shared ones. Before each call a task writes down what the
session must look like once the call is answered, and after the answer that it was answered. Whatever happens to the
process or to the disk, each session must then look as after its last answered call, or as after the call that was on
its way: never in between, and never older.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from session_manager.clock import RandomIds, SystemClock
from session_manager.dispatch import Runtime, Service
from session_manager.errors import SessionManagerError
from session_manager.paging import Limits
from session_manager.store import PathQuery, Store
from session_manager.stores.fs import FsStore
from session_manager.stores.sqlite import SqliteStore

TASKS = 64
SHARED = 4

Look = list[Any] | None
"""What a session looks like: [title, status, count, [[text, revision], ...] along the active path], or None. A draft
stands behind the title."""

Say = Callable[[dict[str, Any]], None]


class NoReloader:
    """There is no configuration here."""

    last_outcome: Any = "applied"
    last_error: str | None = None
    rejected_reloads = 0

    async def reload(self) -> None:
        pass


def service(store: Store, publish: Callable[[Any], None] = lambda emissions: None) -> Service:
    return Service(Runtime(store, publish, Limits()), SystemClock(), RandomIds(), NoReloader())


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}], "timestamp": 0}


class Calls(Protocol):
    """Who answers: a service in this process, or a worker on an engine."""

    async def call(self, function_id: str, payload: Any) -> Any:
        """Raises SessionManagerError."""


def titled(title: str, draft: str | None) -> str:
    return title if draft is None else f"{title} / {draft}"


class Task:
    """One caller, with one session at a time."""

    def __init__(self, to: Calls, say: Say, name: str, seed: int) -> None:
        self.to, self.say, self.name, self.random = to, say, name, random.Random(seed)
        self.made = self.said = self.texts = 0
        self.session = ""
        self.look: Look = None
        self.ids: list[str] = []
        self.title, self.draft = "", ""

    def text(self) -> str:
        self.texts += 1
        return f"{self.name}/{self.texts} " + "x" * self.random.choice((10, 200, 200, 3000))

    async def call(self, function: str, payload: dict[str, Any], after: Look) -> Any:
        self.said += 1
        self.say({"session": self.session, "n": self.said, "look": after})
        reply = await self.to.call(f"session::{function}", {"session_id": self.session, **payload})
        self.say({"session": self.session, "n": self.said})
        self.look = after
        return reply

    def told(self, session: str, look: Look) -> None:
        """Says what an answered call made whose session had no name before."""
        self.say({"session": session, "n": 0, "look": look})
        self.say({"session": session, "n": 0})

    async def step(self) -> None:
        if self.look is None:
            self.made += 1
            self.ids, self.title, self.draft = [], "new", ""
            if self.random.random() < 0.2:
                reply = await self.to.call("session::create", {"title": "new"})
                self.session, self.look = reply["session_id"], ["new", "idle", 0, []]
                self.told(self.session, self.look)
                return
            self.session = f"{self.name}.{self.made}"
            await self.call("ensure", {"title": "new"}, ["new", "idle", 0, []])
            return
        title, status, count, path = self.look
        kind = self.random.random()
        if kind < 0.35 or not path:
            text, id_ = self.text(), f"e{self.said}"
            await self.call(
                "append", {"message": user(text), "entry_id": id_}, [title, status, count + 1, [*path, [text, 0]]]
            )
            self.ids.append(id_)
        elif kind < 0.5:
            texts = [self.text() for _ in range(self.random.randint(2, 6))]
            after = [title, status, count + len(texts), [*path, *([text, 0] for text in texts)]]
            reply = await self.call("append-many", {"messages": [user(text) for text in texts]}, after)
            self.ids += reply["entry_ids"]
        elif kind < 0.7:
            at, text = self.random.randrange(len(path)), self.text()
            changed = [*path[:at], [text, path[at][1] + 1], *path[at + 1 :]]
            content = user(text)["content"]
            await self.call(
                "update-message", {"entry_id": self.ids[at], "content": content}, [title, status, count, changed]
            )
        elif kind < 0.78:
            new = self.random.choice(("idle", "working", "done", "error"))
            await self.call("set-status", {"status": new}, [title, new, count, path])
        elif kind < 0.86:
            if self.random.random() < 0.3:
                self.draft = self.text()[:40]
                payload: dict[str, Any] = {"draft": self.draft}
            else:
                self.title = self.text()[:40]
                payload = {"title": self.title, "metadata": {"owner": self.name}}
            after = [titled(self.title, self.draft or None), status, count, path]
            await self.call("set-draft" if "draft" in payload else "set-meta", payload, after)
        elif kind < 0.92:
            at = self.random.randrange(len(path))
            await self.call("set-active-leaf", {"entry_id": self.ids[at]}, [title, status, count, path[: at + 1]])
            self.ids = self.ids[: at + 1]
        elif kind < 0.96:
            reply = await self.to.call("session::fork", {"session_id": self.session, "entry_id": self.ids[-1]})
            copied = [[text, 0] for text, _ in path]
            self.told(reply["session_id"], [self.title, "idle", len(path), copied])
        elif len(path) > 25 or kind > 0.98:
            await self.call("delete", {}, None)

    async def shared(self) -> None:
        """An append that races those of other tasks."""
        session, text = f"shared.{self.random.randrange(SHARED)}.{self.name.split('.')[0]}", self.text()
        await self.to.call("session::ensure", {"session_id": session})
        await self.to.call("session::append", {"session_id": session, "message": user(text), "entry_id": text[:40]})
        self.say({"shared": session, "text": text})


async def run(
    to: Calls,
    say: Say,
    name: str,
    seed: int,
    *,
    steps: int | None = None,
    tasks: int = TASKS,
    over: Callable[[], bool] = lambda: False,
) -> None:
    """Loads whoever answers until this process dies, or it is over, or for so many steps per task. A call that fails
    ends its task's session."""

    async def work(number: int) -> None:
        task = Task(to, say, f"{name}.{number}", seed * 1000 + number)
        done = 0
        while not over() and (steps is None or done < steps):
            done += 1
            try:
                await (task.shared() if task.random.random() < 0.15 else task.step())
            except SessionManagerError:
                task.look = None
                await asyncio.sleep(0.001)

    await asyncio.gather(*(work(number) for number in range(tasks)))


def writer(fd: int) -> Say:
    """Says one JSON line at a time, at once."""

    def say(what: dict[str, Any]) -> None:
        os.write(fd, json.dumps(what).encode() + b"\n")

    return say


# --- the check ---


LEAST = 100
"""Changes that are acknowledged before the first kill, however slow the machine is: without any nothing is tried."""


class Told:
    """What the callers were told."""

    def __init__(self) -> None:
        self.looks: dict[str, list[Look]] = {}
        """Per session: as after the last answered call, and as after the one on its way, if there is one."""
        self.answered: dict[str, bool] = {}
        self.shared: dict[str, set[str]] = {}
        self.recent: set[str] = set()
        """Sessions spoken of since somebody cleared this."""
        self.acknowledged = 0
        self._waiting: dict[str, tuple[int, Look]] = {}

    def take(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            try:
                said = json.loads(line)
            except ValueError:
                continue  # cut off: nobody was told
            self.recent.add(said.get("shared") or said["session"])
            if "shared" in said:
                self.shared.setdefault(said["shared"], set()).add(said["text"])
                self.acknowledged += 1
            elif "look" in said:
                self._waiting[said["session"]] = (said["n"], said["look"])
                self.looks.setdefault(said["session"], [None])
                self.looks[said["session"]][1:] = [said["look"]]
            else:
                number, look = self._waiting.pop(said["session"])
                assert number == said["n"]
                self.looks[said["session"]] = [look]
                self.acknowledged += 1


def text_of(body: bytes) -> str:
    content = json.loads(body)["content"]
    return str(content[0].get("text", "")) if content else ""


async def look(store: Store, session: str) -> Look:
    page = await store.path(PathQuery(session))
    if page.meta is None:
        return None
    shown = [[text_of(entry.body), entry.revision] for entry in page.entries if entry.role is not None]
    return [titled(page.meta.title, page.meta.draft), page.meta.status, page.meta.message_count, shown]


async def problems(
    look: Callable[[str], Awaitable[Look]], there: Iterable[str], told: Told, *, recent: bool = False
) -> list[str]:
    """How what is stored differs from what callers were told; only of the sessions spoken of lately, if so wanted.
    `there` are the sessions that have a record."""
    found: list[str] = []
    for session, looks in told.looks.items():
        if not recent or session in told.recent:
            has = await look(session)
            if has not in looks:
                found.append(f"{session} looks like {str(has)[:300]}, was told {str(looks)[:300]}")
    for session, texts in told.shared.items():
        if not recent or session in told.recent:
            has = await look(session)
            path = [] if has is None else [text for text, _ in has[3]]
            if missing := texts - set(path):
                found.append(f"{session} lacks {len(missing)} acknowledged messages")
            if has is not None and has[2] != len(path):
                found.append(f"{session} counts {has[2]} messages and shows {len(path)}")
    for session in there:
        if session not in told.looks and session not in told.shared and not recent:
            has = await look(session)  # a fork or a session that nobody was told of, yet it must be whole
            if has is not None and has[2] != len(has[3]):
                found.append(f"{session} is not whole")
    return found


def store_in(directory: Path, kind: str) -> Store:
    """A store of a kind, `sqlite` or `fs`, not yet open."""
    return SqliteStore(directory / "sessions.db") if kind == "sqlite" else FsStore(directory)


async def load_store(directory: Path, kind: str, fd: int, name: str, seed: int, steps: int | None) -> None:
    store = store_in(directory, kind)
    await store.open()
    await run(service(store), writer(fd), name, seed, steps=steps)
    await store.close()


async def check_store(directory: Path, kind: str, told: Told, *, recent: bool = False) -> list[str]:
    store = store_in(directory, kind)
    await store.open()
    try:
        there = [meta.session_id for meta in await store.metas()]
        return await problems(partial(look, store), there, told, recent=recent)
    finally:
        await store.close()
