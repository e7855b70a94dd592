"""A running server as a source: its sessions, read once."""

from __future__ import annotations

from collections.abc import AsyncIterator

from session_manager.interop.opencode.client import NotThere, Server
from session_manager.interop.opencode.events import read_event
from session_manager.interop.opencode.records import Record, created, obj, record_id
from session_manager.interop.opencode.replay import Gap, Replay
from session_manager.interop.opencode.sessions import Refused, SourceSession
from session_manager.interop.opencode.sources import session_generation
from session_manager.model import JsonObject


async def read_server(server: Server, only: set[str] | None = None) -> AsyncIterator[SourceSession | Refused]:
    """The sessions of a server, one at a time; Refused for one that cannot be read. `only`: these and no others."""
    working = await server.working()
    for session_id in await server.session_ids():
        if only is not None and session_id not in only:
            continue
        try:
            source = await read_session(server, session_id)
        except (Refused, NotThere) as refused:
            yield Refused(f"{session_id}: {refused}")
            continue
        if session_id in working:
            source.status = "working"
        yield source


async def read_session(server: Server, session_id: str) -> SourceSession:
    """One session of a server. A 1.x server is asked in both generations, which do not see each other."""
    if not server.is_1x:
        return await _read_2x(server, session_id)
    warnings: list[str] = []
    info = await server.info_1x(session_id)
    first = await server.messages_1x(session_id)
    if first is None:
        warnings.append("the server cannot list the messages; they were read from its log")
        first = await _from_log(server, session_id)
    second = await server.messages(session_id)
    records: list[Record] = first
    if second:
        if first:
            records = sorted([*first, *second], key=lambda record: (created(record) or 0, record_id(record)))
        else:
            records = second
            info = {**await server.info(session_id), **_only_first(info)}
    source = SourceSession(
        info=info, records=lambda: iter(records), label=server.url, server_version=server.version, warnings=warnings
    )
    source.generation = "v2" if second and not first else session_generation(info, records, warnings)
    return source


def _only_first(info: JsonObject) -> JsonObject:
    """What of a session only the first generation shows."""
    return {key: info[key] for key in ("metadata",) if key in info}


async def _from_log(server: Server, session_id: str) -> list[Record]:
    replay = Replay(session_id)
    try:
        for raw in await server.history_1x({}):
            event = read_event(raw)
            if event is not None and event.session_id == session_id:
                replay.apply(event)
    except Gap as gap:
        raise Refused(str(gap)) from None
    return [record for record in replay.list() if "info" in record]


async def _read_2x(server: Server, session_id: str) -> SourceSession:
    document = await server.transfer(session_id)
    if document is None:
        document = {"info": await server.info(session_id), "messages": await server.messages(session_id)}
    records = document["messages"]
    return SourceSession(
        info=obj(document, "info"),
        records=lambda: iter(records),
        label=server.url,
        server_version=server.version,
        generation="2.1",
    )
