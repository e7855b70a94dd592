"""The data directory of an earlier worker, and what is answered from it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.stage import InProcess

HERE = Path(__file__).parent / "fs-samples"
ORDERS = ("created_asc", "created_desc", "updated_desc")


def expected() -> Any:
    return json.loads((HERE / "expected.json").read_text(encoding="utf-8"))


def copy_to(directory: Path) -> Path:
    return Path(shutil.copytree(HERE / "data", directory))


async def answers(adapter: dict[str, Any], base: Path) -> Any:
    """What a worker on this store answers about everything, in the shape of expected.json."""
    async with InProcess(adapter, base) as stage:
        told: dict[str, Any] = {"list": {}, "sessions": {}}
        for order in ORDERS:
            metas = await _pages(stage, "session::list", {"order": order}, "sessions")
            told["list"][order] = [meta["session_id"] for meta in metas]
        for id_ in told["list"]["created_asc"]:
            one = {"session_id": id_}
            told["sessions"][id_] = {
                "meta": (await stage.call("session::get", one))["meta"],
                "active_leaf": (await stage.call("session::store::get-active-leaf", one))["entry_id"],
                "entries": (await stage.call("session::store::list-entries", one))["entries"],
                "messages": await _pages(stage, "session::messages", {**one, "include_custom": True}, "messages"),
            }
        return told


async def _pages(stage: InProcess, function: str, request: dict[str, Any], field: str) -> list[Any]:
    rows: list[Any] = []
    cursor: dict[str, Any] = {}
    while True:
        page = await stage.call(function, {**request, **cursor, "limit": 7})
        rows += page[field]
        if "next_cursor" not in page:
            return rows
        cursor = {"cursor": page["next_cursor"]}
