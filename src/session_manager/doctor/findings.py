"""What can be wrong: the kinds, and one finding of a kind."""

from __future__ import annotations

from msgspec import Struct

KINDS: dict[str, str] = {
    "file-damaged": "the database file itself is damaged; restore a backup, or see SQLite's .recover",
    "commits-lost": "commits were acknowledged that are not there: the log was cut, or an older copy was put back",
    "entry-damaged": "an entry does not hold what was written; its content is not served",
    "record-damaged": "a session record does not hold what was written",
    "session-unreadable": "what is stored of a session cannot be read at all",
    "not-served": "something of a file cannot be taken as it is, and is left aside",
    "notice": "something was noticed when the store was opened that does no harm",
    "index-wrong": "what is derived from the chain or the record does not agree with it",
    "stray-entries": "entries belong to no session",
    "entries-without-record": "there are entries and no session record",
    "record-without-entries": "the record counts messages and there is not one entry",
    "count-wrong": "the record counts other messages than there are",
    "leaf-gone": "the active leaf names no entry",
    "leaf-missing": "there are entries and no active leaf",
    "parent-missing": "an entry hangs on one that is not there",
    "cycle": "entries hang on each other in a circle",
    "call-without-result": "a function call on the active path has no result behind it",
    "result-without-call": "a function result on the active path answers no call before it",
    "stuck-working": "the session has been working for long, and whoever worked on it may be gone",
}
"""Every kind of finding, and what it means."""


class Finding(Struct, frozen=True, omit_defaults=True):
    kind: str
    text: str
    session_id: str | None = None
    entry_id: str | None = None
    repaired: str | None = None
    """What was done about it."""
