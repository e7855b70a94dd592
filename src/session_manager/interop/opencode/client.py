"""A running OpenCode server. The only importer of `opencode-python-sdk`.

The SDK gives the connection: authentication, retries, errors, event streams. Answers are taken as the JSON they are,
never as its models: a model turns integers into floats, and knows nothing of what 1.x sends.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from session_manager.interop.opencode.records import Record, obj, objects, text
from session_manager.model import Json, JsonObject

if TYPE_CHECKING:
    from opencode import AsyncOpencode

PAGE = 100
"""Messages per request; 1.x takes at most 200."""

QUIET_S = 90.0
"""A server says something on its event streams at least every 30 seconds; after so many of silence it is gone."""


class ServerFailed(Exception):
    """The server cannot be reached, or answered with an error. The text says which."""


class NotThere(ServerFailed):
    """The server answered that there is no such thing."""


class NotInstalled(Exception):
    def __init__(self) -> None:
        super().__init__("reading from a server needs the extra `opencode`: pip install '.[opencode]' in the checkout")


def check_address(url: str) -> str:
    """The host of a server's address. Raises ServerFailed where it is none, and NotInstalled."""
    if not all(find_spec(module) for module in ("httpx", "opencode")):
        raise NotInstalled
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not host:
        raise ServerFailed(f"{url!r} is no address of a server; it begins with http:// or https://")
    return host


class Server:
    """One server, of either generation. `open()` finds out which.

    Every method raises ServerFailed.
    """

    def __init__(self, url: str, password: str | None = None) -> None:
        """Raises NotInstalled as well."""
        host = check_address(url)
        import httpx
        import opencode

        self.url = url
        self._sdk = opencode
        local = host in ("127.0.0.1", "localhost", "::1")
        # A proxy named in the environment is no way to this machine.
        self._http = httpx.AsyncClient(trust_env=not local, follow_redirects=True, timeout=30)
        self._client: AsyncOpencode = opencode.AsyncOpencode(
            url, password=password, http_client=self._http, max_retries=1
        )
        self.version: str | None = None
        self.is_1x = False

    async def open(self) -> None:
        """Asks the server what it is."""
        try:
            health = await self.get("/global/health", within=5.0)
        except NotThere:
            health = None
        if isinstance(health, dict) and "version" in health:
            self.version, self.is_1x = text(health, "version"), text(health, "version").startswith(("0.", "1."))
            return
        health = await self.get("/api/health", within=5.0)
        if not isinstance(health, dict):
            raise ServerFailed(f"{self.url} is no OpenCode server")
        self.version = text(health, "version") or None

    async def close(self) -> None:
        await self._client.close()
        await self._http.aclose()

    async def get(self, path: str, query: JsonObject | None = None, within: float = 60.0) -> Json:
        return await self._asked(self._client.get(path, query=query, timeout=within))

    async def post(self, path: str, body: Json) -> Json:
        return await self._asked(self._client.post(path, body=body))

    async def _asked(self, call: Any) -> Json:
        sdk = self._sdk
        try:
            return await call
        except sdk.NotFoundError as error:
            raise NotThere(f"{self.url}: {error}") from None
        except sdk.APIResponseValidationError:
            # An address that a server does not know may be answered with a page for people.
            raise NotThere(f"{self.url} did not answer with JSON") from None
        except sdk.OpencodeError as error:
            raise ServerFailed(f"{self.url}: {error}") from None

    # --- sessions ---

    async def session_ids(self) -> list[str]:
        """All sessions of the server, in all directories."""
        return [text(row, "id") async for row in self._pages("/api/session", {"limit": PAGE})]

    async def info(self, session_id: str) -> JsonObject:
        """The session record of the second generation."""
        return obj({"info": _data(await self.get(f"/api/session/{_path(session_id)}"))}, "info")

    async def info_1x(self, session_id: str) -> JsonObject:
        """The session record of the first generation, which knows metadata and permissions."""
        return obj({"info": await self.get(f"/session/{_path(session_id)}")}, "info")

    async def messages_1x(self, session_id: str) -> list[Record] | None:
        """The message list of the first generation; None when the server cannot show it."""
        try:
            rows = await self.get(f"/session/{_path(session_id)}/message")
        except ServerFailed:
            # 1.18 refuses to show sessions whose messages asked for structured output.
            return None
        return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else None

    async def messages(self, session_id: str) -> list[Record]:
        """The message list of the second generation, oldest first."""
        rows = self._pages(f"/api/session/{_path(session_id)}/message", {"limit": PAGE, "order": "asc"})
        return [row async for row in rows]

    async def transfer(self, session_id: str) -> JsonObject | None:
        """The transfer document `{info, messages}` of 2.x; None where there is none."""
        try:
            answer = _data(await self.get(f"/api/experimental/session/{_path(session_id)}/export"))
        except NotThere:
            return None
        return answer if isinstance(answer, dict) and {"info", "messages"} <= answer.keys() else None

    async def working(self) -> set[str]:
        """The sessions that the server works on now."""
        busy: set[str] = set()
        answer = _data(await self.get("/api/session/active"))
        busy.update(answer if isinstance(answer, dict) else ())
        if self.is_1x:
            states = await self.get("/session/status")
            if isinstance(states, dict):
                busy.update(key for key in states if obj(states, key).get("type") in ("busy", "retry"))
        return busy

    async def _pages(self, path: str, query: JsonObject) -> AsyncIterator[JsonObject]:
        """All rows of a list. The end is an empty page: a last full page still names a next one."""
        while True:
            answer = await self.get(path, query)
            rows = objects(answer, "data") if isinstance(answer, dict) else []
            for row in rows:
                yield row
            following = text(obj(answer, "cursor"), "next") if isinstance(answer, dict) else ""
            if not rows or not following:
                return
            # The cursor carries the order; naming both is refused.
            query = {"limit": PAGE, "cursor": following}

    # --- logs and streams ---

    async def history_1x(self, known: dict[str, int]) -> list[JsonObject]:
        """The durable events of all sessions of a 1.x server behind the places in `known`."""
        rows = await self.post("/sync/history", known)
        return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []

    async def log(self, session_id: str, after: int | None) -> list[JsonObject]:
        """The durable events of a session of a 2.x server behind a place. Raises NotThere for unknown sessions."""
        query: JsonObject = {"follow": "false"}
        if after is not None:
            query["after"] = after
        path = f"/api/experimental/session/{_path(session_id)}/log"
        events = []
        async with aclosing(self._stream(path, query)) as stream:
            async for event in stream:
                if event.get("type") == "log.synced":
                    break
                events.append(event)
        return events

    def events(self) -> AsyncGenerator[JsonObject, None]:
        """What happens on the server from now on; its first element says that the stream is open. Ends, or raises
        ServerFailed, when the connection is lost."""
        return self._stream("/global/event" if self.is_1x else "/api/event", {})

    async def _stream(self, path: str, query: JsonObject) -> AsyncGenerator[JsonObject, None]:
        from opencode._base_client import RequestOptions

        options = RequestOptions(method="GET", path=path, query=query, timeout=QUIET_S)
        sdk = self._sdk
        try:
            async with await self._client.stream(options, item_type=object) as stream:
                async for event in stream:
                    if isinstance(event, dict):
                        yield event
        except sdk.NotFoundError as error:
            raise NotThere(f"{self.url}: {error}") from None
        except sdk.OpencodeError as error:
            raise ServerFailed(f"{self.url}: {error}") from None


def _path(session_id: str) -> str:
    return quote(session_id, safe="")


def _data(answer: Json) -> Json:
    return answer["data"] if isinstance(answer, dict) and "data" in answer else answer
