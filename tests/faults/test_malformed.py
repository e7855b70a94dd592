"""Whatever is sent, the answer is a reply, a rejection that names the field, or a code; a refusal writes nothing."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from session_manager.bindings import TRIGGER_TYPES, binding
from session_manager.errors import CodedError, MalformedRequest, SessionManagerError
from session_manager.functions import FUNCTIONS
from session_manager.store import Store
from session_manager.stores.fs import FsStore
from session_manager.stores.memory import MemoryStore
from session_manager.stores.sqlite import SqliteStore
from tests.faults.conftest import Figure
from tests.faults.load import service, store_in, user
from tests.faults.payloads import Maker, schemas

FRESH = 2_000
"""Payloads after which the store is emptied, so that its state stays small."""


class Counting:
    """A store that counts what is committed."""

    def __init__(self, store: Store) -> None:
        self._store, self.commits = store, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, view: Any, change: Any, durable: Any = None, early: Any = None) -> Any:
        self.commits += 1
        return self._store.commit(view, change, durable, early)


async def fill(to: Any) -> None:
    for session in ("s1", "s2"):
        with contextlib.suppress(SessionManagerError):
            await to.call("session::delete", {"session_id": session})
        await to.call("session::ensure", {"session_id": session})
        for id_ in ("e1", "e2", "e3"):
            with contextlib.suppress(SessionManagerError):
                await to.call("session::append", {"session_id": session, "entry_id": id_, "message": user(id_)})


def begins(error: Exception, text: str) -> str:
    assert str(error).startswith(text)
    assert isinstance(error, MalformedRequest) or text.startswith("session/")
    return text.split(": ")[0]


async def bombard(store: Any, count: int, seed: int) -> Counter[str]:
    """What came of so many payloads."""
    counting = Counting(store)
    await counting.open()
    published: list[Any] = []
    to = service(counting, published.extend)
    shapes, maker, outcomes = schemas(), Maker(seed), Counter[str]()
    chosen = random.Random(seed)
    targets = [function.id for function in FUNCTIONS]
    kinds = [trigger_type.id for trigger_type in TRIGGER_TYPES]
    for n in range(count):
        if n % FRESH == 0:
            for session in {*(meta.session_id for meta in await counting.metas())}:
                await to.call("session::delete", {"session_id": session})
            await fill(to)
        if chosen.random() < 0.12:
            kind = chosen.choice(kinds)
            try:
                binding("b", kind, "f", maker.payload(shapes[kind]))
                outcomes["bound"] += 1
            except MalformedRequest as error:
                outcomes[begins(error, f"malformed request: the configuration of a {kind} trigger: ")] += 1
            continue
        target = chosen.choice(targets)
        payload = maker.payload(shapes[target])
        before, told = counting.commits, len(published)
        try:
            await to.call(target, payload)
            outcomes["answered"] += 1
        except CodedError as error:
            outcomes[begins(error, f"{error.code}: ")] += 1
        except MalformedRequest as error:
            outcomes[begins(error, "malformed request: ")] += 1
        except Exception as error:
            raise AssertionError(f"{target} answered {payload!r} with {error!r}") from error
        else:
            continue
        assert (counting.commits, len(published)) == (before, told), (target, payload)
    with contextlib.suppress(SessionManagerError):
        await to.call("session::list", {"limit": 500})
    await counting.close()
    return outcomes


@pytest.mark.parametrize("name", ["memory", "sqlite", "fs"])
async def test_no_payload_does_what_it_should_not(name: str, tmp_path: Path) -> None:
    outcomes = await bombard(MemoryStore() if name == "memory" else store_in(tmp_path, name), 4_000, seed=7)
    assert outcomes["answered"] > 500
    assert outcomes["malformed request"] > 500
    assert {"session/not_found", "session/entry_not_found", "session/invalid_request"} <= set(outcomes)


@pytest.mark.long
async def test_no_payload_of_120000_does_what_it_should_not(tmp_path: Path, figure: Figure) -> None:
    whole: Counter[str] = Counter()
    stores: tuple[Store, ...] = (MemoryStore(), SqliteStore(tmp_path / "sessions.db", "OFF"), FsStore(tmp_path / "fs"))
    for seed, store in enumerate(stores, 1):
        whole += await bombard(store, 40_000, seed)
    refused = sum(count for kind, count in whole.items() if kind not in ("answered", "bound"))
    figure(
        "Malformed requests",
        "right, nearly right and nonsensical payloads made from the schemas, to every function, raw store functions "
        "and trigger configurations included, in the memory, SQLite and fs store",
        f"{whole.total():,} payloads, {refused:,} refused",
        "no unhandled exception, no write or event of a refused call; every error a shape rejection or a code",
    )
