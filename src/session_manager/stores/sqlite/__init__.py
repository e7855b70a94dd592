"""The default store: one SQLite file."""

from session_manager.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
