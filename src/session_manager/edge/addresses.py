"""Addresses of engines, and whether two lead to one."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from urllib.parse import urlsplit

from session_manager.edge.failures import EngineError


def address(url: str) -> tuple[str, int]:
    """Host and port. Raises EngineError when it is no WebSocket URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
        (parts.hostname or "").encode("idna")  # as whoever looks the name up will do
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise EngineError(f"{url!r} is no WebSocket URL")
    return parts.hostname, port or (443 if parts.scheme == "wss" else 80)


async def same_engine(one: str, other: str) -> bool:
    """Whether two URLs are seen to lead to one engine: they are equal, or two names of this machine's own addresses
    (`localhost`, `127.0.0.1`) with one port and path. Elsewhere two names of one address may be two engines."""
    if one == other:
        return True
    (one_host, one_port), (other_host, other_port) = address(one), address(other)
    if one_port != other_port or urlsplit(one).path.strip("/") != urlsplit(other).path.strip("/"):
        return False
    return await _is_this_machine(one_host) and await _is_this_machine(other_host)


async def _is_this_machine(host: str) -> bool:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None)
    except OSError:
        return False
    return all(ip_address(to[0]).is_loopback for *_, to in found)
