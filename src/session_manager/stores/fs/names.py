"""Session ids as file names, and back."""

from __future__ import annotations

import re

SUFFIX = ".jsonl"

LONGEST = 255
"""Bytes of a file name, suffix included; the limit of every common file system."""

_KEPT = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
_ENCODED = [chr(byte) if byte in _KEPT else f"%{byte:02X}" for byte in range(256)]
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})?")


def file_name(session_id: str) -> str:
    """The id's UTF-8 bytes, those outside of `A-Z a-z 0-9 . _ -` as %XX, and the suffix; the length is not checked."""
    return "".join([_ENCODED[byte] for byte in session_id.encode()]) + SUFFIX


def session_id(name: bytes) -> str:
    """The id in a file name that has the suffix. Raises ValueError when there is none in it."""

    def byte(escape: re.Match[bytes]) -> bytes:
        if escape[1] is None:
            raise ValueError("a % without two hexadecimal digits")
        return bytes([int(escape[1], 16)])

    return _ESCAPE.sub(byte, name.removesuffix(SUFFIX.encode())).decode()
