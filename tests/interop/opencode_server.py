"""A real OpenCode server for tests: its binary, a scripted provider on loopback, a home of its own.

The provider speaks the OpenAI form and answers by the last `[[word]]` in what the person said: see SCRIPTS.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Json = Any


def find_binary() -> str | None:
    """The binary of OpenCode: OPENCODE_BIN, or on PATH, or in the npm package in a node_modules near by."""
    given = os.environ.get("OPENCODE_BIN")
    if given:
        return given if os.access(given, os.X_OK) else None
    found = shutil.which("opencode")
    if found:
        return found
    for root in (Path.cwd(), *Path.cwd().parents, Path.home()):
        path = root / "node_modules" / "opencode-linux-x64" / "bin" / "opencode"
        if os.access(path, os.X_OK):
            return str(path)
    return None


def _text(*words: str) -> list[Json]:
    return [{"content": word} for word in words]


def _call(index: int, id_: str, name: str, arguments: Json) -> Json:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"index": index, "id": id_, "type": "function", "function": function}]}


SCRIPTS: dict[str, list[tuple[list[Json], str]]] = {
    # word -> one (deltas, finish reason) per call of the model within the turn
    "hello": [(_text("Hello ", "there."), "stop")],
    "tools": [
        (
            [
                {"reasoning_content": "Need two commands."},
                {"content": "Running."},
                _call(0, "call_a", "bash", {"command": "echo one", "description": "One"}),
                _call(1, "call_b", "bash", {"command": "echo two >&2; exit 3", "description": "Two"}),
            ],
            "tool_calls",
        ),
        (_text("Both ", "have ", "run."), "stop"),
    ],
    "slow": [(_text(*[f"word{n} " for n in range(20)]), "stop")],
}


class Provider:
    """The scripted model, until closed."""

    def __init__(self) -> None:
        provider = self
        self.calls = 0

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: object) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
                provider.calls += 1
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                for chunk in provider.answer(body):
                    self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
                    self.wfile.flush()
                self.wfile.write(b"data: [DONE]\n\n")

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, body: Json) -> Iterator[Json]:
        messages = body["messages"]
        said = [
            n for n, message in enumerate(messages) if message["role"] == "user" and "[[" in str(message["content"])
        ]
        word, step = "hello", 0
        if said:
            word = str(messages[said[-1]]["content"]).rpartition("[[")[2].partition("]]")[0]
            step = sum(message["role"] == "assistant" for message in messages[said[-1] :])
        script = SCRIPTS.get(word, SCRIPTS["hello"])
        deltas, finish = script[min(step, len(script) - 1)]
        base = {"id": "scripted", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
        for delta in deltas:
            yield {**base, "choices": [{"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": None}]}
            if word == "slow":
                time.sleep(0.05)
        yield {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
        usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        yield {**base, "choices": [], "usage": usage}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Home:
    """A home directory and a project for OpenCode, apart from any other."""

    def __init__(self, root: Path, binary: str, provider_url: str) -> None:
        self.binary = binary
        self.project = root / "project"
        self.home = root / "home"
        self.project.mkdir(parents=True)
        self.home.mkdir()
        config = {
            "$schema": "https://opencode.ai/config.json",
            "model": "mock/scripted",
            "small_model": "mock/scripted",
            "share": "disabled",
            "autoupdate": False,
            "permission": {"*": "allow", "bash": "allow", "edit": "allow"},
            "provider": {
                "mock": {
                    "npm": "@ai-sdk/openai-compatible",
                    "name": "Scripted",
                    "options": {"baseURL": provider_url, "apiKey": "none"},
                    "models": {"scripted": {"name": "Scripted", "cost": {"input": 1, "output": 2}}},
                }
            },
        }
        (self.project / "opencode.json").write_text(json.dumps(config))
        (self.project / "README.md").write_text("# A project\n")
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "XDG_DATA_HOME": str(self.home / "data"),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "XDG_STATE_HOME": str(self.home / "state"),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }

    def run(self, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [self.binary, *arguments], cwd=self.project, env=self.env, capture_output=True, timeout=timeout, check=False
        )

    def export(self, session_id: str, to: Path) -> Json:
        """What `opencode export` says, by way of a file: its pipe can be cut short."""
        with to.open("wb") as file:
            subprocess.run(
                [self.binary, "export", session_id],
                cwd=self.project,
                env=self.env,
                stdout=file,
                stderr=subprocess.DEVNULL,
                timeout=60,
                check=True,
            )
        return json.loads(to.read_bytes())


class Server:
    """`opencode serve` in a home."""

    def __init__(self, home: Home, port: int | None = None) -> None:
        self.home = home
        self.port = port or _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process = subprocess.Popen(
            [home.binary, "serve", "--port", str(self.port), "--hostname", "127.0.0.1"],
            cwd=home.project,
            env=home.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._wait()

    def _wait(self) -> None:
        for _ in range(300):
            try:
                self.call("GET", "/session", timeout=1)
            except OSError:
                time.sleep(0.1)
            else:
                return
        raise TimeoutError("opencode did not come up")

    def call(self, method: str, path: str, body: Json = None, timeout: float = 60) -> Json:
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=timeout) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def close(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait(10)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
