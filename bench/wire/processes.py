"""Engines, the worker and the echo, each a process that is gone at the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from bench.wire.line import Line, Refused
from session_manager.functions import FUNCTIONS

COMMAND = (sys.executable, "-c", "from session_manager.cli import main; main()")

_ENGINE = """\
workers:
  - name: iii-worker-manager
    config: {{port: {port}, host: 127.0.0.1}}
  - name: configuration
    config: {{adapter: {{name: fs, config: {{directory: ./config}}}}, ttl_seconds: 0}}
  - name: iii-observability
    config: {{enabled: false, logs_enabled: false, metrics_enabled: false}}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("III_", "SESSION_MANAGER_"))}
    return {**kept, "NO_PROXY": "127.0.0.1,localhost", **more}


@contextlib.contextmanager
def process(command: tuple[str, ...], directory: Path, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "output.txt").open("ab") as output:
        started = subprocess.Popen(
            command,
            cwd=directory,
            env=environment(**more),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield started
    finally:
        if started.poll() is None:
            started.send_signal(signal.SIGTERM)
            try:
                started.wait(15)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()


def engines() -> list[str]:
    """The engines there are: the loopback one, and the real one where the environment names it."""
    real = os.environ.get("III_BIN") or os.environ.get("III_ENGINE_URL")
    return ["loopback", "real"] if real else ["loopback"]


@contextlib.contextmanager
def engine(kind: str, directory: Path) -> Iterator[tuple[str, int | None]]:
    """The URL of an engine, and its process id unless somebody else started it."""
    if kind == "real" and not os.environ.get("III_BIN"):
        yield os.environ["III_ENGINE_URL"], None
        return
    port = free_port()
    directory.mkdir(parents=True, exist_ok=True)
    if kind == "real":
        (directory / "engine.yaml").write_text(_ENGINE.format(port=port), encoding="utf-8")
        command: tuple[str, ...] = (
            str(Path(os.environ["III_BIN"]).resolve()),
            "-c",
            "engine.yaml",
            "--no-update-check",
        )
    else:
        command = (*COMMAND, "engine", "--port", str(port))
    with process(command, directory, III_TELEMETRY_ENABLED="false", HOME=str(directory)) as started:
        deadline = time.monotonic() + 20
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if started.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the {kind} engine does not listen: {_tail(directory)}")
            time.sleep(0.02)
        yield f"ws://127.0.0.1:{port}", started.pid


@contextlib.contextmanager
def worker(url: str, directory: Path, database: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """The worker as users run it, on a file of its own or on a given one."""
    directory.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {"path": str(database or directory / "sessions.db")}
    seed = directory / "seed.yaml"
    seed.write_text(yaml.safe_dump({"adapter": {"name": "sqlite", "config": config}}), encoding="utf-8")
    command = (*COMMAND, "serve", "--url", url, "--config", str(seed))
    with process(command, directory, III_CONFIG_NAME=f"bench-{uuid.uuid4().hex[:12]}") as started:
        yield started


@contextlib.contextmanager
def echo(url: str, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    with process((sys.executable, "-m", "bench.wire.echo", url), directory, PYTHONPATH=os.getcwd()) as started:
        yield started


class Subscriber:
    """See `bench.wire.subscriber`."""

    def __init__(self, url: str, name: str, bindings: int, config: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.wire.subscriber", url, name, str(bindings), json.dumps(config)],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.said: set[str] = set()

    def line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode().strip()
        if not line:
            raise RuntimeError("a subscriber ended")
        return line

    def came(self) -> list[tuple[str, int]]:
        """Entry ids and when their events came (monotonic ns), since it was last asked."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        line = self.line()
        while not line.startswith("["):
            line = self.line()
        found: list[tuple[str, int]] = json.loads(line)
        return found

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            pipe.close()  # type: ignore[union-attr] # both were asked for


async def ready(line: Line, function_id: str, payload: Any, seconds: float = 30.0) -> float:
    """Returns when a function is answered: how many seconds that took from now."""
    import asyncio

    start = time.monotonic()
    while True:
        try:
            await line.call(function_id, payload, 2.0)
        except (Refused, TimeoutError):
            if time.monotonic() - start > seconds:
                raise RuntimeError(f"{function_id} is not answered after {seconds} s") from None
            await asyncio.sleep(0.01)
        else:
            return time.monotonic() - start


async def worker_ready(line: Line, seconds: float = 30.0) -> float:
    """Returns when the last of the worker's functions is answered: how many seconds that took from now."""
    start = time.monotonic()
    ids = [function.id for function in FUNCTIONS]
    while True:
        found = await line.call("engine::functions::info", {"function_ids": ids[-32:]})
        if all("worker_name" in one for one in found["functions"]):
            break
        if time.monotonic() - start > seconds:
            raise RuntimeError("the worker did not register its functions")
        import asyncio

        await asyncio.sleep(0.01)
    await ready(line, "session::config-status", {}, seconds)
    return time.monotonic() - start


def _tail(directory: Path) -> str:
    return (directory / "output.txt").read_text(encoding="utf-8", errors="replace")[-500:]
