"""A server of 2.1, as far as a mirror sees one: sessions, logs, and a stream of what happens.

No such server is to be had. The shapes are those of opencode-python-sdk; the conversations are recorded ones of the
early second generation, told in the events of 2.1.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Json = Any


def told_later(events: list[Json]) -> Iterator[Json]:
    """Early durable events, as 2.1 tells the same."""
    ordinals: dict[tuple[str, str], int] = {}
    session = events[0]["durable"]["aggregateID"]
    created = {"projectID": "p", "location": {"directory": "/project"}, "slug": "s", "title": "T", "version": "2.1.2"}
    at = events[0]["data"]["timestamp"]
    yield _event("evt_created", "session.created", session, 0, at, {"sessionID": session, **created})
    for event in events:
        name = event["type"].removeprefix("session.next.")
        data = dict(event["data"])
        at = data.pop("timestamp")
        if "callID" in data:
            data["id"] = data.pop("callID")
        provider = data.pop("provider", None)
        if provider is not None:
            data["executed"] = provider["executed"]
        kind = name.split(".")[0]
        if kind in ("text", "reasoning"):
            data.pop(f"{kind}ID")
            key = (data["assistantMessageID"], kind)
            if name.endswith("started"):
                ordinals[key] = ordinals.get(key, -1) + 1
            data["ordinal"] = ordinals[key]
        if name == "prompt.admitted":
            name = "inbox.enqueued"
            item = {"type": "user", "payload": _prompt(data.pop("prompt")), "delivery": data.pop("delivery")}
            data = {"sessionID": session, "inboxID": data["messageID"], "item": item}
        elif name == "prompted":
            name, data = "inbox.delivered", {"sessionID": session, "inboxID": data["messageID"]}
        elif name in ("tool.success", "tool.failed"):
            answer = data.pop("structured", None)
            data.pop("outputPaths", None)
            result = data.pop("result", None)
            if answer:
                data["metadata"] = answer
            if name == "tool.success" and not data["content"]:
                data["content"] = [{"type": "text", "text": json.dumps(answer or result, indent=2, ensure_ascii=False)}]
        elif name == "step.started":
            data["started"] = at
        elif name == "step.failed" and data["error"]["message"].endswith("interrupted"):
            data["error"] = {**data["error"], "type": "aborted"}
        elif name == "revert.committed":
            continue  # 2.1 draws the line elsewhere
        yield _event(event["id"], f"session.{name}", session, event["durable"]["seq"], at, data)


def _prompt(prompt: Json) -> Json:
    return {
        **prompt,
        **(
            {"agents": [{"name": a["name"], "mention": a["source"]} for a in prompt["agents"]]}
            if "agents" in prompt
            else {}
        ),
    }


def _event(id_: str, type_: str, session: str, seq: int, at: int, data: Json) -> Json:
    durable = {"aggregateID": session, "seq": seq, "version": 1}
    return {"id": id_, "created": at, "type": type_, "durable": durable, "data": data}


def delta(session: str, message: str, words: str) -> Json:
    data = {"sessionID": session, "assistantMessageID": message, "ordinal": 0, "delta": words}
    return {"id": "evt_delta", "created": 1, "type": "session.text.delta", "data": data}


class LaterServer:
    """Starts empty. `say` makes an event happen; `stop` and `start` are a restart that keeps the logs."""

    def __init__(self) -> None:
        self.logs: dict[str, list[Json]] = {}
        self.lists: dict[str, Json] = {}
        self.active: set[str] = set()
        self.asked: list[str] = []
        self._listeners: list[queue.Queue[Json]] = []
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def say(self, *events: Json, live: bool = True) -> None:
        """Events happen. Those that are not live are in the log only."""
        for event in events:
            with self._lock:
                if "durable" in event:
                    self.logs.setdefault(event["durable"]["aggregateID"], []).append(event)
                for listener in self._listeners if live else []:
                    listener.put(event)

    def start(self) -> None:
        later = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                later._answer(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def drop(self) -> None:
        """Ends all streams."""
        with self._lock:
            for listener in self._listeners:
                listener.put(None)
            self._listeners.clear()

    def stop(self) -> None:
        self.drop()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        self.asked.append(request.path)
        parts = url.path.strip("/").split("/")
        if url.path == "/api/health":
            self._json(request, {"healthy": True, "version": "2.1.2"})
        elif url.path == "/api/session":
            rows = [] if "cursor" in query else [{"id": id_} for id_ in list(self.logs)]  # events happen meanwhile
            self._json(request, {"data": rows, "cursor": {"next": "more" if rows else None}})
        elif url.path == "/api/session/active":
            self._json(request, {"data": {id_: {"type": "running"} for id_ in list(self.active)}})
        elif url.path == "/api/event":
            self._live(request)
        elif parts[:3] == ["api", "experimental", "session"] and parts[3] in self.logs and parts[4] == "log":
            after = int(query.get("after", -1))
            events = [event for event in self.logs[parts[3]] if event["durable"]["seq"] > after]
            self._head(request)
            for event in events:
                self._send(request, event)
            self._send(request, {"type": "log.synced", "aggregateID": parts[3], "seq": after + len(events)})
        elif parts[:3] == ["api", "experimental", "session"] and parts[3] in self.lists and parts[4] == "export":
            self._json(request, {"data": self.lists[parts[3]]})
        else:
            self._json(request, {"_tag": "NotFound", "message": "no such thing"}, 404)

    def _live(self, request: BaseHTTPRequestHandler) -> None:
        listener: queue.Queue[Json] = queue.Queue()
        with self._lock:
            self._listeners.append(listener)
        self._head(request)
        self._send(request, {"id": "evt_c", "created": 1, "type": "server.connected", "data": {}})
        while (event := listener.get()) is not None:
            try:
                self._send(request, event)
            except OSError:
                return

    def _head(self, request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("content-type", "text/event-stream")
        request.send_header("connection", "close")
        request.end_headers()

    def _send(self, request: BaseHTTPRequestHandler, event: Json) -> None:
        request.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        request.wfile.flush()

    def _json(self, request: BaseHTTPRequestHandler, value: Json, status: int = 200) -> None:
        body = json.dumps(value).encode()
        request.send_response(status)
        request.send_header("content-type", "application/json")
        request.send_header("content-length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)
