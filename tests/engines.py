"""Engines for tests: the loopback one always, the real one where the environment names it.

`III_BIN` is an iii engine binary to start, with a generated configuration, on a free port in a temporary directory;
`III_ENGINE_URL` is one that already runs. Without either `real_engine()` raises `NoEngine`, and the parameters of
`on_both_engines()` skip with its text.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from session_manager.dev import EngineThread, Unkindness
from tests.wire import COMMAND, clean_environment

_CONFIG = """\
workers:
  - name: iii-worker-manager
    config: {{port: {port}, host: 127.0.0.1}}
  - name: configuration
    config: {{adapter: {{name: fs, config: {{directory: ./config}}}}, ttl_seconds: 0}}
  - name: iii-observability
    config: {{enabled: false, logs_enabled: false, metrics_enabled: false}}
"""


class NoEngine(Exception):
    """There is no real engine here."""


_GIVEN: set[int] = set()


def free_port() -> int:
    """A port nothing listens on, given once. It lies below those that a system gives to connections, one of which would
    now and then have it by the time somebody wants to listen on it."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _GIVEN:
                _GIVEN.add(port)
                return port


def wait_for_port(port: int, process: subprocess.Popen[bytes] | None = None, seconds: float = 60.0) -> None:
    """Return when something listens on the port."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process is not None and process.poll() is not None:
            raise RuntimeError(f"the engine stopped with {process.returncode} before it listened")
        time.sleep(0.01)
    raise RuntimeError(f"nothing listens on port {port} after {seconds} s")


class RealEngine:
    """A real engine process, on a port and in a directory that outlive it, so that it can be killed and come back."""

    def __init__(self, binary: str, directory: Path) -> None:
        self.binary = binary
        self.directory = directory
        self.port = free_port()
        self.url = f"ws://127.0.0.1:{self.port}"
        #: Where it keeps configuration entries, one YAML file each.
        self.config_dir = directory / "config"
        self.log = directory / "engine.log"
        self.environment: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it (again) and wait until it listens."""
        config = self.directory / "engine.yaml"
        if not config.exists():
            config.write_text(_CONFIG.format(port=self.port))
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(self.directory),
            "III_TELEMETRY_ENABLED": "false",
            **self.environment,
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [self.binary, "-c", str(config), "--no-update-check"],
                cwd=self.directory,
                env=environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        wait_for_port(self.port, self._process)

    def kill(self) -> None:
        """SIGKILL: it has no chance to say anything."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that takes more than 10 s."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def why_no_engine(*, of_its_own: bool = False) -> str | None:
    """Why there is no real engine here, or None; `of_its_own` asks for one that may be stopped and started."""
    binary = os.environ.get("III_BIN")
    if binary:
        return None if os.access(binary, os.X_OK) else f"III_BIN={binary} is no program"
    if of_its_own:
        return "set III_BIN to an iii engine binary to run this on a real engine of its own"
    if os.environ.get("III_ENGINE_URL"):
        return None
    return "set III_BIN (an iii engine binary) or III_ENGINE_URL (a running one) to run this on the real engine"


def on_both_engines(*, of_its_own: bool = False) -> list[Any]:
    """Parameters for fixtures that make an engine: `loopback`, and `real`, which skips where there is none."""
    why = why_no_engine(of_its_own=of_its_own)
    skip = [] if why is None else [pytest.mark.skip(reason=why)]
    return ["loopback", pytest.param("real", marks=[pytest.mark.engine, *skip])]


@contextmanager
def real_engine_process(environment: dict[str, str] | None = None) -> Iterator[RealEngine]:
    """A real engine of our own, from `III_BIN`, with these variables beside; raises NoEngine without it."""
    why = why_no_engine(of_its_own=True)
    if why is not None:
        raise NoEngine(why)
    with tempfile.TemporaryDirectory(prefix="iii-engine-", ignore_cleanup_errors=True) as directory:
        engine = RealEngine(str(Path(os.environ["III_BIN"]).resolve()), Path(directory))
        engine.environment.update(environment or {})
        engine.start()
        try:
            yield engine
        finally:
            engine.stop()


@contextmanager
def real_engine(environment: dict[str, str] | None = None) -> Iterator[str]:
    """The URL of a real engine: one started from `III_BIN`, or `III_ENGINE_URL`; raises NoEngine without either.

    `environment` is for one that is started.
    """
    why = why_no_engine()
    if why is not None:
        raise NoEngine(why)
    if not os.environ.get("III_BIN"):
        yield os.environ["III_ENGINE_URL"]
        return
    with real_engine_process(environment) as engine:
        yield engine.url


@contextmanager
def loopback_engine(
    config_dir: str | Path | None = None, *, seed: int | None = None, unkindness: Unkindness | None = None
) -> Iterator[str]:
    """The URL of a loopback engine in a thread of its own."""
    with EngineThread(config_dir=config_dir, seed=seed, unkindness=unkindness) as engine:
        yield engine.url


class LoopbackProcess:
    """A loopback engine in a process, on a port and in a directory that outlive it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory, self._port = directory, free_port()
        self.url = f"ws://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._directory / "output.txt").open("ab") as output:
            self._process = subprocess.Popen(
                (*COMMAND, "engine", "--port", str(self._port)),
                cwd=self._directory,
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        wait_for_port(self._port, self._process)

    def hang(self) -> None:
        """From now on it holds its connections and says nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(30)


@contextmanager
def loopback_process(directory: Path) -> Iterator[LoopbackProcess]:
    engine = LoopbackProcess(directory)
    engine.start()
    try:
        yield engine
    finally:
        engine.kill()
