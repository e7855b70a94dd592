"""google-adk: SqliteSessionService, and DatabaseSessionService on aiosqlite."""

from __future__ import annotations

import itertools
import json
import sqlite3
import time
import uuid
from typing import Any, ClassVar

from google.adk.events import Event
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types
from sqlalchemy import event, text

from bench import content
from bench.content import APP, USER
from bench.subjects.subject import MODES, Subject, settings_of

START = 1_600_000_000.0
"""The time of the first event; each further one is a millisecond later."""


class _Service(Subject):
    how: ClassVar[dict[str, str]] = {
        "batch": "append_event one by one: there is no batch",
        "middle": "get_session with after_timestamp, which reads all that follows, cut to the page",
        "fork": "get_session, create_session and append_event one by one",
        "stream": "a copy per update, appended: a stored event cannot be replaced",
        "list": "list_sessions, which returns all of them",
        "fill": "one event through the service, the others as copies of its row",
    }
    scans: ClassVar[dict[str, str]] = {"middle": "all that follows", "list": "all sessions"}

    BATCHES = False

    service: Any

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._numbers = itertools.count()

    async def open(self) -> None:
        self._sessions: dict[str, Any] = {}

    async def close(self) -> None:
        await self.service.close()

    async def of(self, session: str) -> Any:
        found = self._sessions.get(session)
        if found is None:
            found = self._sessions[session] = await self._get(session, GetSessionConfig(num_recent_events=1))
        return found

    async def _get(self, session: str, config: GetSessionConfig | None = None) -> Any:
        return await self.service.get_session(app_name=APP, user_id=USER, session_id=session, config=config)

    def _event(self, index: int, whole: str | None = None, at: float | None = None) -> Event:
        part = types.Part(text=content.text(index) if whole is None else whole)
        author = "user" if index % 2 == 0 else "agent"
        return Event(
            author=author,
            invocation_id="i",
            content=types.Content(role="model" if index % 2 else "user", parts=[part]),
            timestamp=time.time() if at is None else at,
        )

    async def new(self, session: str, index: int = 0) -> None:
        self._sessions[session] = await self.service.create_session(
            app_name=APP, user_id=USER, session_id=session, state={"owner": content.owner(index)}
        )

    async def append(self, session: str, index: int) -> None:
        await self.service.append_event(await self.of(session), self._event(index))

    async def batch(self, session: str, first: int, count: int) -> None:
        held = await self.of(session)
        for index in range(first, first + count):
            await self.service.append_event(held, self._event(index))

    async def last(self, session: str, count: int) -> int:
        return len((await self._get(session, GetSessionConfig(num_recent_events=count))).events)

    async def middle(self, session: str, position: int, count: int) -> int:
        config = GetSessionConfig(after_timestamp=START + position / 1000)
        return len((await self._get(session, config)).events[:count])

    async def newest(self, count: int) -> int:
        found = (await self.service.list_sessions(app_name=APP, user_id=USER)).sessions
        return len(found[-count:])

    async def newest_of_owner(self, count: int) -> int:
        found = (await self.service.list_sessions(app_name=APP, user_id=USER)).sessions
        return len([session for session in found if session.state.get("owner") == content.OWNER][-count:])

    async def fork(self, session: str) -> None:
        source = await self._get(session)
        copy = f"{session}-{next(self._numbers)}"
        await self.new(copy)
        held = self._sessions.pop(copy)
        for found in source.events:
            await self.service.append_event(held, found.model_copy(update={"id": uuid.uuid4().hex}))

    async def start_reply(self, session: str) -> None:
        await self.of(session)

    async def update_reply(self, session: str, text: str) -> None:
        await self.service.append_event(await self.of(session), self._event(1, text))

    # --- filling: through the service it would take minutes ---

    async def fill_entries(self, session: str, count: int) -> None:
        await self.new(session)
        await self.service.append_event(self._sessions[session], self._event(0, at=START))
        del self._sessions[session]
        await self.close()
        with sqlite3.connect(self.file) as db:
            cursor = db.execute("SELECT * FROM events")
            names = [column[0] for column in cursor.description]
            row = dict(zip(names, cursor.fetchone(), strict=True))
            marks = ", ".join("?" * len(names))
            db.executemany(f"INSERT INTO events VALUES ({marks})", (self._copy(row, n) for n in range(1, count)))
            last = self._copy(row, count - 1)[names.index("timestamp")]
            db.execute("UPDATE sessions SET update_time = ?", (last,))
        db.close()
        await self.open()

    def _copy(self, row: dict[str, Any], index: int) -> tuple[Any, ...]:
        id_, at = uuid.uuid4().hex, START + index / 1000
        made = json.loads(self._event(index, at=at).model_dump_json(exclude_none=True))
        data = json.loads(row["event_data"])
        changed = {key: made[key] for key in ("author", "content") if key in made}
        data.update(changed)
        for key, value in (("id", id_), ("timestamp", at)):
            if key in data:
                data[key] = value
        return tuple({**row, "id": id_, "timestamp": self.stamp(at), "event_data": json.dumps(data)}.values())

    def stamp(self, at: float) -> Any:
        return at

    async def fill_sessions(self, count: int) -> None:
        await self.new("session-0", 0)
        await self.close()
        with sqlite3.connect(self.file) as db:
            cursor = db.execute("SELECT * FROM sessions")
            names = [column[0] for column in cursor.description]
            row = dict(zip(names, cursor.fetchone(), strict=True))
            marks = ", ".join("?" * len(names))
            rows = (
                tuple(
                    {
                        **row,
                        "id": f"session-{n}",
                        "state": json.dumps({"owner": content.owner(n)}),
                        "update_time": self.stamp(START + n / 1000),
                    }.values()
                )
                for n in range(1, count)
            )
            db.executemany(f"INSERT INTO sessions VALUES ({marks})", rows)
        db.close()
        await self.open()


class Sqlite(_Service):
    FULL = "its default; it opens a connection per call"

    async def open(self) -> None:
        await super().open()
        self.service = SqliteSessionService(str(self.file))

    async def settings(self) -> tuple[str, str]:
        async with self.service._get_db_connection() as db:
            return await db._execute(settings_of, db._conn)  # type: ignore[no-any-return] # on the connection's thread


class Database(_Service):
    FULL = "set when it connects"

    async def open(self) -> None:
        await super().open()
        self.service = DatabaseSessionService(f"sqlite+aiosqlite:///{self.file}")

        @event.listens_for(self.service.db_engine.sync_engine, "connect")  # type: ignore[untyped-decorator]
        def full(connection: Any, _: Any) -> None:
            cursor = connection.cursor()
            cursor.execute("PRAGMA synchronous = FULL")
            cursor.close()

    def stamp(self, at: float) -> Any:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at)) + f".{round(at % 1 * 1e6):06d}"

    async def settings(self) -> tuple[str, str]:
        async with self.service.db_engine.connect() as connection:
            journal = (await connection.execute(text("PRAGMA journal_mode"))).scalar()
            synchronous = (await connection.execute(text("PRAGMA synchronous"))).scalar()
        return str(journal), MODES[synchronous]
