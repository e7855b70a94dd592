"""The check of a whole store, and its repair."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from session_manager.clock import Clock, Ids
from session_manager.doctor.conversations import STUCK, Patient, examine
from session_manager.doctor.findings import Finding
from session_manager.doctor.repairs import treat
from session_manager.errors import StorageError
from session_manager.model import SessionMeta
from session_manager.store import Change, Store
from session_manager.stores import open_source, open_store
from session_manager.stores.sqlite.inspect import Held, Inspection, Mender


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
    """A store as the doctor sees it."""

    def general(self) -> list[Finding]: ...

    def patients(self) -> AsyncIterator[Patient | Finding]: ...

    async def close(self) -> None: ...

    async def back_up(self) -> str: ...

    async def change(self, changes: list[Change]) -> None: ...

    def salvage(self, session_id: str) -> SessionMeta: ...

    def mend_index(self, session_id: str) -> None: ...


class _Database:
    """A SQLite file, looked at without trusting it; another process may be using it."""

    def __init__(self, url: str, path: Path, *, repair: bool) -> None:
        self._url, self._path, self._repair = url, path, repair
        self._inspection = Inspection(path)
        self._held: dict[str, Held] = {}

    def general(self) -> list[Finding]:
        found = [Finding("file-damaged", text) for text in self._inspection.file_problems()]
        lost = self._inspection.lost_commits()
        if lost:
            found.append(Finding("commits-lost", f"{lost} commits that were acknowledged are not there"))
        if not found and (strays := self._inspection.strays()):
            found.append(Finding("stray-entries", f"{strays} entries belong to no session"))
        return found

    async def patients(self) -> AsyncIterator[Patient | Finding]:
        for held in self._inspection.sessions():
            for text in held.index:
                yield Finding("index-wrong", text, held.session_id)
            if self._repair:
                self._held[held.session_id] = held
            yield Patient(
                held.session_id,
                held.meta,
                held.damaged,
                held.leaf,
                {row.id: row.entry for row in held.rows if row.entry is not None},
                {row.id: row.parent_id for row in held.rows if row.entry is None},
            )

    async def close(self) -> None:
        self._inspection.close()

    async def back_up(self) -> str:
        self._inspection.close()
        to = self._path.with_name(f"{self._path.name}.backup-{_stamp()}")
        store = open_store(self._url, Path())  # refuses while a worker has the database
        await store.open()
        await store.close()
        mender = Mender(self._path)
        try:
            mender.back_up(to)
            os.chmod(to, 0o600)
        finally:
            mender.close()
        return str(to)

    def mend_index(self, session_id: str) -> None:
        mender = Mender(self._path)
        try:
            mender.forget_places(self._held[session_id])
        finally:
            mender.close()

    def salvage(self, session_id: str) -> SessionMeta:
        mender = Mender(self._path)
        try:
            return mender.salvage(self._held[session_id])
        finally:
            mender.close()

    async def change(self, changes: list[Change]) -> None:
        await _commit(open_store(self._url, Path()), changes)


class _Other:
    """Any other store, through the port and the list of its ids."""

    def __init__(self, url: str, store: Any) -> None:
        self._url, self._store = url, store

    def general(self) -> list[Finding]:
        return [Finding("notice", text) for text in getattr(self._store, "notices", ())]

    async def patients(self) -> AsyncIterator[Patient | Finding]:
        for id_ in await self._store.ids():
            try:
                session, entries = await self._store.session(id_), await self._store.entries(id_)
            except StorageError as error:
                yield Finding("session-unreadable", error.why, id_)
                continue
            entries.sort(key=lambda entry: entry.timestamp)
            yield Patient(id_, session.meta, False, session.leaf, {entry.id: entry for entry in entries}, {})

    async def close(self) -> None:
        await self._store.close()

    async def back_up(self) -> str:
        await self._store.close()
        path = _path(self._url)
        to = path.with_name(f"{path.name}.backup-{_stamp()}")
        shutil.copytree(path, to)
        return str(to)

    def mend_index(self, session_id: str) -> None:
        raise StorageError("this store has no index")

    def salvage(self, session_id: str) -> SessionMeta:
        raise StorageError("this store keeps nothing of a record beside it")

    async def change(self, changes: list[Change]) -> None:
        await _commit(open_store(self._url, Path()), changes)


async def check(url: str, clock: Clock, ids: Ids, *, repair: bool = False, stuck: int = STUCK) -> Report:
    """Looks through the store of a URL (`sqlite:FILE`, `fs:DIR`). With `repair` it is changed: after a backup, and
    only while no worker uses it. Raises ValueError for a URL that names no store, StorageError when it cannot be
    looked at."""
    bed = await _bed(url, repair=repair)
    report = Report(url, findings=bed.general())
    ill: list[tuple[Patient, list[Finding]]] = []
    now = clock.now()
    try:
        indexes: list[Finding] = []
        async for one in bed.patients():
            if isinstance(one, Finding):
                indexes.append(one)
                continue
            report.sessions += 1
            report.entries += len(one.entries) + len(one.damaged)
            found = [*indexes, *examine(one, now, stuck)]
            indexes = []
            if repair and found:
                ill.append((one, found))
            else:
                report.findings += found
        report.findings += indexes
    finally:
        await bed.close()
    if repair and ill:
        report.backup = await bed.back_up()
        await _repair(bed, report, ill, now, ids)
    return report


async def _repair(bed: _Bed, report: Report, ill: list[tuple[Patient, list[Finding]]], now: int, ids: Ids) -> None:
    changes: list[Change] = []
    for patient, findings in ill:
        wrong_index = [finding for finding in findings if finding.kind == "index-wrong"]
        others = [finding for finding in findings if finding.kind != "index-wrong"]
        if wrong_index:
            bed.mend_index(patient.session_id)
            done = "the session's paths are walked from now on; its columns and labels were made anew"
            report.findings += [Finding(f.kind, f.text, f.session_id, f.entry_id, done) for f in wrong_index]
        treatment = treat(patient, others, now, ids, partial(bed.salvage, patient.session_id))
        if treatment.change != Change(patient.session_id):
            changes.append(treatment.change)
        report.findings += treatment.findings
    if changes:
        await bed.change(changes)


async def _bed(url: str, *, repair: bool) -> _Bed:
    scheme, _, rest = url.partition(":")
    if scheme == "sqlite" and rest:
        return _Database(url, _path(url), repair=repair)
    store = open_source(url, Path())
    await store.open()
    return _Other(url, store)


async def _commit(store: Store, changes: list[Change]) -> None:
    await store.open()
    try:
        for change in changes:
            await store.commit(store.ahead(), change)
    finally:
        await store.close()


def _path(url: str) -> Path:
    return Path(url.partition(":")[2]).expanduser().resolve()


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
