"""The stores that a configuration or a command can name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from session_manager.config import Adapter, BridgeAdapter, FsAdapter, MemoryAdapter, SqliteAdapter
from session_manager.errors import SessionManagerError
from session_manager.store import Store
from session_manager.stores.directories import place


def _memory(config: Any, base: Path) -> Store:
    from session_manager.stores.memory import MemoryStore

    return MemoryStore()


def _sqlite(config: Any, base: Path) -> Store:
    from session_manager.stores.sqlite import SqliteStore

    return SqliteStore(place(base, config.path), config.synchronous)


def _fs(config: Any, base: Path, *, read_only: bool = False) -> Store:
    from session_manager.stores.fs import FsStore

    return FsStore(place(base, config.data_dir), read_only=read_only)


LOCAL: dict[str, Callable[[Any, Path], Store]] = {"memory": _memory, "sqlite": _sqlite, "fs": _fs}
"""Stores that need nothing but their configuration and the directory that relative paths start from. Each is imported
when it is asked for: a worker starts with one."""

_URLS: dict[str, Callable[[str], Any]] = {
    "memory": lambda rest: MemoryAdapter(name="memory"),
    "sqlite": lambda rest: SqliteAdapter.model_validate({"name": "sqlite", "config": {"path": rest}}),
    "fs": lambda rest: FsAdapter.model_validate({"name": "fs", "config": {"data_dir": rest}}),
}


class NoStore(ValueError):
    """There is nothing at a place that is only to be read."""


class NotOpened(Exception):
    """A store that a command names cannot be opened; the text names it."""


@contextmanager
def _naming(url: str) -> Iterator[None]:
    try:
        yield
    except SessionManagerError as error:
        raise NotOpened(f"{url}: {error}") from error


def open_store(url: str, base: Path) -> Store:
    """A store, not yet open, named as `sqlite:FILE`, `fs:DIR` or `memory:`. Raises ValueError and NotOpened."""
    scheme, adapter = _adapter(url)
    with _naming(url):
        return LOCAL[scheme](adapter.config, base)


def open_source(url: str, base: Path) -> Store:
    """The same for a store that is only read. Raises NoStore where there is none."""
    scheme, adapter = _adapter(url)
    path = url.partition(":")[2]
    with _naming(url):
        found = place(base, path)
    if scheme != "memory" and not found.exists():
        raise NoStore(f"there is no {path}")
    if scheme == "sqlite" and found.is_file() and found.stat().st_size == 0:
        raise NoStore(f"there is nothing in {path}")  # to open it would make a database of it
    if scheme == "fs":
        return _fs(adapter.config, base, read_only=True)
    return LOCAL[scheme](adapter.config, base)


@asynccontextmanager
async def opened(url: str, store: Store) -> AsyncIterator[Store]:
    """A store that a command names, open. Raises NotOpened."""
    with _naming(url):
        await store.open()
    try:
        yield store
    finally:
        await store.close()


MEMORY = "memory"


def where(adapter: Adapter, base: Path) -> str:
    """Where an adapter keeps conversations, for people."""
    match adapter:
        case SqliteAdapter():
            return str(place(base, adapter.config.path))
        case FsAdapter():
            return str(place(base, adapter.config.data_dir))
        case BridgeAdapter():
            return adapter.config.url
        case MemoryAdapter():
            return MEMORY


def _adapter(url: str) -> tuple[str, Any]:
    scheme, _, rest = url.partition(":")
    if scheme not in _URLS:
        raise ValueError(f"{url!r} names no store; use one of {', '.join(f'{name}:' for name in _URLS)}")
    if scheme != "memory" and not rest:
        raise ValueError(f"{url!r} names no file or directory")
    return scheme, _URLS[scheme](rest)


async def adjusted(store: Store, old: Adapter, new: Adapter) -> bool:
    """Whether a store in use is as another configuration wants it, if need be after a change of a setting that does not
    need another store."""
    if old == new:
        return True
    if isinstance(old, SqliteAdapter) and isinstance(new, SqliteAdapter) and old.config.path == new.config.path:
        from session_manager.stores.sqlite import SqliteStore

        if isinstance(store, SqliteStore):
            await store.set_synchronous(new.config.synchronous)
            return True
    return False
