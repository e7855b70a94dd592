"""What the environment says to a connection, and must not say to it."""

from __future__ import annotations

import os
from ipaddress import ip_address

from session_manager.edge.addresses import address


def own_name(default: str) -> str:
    """The name that the environment gives this worker. The SDK would give it to every connection of the process, and
    the engine would refuse the second one, so it is taken out of the environment."""
    return os.environ.pop("III_WORKER_NAME", None) or os.environ.get("SESSION_MANAGER_NAME") or default


def telemetry() -> bool:
    """OpenTelemetry costs more CPU than everything else in a call, and the engine keeps the payloads: off unless asked
    for."""
    return os.environ.get("SESSION_MANAGER_OTEL", "").lower() in ("1", "true", "yes", "on")


def go_straight(url: str) -> None:
    """Lets no proxy that the environment names come between this process and an engine on the same machine: the
    library that opens WebSockets looks there. Raises EngineError."""
    host, _ = address(url)
    try:
        local = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        local = False
    if local:
        spared = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        if host not in spared.split(","):
            os.environ["no_proxy"] = f"{spared},{host}".lstrip(",")
