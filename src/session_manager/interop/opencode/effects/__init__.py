"""What each event of OpenCode does to a replay, by the event's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from session_manager.interop.opencode.effects import compaction, first, inbox, session, step
from session_manager.interop.opencode.events import Event

if TYPE_CHECKING:
    from session_manager.interop.opencode.replay import Replay

Effect: TypeAlias = "Callable[[Replay, Event], None]"

HANDLERS: dict[str, Effect] = {
    "session.created": session.created,
    "session.updated": session.updated,
    "session.forked": session.forked,
    "session.renamed": session.sets("title"),
    "session.metadata.updated": session.sets("metadata"),
    "session.permissions": session.sets("permissions"),
    "session.agent.selected": session.switched("agent-switched", "agent"),
    "session.agent.switched": session.switched("agent-switched", "agent"),
    "session.model.selected": session.switched("model-switched", "model"),
    "session.model.switched": session.switched("model-switched", "model"),
    "session.moved": session.moved,
    "session.viewed": session.viewed,
    "session.archived": session.archived,
    "session.unarchived": session.unarchived,
    "session.deleted": session.deleted,
    "session.inbox.enqueued": inbox.enqueued,
    "session.inbox.delivered": inbox.delivered,
    "session.inbox.cancelled": inbox.cancelled,
    "session.inbox.delivery.changed": inbox.delivery_changed,
    "session.prompt.admitted": session.nothing,
    "session.prompted": inbox.prompted,
    "session.execution.started": session.running,
    "session.execution.succeeded": session.ended("succeeded", "done"),
    "session.execution.failed": session.ended("failed", "error"),
    "session.execution.interrupted": session.ended("interrupted", "idle"),
    "session.instructions.updated": inbox.told("system", "text", "description"),
    "session.context.updated": inbox.told("system", "text", "description"),
    "session.synthetic": inbox.told("synthetic", "text", "description", "metadata"),
    "session.skill.activated": inbox.skill,
    "session.shell.started": inbox.shell_started,
    "session.shell.ended": inbox.shell_ended,
    "session.step.started": step.step_started,
    "session.step.streamed": step.step_streamed,
    "session.step.ended": step.step_ended,
    "session.step.failed": step.step_failed,
    "session.text.started": step.text_started,
    "session.text.delta": step.grows("text"),
    "session.text.ended": step.text_ended,
    "session.reasoning.started": step.reasoning_started,
    "session.reasoning.delta": step.grows("reasoning"),
    "session.reasoning.ended": step.reasoning_ended,
    "session.tool.input.started": step.input_started,
    "session.tool.input.delta": step.input_grows,
    "session.tool.input.ended": step.input_ended,
    "session.tool.called": step.tool_called,
    "session.tool.progress": step.tool_progress,
    "session.tool.success": step.tool_success,
    "session.tool.failed": step.tool_failed,
    "session.retry.scheduled": step.retry,
    "session.retried": step.retry,
    "session.compaction.started": compaction.compaction_started,
    "session.compaction.delta": compaction.compaction_grows,
    "session.compaction.ended": compaction.compaction_ended,
    "session.compaction.failed": compaction.compaction_failed,
    "session.revert.staged": session.revert_staged,
    "session.revert.cleared": session.revert_cleared,
    "session.revert.committed": session.revert_committed,
    "session.usage.recorded": session.usage,
    "session.usage.updated": session.nothing,
    "session.idle": session.nothing,
    "session.diff": session.nothing,
    "session.error": session.nothing,
    "session.status": first.status,
    "session.message.content.updated": step.content_updated,
    "message.updated": first.message_updated,
    "message.removed": first.message_removed,
    "message.part.updated": first.part_updated,
    "message.part.removed": first.part_removed,
    "message.part.delta": first.part_grows,
}
"""What each event does, by its name."""
