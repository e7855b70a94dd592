"""File names and lines of the fs store: what is read from them, whoever wrote them and wherever they were cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session_manager.model import Entry, SessionMeta, encode
from session_manager.store import Change
from session_manager.stores.fs.lines import change_lines, replay, whole_lines
from session_manager.stores.fs.names import file_name, session_id
from session_manager.stores.memory import Kept

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def meta(id_: str = "s", **fields: Any) -> SessionMeta:
    told = {"title": "t", "description": "", "status": "idle", "created_at": 1, "updated_at": 1, "message_count": 0}
    return SessionMeta(session_id=id_, **{**told, **fields})


def entry(id_: str, parent: str | None = None, text: str = "é", **fields: Any) -> Entry:
    body = encode({"role": "user", "content": [{"type": "text", "text": text}], "timestamp": 7})
    return Entry(id_, parent, 5, "user", body, **fields)


def note(id_: str, parent: str | None = None) -> Entry:
    return Entry(id_, parent, 5, None, b'{"custom_type":"mark","data":{"a":[1,2.0,null]}}', origin=b'{"by":"x"}')


CHANGES = [
    Change("s", meta=meta()),
    Change("s", meta(updated_at=2, message_count=1), "a", (entry("a"),)),
    Change("s", meta(updated_at=3, message_count=3), "c", (entry("b", "a"), entry("c", "b", origin=b"{}"))),
    Change("s", meta(updated_at=4, message_count=3), None, (entry("b", "a", text="\U0001f600" * 5, revision=1),)),
    Change("s", leaf="a"),
    Change("s", meta(updated_at=5, message_count=3), "n", (note("n", "a"),)),
    Change("s", meta=meta(updated_at=5, message_count=3, draft="line\nline")),
]


def line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def entry_line(id_: str, *blocks: Any, kind: str = "entry", **more: Any) -> bytes:
    message = {"role": "user", "content": list(blocks), "timestamp": 0}
    told = {"kind": "message", "id": id_, "parent_id": None, "timestamp": 5, "revision": 0, "message": message}
    return line({"type": kind, "entry": told, **more})


def meta_line(**fields: Any) -> bytes:
    return line({"type": "meta", "meta": meta(**fields).wire()})


def same(a: Kept, b: Kept) -> bool:
    return (a.meta, a.leaf, a.entries) == (b.meta, b.leaf, b.entries)


# --- names ---


@pytest.mark.parametrize(
    ("id_", "name"),
    [
        ("s_00ff", "s_00ff.jsonl"),
        ("", ".jsonl"),
        (".", "..jsonl"),
        ("../p", "..%2Fp.jsonl"),
        ("k 2", "k%202.jsonl"),
        ("k%31", "k%2531.jsonl"),
        ("é", "%C3%A9.jsonl"),
        ("~", "%7E.jsonl"),
        ("A.b-c_9", "A.b-c_9.jsonl"),
        ("a\x00b", "a%00b.jsonl"),
    ],
)
def test_an_id_has_the_name_that_it_always_had(id_: str, name: str) -> None:
    assert file_name(id_) == name
    assert session_id(name.encode()) == id_


@given(TEXTS)
def test_an_id_comes_back_from_its_name(id_: str) -> None:
    assert session_id(file_name(id_).encode()) == id_


@given(st.lists(TEXTS, unique=True, min_size=2, max_size=2))
def test_two_ids_have_two_names(ids: list[str]) -> None:
    assert file_name(ids[0]) != file_name(ids[1])


@pytest.mark.parametrize("name", [b"a%.jsonl", b"a%4.jsonl", b"a%zz.jsonl", b"%FF.jsonl", b"\xff.jsonl"])
def test_a_name_that_stands_for_no_id_is_refused(name: bytes) -> None:
    with pytest.raises(ValueError):
        session_id(name)


def test_small_hexadecimal_digits_are_read(capsys: object) -> None:
    assert session_id(b"%c3%a9.jsonl") == "é"


# --- lines of ours ---


def test_what_is_written_is_read_back() -> None:
    kept = Kept()
    for change in CHANGES:
        kept.apply(change)
    replayed = replay(b"".join(map(change_lines, CHANGES)))
    assert same(replayed.kept, kept)
    assert not replayed.notices
    assert same(replay(whole_lines(kept)).kept, kept)


def test_the_lines_of_a_change_are_in_the_order_that_earlier_versions_write() -> None:
    lines = change_lines(CHANGES[2]).splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["entry", "entry", "leaf", "meta"]


def test_every_line_is_the_json_of_earlier_versions() -> None:
    told = [json.loads(line) for line in change_lines(CHANGES[5]).splitlines()]
    assert told[0]["entry"] == {
        "kind": "custom",
        "id": "n",
        "parent_id": "a",
        "timestamp": 5,
        "revision": 0,
        "origin": {"by": "x"},
        "custom_type": "mark",
        "data": {"a": [1, 2.0, None]},
    }
    assert told[1] == {"type": "leaf", "entry_id": "n"}
    assert told[2] == {"type": "meta", "meta": CHANGES[5].meta.wire()}  # type: ignore[union-attr] # it has one


def test_a_file_cut_at_any_byte_holds_the_changes_before_the_cut_and_nothing_of_the_one_it_cuts() -> None:
    parts = [change_lines(change) for change in CHANGES]
    data = b"".join(parts)
    states, sizes = [Kept()], [0]
    for change, part in zip(CHANGES, parts, strict=True):
        state = Kept(states[-1].meta, states[-1].leaf, dict(states[-1].entries))
        state.apply(change)
        states.append(state)
        sizes.append(sizes[-1] + len(part))
    for cut in range(len(data) + 1):
        whole = sum(1 for size in sizes[1:] if size <= cut)
        if cut + 1 in sizes:
            whole += 1  # only the newline is missing
        replayed = replay(data[:cut])
        assert same(replayed.kept, states[whole]), cut
        assert replayed.size == (cut if cut + 1 in sizes else sizes[whole]), cut
        assert bool(replayed.notices) == (replayed.size < cut), cut


def test_of_what_was_brought_to_disk_last_a_hole_leaves_nothing() -> None:
    before, last = change_lines(CHANGES[0]), change_lines(*CHANGES[1:3])
    expected = replay(before).kept
    for start in range(0, len(last) - 1, 7):
        torn = last[:start] + bytes(min(40, len(last) - start)) + last[start + 40 :]
        replayed = replay(before + torn)
        assert same(replayed.kept, expected), start
        assert replayed.size == len(before)
        assert [notice.lost for notice in replayed.notices] == [False], "nobody was told that it is there"


def test_a_hole_with_whole_changes_behind_it_leaves_what_can_be_read() -> None:
    hurt = change_lines(CHANGES[1])
    data = change_lines(CHANGES[0]) + b" " + bytes(20) + hurt[21:] + change_lines(CHANGES[2])
    replayed = replay(data)
    assert replayed.size == len(data)
    assert [notice.lost for notice in replayed.notices] == [True]
    assert same(replay(replayed.compact).kept, replayed.kept)


def test_content_that_another_program_laid_out_in_lines_stays_one_line() -> None:
    laid_out = Entry("a", None, 5, "user", b'{\n "role": "user",\n "content": [],\n "timestamp": 7}')
    assert change_lines(Change("s", entries=(laid_out,))).count(b"\n") == 1


# --- lines of earlier versions ---


def test_the_last_line_of_a_kind_counts() -> None:
    data = meta_line(title="old") + entry_line("a") + entry_line("a", {"type": "text", "text": "new"})
    data += line({"type": "leaf", "entry_id": "x"}) + line({"type": "leaf", "entry_id": "a"}) + meta_line(title="new")
    kept = replay(data).kept
    assert kept.meta is not None
    assert (kept.meta.title, kept.leaf) == ("new", "a")
    assert b"new" in kept.entries["a"].body


def test_a_leaf_can_be_taken_back() -> None:
    data = line({"type": "leaf", "entry_id": "x"}) + line({"type": "leaf", "entry_id": None})
    assert replay(data).kept.leaf is None


def test_a_crash_between_the_lines_of_an_earlier_version_leaves_the_leaf_and_the_record_older_than_the_entry() -> None:
    data = meta_line() + entry_line("a") + line({"type": "leaf", "entry_id": "a"}) + meta_line(message_count=1)
    for more, leaf in ((entry_line("b"), "a"), (entry_line("b") + line({"type": "leaf", "entry_id": "b"}), "b")):
        replayed = replay(data + more)
        kept = replayed.kept
        assert kept.meta is not None
        assert ("b" in kept.entries, kept.leaf, kept.meta.message_count) == (True, leaf, 1)
        assert not replayed.notices


def test_keys_that_old_lines_lack_are_unset() -> None:
    message = {"role": "assistant", "content": [], "stop_reason": "end", "model": "m", "provider": "p", "timestamp": 0}
    kept = replay(
        line({"type": "entry", "entry": {"kind": "message", "id": "a", "timestamp": 5, "message": message}})
        + line({"type": "entry", "entry": {"kind": "custom", "id": "b", "timestamp": 5, "custom_type": "c"}})
    ).kept
    assert kept.entries["a"].wire()["parent_id"] is None
    assert (kept.entries["a"].revision, kept.entries["a"].origin) == (0, None)
    assert json.loads(kept.entries["b"].body) == {"custom_type": "c", "data": None}


def test_blank_lines_and_foreign_line_ends_are_overlooked() -> None:
    replayed = replay(b"\n  \n" + meta_line() + b"\r\n\n" + entry_line("a").replace(b"\n", b"\r\n"))
    assert (replayed.kept.meta, list(replayed.kept.entries), replayed.notices) == (meta(), ["a"], [])


@pytest.mark.parametrize(
    "odd",
    [
        b"{\n",
        b"null\n",
        b"no json\n",
        b'{"type":"meta"}\n',
        line({"type": "attachment", "id": "x"}),
        line({"type": "meta", "meta": {**meta().wire(), "status": "waiting"}}),
        line({"type": "meta", "meta": {**meta().wire(), "updated_at": 1.0}}),
        entry_line("a", {"type": "video", "url": "x"}),
        entry_line("a", {"type": "text", "text": "x"}, {"type": "file"}, {"type": "video"}),
        line({"type": "leaf"}),
        b'{"type":"entry","entry":{"kind":"message","id":"a","timestamp":1e999}}\n',
        b'{"type":"leaf","entry_id":"\\ud800"}\n',
        entry_line(
            "a", {"type": "function_call", "id": "i", "function_id": "f", "arguments": json.loads("[" * 99 + "]" * 99)}
        ),
    ],
)
def test_a_line_that_cannot_be_read_is_told_and_what_was_before_it_stays(odd: bytes) -> None:
    before = meta_line(title="kept") + entry_line("a", {"type": "text", "text": "kept"})
    replayed = replay(before + odd + line({"type": "leaf", "entry_id": "a"}))
    assert [notice.line for notice in replayed.notices] == [3]
    assert same(replayed.kept, replay(before + line({"type": "leaf", "entry_id": "a"})).kept)
    assert replayed.size == len(before + odd + line({"type": "leaf", "entry_id": "a"}))


def test_a_file_that_is_not_utf_8_is_refused_but_for_a_character_cut_off_at_its_end() -> None:
    with pytest.raises(UnicodeDecodeError):
        replay(meta_line() + b"\xff\n" + meta_line())
    with pytest.raises(UnicodeDecodeError):
        replay(meta_line() + b"\xff")
    assert replay(meta_line() + '{"type":"é'.encode()[:-1]).kept.meta == meta()


# --- lines of later versions ---


def test_an_append_line_stands_for_an_entry_a_leaf_and_a_record() -> None:
    data = meta_line() + entry_line("a", kind="append", meta=meta(updated_at=9, message_count=1).wire())
    data += line({"type": "commit", "entry_id": "a"})
    replayed = replay(data)
    assert replayed.kept.leaf == "a"
    assert replayed.kept.meta == meta(updated_at=9, message_count=1)
    assert list(replayed.kept.entries) == ["a"]
    assert not replayed.notices


def test_keys_of_later_versions_drop_away() -> None:
    told = {**meta().wire(), "kind": "chat", "draft_attachments": [{"attachment_id": "x"}]}
    data = line({"type": "meta", "meta": told}) + entry_line("a", {"type": "text", "text": "x", "attachment_id": "y"})
    replayed = replay(data)
    assert replayed.kept.meta == meta()
    assert b"attachment" not in replayed.kept.entries["a"].body
    assert not replayed.notices


@pytest.mark.parametrize("kind", ["entry", "append"])
def test_an_entry_with_an_attached_file_is_kept_without_it_and_told(kind: str) -> None:
    file = {"type": "file", "attachment_id": "x", "name": "a.pdf"}
    nested = {"type": "function_result", "function_call_id": "c", "content": [file, {"type": "text", "text": "n"}]}
    more = {"meta": meta().wire()} if kind == "append" else {}
    replayed = replay(entry_line("a", file, {"type": "text", "text": "x"}, nested, kind=kind, **more))
    content = json.loads(replayed.kept.entries["a"].body)["content"]
    assert content == [
        {"type": "text", "text": "x"},
        {"type": "function_result", "function_call_id": "c", "content": [{"type": "text", "text": "n"}]},
    ]
    assert ["file" in notice.why for notice in replayed.notices] == [True]


# --- what is left after compaction ---


def test_compaction_keeps_what_counts_byte_for_byte_and_what_only_others_understand() -> None:
    foreign = line({"type": "attachment", "id": "x"})
    later = line({"type": "meta", "meta": {**meta(title="last").wire(), "kind": "chat"}})
    data = meta_line(title="old") + entry_line("a") + foreign + entry_line("a", {"type": "file"}) + later
    replayed = replay(data)
    assert replayed.compact == foreign + entry_line("a", {"type": "file"}) + later
    assert same(replay(replayed.compact).kept, replayed.kept)


@given(st.lists(st.sampled_from([*map(change_lines, CHANGES), b"odd\n", b"\n", b' {"type":"leaf","entry_id":"q"}\n'])))
def test_compaction_never_changes_what_a_file_holds(parts: list[bytes]) -> None:
    replayed = replay(b"".join(parts))
    again = replay(replayed.compact)
    assert same(again.kept, replayed.kept)
    assert again.compact == replayed.compact
