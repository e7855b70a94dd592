"""Each kind of damage is found by its name, concerns its own session only, and is mended without losing a byte."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from session_manager.cli import main
from session_manager.clock import RandomIds, SystemClock
from session_manager.doctor import check as doctor
from session_manager.doctor.check import Report, check
from session_manager.doctor.conversations import Patient, examine, in_order
from session_manager.doctor.findings import KINDS
from session_manager.doctor.repairs import treat
from session_manager.errors import StorageError, Unready
from session_manager.model import Entry, SessionMeta
from session_manager.store import Store
from session_manager.stores.fs import FsStore
from session_manager.stores.sqlite import SqliteStore, files
from tests.contract.scenario import until
from tests.faults.conftest import Figure
from tests.faults.load import look, service, user

CALL = {
    "role": "assistant",
    "content": [{"type": "function_call", "id": "c1", "function_id": "f", "arguments": {}}],
    "stop_reason": "function_call",
    "model": "m",
    "provider": "p",
    "timestamp": 0,
}
RESULT = {"role": "function_result", "function_call_id": "c1", "function_id": "f", "content": [], "timestamp": 0}


async def filled(path: Path) -> None:
    """Sessions `sick` and `well`, alike: three messages, a branch, a label."""
    store = SqliteStore(path)
    await store.open()
    to = service(store)
    for session in ("sick", "well"):
        await to.call("session::ensure", {"session_id": session, "title": "t", "metadata": {"a": 1}})
        for id_ in ("one", "two", "three"):
            await to.call("session::append", {"session_id": session, "entry_id": id_, "message": user(id_)})
        await to.call(
            "session::append", {"session_id": session, "entry_id": "branch", "parent_id": "one", "message": user("b")}
        )
        await to.call("session::set-active-leaf", {"session_id": session, "entry_id": "three"})
    await store.close()


def sql(*statements: str) -> Callable[[Path], None]:
    def break_it(path: Path) -> None:
        with sqlite3.connect(path) as db:
            for statement in statements:
                db.execute(statement)
        db.close()

    return break_it


def calling(*steps: tuple[str, dict[str, Any]]) -> Callable[[Path], None]:
    async def run(path: Path) -> None:
        store = SqliteStore(path)
        await store.open()
        for function, payload in steps:
            await service(store).call(f"session::{function}", {"session_id": "sick", **payload})
        await store.close()

    return lambda path: asyncio.run(run(path))


def torn(path: Path) -> None:
    """Overwrites a page of an index of entries."""
    with sqlite3.connect(path) as db:
        page: int = db.execute("SELECT pageno FROM dbstat WHERE name = 'entry_place'").fetchone()[0]
    db.close()
    data = bytearray(path.read_bytes())
    data[(page - 1) * 4096 : (page - 1) * 4096 + 2048] = bytes(range(256)) * 8
    path.write_bytes(data)


def behind(path: Path) -> None:
    path.with_name(path.name + ".mark").write_bytes(b"%020d" % 1000)


SICK = "(SELECT num FROM session WHERE id = 'sick')"

BREAKS: dict[str, tuple[Callable[[Path], None], bool]] = {
    "entry-damaged": (sql(f"UPDATE entry SET body = '{{}}' WHERE session = {SICK} AND id = 'two'"), True),
    "record-damaged": (sql("UPDATE session SET meta = x'7b' WHERE id = 'sick'"), True),
    "index-wrong": (sql(f"UPDATE entry SET pos = 7 WHERE session = {SICK} AND id = 'two'"), True),
    "stray-entries": (
        sql("INSERT INTO entry SELECT NULL, 999, id, parent_id, timestamp, role, body, revision, origin, sum, NULL,"
            " NULL, seq FROM entry LIMIT 1"),
        False,
    ),
    "entries-without-record": (calling(("store::delete-meta", {})), True),
    "record-without-entries": (calling(("store::delete-entries", {}), ("store::delete-active-leaf", {})), True),
    "count-wrong": (calling(("store::put-entry", {"entry": {
        "kind": "message", "id": "raw", "parent_id": "three", "timestamp": 0, "message": user("raw")}})), True),
    "leaf-gone": (calling(("store::set-active-leaf", {"entry_id": "nobody"})), True),
    "leaf-missing": (calling(("store::delete-active-leaf", {})), True),
    "parent-missing": (sql(f"DELETE FROM entry WHERE session = {SICK} AND id = 'two'"), True),
    "cycle": (sql(f"UPDATE entry SET parent_id = 'three' WHERE session = {SICK} AND id = 'one'"), True),
    "call-without-result": (calling(("append", {"entry_id": "call", "message": CALL})), True),
    "result-without-call": (calling(("append", {"entry_id": "result", "message": RESULT})), False),
    "stuck-working": (calling(("set-status", {"status": "working"})), True),
    "commits-lost": (behind, False),
    "file-damaged": (torn, False),
}  # fmt: skip
"""Per kind: how a database gets it, and whether it can be mended."""


def examined(path: Path, **options: Any) -> Report:
    return asyncio.run(check(f"sqlite:{path}", SystemClock(), RandomIds(), stuck=-1, **options))


async def broken_out(path: Path) -> dict[str, Any]:
    """What each session answers, read by a worker."""
    store = SqliteStore(path)
    await store.open()
    answers: dict[str, Any] = {}
    for session in ("sick", "well"):
        try:
            answers[session] = await look(store, session)
        except StorageError as error:
            answers[session] = str(error)
    to = service(store)
    await to.call("session::append", {"session_id": "well", "message": user("more")})
    await store.close()
    return answers


WELL = ["t", "idle", 4, [["one", 0], ["two", 0], ["three", 0]]]


def test_a_sound_store_has_no_findings(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    asyncio.run(filled(path))
    report = examined(path)
    assert (report.sessions, report.entries, report.findings) == (2, 8, [])


@pytest.mark.parametrize("kind", BREAKS)
def test_damage_is_found_and_named(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    asyncio.run(filled(path))
    BREAKS[kind][0](path)
    report = examined(path)
    assert kind in {finding.kind for finding in report.findings}
    assert not report.healthy
    if kind not in ("file-damaged", "commits-lost", "stray-entries"):
        assert {finding.session_id for finding in report.findings} == {"sick"}


def test_every_kind_has_its_test() -> None:
    elsewhere = {"session-unreadable", "not-served", "notice"}  # see the tests below
    assert set(KINDS) == set(BREAKS) | elsewhere


def test_a_record_that_reads_well_and_is_not_what_was_written_is_not_served(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    asyncio.run(filled(path))
    changed = """CAST(replace(CAST(meta AS TEXT), '"title":"t"', '"title":"x"') AS BLOB)"""
    sql(f"UPDATE session SET meta = {changed} WHERE id = 'sick'")(path)
    assert "record-damaged" in {finding.kind for finding in examined(path).findings}
    assert asyncio.run(broken_out(path)) == {
        "sick": "session/storage: the record of session 'sick' is damaged",
        "well": WELL,
    }


@pytest.mark.parametrize("kind", [kind for kind in BREAKS if kind not in ("file-damaged", "stray-entries")])
def test_damage_concerns_its_own_session_only(kind: str, tmp_path: Path, figure: Figure) -> None:
    path = tmp_path / "sessions.db"
    asyncio.run(filled(path))
    BREAKS[kind][0](path)
    answers = asyncio.run(broken_out(path))
    assert answers["well"] == WELL
    if kind in ("entry-damaged", "record-damaged", "index-wrong", "leaf-gone", "parent-missing", "cycle"):
        assert str(answers["sick"]).startswith("session/storage")
    if kind == "cycle":
        figure(
            "Broken data",
            "missing parent, cycle, leaf gone, damaged rows and records, records without entries and the reverse",
            f"{len(BREAKS)} kinds",
            "`session/storage` for that session where its path cannot be read, all others unaffected; each kind is "
            "found by `session-manager check`",
        )


def rows(path: Path) -> set[tuple[Any, ...]]:
    with sqlite3.connect(path) as db:
        found = set(db.execute("SELECT session, id, parent_id, timestamp, role, body, revision, origin FROM entry"))
    db.close()
    return found


@pytest.mark.parametrize("kind", [kind for kind, (_, mends) in BREAKS.items() if mends])
def test_repair_mends_it_and_loses_nothing(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    asyncio.run(filled(path))
    BREAKS[kind][0](path)
    before = rows(path)
    report = examined(path, repair=True)
    assert report.healthy, report.findings
    assert all(finding.repaired for finding in report.findings)
    assert before <= rows(path), "what was stored is still there as it was"
    assert report.backup is not None
    assert rows(Path(report.backup)) == before
    assert Path(report.backup).stat().st_mode & 0o777 == 0o600
    again = examined(path)
    left = {finding.kind for finding in again.findings}
    if kind in ("parent-missing", "cycle", "entry-damaged"):
        left -= {kind}  # it stays as it was; the active path does not lead there any more
    assert left == set()
    assert asyncio.run(broken_out(path))["well"] == WELL
    assert not str(asyncio.run(broken_out(path))["sick"]).startswith("session/")


@pytest.mark.parametrize("kind", [kind for kind, (_, mends) in BREAKS.items() if not mends and kind != "file-damaged"])
def test_what_cannot_be_mended_is_left_alone_and_told(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    asyncio.run(filled(path))
    BREAKS[kind][0](path)
    before = rows(path)
    report = examined(path, repair=True)
    assert not report.healthy
    assert before <= rows(path)


def after_repair(path: Path) -> Any:
    examined(path, repair=True)
    return asyncio.run(broken_out(path))["sick"]


def test_a_session_with_a_damaged_entry_is_read_and_written_on_without_it(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    asyncio.run(filled(path))
    BREAKS["entry-damaged"][0](path)
    assert after_repair(path) == ["t", "idle", 5, [["one", 0], ["three", 0]]]
    calling(("append", {"entry_id": "four", "message": user("four")}))(path)
    assert asyncio.run(broken_out(path))["sick"] == ["t", "idle", 6, [["one", 0], ["three", 0], ["four", 0]]]


def test_a_damaged_leaf_is_left_for_the_entry_before_it(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    asyncio.run(filled(path))
    sql(f"UPDATE entry SET body = '{{}}' WHERE session = {SICK} AND id = 'three'")(path)
    assert after_repair(path) == ["t", "idle", 4, [["one", 0], ["two", 0]]]


def test_what_was_cut_off_is_hung_on_what_was_there_before_it(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    asyncio.run(filled(path))
    BREAKS["parent-missing"][0](path)  # `branch` was written later than `three`, and is none of its ancestors
    assert after_repair(path) == ["t", "idle", 4, [["one", 0], ["three", 0]]]


def test_a_damaged_file_is_not_written_on(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    asyncio.run(filled(path))
    calling(("store::delete-active-leaf", {}))(path)
    BREAKS["file-damaged"][0](path)
    before = path.read_bytes()
    report = examined(path, repair=True)
    assert (report.healthy, report.backup) == (False, None)
    assert not [finding for finding in report.findings if finding.repaired]
    assert path.read_bytes() == before


def test_sessions_beside_unreadable_ones_are_still_examined(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"

    async def fill() -> None:
        store = SqliteStore(path)
        await store.open()
        to = service(store)
        for n in range(60):
            await to.call("session::ensure", {"session_id": f"{n}"})
            await to.call("session::append", {"session_id": f"{n}", "message": user("x" * 3000)})
        await to.call("session::store::delete-active-leaf", {"session_id": "0"})
        await store.close()

    asyncio.run(fill())
    with sqlite3.connect(path) as db:
        pages = [page for (page,) in db.execute("SELECT pageno FROM dbstat WHERE name = 'entry' AND pagetype = 'leaf'")]
    db.close()
    data = bytearray(path.read_bytes())
    data[(pages[-2] - 1) * 4096 : pages[-2] * 4096] = bytes(4096)
    path.write_bytes(data)
    report = examined(path)
    kinds = {finding.kind for finding in report.findings}
    assert {"file-damaged", "session-unreadable", "leaf-missing"} <= kinds
    assert report.sessions == 60


@pytest.mark.parametrize("scheme", ["sqlite", "fs"])
def test_no_worker_comes_between_the_look_and_the_repair(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"

    def open_one() -> Store:
        return SqliteStore(path) if scheme == "sqlite" else FsStore(path)

    async def fill() -> None:
        store = open_one()
        await store.open()
        await service(store).call("session::ensure", {"session_id": "s"})
        await service(store).call("session::append", {"session_id": "s", "message": user("x")})
        await service(store).call("session::store::delete-active-leaf", {"session_id": "s"})
        await store.close()

    asyncio.run(fill())
    tried: list[str] = []

    def try_to_open() -> None:
        async def opened() -> None:
            with pytest.raises(Unready, match="in use"):
                await open_one().open()
            tried.append("refused")

        with ThreadPoolExecutor(1) as other:
            other.submit(asyncio.run, opened()).result()

    def trying(function: Callable[..., Any]) -> Callable[..., Any]:
        def tried_then(*arguments: Any) -> Any:
            try_to_open()
            return function(*arguments)

        return tried_then

    monkeypatch.setattr(doctor, "examine", trying(examine))
    monkeypatch.setattr(doctor, "treat", trying(treat))
    report = asyncio.run(check(f"{scheme}:{path}", SystemClock(), RandomIds(), repair=True))
    assert report.healthy
    assert len(tried) == 2


def test_without_a_backup_nothing_is_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sessions.db"
    asyncio.run(filled(path))
    BREAKS["index-wrong"][0](path)
    before = rows(path)
    full = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    monkeypatch.setattr("session_manager.stores.sqlite.files.LOG_BYTES", 4096)
    resource.setrlimit(resource.RLIMIT_FSIZE, (48_000, full[1]))
    try:
        result = CliRunner().invoke(main, ["check", f"sqlite:{path}", "--repair"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, full)
        signal.signal(signal.SIGXFSZ, handler)
    assert result.exit_code == 2, result.output
    assert "session/storage: the database failed (SQLITE_" in result.output
    assert path.stat().st_size > 48_000
    assert rows(path) == before
    assert not list(tmp_path.glob("*.backup-*")), "half a backup is none"
    assert "index-wrong" in {finding.kind for finding in examined(path).findings}


def test_every_repair_has_a_backup_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    asyncio.run(filled(path))
    backups = set()
    for kind in ("count-wrong", "leaf-gone", "leaf-missing"):
        BREAKS[kind][0](path)
        backups.add(examined(path, repair=True).backup)
    assert len(backups) == 3


def test_where_nothing_can_be_mended_no_backup_is_made(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    asyncio.run(filled(path))
    BREAKS["result-without-call"][0](path)
    report = examined(path, repair=True)
    assert [finding.kind for finding in report.findings] == ["result-without-call"]
    assert report.backup is None
    assert not list(tmp_path.glob("*.backup-*"))


async def test_bookkeeping_that_stands_alone_is_no_conversation_without_a_leaf(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "sessions.db")
    await store.open()
    to = service(store)
    await to.call("session::ensure", {"session_id": "s"})
    alone = {"kind": "custom", "id": "log", "timestamp": 0, "custom_type": "log"}
    await to.call("session::store::put-entry", {"session_id": "s", "entry": alone})
    await store.close()
    report = await check(f"sqlite:{tmp_path / 'sessions.db'}", SystemClock(), RandomIds())
    assert report.findings == []


async def test_a_running_worker_can_be_looked_at_and_not_repaired(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    await filled(path)
    store = SqliteStore(path)
    await store.open()
    to = service(store)
    await to.call("session::store::delete-active-leaf", {"session_id": "sick"})
    report = await check(f"sqlite:{path}", SystemClock(), RandomIds())
    assert [finding.kind for finding in report.findings] == ["leaf-missing"]
    with pytest.raises(StorageError, match="in use"):
        await check(f"sqlite:{path}", SystemClock(), RandomIds(), repair=True)
    await to.call("session::append", {"session_id": "well", "message": user("more")})
    await store.close()


def test_a_cut_log_is_noticed(tmp_path: Path, figure: Figure) -> None:
    """SQLite takes a cut log for a shorter one; the mark beside the database tells."""
    source = tmp_path / "source"
    source.mkdir()

    async def left_open() -> dict[str, bytes]:
        store = SqliteStore(source / "sessions.db")
        await store.open()
        to = service(store)
        for n in range(40):
            await to.call("session::ensure", {"session_id": f"s{n}"})
            await to.call("session::append", {"session_id": f"s{n}", "message": user("x" * 300)})
        mark = files.Mark(source / "sessions.db")
        await until(lambda: mark.read() == 80)  # it is written a moment after the answer
        left = {path.name: path.read_bytes() for path in source.iterdir() if not path.name.endswith("-shm")}
        await store.close()
        return left

    left = asyncio.run(left_open())
    log = left["sessions.db-wal"].rstrip(b"\0")  # the file is longer than what is in it
    noticed = tried = 0
    for cut in range(0, len(log), max(1, len(log) // 60)):
        directory = tmp_path / f"cut-{cut}"
        directory.mkdir()
        for name, content in left.items():
            (directory / name).write_bytes(content[:cut] if name.endswith("-wal") else content)
        tried += 1
        report_kinds: set[str] = set()
        try:
            report_kinds = {finding.kind for finding in examined(directory / "sessions.db").findings}
        except StorageError:
            report_kinds = {"commits-lost"}  # so much was cut that there is no database left
        assert report_kinds <= {"commits-lost"}, "nothing half done is served"
        noticed += "commits-lost" in report_kinds
    assert noticed == tried, "every cut took something, and every one is noticed"
    figure(
        "Log cut",
        "the write-ahead log cut at places all over it",
        f"{tried} cuts",
        "every one told (in the log at start, and by `check`); what is left is whole, nothing torn is served",
    )


def test_a_torn_page_is_told_and_not_served(tmp_path: Path, figure: Figure) -> None:
    path = tmp_path / "sessions.db"
    texts = {f"{n}": f"{n} " + "x" * 3000 for n in range(60)}

    async def fill() -> None:
        store = SqliteStore(path)
        await store.open()
        to = service(store)
        for n, text in texts.items():
            await to.call("session::ensure", {"session_id": n})
            await to.call("session::append", {"session_id": n, "message": user(text)})
        await store.close()

    async def read() -> int:
        store = SqliteStore(path)
        await store.open()
        refused = 0
        try:
            for n, text in texts.items():
                try:
                    seen = await look(store, n)
                except StorageError:
                    refused += 1
                else:
                    assert seen == ["", "idle", 1, [[text, 0]]], "what is torn must not be served"
        finally:
            await store.close()
        return refused

    asyncio.run(fill())
    sound = path.read_bytes()
    pages = len(sound) // 4096
    tried = told = 0
    for page in range(1, pages, max(1, pages // 40)):
        data = bytearray(sound)
        data[page * 4096 + 1024 : page * 4096 + 3072] = b"y" * 2048
        path.write_bytes(data)
        tried += 1
        try:
            refused = asyncio.run(read())
            found = bool(examined(path).findings)
        except StorageError:
            found, refused = True, 1
        told += found
        assert found or not refused
    path.write_bytes(sound)
    figure(
        "Torn pages",
        "half of a page overwritten, all over the database file",
        f"{tried} pages",
        f"never served: `session/storage` for what was on it; `check` tells {told} of {tried}, the others were unused",
    )
    assert told > tried // 2


@pytest.mark.parametrize("what", ["a file that is none", "a database of another program", "nothing"])
def test_what_is_no_store_is_refused_with_status_2(what: str, tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    if what == "a file that is none":
        path.write_bytes(b"hello" * 1000)
    elif what == "a database of another program":
        sql("CREATE TABLE t (a)")(path)
    result = CliRunner().invoke(main, ["check", f"sqlite:{path}"])
    assert result.exit_code == 2, result.output
    assert path.exists() == (what != "nothing")


def test_the_command_prints_a_table_and_json_and_its_status_tells(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    asyncio.run(filled(path))
    run = CliRunner()
    result = run.invoke(main, ["check", f"sqlite:{path}"])
    assert (result.exit_code, "Nothing is wrong." in result.output) == (0, True)
    BREAKS["leaf-gone"][0](path)
    result = run.invoke(main, ["check", f"sqlite:{path}"])
    assert result.exit_code == 1
    assert "leaf-gone (1)" in result.output
    result = run.invoke(main, ["check", f"sqlite:{path}", "--json"])
    report = json.loads(result.output)
    assert (result.exit_code, report["healthy"]) == (1, False)
    assert report["findings"] == [
        {"kind": "leaf-gone", "text": "the active leaf names no entry", "session_id": "sick", "entry_id": "nobody"}
    ]
    result = run.invoke(main, ["check", f"sqlite:{path}", "--repair"])
    assert result.exit_code == 0, result.output
    assert "repaired:" in result.output
    assert run.invoke(main, ["check", f"sqlite:{path}"]).exit_code == 0


def test_a_directory_of_files_is_checked_through_the_port(tmp_path: Path) -> None:
    async def fill() -> None:
        store = FsStore(tmp_path / "data")
        await store.open()
        to = service(store)
        await to.call("session::ensure", {"session_id": "s"})
        await to.call("session::append", {"session_id": "s", "message": user("x")})
        await to.call("session::store::set-active-leaf", {"session_id": "s", "entry_id": "nobody"})
        await store.close()

    asyncio.run(fill())
    (tmp_path / "data" / "bad.jsonl").write_bytes(b"\xff\xfe\n")
    report = asyncio.run(check(f"fs:{tmp_path / 'data'}", SystemClock(), RandomIds()))
    kinds = {finding.kind for finding in report.findings}
    assert {"leaf-gone", "session-unreadable"} <= kinds
    with (tmp_path / "data" / "s.jsonl").open("ab") as out:
        out.write(b'{"type":"leaf","entry')
    report = asyncio.run(check(f"fs:{tmp_path / 'data'}", SystemClock(), RandomIds()))
    assert "notice" in {finding.kind for finding in report.findings}
    (tmp_path / "data" / "bad.jsonl").unlink()
    report = asyncio.run(check(f"fs:{tmp_path / 'data'}", SystemClock(), RandomIds(), repair=True))
    assert report.healthy
    assert report.backup is not None


def test_a_long_chain_that_lost_its_root_is_mended_in_time() -> None:
    ids = [f"e{n}" for n in range(30_000)]
    entries = {id_: Entry(id_, parent, 0, "user", b"{}") for id_, parent in zip(ids, ["gone", *ids[:-1]], strict=True)}
    patient = Patient("s", SessionMeta("s", "", "", "idle", 0, 0, len(ids)), False, None, entries, {})
    started = time.thread_time()
    treated = treat(patient, list(examine(patient, 0)), 0, RandomIds(), lambda: pytest.fail("there is a record"))
    assert time.thread_time() - started < 15
    assert len(treated.change.entries) == len(ids)
    assert all(finding.repaired for finding in treated.findings)


# --- directories of files ---


async def in_directory(path: Path, *steps: tuple[str, dict[str, Any]]) -> None:
    store = FsStore(path)
    await store.open()
    for function, payload in steps:
        await service(store).call(f"session::{function}", {"session_id": "s", **payload})
    await store.close()


def looked_at(path: Path, **options: Any) -> Report:
    return asyncio.run(check(f"fs:{path}", SystemClock(), RandomIds(), **options))


def entry_of(id_: str, parent: str | None, timestamp: int) -> tuple[str, dict[str, Any]]:
    entry = {"kind": "message", "id": id_, "parent_id": parent, "timestamp": timestamp, "message": user(id_)}
    return "store::put-entry", {"entry": entry}


def test_the_newest_entry_is_the_end_of_a_chain_whatever_its_clock_said(tmp_path: Path) -> None:
    written = (entry_of("one", None, 300), entry_of("two", "one", 200), entry_of("three", "two", 100))
    asyncio.run(in_directory(tmp_path / "data", ("ensure", {}), *written))
    report = looked_at(tmp_path / "data", repair=True)
    assert report.healthy
    store = FsStore(tmp_path / "data")

    async def shown() -> Any:
        await store.open()
        try:
            return await look(store, "s")
        finally:
            await store.close()

    assert asyncio.run(shown()) == ["", "idle", 3, [["one", 0], ["two", 0], ["three", 0]]]


def test_entries_are_ordered_along_their_chains() -> None:
    def made(id_: str, parent: str | None, timestamp: int) -> Entry:
        return Entry(id_, parent, timestamp, "user", b"{}")

    entries = [
        made("c", "b", 1), made("b", "a", 2), made("a", None, 3), made("d", "a", 9), made("x", "gone", 4),
        made("o", "p", 0), made("p", "o", 0),
    ]  # fmt: skip
    assert list(in_order(entries)) == ["a", "b", "c", "x", "d", "o", "p"]


def test_a_line_that_cannot_be_read_is_no_mere_notice(tmp_path: Path) -> None:
    asyncio.run(in_directory(tmp_path, ("ensure", {}), ("append", {"message": user("x")})))
    assert looked_at(tmp_path).findings == []
    file = tmp_path / "s.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:1], b'{"type":"entry",damaged}\n', *lines[1:]]))
    report = looked_at(tmp_path)
    assert [finding.kind for finding in report.findings] == ["not-served"]
    assert not report.healthy


def test_a_session_that_cannot_be_read_is_no_mere_notice(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_bytes(b"\xff\n")
    report = looked_at(tmp_path)
    assert [(finding.kind, finding.text) for finding in report.findings] == [
        ("not-served", "s.jsonl: the session cannot be read: it is not UTF-8"),
        ("session-unreadable", "the file of session 's' cannot be read"),
    ]


def test_a_directory_is_backed_up_before_anything_in_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "data"
    updates = [("update-message", {"entry_id": "e", "content": user("x" * 9000)["content"]})] * 30
    written = (("ensure", {}), ("append", {"entry_id": "e", "message": user("x")}), *updates)
    asyncio.run(in_directory(path, *written))
    file = path / "s.jsonl"
    with file.open("ab") as out:
        for _ in range(30):
            out.write(file.read_bytes().splitlines(keepends=True)[-2].lstrip())  # it would be written anew when opened
        out.write(b'{"type":"leaf","entry_id":"nobody"}\n{"type":"le')
    before = {one.name: one.read_bytes() for one in path.iterdir()}
    report = looked_at(path, repair=True)
    assert report.healthy
    assert report.backup is not None
    backup = Path(report.backup)
    assert {one.name: one.read_bytes() for one in backup.iterdir() if one.name in before} == before
    assert backup.stat().st_mode & 0o777 == 0o700
    assert {finding.kind for finding in looked_at(path).findings} == set()
    assert len(file.read_bytes()) > len(before["s.jsonl"]) - 20, "nothing was taken out of it but what was cut off"


async def test_a_directory_in_use_can_be_looked_at_and_not_repaired(tmp_path: Path) -> None:
    store = FsStore(tmp_path)
    await store.open()
    to = service(store)
    stop = asyncio.Event()

    async def write(number: int) -> None:
        await to.call("session::ensure", {"session_id": f"s{number}"})
        while not stop.is_set():
            await to.call("session::append", {"session_id": f"s{number}", "message": user("x" * 20_000)})

    writing = [asyncio.create_task(write(number)) for number in range(8)]
    for _ in range(6):
        report = await asyncio.to_thread(looked_at, tmp_path)
        assert [finding.kind for finding in report.findings] == []
    with pytest.raises(StorageError, match="in use"):
        await asyncio.to_thread(looked_at, tmp_path, repair=True)
    stop.set()
    await asyncio.gather(*writing)
    await store.close()


def test_looking_at_a_directory_leaves_no_trace_in_it(tmp_path: Path) -> None:
    asyncio.run(in_directory(tmp_path, ("ensure", {})))
    (tmp_path / "session-manager.lock").unlink()
    before = sorted(tmp_path.iterdir())
    assert looked_at(tmp_path).healthy
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(StorageError, match="no such directory"):
        looked_at(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
