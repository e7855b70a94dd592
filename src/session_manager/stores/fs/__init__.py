"""The store on a directory of JSON lines, one file per session, as earlier versions of the worker keep them."""

from session_manager.stores.fs.store import FsStore

__all__ = ["FsStore"]
