"""Logging: readable lines on stderr, JSON lines in a file of the worker's own.

At the default level nothing of a conversation is logged, only ids, kinds and counts; and at no level what of a URL may
be a secret. The file is there because whoever starts the worker may throw its output away.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import warnings
from pathlib import Path
from typing import Any

import structlog

from session_manager.terminal import concealed

FILE_BYTES, FILES = 10 << 20, 3
"""Size at which the log file is started anew, and how many older ones are kept."""

_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def configure(level: str = "info", file: Path | None = None) -> None:
    """Sets logging up for a process. A log file that cannot be written is a warning, not an end."""
    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers.clear()
    root.setLevel(level.upper())
    stderr = logging.StreamHandler()
    stderr.setFormatter(_formatter(structlog.dev.ConsoleRenderer(colors=False)))
    root.addHandler(stderr)
    if file is not None:
        try:
            root.addHandler(_file_handler(file))
        except OSError as error:
            structlog.get_logger("session_manager").warning("no log file", file=str(file), error=error.strerror)
    # The SDK logs frames at DEBUG, payloads included, and its own deprecations once per process; that of OpenCode every
    # attempt to reach a server that is away.
    for name in ("iii", "websockets", "asyncio", "opencode", "httpx"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    logging.getLogger("iii.iii").addFilter(_worth_telling)
    warnings.filterwarnings("ignore", message=".*register_trigger.*", category=DeprecationWarning)


def _worth_telling(record: logging.LogRecord) -> bool:
    """Without the SDK's own deprecations, and without a refused name, which whoever asked for it tells in its own
    words; a refused binding is the binder's mistake and one line here."""
    message = record.getMessage()
    if message.startswith("Error registering trigger") and record.exc_info:
        record.msg, record.args = f"binding refused: {record.exc_info[1]}", None
        record.exc_info, record.levelno, record.levelname = None, logging.WARNING, "WARNING"
    return "deprecated" not in message and not message.startswith("Worker registration rejected")


def _file_handler(file: Path) -> logging.Handler:
    file.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    handler = logging.handlers.RotatingFileHandler(file, maxBytes=FILE_BYTES, backupCount=FILES, encoding="utf-8")
    handler.setFormatter(_formatter(structlog.processors.JSONRenderer()))
    return handler


def _formatter(renderer: Any) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_SHARED,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            lambda _logger, _method, event: _concealed(event),
            renderer,
        ],
    )


def _concealed(value: Any) -> Any:
    if isinstance(value, str):
        return concealed(value)
    if isinstance(value, dict):
        return {key: _concealed(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_concealed(inner) for inner in value]
    return value
