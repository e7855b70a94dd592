"""What leaves for OpenCode: edited imports, sessions that never came from there, and the other generation's form."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from session_manager.errors import SessionNotFound
from session_manager.interop.opencode.exports import Export, export_session
from session_manager.interop.opencode.ids import is_opencode_id
from session_manager.interop.opencode.sources import read_file
from session_manager.model import (
    AssistantMessage,
    CustomMessage,
    Entry,
    FunctionCallBlock,
    FunctionResultMessage,
    ImageBlock,
    Message,
    SessionMeta,
    TextBlock,
    ThinkingBlock,
    Usage,
    UserMessage,
    decode_message,
    encode,
    role_of,
)
from session_manager.store import Change
from session_manager.stores.memory import MemoryStore
from tests.interop.support import DATA, Json, bring_in, differences, document, files, imported, load, name, path

FOREIGN: list[tuple[str, Message]] = [
    ("e_1", UserMessage([TextBlock("Look at this"), ImageBlock("image/png", "iVBO")], 1_700_000_000_000)),
    (
        "e_2",
        AssistantMessage(
            [
                ThinkingBlock("hm", "c2ln"),
                TextBlock("I will."),
                FunctionCallBlock("call_1", "shell::run", {"command": "ls"}),
                FunctionCallBlock("call_2", "shell::run", ["not", "an", "object"]),
                FunctionCallBlock("call_3", "shell::run", {}),
            ],
            "function_call",
            "model-x",
            "provider-y",
            1_700_000_001_000,
            usage=Usage(10, 20, 3, 4, 5, 0.25),
        ),
    ),
    ("e_3", FunctionResultMessage("call_1", "shell::run", [TextBlock("README")], 1_700_000_002_000)),
    ("e_4", FunctionResultMessage("call_2", "shell::run", [TextBlock("no")], 1_700_000_003_000, is_error=True)),
    ("e_5", CustomMessage("app::note", [TextBlock("remember")], 1_700_000_004_000, "Note", {"k": 1})),
    (
        "e_6",
        AssistantMessage(
            [], "error", "model-x", "provider-y", 1_700_000_005_000, error_kind="rate_limited", error_message="slow"
        ),
    ),
    ("e_7", AssistantMessage([TextBlock("half")], "aborted", "model-x", "provider-y", 1_700_000_006_000)),
    ("e_8", AssistantMessage([TextBlock("Done.")], "end", "model-x", "provider-y", 1_700_000_007_000)),
]


async def foreign() -> MemoryStore:
    store = MemoryStore()
    entries = []
    parent = None
    for id_, message in FOREIGN:
        entries.append(Entry(id_, parent, message.timestamp, role_of(message), encode(message)))
        parent = id_
    body = encode({"custom_type": "app::book", "data": {"page": 1}})
    entries.append(Entry("e_9", parent, 1_700_000_008_000, None, body))
    meta = SessionMeta(
        "s_0011", "Ours", "about", "done", 1_700_000_000_000, 1_700_000_009_000, len(FOREIGN), metadata={"owner": "ann"}
    )
    await store.commit(store.ahead(), Change("s_0011", meta=meta, leaf="e_9", entries=tuple(entries)))
    return store


async def test_a_session_of_our_own_in_the_form_of_1_18() -> None:
    export = await export_session(await foreign(), "s_0011", "1.18")
    info, records = export.document["info"], export.document["messages"]
    assert is_opencode_id(info["id"], "ses")
    assert info["title"] == "Ours"
    assert info["metadata"] == {"owner": "ann"}
    assert info["time"] == {"created": 1_700_000_000_000, "updated": 1_700_000_009_000}
    assert {"slug", "version", "projectID", "directory"} <= info.keys()
    assert (info["cost"], info["tokens"]["input"]) == (0.25, 10)
    assert [record["info"]["role"] for record in records] == [
        "user", "assistant", "user", "assistant", "assistant", "assistant",
    ]  # fmt: skip
    for record in records:
        assert is_opencode_id(record["info"]["id"], "msg")
        assert record["info"]["sessionID"] == info["id"]
        for part in record["parts"]:
            assert is_opencode_id(part["id"], "prt")
            assert part["messageID"] == record["info"]["id"]
        assert [part["id"] for part in record["parts"]] == sorted(part["id"] for part in record["parts"])
    user, turn, note, slow, half, done = records
    assert [part["type"] for part in user["parts"]] == ["text", "file"]
    assert turn["info"]["finish"] == "tool-calls"
    assert turn["info"]["parentID"] == user["info"]["id"]
    states = [part["state"] for part in turn["parts"] if part["type"] == "tool"]
    assert [state["status"] for state in states] == ["completed", "error", "error"]
    assert (states[0]["output"], states[1]["error"]) == ("README", "no")
    assert states[1]["input"] == {"arguments": ["not", "an", "object"]}
    assert note["parts"][0]["synthetic"] is True
    assert note["parts"][0]["metadata"]["store"] == {
        "custom_type": "app::note", "entry_id": "e_5", "display": "Note", "details": {"k": 1},
    }  # fmt: skip
    assert slow["info"]["error"]["data"]["statusCode"] == 429
    assert half["info"]["error"]["name"] == "MessageAbortedError"
    assert done["info"]["finish"] == "stop"
    assert any("did not come from OpenCode" in note for note in export.notes)
    assert any("e_9" in note for note in export.notes)
    assert any("no object" in note for note in export.notes)


async def test_a_session_of_our_own_in_the_form_of_2_1_is_what_the_sdk_reads() -> None:
    types = pytest.importorskip("opencode.types", reason="the extra [opencode] is not installed")
    export = await export_session(await foreign(), "s_0011", "2.1")
    known_to_the_sdk(types, export.document)
    kinds = [record["type"] for record in export.document["messages"]]
    assert kinds == ["user", "assistant", "synthetic", "assistant", "assistant", "assistant"]
    assert all("completed" in r["time"] for r in export.document["messages"] if r["type"] == "assistant")
    assert export.document["info"]["outcome"] == "succeeded"


def known_to_the_sdk(types: Json, transfer: Json) -> None:
    """The SDK reads the document, knows every kind in it, and nothing is foreign to it."""
    read = types.SessionTransferData.model_validate(transfer)
    for model in walk(read):
        assert not type(model).__name__.startswith("Unknown"), model
        assert not model.model_extra, model


def walk(value: Json) -> Json:
    import pydantic

    if isinstance(value, pydantic.BaseModel):
        yield value
        for field in type(value).model_fields:
            yield from walk(getattr(value, field))
    elif isinstance(value, list):
        for item in value:
            yield from walk(item)


async def test_exporting_twice_gives_one_file() -> None:
    store = await foreign()
    for form in ("1.18", "2.1"):
        first = await export_session(store, "s_0011", form)
        second = await export_session(store, "s_0011", form)
        assert first.document == second.document


async def test_what_left_comes_back_as_an_import() -> None:
    export = await export_session(await foreign(), "s_0011", "1.18")
    store, plan = await imported(document(export.document["info"], export.document["messages"]))
    again = await export_session(store, plan.session_id)
    assert list(differences(again.document, export.document)) == []


SECOND = [p for p in files("samples/v2_*/messages.v2*.json") if "pages" not in p.name]


@pytest.mark.parametrize("listing", SECOND, ids=name)
async def test_the_early_form_goes_out_as_2_1(listing: Path) -> None:
    """As the transfer files beside it, which were made by the rules that a server upgrades with."""
    moment = listing.name.removeprefix("messages.v2").removesuffix(".json")
    wanted = listing.parents[2] / "synthetic_2.1" / f"{listing.parent.name}{moment}.transfer.json"
    if not wanted.exists():
        pytest.skip("nothing to compare with")
    info = json.loads(listing.with_name(f"session.v2{moment}.json").read_bytes())["data"]
    store, _ = await imported(document(info, json.loads(listing.read_bytes())["data"]))
    export = await export_session(store, info["id"], "2.1")
    theirs = json.loads(wanted.read_bytes())
    for record in theirs["messages"]:
        for file in record.get("files", []):
            if file["source"]["type"] == "uri":
                file["data"] = ""  # read from the disk over there; a message list has only the path
                assert any(file["source"]["uri"] in note for note in export.notes)
    assert list(differences(export.document["messages"], theirs["messages"])) == []
    theirs["info"].pop("outcome", None)
    theirs["info"]["time"].pop("idle", None)
    assert list(differences(export.document["info"], theirs["info"])) == []


@pytest.mark.parametrize("sample", ["v1_tools", "v1_attach", "v1_err_rate", "v1_compact", "v1_abort", "v1_structured"])
async def test_the_first_generation_goes_out_as_2_1_that_the_sdk_reads(sample: str) -> None:
    types = pytest.importorskip("opencode.types", reason="the extra [opencode] is not installed")
    [source] = read_file(DATA / f"samples/{sample}/export.json")
    store, _ = await imported(source)
    export = await export_session(store, source.id, "2.1")
    known_to_the_sdk(types, export.document)
    assert export.rendered > 0
    assert any("rendered" in note for note in export.notes)


# --- edits ---


async def edit(store: MemoryStore, session_id: str, entry: Entry, change: Json) -> None:
    """As `session::update-message` writes it."""
    message = decode_message(entry.body)
    change(message)
    edited = msgspec.structs.replace(entry, body=encode(message), revision=entry.revision + 1)
    await store.commit(store.ahead(), Change(session_id, entries=(edited,)))


def first_text(words: str) -> Json:
    def change(message: Json) -> None:
        block = next(block for block in message.content if isinstance(block, TextBlock))
        block.text = words

    return change


async def exported_after_edit(words: str) -> tuple[MemoryStore, Json, Export, Entry]:
    [source] = read_file(DATA / "samples/v1_tools/export.json")
    store, _ = await imported(source)
    entry = next(e for e in await path(store, source.id) if e.role == "assistant" and b"I will read" in e.body)
    await edit(store, source.id, entry, first_text(words))
    return store, load("samples/v1_tools/export.json"), await export_session(store, source.id), entry


async def test_an_edited_message_is_rendered_and_says_so() -> None:
    _, wanted, export, entry = await exported_after_edit("I was edited.")
    assert export.rendered == 1
    assert any("1 messages are rendered" in note for note in export.notes)
    changed = {line.split(":")[0].split(" ")[0] for line in differences(export.document, wanted)}
    index = next(n for n, r in enumerate(wanted["messages"]) if r["info"]["id"] == entry.id)
    # Nothing but that message, and in it the text, its parts' ids and the rest of its record stay.
    assert changed
    assert all(place.startswith(f".messages[{index}].") for place in changed)
    record = export.document["messages"][index]
    assert [p["text"] for p in record["parts"] if p["type"] == "text"] == ["I was edited."]
    assert [p["id"] for p in record["parts"]] == [p["id"] for p in wanted["messages"][index]["parts"]]
    assert record["info"] == {**wanted["messages"][index]["info"], "tokens": record["info"]["tokens"]}


async def test_an_edit_survives_another_import() -> None:
    store, _, _, entry = await exported_after_edit("I was edited.")
    [source] = read_file(DATA / "samples/v1_tools/export.json")
    plan = await bring_in(store, source)
    assert plan.change is None
    assert any("edited here" in line for line in plan.skipped)
    kept = await store.entry(source.id, entry.id)
    assert kept is not None
    assert b"I was edited." in kept.body


async def test_a_changed_title_goes_out_and_a_label_of_ours_does_not() -> None:
    [source] = read_file(DATA / "samples/v1_meta/export.json")
    store = MemoryStore()
    await bring_in(store, source, {"owner": "ann"})
    meta = (await store.session(source.id)).meta
    assert meta is not None
    await store.commit(store.ahead(), Change(source.id, meta=msgspec.structs.replace(meta, title="Renamed")))
    export = await export_session(store, source.id)
    wanted = load("samples/v1_meta/export.json")
    assert list(differences(export.document, wanted)) == [
        f".info.title: 'Renamed' is not {wanted['info']['title']!r:.80}"
    ]
    # The next import leaves the name that was given here.
    await bring_in(store, source)
    meta = (await store.session(source.id)).meta
    assert meta is not None
    assert meta.title == "Renamed"


async def test_a_conversation_that_went_on_here_goes_out_whole() -> None:
    """Also when it went on from a staged revert, which is over then."""
    [source] = read_file(DATA / "samples/v1_revert/export.reverted.json")
    store, _ = await imported(source)
    session = await store.session(source.id)
    message = UserMessage([TextBlock("and now this")], 1_795_956_800_000)
    entry = Entry("e_mine", session.leaf, message.timestamp, "user", encode(message))
    await store.commit(store.ahead(), Change(source.id, leaf="e_mine", entries=(entry,)))
    export = await export_session(store, source.id)
    wanted = load("samples/v1_revert/export.reverted.json")
    assert list(differences(export.document["messages"][:3], wanted["messages"][:3])) == []
    assert export.document["messages"][3]["parts"][0]["text"] == "and now this"
    assert len(export.document["messages"]) == 4
    assert "revert" not in export.document["info"]
    assert any("went on here" in note for note in export.notes)
    # Importing again does not take the conversation away from where it is.
    plan = await bring_in(store, source)
    assert plan.change is None
    assert (await store.session(source.id)).leaf == "e_mine"


async def test_a_copy_made_here_goes_out_with_ids_of_its_own() -> None:
    """A fork repeats the record's metadata; its messages must not pass for the original's."""
    [source] = read_file(DATA / "samples/v1_single/export.json")
    store, _ = await imported(source)
    meta = (await store.session(source.id)).meta
    assert meta is not None
    copies, parent = [], None
    for number, entry in enumerate(await path(store, source.id)):
        copies.append(msgspec.structs.replace(entry, id=f"e_{number}", parent_id=parent, revision=0))
        parent = f"e_{number}"
    forked = msgspec.structs.replace(meta, session_id="s_fork", forked_from=source.id)
    await store.commit(store.ahead(), Change("s_fork", meta=forked, leaf=parent, entries=tuple(copies)))
    export = await export_session(store, "s_fork")
    theirs = load("samples/v1_single/export.json")
    assert export.document["info"]["id"] != source.id
    assert {m["info"]["id"] for m in export.document["messages"]}.isdisjoint(
        {m["info"]["id"] for m in theirs["messages"]}
    )
    words = [[p["text"] for p in m["parts"] if p["type"] == "text"] for m in export.document["messages"]]
    assert words == [[p["text"] for p in m["parts"] if p["type"] == "text"] for m in theirs["messages"]]


async def test_an_unknown_session_is_not_found() -> None:
    with pytest.raises(SessionNotFound):
        await export_session(MemoryStore(), "ses_nobody")
