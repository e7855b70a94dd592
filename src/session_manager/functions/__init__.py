"""The API: every function of the worker, one line each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, TypeVar

from msgspec import Struct

from session_manager.functions import branches, entries, lifecycle, raw, settings
from session_manager.model import JsonObject, SessionMeta, WireEntry
from session_manager.outcome import Outcome, Tools

R = TypeVar("R", bound=Struct)
Rule = Callable[[Tools, Any], Awaitable[Outcome]]

TRACE_HIDDEN: JsonObject = {"trace_hidden": True}
INTERNAL: JsonObject = {"internal": True, "trace_hidden": True}


class Kind(Enum):
    """How a call travels."""

    READ = "read"
    """Sees what is durable."""
    WRITE = "write"
    """Decides ahead of what is durable, one at a time per session."""
    FRESH = "fresh"
    """Writes a session that nobody knows yet: no lock."""
    RAW = "raw"
    """Part of the store protocol: no lock, no rule; served only where the store is this instance's own."""
    RAW_READ = "raw read"
    SETTINGS = "settings"
    """About the worker itself."""

    @property
    def writes(self) -> bool:
        return self in (Kind.WRITE, Kind.FRESH, Kind.RAW)


class Function(Struct, frozen=True):
    id: str
    kind: Kind
    request: type[Struct]
    response: Any
    """The type of the reply, as its schema shows it; None in a union stands for JSON null."""
    rule: Rule
    description: str
    metadata: JsonObject
    read_as: type[Struct] | None = None
    """What a request is read as where that is not `request`: the same with a hint (see `hints`), of which the schema
    says nothing."""


def _function(
    name: str,
    kind: Kind,
    request: type[Struct],
    response: Any,
    rule: Callable[[Tools, R], Awaitable[Outcome]],
    about: str,
    read_as: type[R] | None = None,
) -> Function:
    hidden = TRACE_HIDDEN if kind is Kind.READ else INTERNAL
    return Function(f"session::{name}", kind, request, response, rule, about, hidden, read_as)


_f = _function
_STORE = "Internal store protocol, for instances that share this store: "

FUNCTIONS: tuple[Function, ...] = (
    # The store protocol comes first: whoever waits for a public function finds it ready.
    _f("store::get-meta", Kind.RAW_READ, raw.SessionIdRequest, SessionMeta | None, raw.get_meta,
       _STORE + "read one session record, or null."),
    _f("store::put-meta", Kind.RAW, raw.PutMetaRequest, raw.OkResponse, raw.put_meta,
       _STORE + "write one session record as given; fires nothing."),
    _f("store::delete-meta", Kind.RAW, raw.SessionIdRequest, raw.OkResponse, raw.delete_meta,
       _STORE + "remove one session record and nothing else; fires nothing."),
    _f("store::list-metas", Kind.RAW_READ, raw.ListMetasRequest, raw.ListMetasResponse, raw.list_metas,
       _STORE + "read all session records.", raw.ListMetasHinted),
    _f("store::get-entry", Kind.RAW_READ, raw.EntryIdRequest, WireEntry | None, raw.get_entry,
       _STORE + "read one entry, or null."),
    _f("store::put-entry", Kind.RAW, raw.PutEntryRequest, raw.OkResponse, raw.put_entry,
       _STORE + "write one entry as given, replacing one of the same id; fires nothing.", raw.PutEntryHinted),
    _f("store::list-entries", Kind.RAW_READ, raw.SessionIdRequest, raw.ListEntriesResponse, raw.list_entries,
       _STORE + "read the entries of a session on all branches.", raw.SessionIdHinted),
    _f("store::delete-entries", Kind.RAW, raw.SessionIdRequest, raw.OkResponse, raw.delete_entries,
       _STORE + "remove the entries of a session and nothing else; fires nothing."),
    _f("store::get-active-leaf", Kind.RAW_READ, raw.SessionIdRequest, raw.ActiveLeafResponse, raw.get_active_leaf,
       _STORE + "read where the active path of a session ends.", raw.SessionIdHinted),
    _f("store::set-active-leaf", Kind.RAW, raw.EntryIdRequest, raw.OkResponse, raw.set_active_leaf,
       _STORE + "set where the active path of a session ends, unchecked; fires nothing."),
    _f("store::delete-active-leaf", Kind.RAW, raw.SessionIdRequest, raw.OkResponse, raw.delete_active_leaf,
       _STORE + "forget where the active path of a session ends; fires nothing."),
    _f("store::publish-events", Kind.RAW, raw.PublishEventsRequest, raw.PublishEventsResponse, raw.publish_events,
       _STORE + "fan the given events out to this instance's subscribers and to every bridge, storing nothing."),
    # The public functions.
    _f("create", Kind.FRESH, lifecycle.CreateRequest, lifecycle.CreateResponse, lifecycle.create,
       "Start a new, idle session under an id made for it, which fires session::created."),
    _f("ensure", Kind.WRITE, lifecycle.EnsureRequest, lifecycle.EnsureResponse, lifecycle.ensure,
       "Have a session under the given id: return the one there is, untouched, or make it, which fires "
       "session::created."),
    _f("get", Kind.READ, lifecycle.GetRequest, lifecycle.GetResponse | None, lifecycle.get,
       "Read one session's record, or null when there is none; fires nothing."),
    _f("list", Kind.READ, lifecycle.ListRequest, lifecycle.ListResponse, lifecycle.list_,
       "Read session records page by page, in a chosen order, filtered by status and metadata; fires nothing."),
    _f("set-meta", Kind.WRITE, lifecycle.SetMetaRequest, lifecycle.SetMetaResponse, lifecycle.set_meta,
       "Replace a session's title, description or metadata, which fires session::meta-updated when any is given."),
    _f("set-draft", Kind.WRITE, lifecycle.SetDraftRequest, lifecycle.SetDraftResponse, lifecycle.set_draft,
       "Park a person's unsent text on the session record or clear it, silently: fires nothing."),
    _f("set-status", Kind.WRITE, lifecycle.SetStatusRequest, lifecycle.SetStatusResponse, lifecycle.set_status,
       "Say what a session is doing and why, which fires session::status-changed unless nothing changed."),
    _f("delete", Kind.WRITE, lifecycle.DeleteRequest, lifecycle.DeleteResponse, lifecycle.delete,
       "Remove a session with all its entries, which fires session::deleted if it was there."),
    _f("append", Kind.WRITE, entries.AppendRequest, entries.AppendResponse, entries.append,
       "Add one message or bookkeeping record and make it the active leaf, which fires session::message-added; "
       "with an entry id the call may be repeated safely."),
    _f("append-many", Kind.WRITE, entries.AppendManyRequest, entries.AppendManyResponse, entries.append_many,
       "Add several messages in order as one change, which fires one session::message-added each."),
    _f("update-message", Kind.WRITE, entries.UpdateMessageRequest, entries.UpdateMessageResponse,
       entries.update_message,
       "Replace a message's content in place, if wanted only at an expected revision, which fires "
       "session::message-updated."),
    _f("messages", Kind.READ, entries.MessagesRequest, entries.MessagesResponse, entries.messages,
       "Read the active path, or the path to a given entry, page by page with entry ids, oldest first; fires nothing."),
    _f("get-message", Kind.READ, entries.GetMessageRequest, entries.GetMessageResponse | None, entries.get_message,
       "Read one entry with its place, revision and origin, or null when there is none; fires nothing."),
    _f("fork", Kind.FRESH, branches.ForkRequest, branches.ForkResponse, branches.fork,
       "Copy the path up to an entry into a new session that then lives its own life, which fires session::created."),
    _f("set-active-leaf", Kind.WRITE, branches.SetActiveLeafRequest, branches.SetActiveLeafResponse,
       branches.set_active_leaf,
       "Switch the session to the branch that ends in the given entry, silently: fires nothing."),
    _f("on-config-change", Kind.SETTINGS, settings.OnConfigChangeRequest, settings.OnConfigChangeResponse,
       settings.on_config_change,
       "Read the worker's configuration again and put it into force; an adapter change replays the new store's "
       "sessions as events."),
    _f("config-status", Kind.SETTINGS, settings.ConfigStatusRequest, settings.ConfigStatusResponse,
       settings.config_status,
       "Tell whether the newest configuration is in force, and why not; fires nothing."),
)  # fmt: skip
