"""What only a store over another instance's store has to promise: outages, failures halfway, few round trips."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from session_manager import hints
from session_manager.door import MAX_ID, MAX_RECORD
from session_manager.errors import BrokenPath, MalformedRequest, SessionManagerError, StorageError
from session_manager.events import EVENTS
from session_manager.model import Entry, SessionMeta, encode
from session_manager.store import Change, Found, ListQuery, PathQuery
from session_manager.stores.bridge import BridgeStore, MainError, MainSilent
from session_manager.stores.bridge.steps import PART_BYTES, PART_ENTRIES
from session_manager.stores.bridge.store import PROBE
from tests.bridged import Bridged, InProcessMain
from tests.stage import InProcess

APPEND = [(True, "put-entry"), (False, "put-entry"), (False, "set-active-leaf"), (False, "put-meta")]
"""The calls that write an append: one to a main instance that takes hints, three to another."""

on_append = pytest.mark.parametrize(("bridge", "name"), APPEND, indirect=["bridge"])
unhinted = pytest.mark.parametrize("bridge", [False], indirect=True, ids=["unhinted"])
either = pytest.mark.parametrize("bridge", [True, False], indirect=True, ids=["hinted", "unhinted"])


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}], "timestamp": 1}


@pytest.fixture
async def bridge(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bridged]:
    async with Bridged(tmp_path, hints=getattr(request, "param", True)) as made:
        yield made


class Heard:
    """The events of a bridge's subscribers."""

    def __init__(self, stage: InProcess) -> None:
        self._stage = stage
        self.events: list[tuple[str, dict[str, Any]]] = []

    async def listen(self) -> Heard:
        for kind in EVENTS:
            await self._stage.bind(kind, {}, lambda event, kind=kind: self.events.append((kind, event)))  # type: ignore[misc]
        return self

    async def kinds(self) -> list[str]:
        await self._stage.settle()
        return [kind.removeprefix("session::") for kind, _ in self.events]


def once(name: str, fault: str) -> Callable[[str], str | None]:
    """A fault that befalls the next call of a store function."""
    left = [fault]
    return lambda function_id: left.pop() if left and function_id == f"session::store::{name}" else None


async def append(stage: InProcess, entry_id: str, session_id: str = "s", **more: Any) -> Any:
    payload = {"session_id": session_id, "entry_id": entry_id, "message": user(entry_id), **more}
    return await stage.call("session::append", payload)


async def path(stage: InProcess, session_id: str = "s") -> list[str]:
    page = await stage.call("session::messages", {"session_id": session_id, "limit": 500})
    return [item["entry_id"] for item in page["messages"]]


async def count(stage: InProcess, session_id: str = "s") -> int:
    got: int = (await stage.call("session::get", {"session_id": session_id}))["meta"]["message_count"]
    return got


# --- failures halfway ---


@pytest.mark.parametrize("fault", ["before", "after"])
@on_append
async def test_an_append_that_failed_is_made_whole_by_a_retry(bridge: Bridged, name: str, fault: str) -> None:
    await bridge.call("session::ensure", {"session_id": "s"})
    await append(bridge, "a")
    heard = await Heard(bridge).listen()
    bridge.way.fault = once(name, fault)
    with pytest.raises(StorageError, match=f"session/storage: session::store::{name}: "):
        await append(bridge, "b")
    assert await heard.kinds() == [], "a change that failed was told"
    bridge.time += PROBE
    assert (await append(bridge, "b"))["parent_id"] == "a"
    assert await path(bridge) == await path(bridge.main) == ["a", "b"]
    assert await count(bridge.main) == 2
    assert await heard.kinds() == ["message-added"]


@pytest.mark.parametrize("fault", ["before", "after"])
@on_append
async def test_another_change_does_not_build_on_one_that_failed(bridge: Bridged, name: str, fault: str) -> None:
    await bridge.call("session::ensure", {"session_id": "s"})
    await append(bridge, "a")
    bridge.way.fault = once(name, fault)
    with pytest.raises(StorageError):
        await append(bridge, "b")
    bridge.time += PROBE
    await bridge.call("session::set-status", {"session_id": "s", "status": "working"})
    assert (await append(bridge, "c"))["parent_id"] == "a"
    assert await path(bridge.main) == ["a", "c"]
    assert await count(bridge.main) == 2
    assert (await append(bridge, "b"))["parent_id"] == "c"
    assert await path(bridge.main) == ["a", "c", "b"]
    assert await count(bridge.main) == 3


@pytest.mark.parametrize("fault", ["before", "after"])
@on_append
async def test_a_retry_heals_also_when_the_bridge_died_in_between(bridge: Bridged, name: str, fault: str) -> None:
    await bridge.call("session::ensure", {"session_id": "s"})
    await append(bridge, "a")
    await asyncio.sleep(0.003)  # the clock counts milliseconds, and an append is told from its record's time
    bridge.way.fault = once(name, fault)
    with pytest.raises(StorageError):
        await append(bridge, "b")
    await bridge.restart()
    assert (await append(bridge, "b"))["entry_id"] == "b"
    assert await path(bridge.main) == ["a", "b"]
    assert await count(bridge.main) == 2


class Backwards:
    """A clock that goes back by a millisecond at each look, as one may that is set, or another host's."""

    def __init__(self) -> None:
        self._times = itertools.count(2_000_000_000_000, -1)

    def now(self) -> int:
        return next(self._times)


@pytest.mark.parametrize("hints", [True, False])
async def test_what_is_newer_than_its_record_by_the_clock_alone_stays_as_it_is(tmp_path: Path, *, hints: bool) -> None:
    async with Bridged(tmp_path, hints=hints, clock=Backwards()) as bridge:
        await bridge.call("session::ensure", {"session_id": "s"})
        custom = {"custom_type": "note"}
        for id_ in ("a", "b", "c"):
            await bridge.call("session::append", {"session_id": "s", "entry_id": id_, "custom": custom})
        for leaf in ("b", "b", "a"):
            record = await bridge.call("session::get", {"session_id": "s"})
            await bridge.call("session::set-active-leaf", {"session_id": "s", "entry_id": leaf})
            assert await bridge.call("session::get", {"session_id": "s"}) == record
        await bridge.call("session::set-active-leaf", {"session_id": "s", "entry_id": "b"})
        if hints:  # else nothing tells the last one from one whose writer died behind it
            again = await bridge.call("session::append", {"session_id": "s", "entry_id": "c", "custom": custom})
            assert (again["parent_id"], again["timestamp"]) == ("b", 2_000_000_000_000 - 3)


async def test_an_entry_that_is_no_part_of_the_path_is_there_for_every_call(bridge: Bridged) -> None:
    """Where changes are made whole, it is nobody's unfinished append, however new it is and wherever it hangs."""
    await bridge.call("session::ensure", {"session_id": "s"})
    await append(bridge, "a")
    for id_, kind in (
        ("draft", {"kind": "custom", "custom_type": "c", "data": 1}),
        ("note", {"kind": "message", "message": user("note")}),
    ):
        entry = {"id": id_, "parent_id": "a", "timestamp": 2**62, "revision": 0, **kind}
        await bridge.main.call("session::store::put-entry", {"session_id": "s", "entry": entry})
        leaf = {"session_id": "s", "entry_id": id_}
        assert (await bridge.call("session::get-message", leaf))["entry"]["id"] == id_
        assert await bridge.call("session::set-active-leaf", leaf) == {"active_leaf": id_}
        assert (await bridge.call("session::append", leaf | {"message": user("again")}))["timestamp"] == 2**62
        await bridge.call("session::set-active-leaf", {"session_id": "s", "entry_id": "a"})


@unhinted
async def test_what_others_built_on_a_failed_append_stays_where_it_is(bridge: Bridged) -> None:
    await bridge.call("session::ensure", {"session_id": "s"})
    await append(bridge, "a")
    bridge.way.fault = once("put-meta", "before")
    with pytest.raises(StorageError):
        await append(bridge, "b")
    await append(bridge.main, "c")
    await append(bridge, "b")
    assert await path(bridge) == ["a", "b", "c"]


async def test_an_update_that_landed_unheard_can_be_retried_at_its_revision(bridge: Bridged) -> None:
    await bridge.call("session::ensure", {"session_id": "s"})
    await append(bridge, "a")
    heard = await Heard(bridge).listen()
    update = {"session_id": "s", "entry_id": "a", "content": [], "expected_revision": 0}
    bridge.way.fault = once("put-entry", "after")
    with pytest.raises(StorageError):
        await bridge.call("session::update-message", update)
    bridge.time += PROBE
    assert await bridge.call("session::update-message", update) == {"updated": True, "revision": 1}
    assert await heard.kinds() == ["message-updated"]


@pytest.mark.parametrize(
    ("function", "payload", "kind"),
    [
        ("ensure", {"session_id": "new"}, "created"),
        ("set-status", {"session_id": "s", "status": "error", "reason": "r"}, "status-changed"),
        ("set-meta", {"session_id": "s", "title": "t"}, "meta-updated"),
    ],
)
async def test_a_retry_of_what_landed_unheard_tells_its_event(
    bridge: Bridged, function: str, payload: dict[str, Any], kind: str
) -> None:
    await bridge.call("session::ensure", {"session_id": "s"})
    heard = await Heard(bridge).listen()
    bridge.way.fault = once("put-meta", "after")
    with pytest.raises(StorageError):
        await bridge.call(f"session::{function}", payload)
    bridge.time += PROBE
    await bridge.call(f"session::{function}", payload)
    assert await heard.kinds() == [kind]


@pytest.mark.parametrize("name", ["delete-entries", "delete-active-leaf", "delete-meta"])
async def test_a_deletion_that_failed_can_be_asked_for_again(bridge: Bridged, name: str) -> None:
    await bridge.call("session::ensure", {"session_id": "s"})
    await append(bridge, "a")
    bridge.way.fault = once(name, "before")
    with pytest.raises(StorageError):
        await bridge.call("session::delete", {"session_id": "s"})
    assert await bridge.call("session::delete", {"session_id": "s"}) == {"deleted": True}
    store = bridge.main.store
    assert await store.entries("s") == []
    assert await store.session("s") == type(await store.session("s"))()


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("hinted", [True, False], ids=["hinted", "unhinted"])
async def test_whatever_fails_retries_come_to_what_would_have_been(tmp_path: Path, seed: int, *, hinted: bool) -> None:
    """Random changes, random faults, each change retried until it is acknowledged: the same as without faults."""
    chance = random.Random(seed)
    (tmp_path / "plain").mkdir()
    async with (
        Bridged(tmp_path, hints=hinted) as bridge,
        InProcess({"name": "memory", "config": {}}, tmp_path / "plain") as plain,
    ):
        heard, expected = await Heard(bridge).listen(), await Heard(plain).listen()

        def fault(function_id: str) -> str | None:
            if function_id.endswith("publish-events") or chance.random() < 0.75:
                return None
            return chance.choice(["before", "after"])

        ids = [f"e{number}" for number in range(6)]
        for number in range(30):
            session = chance.choice(["s", "t"])
            known = [id_ for id_ in ids if await plain.store.entry(session, id_)]
            payload: dict[str, Any] = {"session_id": session}
            match chance.choice(["ensure", "append", "append", "append", "update", "status", "meta", "leaf"]):
                case "append":
                    function, payload = "append", {**payload, "entry_id": chance.choice(ids), "message": user("x")}
                    if known and chance.random() < 0.3:
                        payload["parent_id"] = chance.choice(known)
                case "update" if known:
                    content = [{"type": "text", "text": f"{number}"}]
                    function, payload = (
                        "update-message",
                        {**payload, "entry_id": chance.choice(known), "content": content},
                    )
                case "status":
                    function, payload = "set-status", {**payload, "status": "working", "reason": f"{number}"}
                case "meta":
                    function, payload = "set-meta", {**payload, "title": f"{number}", "metadata": {"n": number}}
                case "leaf" if known:
                    function, payload = "set-active-leaf", {**payload, "entry_id": chance.choice(known)}
                case _:
                    function = "ensure"
            bridge.way.fault = fault
            wanted = await outcome(plain, function, payload)
            while (got := await outcome(bridge, function, payload)) == "session/storage":
                bridge.time += PROBE
            bridge.way.fault = lambda function_id: None
            assert got == wanted, (number, function, payload)
        for session in ("s", "t"):
            assert await contents(bridge.main, session) == await contents(plain, session)
        assert sorted(await heard.kinds()) == sorted(await expected.kinds())


async def outcome(stage: InProcess, function: str, payload: dict[str, Any]) -> Any:
    """The reply without its times, or the code of the error."""
    try:
        reply = await stage.call(f"session::{function}", payload)
    except SessionManagerError as error:
        return str(error).partition(":")[0]
    return {key: value for key, value in reply.items() if key not in ("timestamp", "meta")}


async def contents(stage: InProcess, session_id: str) -> Any:
    session = await stage.store.session(session_id)
    if session.meta is None:
        return None
    meta = {key: value for key, value in session.meta.wire().items() if not key.endswith("_at")}
    entries = [
        (entry.id, entry.parent_id, entry.revision, entry.body) for entry in await stage.store.entries(session_id)
    ]
    return meta, session.leaf, entries


# --- outages ---


@pytest.mark.parametrize(
    ("function", "payload", "named"),
    [
        ("get", {"session_id": "s"}, "get-active-leaf"),
        ("list", {}, "list-metas"),
        ("messages", {"session_id": "s"}, "list-entries"),
        ("get-message", {"session_id": "s", "entry_id": "a"}, "get-entry"),
        ("append", {"session_id": "s", "message": user("x")}, "get-active-leaf"),
        ("create", {}, "put-meta"),
        ("fork", {"session_id": "s", "entry_id": "a"}, "list-entries"),
    ],
)
async def test_without_the_main_instance_every_call_fails_and_names_the_store_function(
    bridge: Bridged, function: str, payload: dict[str, Any], named: str
) -> None:
    bridge.way.fault = lambda function_id: "before"
    with pytest.raises(StorageError, match=rf"session/storage: session::store::{named}: .* cannot be reached"):
        await bridge.call(f"session::{function}", payload)


class Scripted:
    """A main instance that gives the same answer to everything."""

    def __init__(self, answer: bytes | MainError) -> None:
        self.answer, self.calls = answer, 0

    async def open(self) -> None:
        pass

    async def call(self, function_id: str, payload: bytes) -> bytes:
        self.calls += 1
        if isinstance(self.answer, MainError):
            raise self.answer
        return self.answer

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("answer", [b"", b"[]", b"nonsense", b'{"entries":[{"kind":"message"}]}', b"\xff"])
async def test_a_reply_that_cannot_be_read_is_a_storage_error(answer: bytes) -> None:
    with pytest.raises(StorageError, match=r"session::store::list-entries: .* cannot be read"):
        await BridgeStore(Scripted(answer)).entries("s")


async def test_after_a_silence_calls_fail_at_once_until_it_is_time_to_try_again() -> None:
    now = [0.0]
    main = Scripted(MainSilent("no answer"))
    store = BridgeStore(main, monotonic=lambda: now[0])
    for _ in range(3):
        with pytest.raises(StorageError):
            await store.entry("s", "e")
    assert main.calls == 1
    now[0] += PROBE
    main.answer = b"null"
    assert await store.entry("s", "e") is None
    assert await store.entry("s", "e") is None
    assert main.calls == 3


async def test_a_store_that_the_main_instance_does_not_serve_cannot_be_opened() -> None:
    with pytest.raises(StorageError, match="get-active-leaf"):
        await BridgeStore(Scripted(MainError("no main instance serves it"))).open()


# --- round trips ---


class Slow(InProcessMain):
    """Counts rounds: calls that are on their way together share one."""

    def __init__(self, main: InProcess, *, hints: bool) -> None:
        super().__init__(main, hints=hints)
        self.rounds: list[list[str]] = []
        self._round: asyncio.Event | None = None
        self.look: Callable[[], Awaitable[None]] | None = None

    async def call(self, function_id: str, payload: bytes) -> bytes:
        if self._round is None:
            self._round = asyncio.Event()
            self.rounds.append([])
            asyncio.get_running_loop().call_later(0.002, self._turn)
        self.rounds[-1].append(function_id.removeprefix("session::store::"))
        await self._round.wait()
        if self.look is not None:
            await self.look()
        return await super().call(function_id, payload)

    def _turn(self) -> None:
        assert self._round is not None
        self._round.set()
        self._round = None


async def rounds(
    bridge: Bridged, function: str, look: Callable[[], Awaitable[None]] | None = None, **payload: Any
) -> list[list[str]]:
    """The store calls of a function, those made together side by side; `look` is done before each."""
    slow = Slow(bridge.main, hints=bridge.way.hints)
    store = BridgeStore(slow)
    await store.open()
    slow.rounds.clear()
    slow.look = look
    bridge.service.runtime = type(bridge.service.runtime)(
        store, lambda emissions: None, bridge.service.runtime.limits, owns_store=False
    )
    await bridge.call(f"session::{function}", payload)
    return [sorted(names) for names in slow.rounds]


async def test_an_append_makes_two_calls(bridge: Bridged) -> None:
    await bridge.call("session::ensure", {"session_id": "s"})
    made = await rounds(bridge, "append", session_id="s", message=user("x"))
    assert made == [["get-active-leaf"], ["put-entry"]]


async def test_a_batch_makes_as_many_calls_as_one_append(bridge: Bridged) -> None:
    await bridge.call("session::ensure", {"session_id": "s"})
    made = await rounds(bridge, "append-many", session_id="s", messages=[user("x")] * 20)
    assert made == [["get-active-leaf"], ["put-entry"]]


async def test_an_update_is_written_in_one_call(bridge: Bridged) -> None:
    await bridge.call("session::ensure", {"session_id": "s"})
    await append(bridge, "a")
    made = await rounds(bridge, "update-message", session_id="s", entry_id="a", content=[])
    assert made == [["get-active-leaf"], ["get-entry"], ["put-entry"]]


@pytest.mark.parametrize(
    ("messages", "size", "calls"),
    [(PART_ENTRIES, 1, 1), (PART_ENTRIES + 1, 1, 2), (1, 2 * PART_BYTES, 1), (9, PART_BYTES // 5, 2)],
)
async def test_a_big_change_is_made_in_a_few_calls_and_seen_after_the_last(
    bridge: Bridged, messages: int, size: int, calls: int
) -> None:
    await bridge.call("session::ensure", {"session_id": "s"})
    seen = []

    async def look() -> None:
        seen.append(len((await bridge.main.store.path(PathQuery("s"))).entries))

    made = await rounds(bridge, "append-many", look, session_id="s", messages=[user("x" * size)] * messages)
    assert made == [["get-active-leaf"], *[["put-entry"]] * calls]
    assert seen == [0] * (calls + 1)
    await look()
    assert seen[-1] == await count(bridge) == messages


async def test_a_page_is_read_in_one_call(bridge: Bridged) -> None:
    await bridge.call("session::ensure", {"session_id": "s"})
    await append(bridge, "a")
    assert await rounds(bridge, "messages", session_id="s") == [["list-entries"]]


@unhinted
async def test_without_hints_an_append_makes_four_rounds_and_writes_the_record_last(bridge: Bridged) -> None:
    await bridge.call("session::ensure", {"session_id": "s"})
    made = await rounds(bridge, "append-many", session_id="s", messages=[user("x")] * 20)
    assert made == [["get-active-leaf", "get-meta"], ["put-entry"] * 20, ["set-active-leaf"], ["put-meta"]]


@unhinted
async def test_without_hints_an_update_writes_entry_and_record_at_once(bridge: Bridged) -> None:
    await bridge.call("session::ensure", {"session_id": "s"})
    await append(bridge, "a")
    made = await rounds(bridge, "update-message", session_id="s", entry_id="a", content=[])
    assert made == [["get-active-leaf", "get-meta"], ["get-entry"], ["put-entry", "put-meta"]]


@unhinted
async def test_without_hints_a_page_is_read_in_one_round(bridge: Bridged) -> None:
    await bridge.call("session::ensure", {"session_id": "s"})
    await append(bridge, "a")
    assert await rounds(bridge, "messages", session_id="s") == [["get-active-leaf", "get-meta", "list-entries"]]


@either
async def test_a_deletion_removes_the_record_last(bridge: Bridged) -> None:
    await bridge.call("session::ensure", {"session_id": "s"})
    made = await rounds(bridge, "delete", session_id="s")
    assert made[1:] == [["delete-active-leaf", "delete-entries"], ["delete-meta"]]


@unhinted
async def test_without_hints_a_fork_becomes_visible_last(bridge: Bridged) -> None:
    await bridge.call("session::ensure", {"session_id": "s"})
    await append(bridge, "a")
    made = await rounds(bridge, "fork", session_id="s", entry_id="a")
    assert made[-1] == ["put-meta"]


# --- hints ---


async def test_a_page_brings_over_its_own_entries_and_no_others(bridge: Bridged) -> None:
    """Of a session of 1,000 entries and of 1,000 sessions."""
    await bridge.call("session::ensure", {"session_id": "s"})
    for _ in range(10):
        await bridge.call("session::append-many", {"session_id": "s", "messages": [user("x" * 100)] * 100})
    for number in range(1000):
        await bridge.main.call("session::ensure", {"session_id": f"t{number}", "title": "x" * 100})
    for asked in ({"session_id": "s"}, {"session_id": "s", "after_entry_id": (await path(bridge))[99]}):
        bridge.way.came = 0
        page = await bridge.call("session::messages", {**asked, "limit": 50})
        assert len(page["messages"]) == 50
        assert bridge.way.came < 50 * 400
    bridge.way.came = 0
    assert len((await bridge.call("session::list", {"limit": 50}))["sessions"]) == 50
    assert bridge.way.came < 50 * 400


@pytest.mark.parametrize("first", [True, False])
async def test_a_main_instance_may_be_replaced_by_one_that_knows_no_hints_and_back(tmp_path: Path, first: bool) -> None:
    async with Bridged(tmp_path, hints=first) as bridge:
        await bridge.call("session::ensure", {"session_id": "s"})
        for number, hints in enumerate([first, not first, first, not first]):
            bridge.way.hints = hints
            await append(bridge, f"e{number}")
            assert await path(bridge) == await path(bridge.main) == [f"e{before}" for before in range(number + 1)]
            bridge.way.hints = not hints
            assert await path(bridge) == await path(bridge.main)
            assert await count(bridge) == number + 1
            assert len((await bridge.call("session::list", {}))["sessions"]) == 1


async def test_an_append_to_a_main_instance_that_was_just_replaced_is_whole(bridge: Bridged) -> None:
    """It takes the entry and leaves the hint alone."""
    await bridge.call("session::ensure", {"session_id": "s"})

    def replaced(function_id: str) -> None:
        if function_id.endswith("put-entry"):
            bridge.way.hints = False

    bridge.way.fault = replaced
    await append(bridge, "a")
    assert await path(bridge.main) == ["a"]
    assert await count(bridge.main) == 1


async def test_a_broken_path_is_told_as_the_main_instance_tells_it(bridge: Bridged) -> None:
    await bridge.call("session::ensure", {"session_id": "s"})
    entry = {"kind": "message", "id": "a", "parent_id": "nobody", "timestamp": 1, "message": user("x")}
    await bridge.call("session::store::put-entry", {"session_id": "s", "entry": entry})
    await bridge.call("session::store::set-active-leaf", {"session_id": "s", "entry_id": "a"})
    texts = []
    for stage in (bridge, bridge.main):
        with pytest.raises(BrokenPath) as caught:
            await stage.call("session::messages", {"session_id": "s"})
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


async def read(stage: InProcess) -> list[Any]:
    """Pages of entries and of records, with all that they may show."""
    return [
        await stage.call("session::messages", {"session_id": "s", "include_custom": True}),
        await stage.call("session::messages", {"session_id": "s", "roles": ["user"], "limit": 1}),
        await stage.call("session::list", {"limit": 2}),
        await stage.call("session::list", {"limit": 2, "metadata": {"of": "é"}}),
    ]


@pytest.mark.parametrize("most", [hints.PACKED_BYTES, 100])
async def test_pages_are_the_same_packed_or_not(bridge: Bridged, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(hints, "PACKED_BYTES", most)
    for number in range(3):
        await bridge.call("session::ensure", {"session_id": "stu"[number], "metadata": {"of": "é"}})
    custom = {"custom_type": "c", "data": {"n": [1.8000000000000003, None, "\u2028\\"], "deep": {}}}
    await append(bridge, "a", origin={"from": ["here"]})
    await bridge.call("session::append", {"session_id": "s", "custom": custom})
    await append(bridge, "b")
    await bridge.call("session::update-message", {"session_id": "s", "entry_id": "b", "content": []})
    asked = {"session_id": "s", "hint": {}, "packed": True}
    reply = await bridge.main.call("session::store::list-entries", asked)
    assert (reply["entries"] == []) is ("packed" in reply["hinted"]) is (most > 100)
    packed = await read(bridge)
    bridge.way.packs = False
    assert packed == await read(bridge) == await read(bridge.main)
    entries = await bridge.store.path(PathQuery("s"))
    bridge.way.packs = True
    assert await bridge.store.path(PathQuery("s")) == entries == await bridge.main.store.path(PathQuery("s"))


async def test_what_an_entry_says_of_its_origin_counts_when_a_page_is_packed(
    bridge: Bridged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "PACKED_BYTES", 1000)
    await bridge.call("session::ensure", {"session_id": "s"})
    await append(bridge, "a", origin={"from": "x" * 1000})
    asked = {"session_id": "s", "hint": {}, "packed": True}
    reply = await bridge.main.call("session::store::list-entries", asked)
    assert [entry["id"] for entry in reply["entries"]] == ["a"]
    assert "packed" not in reply["hinted"]


@pytest.mark.parametrize("packed", [False, None, 1, "true", {}])
async def test_only_a_plain_yes_has_a_page_packed(bridge: Bridged, packed: Any) -> None:
    await bridge.call("session::ensure", {"session_id": "s"})
    await append(bridge, "a")
    for name, asked in (("list-entries", {"session_id": "s"}), ("list-metas", {})):
        unpacked = await bridge.main.call(f"session::store::{name}", {**asked, "hint": {}})
        assert unpacked == await bridge.main.call(f"session::store::{name}", {**asked, "hint": {}, "packed": packed})
        assert "packed" not in unpacked["hinted"]
        plain = await bridge.main.call(f"session::store::{name}", asked)
        assert plain == await bridge.main.call(f"session::store::{name}", {**asked, "packed": True}), "without a hint"


@pytest.mark.parametrize("packed", ["", "{}", "[[]]", '[["a",null,1,"nobody",{},0,null]]', "[7]"])
async def test_a_packed_page_that_cannot_be_read_is_refused(bridge: Bridged, packed: str) -> None:
    async def reply(function_id: str, payload: bytes) -> bytes:
        return encode({"entries": [], "metas": [], "hinted": {"found": "path", "more": False, "packed": packed}})

    bridge.way.call = reply  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="reply cannot be read"):
        await bridge.store.path(PathQuery("s"))
    if packed == "[7]":
        assert (await bridge.store.sessions(ListQuery())).metas == (), "one record that cannot be read is left out"
    elif not packed.startswith("[["):
        with pytest.raises(StorageError, match="reply cannot be read"):
            await bridge.store.sessions(ListQuery())


GOOD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "list-entries": ({"session_id": "s"}, {"limit": 1}),
    "list-metas": ({}, {"limit": 1}),
    "get-active-leaf": ({"session_id": "s"}, {}),
    "put-entry": (
        {
            "session_id": "s",
            "entry": {"kind": "message", "id": "a", "parent_id": None, "timestamp": 1, "message": user("a")},
        },
        {"leaf": "a"},
    ),
}
"""Requests that may have a hint, and hints that are understood."""

BAD: dict[str, list[Any]] = {
    "list-entries": [{"limit": 0}, {"roles": ["nobody"]}, {"after": 1}],
    "list-metas": [{"limit": -1}, {"order": "random"}, {"after": [1]}],
    "get-active-leaf": [{"meta": True}],
    "put-entry": [
        {"leaf": 1},
        {"entries": [{"id": "b"}]},
        {"leaf": "a", "meta": {"session_id": "s"}},
        {"leaf": "a", "meta": SessionMeta("other", "", "", "idle", 1, 1, 1).wire()},
    ],
}


@pytest.mark.parametrize(
    ("name", "hint"),
    [(name, hint) for name in GOOD for hint in [*BAD[name], None, 1, "x", [], {**GOOD[name][1], "unknown": 1}]],
)
async def test_a_hint_that_is_not_understood_is_ignored(bridge: Bridged, name: str, hint: Any) -> None:
    await bridge.call("session::ensure", {"session_id": "s"})
    for id_ in ("a", "b"):
        await append(bridge, id_)
    asked = GOOD[name][0]
    plain = await bridge.main.call(f"session::store::{name}", asked)
    assert await bridge.main.call(f"session::store::{name}", {**asked, "hint": hint}) == plain
    assert await path(bridge) == ["a", "b"]
    assert "hinted" in await bridge.main.call(f"session::store::{name}", {**asked, "hint": GOOD[name][1]})


async def test_what_is_too_long_does_not_come_in_with_a_hint(bridge: Bridged) -> None:
    asked, _ = GOOD["put-entry"]
    meta = SessionMeta("s", "x" * (MAX_RECORD + 1), "", "idle", 1, 1, 1).wire()
    entry = {**asked["entry"], "id": "x" * (MAX_ID + 1)}
    for hint in ({"meta": meta}, {"entries": [entry]}):
        with pytest.raises(MalformedRequest):
            await bridge.main.call("session::store::put-entry", {**asked, "hint": hint})


# --- reading while others write ---


@unhinted
async def test_a_path_read_while_it_grows_is_never_broken(bridge: Bridged) -> None:
    """The leaf may be newer than the entries that were read beside it."""
    await bridge.call("session::ensure", {"session_id": "s"})
    await append(bridge, "a")
    grown = itertools.count()

    class Growing(InProcessMain):
        async def call(self, function_id: str, payload: bytes) -> bytes:
            reply = await super().call(function_id, payload)
            if function_id.endswith("list-entries") and next(grown) == 0:
                await append(self.main, "b")
            elif function_id.endswith("get-active-leaf"):
                await asyncio.sleep(0.01)
                return await super().call(function_id, payload)
            return reply

    page = await BridgeStore(Growing(bridge.main, hints=False)).path(PathQuery("s"))
    assert (page.found, [entry.id for entry in page.entries]) == (Found.PATH, ["a", "b"])


@unhinted
async def test_without_hints_asking_for_what_is_new_in_a_long_session_reads_the_end_only(bridge: Bridged) -> None:
    await bridge.call("session::ensure", {"session_id": "s"})
    sent = await bridge.call("session::append-many", {"session_id": "s", "messages": [user("x")] * 600})
    asked = {"session_id": "s", "after_entry_id": sent["last_entry_id"]}
    bridge.way.calls.clear()
    assert await bridge.call("session::messages", asked) == {"messages": []}
    await append(bridge.main, "new")
    assert [item["entry_id"] for item in (await bridge.call("session::messages", asked))["messages"]] == ["new"]
    assert "session::store::list-entries" not in bridge.way.calls
    asked["after_entry_id"] = sent["entry_ids"][500]
    assert len((await bridge.call("session::messages", {**asked, "limit": 500}))["messages"]) == 100


async def test_a_cancelled_wait_does_not_cancel_the_change(bridge: Bridged) -> None:
    store = bridge.store
    view = store.ahead()
    await view.session("s")
    meta = SessionMeta("s", "", "", "idle", 1, 1, 1)
    change = Change("s", meta, "e", (Entry("e", None, 1, "user", b'{"role":"user","content":[],"timestamp":1}'),))
    waiting = asyncio.ensure_future(store.commit(view, change))
    await asyncio.sleep(0)
    waiting.cancel()
    await store.close()
    assert await path(bridge.main) == ["e"]
