"""The session types of OpenCode 2.1, each with what becomes of it and the test that shows it.

`python -m tests.interop.catalogue` writes docs/opencode-types.md. The names are those of the reference page of
opencode-python-sdk 0.2.3; tests/interop/data/session_types.txt holds them.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.interop.support import DATA

DOCS = Path(__file__).parents[2] / "docs" / "opencode-types.md"

NAMES = (DATA / "session_types.txt").read_text().split()

REPLAY = "test_opencode_types::test_every_durable_event_does_what_the_table_says"
LIVE = "test_opencode_types::test_every_live_event_does_what_the_table_says"
SEEN = "test_opencode_types::test_the_recorded_data_hold_every_type_that_is_data"
ORDER = "test_opencode_mapping::test_the_whole_set_of_durable_events_is_understood"
INBOX = "test_opencode_types::test_input_waits_and_is_delivered_or_not"
KINDS = "test_opencode_roundtrip::test_a_document_comes_back_as_it_was"
ERRORS = "test_opencode_mapping::test_stop_reason_and_error_kind_of_the_second_generation"
SERVER = "test_opencode_follow::test_a_server_is_a_source_too"
FOLLOW = "test_opencode_follow::test_the_mirror_goes_on_where_it_was"
FORK = "test_opencode_mapping::test_a_fork_that_says_so_is_one"
STATUS = "test_opencode_follow::test_executions_are_the_status_and_the_whole_set_of_events_is_mirrored"
ACTIVE = "test_opencode_follow::test_what_the_server_works_on_is_working_and_later_is_not"
SAID = "test_opencode_types::test_a_status_that_a_server_says_is_the_status"
OUTSIDE = "test_opencode_types::test_what_is_outside_of_a_session_is_in_no_document"
META = "test_opencode_mapping::test_the_record_of_a_session_is_kept_and_labels_are_added"

EVENTS: dict[str, tuple[str, str]] = {
    "AgentSelected": ("session.agent.selected", "bookkeeping entry `opencode.agent_switched`; `agent` of the record"),
    "Archived": ("session.archived", "`time.archived` of the record in the metadata"),
    "CompactionDelta": ("session.compaction.delta", "summary of the running `opencode.compaction` entry grows"),
    "CompactionEnded": ("session.compaction.ended", "`opencode.compaction` entry becomes completed"),
    "CompactionFailed": ("session.compaction.failed", "`opencode.compaction` entry becomes failed"),
    "CompactionStarted": ("session.compaction.started", "bookkeeping entry `opencode.compaction`, running"),
    "Created": ("session.created", "the session and its record"),
    "Deleted": ("session.deleted", "the mirror marks the session; history stays"),
    "ExecutionFailed": ("session.execution.failed", "status error; bookkeeping entry `opencode.idle`"),
    "ExecutionInterrupted": ("session.execution.interrupted", "status idle; bookkeeping entry `opencode.idle`"),
    "ExecutionStarted": ("session.execution.started", "status working"),
    "ExecutionSucceeded": ("session.execution.succeeded", "status done; bookkeeping entry `opencode.idle`"),
    "Forked": ("session.forked", "`forked_from`; boundary in the metadata"),
    "Idle": ("session.idle", "nothing: executions say it durably"),
    "InboxCancelled": ("session.inbox.cancelled", "waiting input is dropped; it leaves no entry"),
    "InboxDelivered": ("session.inbox.delivered", "`user` message or `opencode.synthetic`, under the inbox id"),
    "InboxDeliveryChanged": ("session.inbox.delivery.changed", "the waiting input in the mirror's book"),
    "InboxEnqueued": ("session.inbox.enqueued", "waits in the mirror's book"),
    "InstructionsUpdated": ("session.instructions.updated", "custom message `opencode.system` when it has text"),
    "MetadataUpdated": ("session.metadata.updated", "the session's metadata"),
    "ModelSelected": ("session.model.selected", "bookkeeping entry `opencode.model_switched`; `model` of the record"),
    "Moved": ("session.moved", "bookkeeping entry `opencode.location_switched`; place in the record"),
    "Permissions": ("session.permissions", "`permissions` of the record in the metadata"),
    "ReasoningDelta": ("session.reasoning.delta", "the `thinking` block grows"),
    "ReasoningEnded": ("session.reasoning.ended", "the `thinking` block is whole"),
    "ReasoningStarted": ("session.reasoning.started", "a `thinking` block opens"),
    "Renamed": ("session.renamed", "title"),
    "RetryScheduled": ("session.retry.scheduled", "a warning on the assistant message"),
    "RevertCleared": ("session.revert.cleared", "the active leaf goes back to the end"),
    "RevertCommitted": ("session.revert.committed", "what was taken back stays on a branch of its own"),
    "RevertStaged": ("session.revert.staged", "the active leaf moves before what is taken back"),
    "ShellEnded": ("session.shell.ended", "output of the `opencode.shell` message"),
    "ShellStarted": ("session.shell.started", "custom message `opencode.shell`"),
    "SkillActivated": ("session.skill.activated", "custom message `opencode.skill`"),
    "StepEnded": ("session.step.ended", "stop reason, usage and end of the assistant message"),
    "StepFailed": ("session.step.failed", "error of the assistant message"),
    "StepStarted": ("session.step.started", "an assistant message"),
    "StepStreamed": ("session.step.streamed", "`time.streamed` in the kept record"),
    "Synthetic": ("session.synthetic", "custom message `opencode.synthetic`"),
    "TextDelta": ("session.text.delta", "the `text` block grows"),
    "TextEnded": ("session.text.ended", "the `text` block is whole"),
    "TextStarted": ("session.text.started", "a `text` block opens"),
    "ToolCalled": ("session.tool.called", "arguments of the `function_call` block"),
    "ToolFailed": ("session.tool.failed", "a `function_result` message that is an error"),
    "ToolInputDelta": ("session.tool.input.delta", "arguments grow, as text"),
    "ToolInputEnded": ("session.tool.input.ended", "arguments are whole, as text"),
    "ToolInputStarted": ("session.tool.input.started", "a `function_call` block opens"),
    "ToolProgress": ("session.tool.progress", "metadata of the running tool in the kept record"),
    "ToolSuccess": ("session.tool.success", "a `function_result` message"),
    "Unarchived": ("session.unarchived", "`time.archived` goes"),
    "UsageRecorded": ("session.usage.recorded", "bookkeeping entry `opencode.usage`; sums of the record"),
    "UsageUpdated": ("session.usage.updated", "nothing: running sums of what steps record durably"),
    "Viewed": ("session.viewed", "`time.viewed` of the record in the metadata"),
}
"""Name in the types -> name of the event, effect."""

LIVE_ONLY = {
    "CompactionDelta",
    "Idle",
    "ReasoningDelta",
    "TextDelta",
    "ToolInputDelta",
    "ToolProgress",
    "UsageUpdated",
}

STATS = "not imported: statistics over many sessions, to be had from the `usage` of the messages"

OTHERS: dict[str, tuple[str, str]] = {
    "SessionActive": ("`GET /api/session/active`: status working", ACTIVE),
    "SessionEventDurable": ("the union of the durable events, by name", ORDER),
    "SessionForkBoundary": ("`fork_boundary` in the metadata, raw", FORK),
    "SessionForkBoundaryBefore": ("`fork_boundary` in the metadata, raw", FORK),
    "SessionForkBoundaryThrough": ("`fork_boundary` in the metadata, raw", SEEN),
    "SessionGenerateResponse": ("not imported: the answer to a question outside of any session", OUTSIDE),
    "SessionGenerateResponseData": ("not imported: the answer to a question outside of any session", OUTSIDE),
    "SessionID": ("session id, as it is", KINDS),
    "SessionInboxCompaction": ("waits in the mirror's book; the compaction's own events make its entry", INBOX),
    "SessionInboxCompactionPayload": ("kept raw while it waits", INBOX),
    "SessionInboxCompactionTime": ("the event's own time is taken", INBOX),
    "SessionInboxDelivery": ("kept raw while it waits", INBOX),
    "SessionInboxInfo": ("waits in the mirror's book until its delivery", INBOX),
    "SessionInboxItem": ("waits in the mirror's book until its delivery", INBOX),
    "SessionInboxItemCompaction": ("waits; the compaction's own events make its entry", INBOX),
    "SessionInboxItemMove": ("waits; `session.moved` makes its entry", INBOX),
    "SessionInboxItemSynthetic": ("custom message `opencode.synthetic` at its delivery", INBOX),
    "SessionInboxItemUser": ("`user` message at its delivery", INBOX),
    "SessionInboxMove": ("waits; `session.moved` makes its entry", INBOX),
    "SessionInboxMovePayload": ("kept raw while it waits", INBOX),
    "SessionInboxMovePayload1": ("kept raw while it waits", INBOX),
    "SessionInboxMoveTime": ("the event's own time is taken", INBOX),
    "SessionInboxSynthetic": ("custom message `opencode.synthetic` at its delivery", INBOX),
    "SessionInboxSyntheticPayload": ("text, display; metadata in the kept record", INBOX),
    "SessionInboxSyntheticTime": ("the event's own time is taken", INBOX),
    "SessionInboxUser": ("`user` message at its delivery", INBOX),
    "SessionInboxUserPayload": ("text and pictures; the rest in the kept record", INBOX),
    "SessionInboxUserTime": ("the event's own time is taken", INBOX),
    "SessionInfo": ("the session record; raw in the metadata under `opencode.session`", KINDS),
    "SessionInfoFork": ("`forked_from`; boundary in the metadata", FORK),
    "SessionInfoTime": ("`created_at`, `updated_at`; raw in the metadata", META),
    "SessionInterruptResponse": ("not imported: the answer to a command", OUTSIDE),
    "SessionLogItem": ("a durable event, or the mark that the log was read to its end", FOLLOW),
    "SessionMessagesResponse": ("read page by page into the message list", SERVER),
    "SessionMessagesResponseCursor": ("followed until a page is empty", SERVER),
    "SessionMetadata": ("metadata of the session, at the top level", FORK),
    "SessionRevert": ("the active leaf; raw in the metadata", KINDS),
    "SessionStatus": ("status of a server that says it", SAID),
    "SessionStatusBusy": ("status working", SAID),
    "SessionStatusIdle": ("status by the last assistant message", SAID),
    "SessionStatusRetry": ("status working", SAID),
    "SessionStatusRetryAction": ("not kept: advice for a person at that moment", SAID),
    "SessionStatusUpdated": ("status", SAID),
    "SessionStatusUpdatedData": ("status", SAID),
    "SessionStructuredError": ("`error_kind`, `error_message`; raw in the kept record", ERRORS),
    "SessionStructuredErrorResponse": ("raw in the kept record", KINDS),
    "SessionTransferData": ("a document that comes in and goes out", KINDS),
    "SessionsCursor": ("followed until a page is empty", SERVER),
    "SessionsResponse": ("the sessions of a server", SERVER),
    "SessionsResponseCursor": ("followed until a page is empty", SERVER),
}


def row(name: str) -> tuple[str, str]:
    """Where a type goes, and the test that shows it. Raises KeyError for one that is not accounted for."""
    if name in OTHERS:
        return OTHERS[name]
    if name.startswith("SessionStats"):
        return STATS, OUTSIDE
    found = re.fullmatch(r"Session(\w+?)Event(Data|Durable)(Output)?", name)
    if found is None:
        raise KeyError(name)
    event, effect = EVENTS[found[1]]
    if found[2] == "Durable":
        return f"`{event}`: its place in the log, which is the order and counts once", ORDER
    return f"`{event}`: {effect}", LIVE if found[1] in LIVE_ONLY else REPLAY


def table() -> str:
    rows = [(name, *row(name)) for name in NAMES]
    lines = [
        "# OpenCode's session types, accounted for",
        "",
        f"All {len(rows)} session types of OpenCode 2.1 (the reference page of opencode-python-sdk 0.2.3), where each",
        "goes, and the test that shows it. Generated by `python -m tests.interop.catalogue`.",
        "",
        "| type | where it goes | shown by |",
        "|---|---|---|",
        *(
            f"| {name} | {where} | {test.replace('test_opencode_', '').replace('::', ': ')} |"
            for name, where, test in rows
        ),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    DOCS.parent.mkdir(exist_ok=True)
    DOCS.write_text(table())
