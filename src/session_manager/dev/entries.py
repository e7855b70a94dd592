"""Configuration entries and their files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import yaml

from session_manager.dev.inputs import Input, Unreadable
from session_manager.dev.placeholders import CoreDumper, CoreLoader

log = structlog.get_logger(__name__)

_FILE = Input(
    "configuration file",
    "ConfigurationEntry",
    {"id": "string", "name": "string", "description": "string", "value": "any=", "metadata": "any="},
)


@dataclass(frozen=True)
class Entry:
    """One configuration."""

    id: str
    name: str
    description: str
    schema: Any
    value: Any
    metadata: Any = None

    def view(self) -> dict[str, Any]:
        """Everything but the value."""
        shown = {"id": self.id, "name": self.name, "description": self.description, "schema": self.schema}
        return shown if self.metadata is None else {**shown, "metadata": self.metadata}


class Files:
    """The entries' files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def signature(self) -> dict[str, tuple[int, int, int]]:
        """Something that changes whenever a file does."""
        seen = {}
        for path in self._directory.glob("*.yaml"):
            try:
                stat = path.stat()
            except OSError:
                continue
            seen[path.name] = stat.st_mtime_ns, stat.st_size, stat.st_ino
        return seen

    def load(self) -> dict[str, Entry] | None:
        """All entries whose files can be read, without schemas; None while the directory is away."""
        found = {}
        for path in sorted(self._directory.glob("*.yaml")):
            try:
                document = yaml.load(path.read_bytes(), CoreLoader)  # noqa: S506 - a SafeLoader
                fields = _FILE.read(document)
            except (OSError, yaml.YAMLError, Unreadable) as error:
                log.warning("a configuration file cannot be read", path=str(path), error=str(error))
                continue
            found[fields["id"]] = Entry(schema=None, **fields)
        return found if self._directory.is_dir() else None

    def write(self, entry: Entry) -> None:
        """Replace an entry's file in one step."""
        path = self._directory / f"{entry.id}.yaml"
        document = {**entry.view(), "value": entry.value}
        del document["schema"]
        scratch = path.with_suffix(".yaml.tmp")
        text = yaml.dump(document, Dumper=CoreDumper, allow_unicode=True, sort_keys=False)
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(path)
