"""`opencode::import` and `opencode::export`: the same import and export for other workers, in a worker mode of its
own. They are no part of the session functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from session_manager.clock import Clock, SystemClock
from session_manager.door import check_metadata
from session_manager.errors import InvalidRequest, MalformedRequest
from session_manager.interop.opencode.exports import Format, export_session
from session_manager.interop.opencode.imports import Existing, Plan, plan_import
from session_manager.interop.opencode.sessions import Refused, SourceSession
from session_manager.interop.opencode.sources import read
from session_manager.interop.opencode.targets import DryRun, Target
from session_manager.model import Json, JsonObject

ExportFormat = Annotated[
    Format, Meta(title="ExportFormat", description="The form that OpenCode 1.18 or 2.1 imports, or the one it came in.")
]


class ImportRequest(Struct):
    document: Annotated[
        Json, Meta(description="An export, a transfer document, a message list or an event log of OpenCode, as JSON.")
    ]
    session_id: Annotated[str | None, Meta(description="The session of a message list that does not name its own.")] = (
        None
    )
    metadata: Annotated[JsonObject | None, Meta(description="Labels for the sessions, besides their own.")] = None
    dry_run: Annotated[bool, Meta(description="Tell what would change, and change nothing.")] = False


class ImportedSession(Struct):
    """What became of one session."""

    session_id: str
    created: Annotated[bool, Meta(description="Whether the session was not here before.")]
    changed: Annotated[bool, Meta(description="Whether anything was written.")]
    messages: Annotated[int, Meta(ge=0, description="Messages of the source.")]
    added: Annotated[int, Meta(ge=0, description="Entries that came in.")]
    updated: Annotated[int, Meta(ge=0, description="Entries that were brought up to date.")]
    skipped: Annotated[list[str], Meta(description="What was left as it is, and why.")]
    lossy: Annotated[list[str], Meta(description="What the source had lost or entries cannot show.")]
    warnings: list[str]


class ImportResponse(Struct):
    sessions: list[ImportedSession]


class ExportRequest(Struct):
    session_id: str
    format: ExportFormat = "original"


class ExportResponse(Struct):
    document: Annotated[JsonObject, Meta(description="`{info, messages}` for OpenCode to import.")]
    format: str
    verbatim: Annotated[int, Meta(ge=0, description="Messages that are as OpenCode wrote them.")]
    rendered: Annotated[int, Meta(ge=0, description="Messages that were rendered from entries.")]
    notes: list[str]


def told(plan: Plan) -> ImportedSession:
    return ImportedSession(
        session_id=plan.session_id,
        created=plan.created,
        changed=plan.change is not None,
        messages=plan.messages,
        added=len(plan.added),
        updated=len(plan.updated),
        skipped=plan.skipped,
        lossy=plan.lossy,
        warnings=plan.warnings,
    )


async def write(target: Target, source: SourceSession, metadata: JsonObject | None, clock: Clock) -> Plan:
    """Imports one session. Raises Refused, and then nothing of it is kept."""

    def decide(stored: Existing) -> Plan:
        return plan_import(source, stored, now=clock.now(), added=metadata)

    return await target.write(source.id, decide)


async def import_(target: Target, request: ImportRequest, clock: Clock | None = None) -> JsonObject:
    """Imports the sessions of a document, each whole or not at all. Raises InvalidRequest for what cannot be kept:
    then nothing of that session is, while those before it in the document are."""
    clock = clock or SystemClock()
    check_metadata(request.metadata)
    if request.dry_run:
        target = DryRun(target.store)
    sessions = []
    try:
        for source in read(msgspec.json.encode(request.document), "the document", request.session_id):
            plan = await write(target, source, request.metadata, clock)
            sessions.append(told(plan))
    except Refused as refused:
        raise InvalidRequest(str(refused)) from None
    return msgspec.to_builtins(ImportResponse(sessions))  # type: ignore[no-any-return] # a struct becomes a dict


async def export(target: Target, request: ExportRequest) -> JsonObject:
    """A session as OpenCode imports it. Raises SessionNotFound, StorageError."""
    made = await export_session(target.store, request.session_id, request.format)
    response = ExportResponse(made.document, made.format, made.verbatim, made.rendered, made.notes)
    return msgspec.to_builtins(response)  # type: ignore[no-any-return] # a struct becomes a dict


class WorkerFunction(Struct, frozen=True):
    """A function as a worker registers it."""

    id: str
    request: type[Struct]
    response: type[Struct]
    handler: Callable[[Target, Any], Awaitable[JsonObject]]
    description: str

    async def __call__(self, target: Target, payload: Json) -> JsonObject:
        """Raises MalformedRequest, naming the field, when the payload is not of the request's shape."""
        try:
            request = msgspec.convert(payload, self.request)
        except msgspec.ValidationError as error:
            raise MalformedRequest.of(error) from None
        return await self.handler(target, request)


FUNCTIONS = (
    WorkerFunction(
        "opencode::import",
        ImportRequest,
        ImportResponse,
        import_,
        "Bring OpenCode sessions in: an export, a message list or an event log; importing again changes nothing.",
    ),
    WorkerFunction(
        "opencode::export",
        ExportRequest,
        ExportResponse,
        export,
        "Write a session as a document that OpenCode imports.",
    ),
)
