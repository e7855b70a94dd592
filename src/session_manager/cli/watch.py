"""`session-manager watch`: events as they happen."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click

from session_manager import door
from session_manager.cli import light
from session_manager.cli.ending import Ending
from session_manager.cli.options import url_option
from session_manager.errors import MalformedRequest
from session_manager.events import EVENTS, Created
from session_manager.model import JsonObject
from session_manager.terminal import fail, labels, plain

ROLES = ["user", "assistant", "function_result", "custom"]


@click.command()
@click.option("--session", "session_id", help="Only this session.")
@click.option("--role", "roles", multiple=True, type=click.Choice(ROLES), help="Only messages of this role.")
@click.option("--metadata", help="Only sessions whose metadata has all keys of this JSON object with equal values.")
@click.option("--type", "types", multiple=True, type=click.Choice(sorted(EVENTS)), help="Only events of this type.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line: {trigger_type, payload}.")
@url_option
def watch(
    session_id: str | None,
    roles: tuple[str, ...],
    metadata: str | None,
    types: tuple[str, ...],
    as_json: bool,
    url: str,
) -> None:
    """Print events as they happen, until Ctrl+C. The filters are those of the bindings."""
    ending = Ending()
    with light.plain():
        from session_manager.edge.failures import EngineError, GivenUp
        from session_manager.edge.visitor import visit

    wanted = labels(metadata)
    try:
        door.check({"session_id": session_id})
    except MalformedRequest as error:
        raise click.BadParameter(str(error), param_hint="--session") from None
    unread: list[Exception] = []

    def show(trigger_type: str, payload: JsonObject) -> None:
        if session_id not in (None, payload["session_id"]):
            return  # created events cannot be filtered by session where they come from
        try:
            click.echo(_line(trigger_type, payload, as_json))
        except (OSError, UnicodeEncodeError) as error:
            unread.append(error)
            ending.tell()

    try:
        with visit(url, ending.wait) as client:
            client.on_state(_tell)
            for trigger_type in types or sorted(EVENTS):
                client.subscribe(
                    trigger_type,
                    _config(trigger_type, session_id, roles, wanted),
                    partial(show, trigger_type),
                )
            click.echo("watching; Ctrl+C ends it", err=True)
            ending.wait()
    except GivenUp:
        return  # told to end before there was anything to watch
    except EngineError as error:
        fail(str(error))
    if unread:
        raise unread[0]  # a pipe that nobody reads any more ends it quietly


def _tell(state: str) -> None:
    """What becomes of the connection."""
    if state == "reconnecting":
        click.echo("the engine is gone; waiting for it", err=True)
    elif state == "connected":
        click.echo("watching again; what happened meanwhile is not shown", err=True)


def _config(trigger_type: str, session_id: str | None, roles: tuple[str, ...], metadata: Any) -> JsonObject:
    config: JsonObject = {}
    if session_id is not None and trigger_type != Created.trigger_type:
        config["session_id"] = session_id
    if roles and "message" in trigger_type:
        config["roles"] = list(roles)
    if metadata is not None:
        config["metadata"] = metadata
    return config


def _line(trigger_type: str, payload: JsonObject, as_json: bool) -> str:
    payload.pop("_caller_worker_id", None)
    if as_json:
        return json.dumps({"trigger_type": trigger_type, "payload": payload}, ensure_ascii=False, sort_keys=True)
    time = _time(payload["timestamp"] if "timestamp" in payload else payload["created_at"])
    name = trigger_type.removeprefix("session::")
    return plain(f"{time}  {name:<16} {payload['session_id']}  {_gist(payload)}".rstrip())


def _time(milliseconds: int) -> str:
    try:
        return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%H:%M:%S.%f}"[:-3]
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)  # no year that a calendar knows; another instance may publish any


def _gist(payload: JsonObject) -> str:
    if "message" in payload:
        message = payload["message"]
        text = " ".join(block.get("text", f"[{block['type']}]") for block in message["content"])
        revision = f" r{payload['revision']}" if "revision" in payload else ""
        return f"{payload['entry_id']}{revision}  {message['role']}: {_short(text)}"
    if "custom" in payload:
        return f"{payload['entry_id']}  ({payload['custom']['custom_type']})"
    if "status" in payload and "previous_status" in payload:
        reason = f": {_short(payload['status_reason'])}" if "status_reason" in payload else ""
        return f"{payload['previous_status']} -> {payload['status']}{reason}"
    return _short(payload.get("title", ""))


def _short(text: str, length: int = 70) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"
