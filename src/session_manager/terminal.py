"""Text that somebody else wrote, on its way to a terminal."""

from __future__ import annotations


def plain(text: str) -> str:
    """The text with everything written out that a terminal would obey or not show."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
