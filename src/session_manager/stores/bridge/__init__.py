"""A store that another instance keeps: every operation is calls of the main instance's `session::store::*` functions.

Rules, locks and ids are this instance's own; nothing is cached, because others write to the same store. Nothing here
knows how a call travels: that is `Main`.

**Hints.** A main instance of this worker takes hints (see `hints`): it reads a session or a page in one call, which
costs what the page costs, and makes a change that has entries in one call, whole or not at all (a very big one in a
few, of which the last makes it visible). Whether it takes them shows in every reply to a call that had one, so it may
be replaced by a worker that does not at any time. Beside such a worker a change is several calls, in the order of
`steps`.

**What a failed write leaves.** The caller learns `session/storage`, and any subset of the failed step's calls may have
been done. What was being written is remembered (`failures`), and until the session is written to again the view ahead
of the store (`ahead`) subtracts it: a record, leaf or entry that is exactly what the failed change would have written
is shown as it was before. So a retry is decided on the state before the failure, writes everything anew, and tells its
events; and a different change does not build on the failed one. When the process itself dies in between, an entry that
no leaf or record knows about is recognised when its id is asked for again, by its time (every append stamps the record
with the time of its entry) and by the count of messages; it is forgotten if the leaf is still before it, and completed
if not.
"""

from session_manager.stores.bridge.main import Main, MainError, MainSilent
from session_manager.stores.bridge.store import BridgeStore

__all__ = ["BridgeStore", "Main", "MainError", "MainSilent"]
