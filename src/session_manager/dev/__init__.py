"""A loopback engine: the iii engine's wire protocol on this machine, for development and tests."""

from session_manager.dev.server import DEFAULT_PORT, Engine, EngineThread, run, serve
from session_manager.dev.unkind import Unkindness

__all__ = ["DEFAULT_PORT", "Engine", "EngineThread", "Unkindness", "run", "serve"]
