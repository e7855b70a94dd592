"""The stores that are measured, one line each. A module is imported only in the process of its own subject."""

from __future__ import annotations

import importlib
from typing import NamedTuple

from bench.subjects.subject import Subject


class Named(NamedTuple):
    title: str
    where: str
    """Module and class."""
    peer: bool = True


SUBJECTS: dict[str, Named] = {
    "floor": Named("bare sqlite3", "floor:Floor", peer=False),
    "sqlite": Named("session-manager, sqlite", "ours:Sqlite", peer=False),
    "sqlite-disk": Named("session-manager, sqlite, nothing held in memory", "ours:Disk", peer=False),
    "memory": Named("session-manager, memory", "ours:Memory", peer=False),
    "agents": Named("openai-agents SQLiteSession", "agents:Plain"),
    "agents-advanced": Named("openai-agents AdvancedSQLiteSession", "agents:Advanced"),
    "adk-sqlite": Named("google-adk SqliteSessionService", "adk:Sqlite"),
    "adk-database": Named("google-adk DatabaseSessionService (aiosqlite)", "adk:Database"),
    "langgraph": Named("langgraph SqliteSaver", "langgraph:Saver"),
    "langchain": Named("langchain-community SQLChatMessageHistory", "langchain:History"),
}


def load(name: str) -> type[Subject]:
    """The class of a subject. Raises ImportError when what it needs is not installed."""
    module, _, class_ = SUBJECTS[name].where.partition(":")
    found: type[Subject] = getattr(importlib.import_module(f"bench.subjects.{module}"), class_)
    return found
