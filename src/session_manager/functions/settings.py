"""The worker's own configuration: on-config-change, config-status."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from session_manager.model import Uint64
from session_manager.outcome import Outcome, Tools

ReloadOutcome = Annotated[
    Literal["applied", "rejected"],
    Meta(
        title="ReloadOutcome",
        description="What became of the newest configuration.",
        extra_json_schema={"wrap": "oneOf"},
    ),
]


class OnConfigChangeRequest(Struct):
    id: Annotated[str | None, Meta(description="The configuration entry that changed; it is read again anyway.")] = None


class OnConfigChangeResponse(Struct):
    ok: bool


class ConfigStatusRequest(Struct):
    pass


class ConfigStatusResponse(Struct):
    last_outcome: ReloadOutcome
    rejected_reloads: Annotated[
        Uint64, Meta(description="Configurations that could not be put into force since the worker started.")
    ]
    last_error: Annotated[str | None, Meta(description="Why the newest one was rejected, if it was.")] = None


async def on_config_change(tools: Tools, request: OnConfigChangeRequest) -> Outcome:
    await tools.reloader.reload()
    return Outcome(OnConfigChangeResponse(ok=True))


async def config_status(tools: Tools, request: ConfigStatusRequest) -> Outcome:
    held = tools.reloader
    return Outcome(ConfigStatusResponse(held.last_outcome, held.rejected_reloads, held.last_error))
