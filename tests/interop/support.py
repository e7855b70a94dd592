"""What the tests of OpenCode sessions share."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from session_manager.interop.opencode.exports import Export, export_session
from session_manager.interop.opencode.imports import Existing, Plan, existing, plan_import
from session_manager.interop.opencode.sessions import SourceSession
from session_manager.interop.opencode.sources import read
from session_manager.model import Entry
from session_manager.store import PathQuery, Store
from session_manager.stores.memory import MemoryStore

Json = Any

DATA = Path(__file__).parent / "data"
NOW = 1_800_000_000_000


def roots() -> list[Path]:
    """Where recorded sessions are: those that come with the tests, and a larger set when OPENCODE_DATA names one."""
    more = os.environ.get("OPENCODE_DATA")
    return [DATA, *([Path(more)] if more else [])]


def files(pattern: str) -> list[Path]:
    return [path for root in roots() for path in sorted(root.glob(pattern))]


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def load(path: Path | str) -> Json:
    return json.loads((DATA / path).read_bytes())


def differences(a: Json, b: Json, at: str = "") -> Iterator[str]:
    """Where two JSON values differ, also in the type of a number: 1 is not 1.0."""
    if type(a) is not type(b):
        yield f"{at}: {a!r:.80} is not {b!r:.80}"
    elif isinstance(a, dict):
        for key in sorted(a.keys() | b.keys()):
            if key not in a or key not in b:
                yield f"{at}.{key} is only {'here' if key in a else 'there'}"
            else:
                yield from differences(a[key], b[key], f"{at}.{key}")
    elif isinstance(a, list):
        if len(a) != len(b):
            yield f"{at}: {len(a)} and {len(b)} elements"
        for index, (x, y) in enumerate(zip(a, b, strict=False)):
            yield from differences(x, y, f"{at}[{index}]")
    elif a != b:
        yield f"{at}: {a!r:.80} is not {b!r:.80}"


def same(a: Json, b: Json) -> bool:
    return not list(differences(a, b))


def document(info: Json, messages: Json) -> SourceSession:
    [source] = read(json.dumps({"info": info, "messages": messages}).encode(), "test")
    return source


async def bring_in(store: Store, source: SourceSession, added: Json = None) -> Plan:
    plan = plan_import(source, await existing(store, source.id), now=NOW, added=added)
    if plan.change is not None:
        await store.commit(store.ahead(), plan.change)
    return plan


async def imported(source: SourceSession) -> tuple[MemoryStore, Plan]:
    store = MemoryStore()
    return store, await bring_in(store, source)


async def taken_out(store: Store, session_id: str) -> Export:
    return await export_session(store, session_id)


def plain(entry: Entry) -> Json:
    """All of an entry as plain JSON."""
    origin = None if entry.origin is None else json.loads(entry.origin)
    place = [entry.id, entry.parent_id, entry.timestamp, entry.role, entry.revision, origin]
    return [*place, json.loads(entry.body)]


async def path(store: Store, session_id: str) -> list[Entry]:
    """The active path."""
    return list((await store.path(PathQuery(session_id))).entries)


async def messages(store: Store, session_id: str) -> list[Json]:
    """The messages of the active path as plain JSON."""
    return [json.loads(entry.body) for entry in await path(store, session_id) if entry.role is not None]


def planned(source: SourceSession) -> Plan:
    """What a first import would do."""
    return plan_import(source, Existing(), now=NOW)
