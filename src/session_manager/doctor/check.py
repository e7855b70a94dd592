"""The check of a whole store, and its repair."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from session_manager.clock import Clock, Ids
from session_manager.config import working_directory
from session_manager.doctor.conversations import STUCK, Patient, examine, in_order
from session_manager.doctor.findings import Finding
from session_manager.doctor.repairs import Treatment, treat
from session_manager.errors import StorageError
from session_manager.model import SessionMeta
from session_manager.store import Change, Store
from session_manager.stores.directories import place
from session_manager.stores.fs import FsStore
from session_manager.stores.sqlite import SqliteStore
from session_manager.stores.sqlite.inspect import Held, Inspection, Mender, Unreadable

LOOKS, PAUSE = 2, 0.1
"""How often a directory is looked at again, if something in it may be on its way only, and after how many seconds."""


class Report(Struct):
    store: str
    sessions: int = 0
    entries: int = 0
    findings: list[Finding] = []
    backup: str | None = None

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong, or everything that was has been repaired."""
        return all(finding.repaired or finding.kind == "notice" for finding in self.findings)


class _Bed(Protocol):
    """A store as the doctor sees it. For a repair it is held from before the first look to the end, so that what was
    found is what is mended."""

    def general(self) -> list[Finding]: ...

    def patients(self) -> AsyncIterator[tuple[Patient | None, list[Finding]]]:
        """Each session, unless it cannot be read at all, and what the store itself says of it."""

    async def back_up(self) -> str: ...

    def salvage(self, session_id: str) -> SessionMeta: ...

    def mend_index(self, session_id: str) -> str:
        """Before the first change; tells what was done."""

    async def change(self, changes: list[Change]) -> None: ...

    async def close(self) -> None: ...


class _Database:
    """A SQLite file, looked at without trusting it; but for a repair, another process may be using it."""

    def __init__(self, path: Path, store: Store | None) -> None:
        """`store` holds the file, open, if it is to be repaired."""
        self._path, self._store = path, store
        self._inspection = Inspection(path)
        self._held: dict[str, Held] = {}
        """Sessions of which something derived, or the record, is wrong."""

    @classmethod
    async def opened(cls, path: Path, *, repair: bool) -> _Database:
        if path.exists() and not path.is_file():  # noqa: ASYNC240 # nobody else is waiting here
            raise StorageError("this is no file")
        if not repair:
            return cls(path, None)
        Inspection(path).close()  # nothing is done to what is no such database
        store = SqliteStore(path)
        await store.open()
        try:
            return cls(path, store)
        except BaseException:
            await store.close()
            raise

    def general(self) -> list[Finding]:
        found = [Finding("file-damaged", text) for text in self._inspection.file_problems()]
        lost = self._inspection.lost_commits()
        if lost:
            found.append(Finding("commits-lost", f"{lost} commits that were acknowledged are not there"))
        if not found and (strays := self._inspection.strays()):
            found.append(Finding("stray-entries", f"{strays} entries belong to no session"))
        return found

    async def patients(self) -> AsyncIterator[tuple[Patient | None, list[Finding]]]:
        for held in self._inspection.sessions():
            if isinstance(held, Unreadable):
                yield None, [Finding("session-unreadable", held.why, held.session_id)]
                continue
            if held.index or held.damaged:
                self._held[held.session_id] = held
            patient = Patient(
                held.session_id,
                held.meta,
                held.damaged,
                held.leaf,
                {row.id: row.entry for row in held.rows if row.entry is not None},
                {row.id: row.parent_id for row in held.rows if row.entry is None},
            )
            yield patient, [Finding("index-wrong", text, held.session_id) for text in held.index]

    async def back_up(self) -> str:
        to = _beside(self._path)
        self._mender.back_up(to)
        return str(to)

    def mend_index(self, session_id: str) -> str:
        held = self._held[session_id]
        self._mender.mend_index(held)
        done = [
            *(["its columns and labels were made anew"] if held.columns else []),
            *(["the session's paths are walked from now on"] if held.places else []),
        ]
        return "; ".join(done)

    def salvage(self, session_id: str) -> SessionMeta:
        return self._mender.salvage(self._held[session_id])

    @cached_property
    def _mender(self) -> Mender:
        self._inspection.close()
        return Mender(self._path)

    async def change(self, changes: list[Change]) -> None:
        assert self._store is not None
        await _commit(self._store, changes)

    async def close(self) -> None:
        self._inspection.close()
        if "_mender" in self.__dict__:
            self._mender.close()
        if self._store is not None:
            await self._store.close()


class _Directory:
    """A directory of files, looked at as a worker that opens it sees it; but for a repair, another process may be
    using it."""

    def __init__(self, path: Path, store: FsStore, notices: list[str]) -> None:
        self._path, self._store, self._notices = path, store, notices

    @classmethod
    async def opened(cls, path: Path, *, repair: bool) -> _Directory:
        if not path.is_dir():  # noqa: ASYNC240 # nobody else is waiting here
            raise StorageError("there is no such directory")
        store = FsStore(path, read_only=True, alone=repair)
        await store.open()
        notices = list(store.notices)
        for _ in range(0 if repair else LOOKS):
            if notices:  # a worker may have been in the middle of a line
                await asyncio.sleep(PAUSE)
                await store.close()
                store = FsStore(path, read_only=True, alone=False)
                await store.open()
                notices = [text for text in notices if text in store.notices]
        return cls(path, store, notices)

    def general(self) -> list[Finding]:
        return [Finding("not-served" if text in self._store.lost else "notice", text) for text in self._notices]

    async def patients(self) -> AsyncIterator[tuple[Patient | None, list[Finding]]]:
        for id_ in await self._store.ids():
            try:
                session, entries = await self._store.session(id_), await self._store.entries(id_)
            except StorageError as error:
                yield None, [Finding("session-unreadable", error.why, id_)]
            else:
                yield Patient(id_, session.meta, False, session.leaf, in_order(entries), {}), []

    async def back_up(self) -> str:
        to = _beside(self._path)
        to.mkdir(mode=0o700)
        shutil.copytree(self._path, to, dirs_exist_ok=True)
        return str(to)

    def mend_index(self, session_id: str) -> str:
        raise StorageError("this store has no index")

    def salvage(self, session_id: str) -> SessionMeta:
        raise StorageError("this store keeps nothing of a record beside it")

    async def change(self, changes: list[Change]) -> None:
        self._store.take_changes()
        await _commit(self._store, changes)

    async def close(self) -> None:
        await self._store.close()


async def check(url: str, clock: Clock, ids: Ids, *, repair: bool = False, stuck: int = STUCK) -> Report:
    """Looks through the store of a URL (`sqlite:FILE`, `fs:DIR`). With `repair` it is changed: after a backup, and
    only while no worker uses it. Raises ValueError for a URL that names no store, StorageError when it cannot be
    looked at, or be backed up."""
    bed = await _bed(url, repair=repair)
    try:
        report = Report(url, findings=bed.general())
        ill: list[tuple[Patient, list[Finding]]] = []
        now = clock.now()
        try:
            async for patient, found in bed.patients():
                report.sessions += 1
                if patient is None:
                    report.findings += found
                    continue
                report.entries += len(patient.entries) + len(patient.damaged)
                found += examine(patient, now, stuck)
                if repair and found:
                    ill.append((patient, found))
                else:
                    report.findings += found
        except StorageError as error:
            report.findings.append(Finding("file-damaged", error.why))
        if any(finding.kind == "file-damaged" for finding in report.findings):
            report.findings += [finding for _, found in ill for finding in found]  # writing on would damage more
        elif ill:
            await _repair(bed, report, ill, now, ids)
    finally:
        await bed.close()
    return report


async def _repair(bed: _Bed, report: Report, ill: list[tuple[Patient, list[Finding]]], now: int, ids: Ids) -> None:
    """Backs the store up before the first change, and not where nothing can be done."""
    treated: list[tuple[Patient, list[Finding], Treatment]] = []
    for patient, findings in ill:
        wrong_index = [finding for finding in findings if finding.kind == "index-wrong"]
        others = [finding for finding in findings if finding.kind != "index-wrong"]
        salvage = partial(bed.salvage, patient.session_id)
        treated.append((patient, wrong_index, treat(patient, others, now, ids, salvage)))
    changes = [treatment.change for patient, _, treatment in treated if treatment.change != Change(patient.session_id)]
    if changes or any(wrong_index for _, wrong_index, _ in treated):
        report.backup = await bed.back_up()
    for patient, wrong_index, treatment in treated:
        if wrong_index:
            try:
                done: str | None = bed.mend_index(patient.session_id)
            except StorageError:
                done = None  # a fork of it would be lost
            report.findings += [replace(finding, repaired=done) for finding in wrong_index]
        report.findings += treatment.findings
    if changes:
        await bed.change(changes)


async def _bed(url: str, *, repair: bool) -> _Bed:
    scheme, _, rest = url.partition(":")
    if scheme == "sqlite" and rest:
        return await _Database.opened(_path(rest), repair=repair)
    if scheme == "fs" and rest:
        return await _Directory.opened(_path(rest), repair=repair)
    raise ValueError("this names no store that can be looked at; use sqlite:FILE or fs:DIR")


async def _commit(store: Store, changes: list[Change]) -> None:
    for change in changes:
        await store.commit(store.ahead(), change)


def _path(rest: str) -> Path:
    return place(working_directory(), rest)


def _beside(path: Path) -> Path:
    """A name for the backup that nothing has."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    names = (path.with_name(f"{path.name}.backup-{stamp}{more}") for more in ("", *(f"-{n}" for n in range(2, 100))))
    return next(name for name in names if not name.exists())
