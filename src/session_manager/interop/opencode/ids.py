"""Ids in OpenCode's form for what never had one: always the same for the same entry, so that exporting twice gives one
file. The form is a prefix, 12 hex digits of time and counter, and 14 characters of base 62; session ids count down."""

from __future__ import annotations

import hashlib
import re

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_FORM = re.compile(r"(ses|msg|prt)_[0-9a-f]{12}[0-9A-Za-z]{14}")
_MASK = (1 << 48) - 1


def is_opencode_id(id_: str, prefix: str) -> bool:
    return id_.startswith(f"{prefix}_") and _FORM.fullmatch(id_) is not None


def session_id(store_id: str, at: int) -> str:
    return f"ses_{~_clock(at, 1) & _MASK:012x}{_tail('ses', store_id)}"


def message_id(store_session: str, entry_id: str, at: int, counter: int) -> str:
    return f"msg_{_clock(at, counter):012x}{_tail('msg', store_session, entry_id)}"


def part_id(store_session: str, entry_id: str, at: int, index: int) -> str:
    """Ids of one message's parts grow with their index, which is how OpenCode orders them."""
    return f"prt_{_clock(at, index):012x}{_tail('prt', store_session, entry_id, str(index))}"


def _clock(at: int, counter: int) -> int:
    """48 bits of time in milliseconds and a counter of 12 bits, which carries over into the time."""
    return (at * 4096 + counter) & _MASK


def _tail(*of: str) -> str:
    number = int.from_bytes(hashlib.sha256("\0".join(of).encode()).digest()[:16])
    letters = []
    for _ in range(14):
        number, digit = divmod(number, 62)
        letters.append(_DIGITS[digit])
    return "".join(letters)


def slug(store_id: str) -> str:
    """OpenCode wants a short name for a session in addresses; ours says where it comes from."""
    return f"store-{hashlib.sha256(store_id.encode()).hexdigest()[:8]}"
