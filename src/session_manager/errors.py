"""What can go wrong with a call, as callers see it: one class per code, the text built from the ids.

Source of the codes: the behaviour of session-manager 1.0.17. A shape error carries no `session/` code; every other
error begins with it, and callers look for it as a substring.
"""

from __future__ import annotations


class SessionManagerError(Exception):
    """Root of the errors that a caller is told about. Its text never holds content, secrets or file paths."""


class MalformedRequest(SessionManagerError):
    """The request is not of the function's shape, or holds what cannot be carried; nothing was looked at."""

    def __init__(self, why: str) -> None:
        super().__init__(f"malformed request: {why}")
        self.why = why

    @classmethod
    def of(cls, error: Exception) -> MalformedRequest:
        """What msgspec found, its `$.message.role` written `message.role` as everywhere else."""
        why, at, field = str(error).rpartition(" - at `$")
        return cls(why + at[:-1] + field.removeprefix("."))


class CodedError(SessionManagerError):
    """An error with a stable code."""

    code: str

    def __init__(self, text: str) -> None:
        super().__init__(f"{self.code}: {text}")


class SessionNotFound(CodedError):
    code = "session/not_found"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"no session {session_id!r}")


class EntryNotFound(CodedError):
    code = "session/entry_not_found"

    def __init__(self, session_id: str, entry_id: str) -> None:
        super().__init__(f"no entry {entry_id!r} in session {session_id!r}")


class ParentNotFound(CodedError):
    code = "session/parent_not_found"

    def __init__(self, session_id: str, parent_id: str) -> None:
        super().__init__(f"no entry {parent_id!r} to append to in session {session_id!r}")


class InvalidEntryKind(CodedError):
    code = "session/invalid_entry_kind"

    def __init__(self, session_id: str, entry_id: str, why: str) -> None:
        super().__init__(f"entry {entry_id!r} of session {session_id!r} {why}")


class DetailsNotSupported(CodedError):
    code = "session/details_not_supported"

    def __init__(self, session_id: str, entry_id: str, role: str) -> None:
        super().__init__(f"entry {entry_id!r} of session {session_id!r} is of role {role!r}, which has no details")


class EmptyBatch(CodedError):
    code = "session/empty_batch"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"no messages to append to session {session_id!r}")


class InvalidCursor(CodedError):
    code = "session/invalid_cursor"

    def __init__(self, why: str) -> None:
        super().__init__(why)


class InvalidRequest(CodedError):
    code = "session/invalid_request"

    def __init__(self, why: str) -> None:
        super().__init__(why)


class StorageError(CodedError):
    """The store could not do it: nothing of the change is kept. The cause is for the log, not for the caller."""

    code = "session/storage"

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Unready(StorageError):
    """The store cannot be used for a reason that may pass by itself: another process has it, or what it stands on is
    not there yet."""


class Outdated(StorageError):
    """What a change was decided on has changed meanwhile. Nothing of it was kept; decided anew, it may well be."""


class BrokenPath(StorageError):
    """The chain from a leaf does not reach a root."""

    def __init__(self, session_id: str, entry_id: str, how: str) -> None:
        super().__init__(f"the path of session {session_id!r} is broken at entry {entry_id!r}: {how}")
        self.entry_id, self.how = entry_id, how


class NotServed(SessionManagerError):
    """A function that this instance does not serve in its present mode; plain text by contract."""
