"""The server's end of one WebSocket, without a task of its own: bytes in, messages out, all in the loop's callbacks."""

from __future__ import annotations

import asyncio
import codecs
import ipaddress
import socket
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

MAX_MESSAGE = 64 * 1024 * 1024
MAX_FRAME = 16 * 1024 * 1024

_CLOSE_PATIENCE_S = 1.0

PATHS = ("/", "/otel")


class Socket(asyncio.Protocol):
    """One WebSocket.

    `on_open(socket, path)` is called once the handshake is done, `on_message` with every complete message, `on_end`
    once when the peer said goodbye, broke a limit or vanished. It is one of `connected` as long as there is a
    connection, whatever is said on it.
    """

    def __init__(
        self,
        on_open: Callable[[Socket, str], None],
        on_end: Callable[[Socket], None],
        connected: set[Socket],
        *,
        nagle: bool,
    ) -> None:
        self._on_open = on_open
        self._on_end = on_end
        self._connected = connected
        self._nagle = nagle
        self._ws = ServerProtocol(max_size=MAX_MESSAGE)
        self._parts: list[bytes] = []
        self._text = False
        self._ended = False
        self._muted = False
        self._flushing = False
        self.on_message: Callable[[bytes], None] = lambda message: None
        self.transport: asyncio.Transport

    # --- the engine's side ---

    def send(self, text: bytes) -> None:
        if self._ws.state is State.OPEN and not self._muted:
            self._ws.send_text(text)
            if not self._flushing:
                # One write for all that is sent in this turn of the loop.
                self._flushing = True
                asyncio.get_running_loop().call_soon(self._flush)

    def close(self) -> None:
        if self._ws.state is State.OPEN:
            self._ws.send_close()
            self._flush()
            asyncio.get_running_loop().call_later(_CLOSE_PATIENCE_S, self.abort)

    def abort(self) -> None:
        self.transport.abort()

    def mute(self) -> None:
        """Go on holding the connection without reading or writing anything, as when the network is gone."""
        self._muted = True
        self.transport.pause_reading()

    @property
    def ip_address(self) -> str | None:
        peer = self.transport.get_extra_info("peername")
        return str(peer[0]) if peer else None

    # --- the loop's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._connected.add(self)
        if self._nagle:
            raw = transport.get_extra_info("socket")
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)

    def data_received(self, data: bytes) -> None:
        self._ws.receive_data(data)
        for event in self._ws.events_received():
            if isinstance(event, Request):
                self._shake_hands(event)
            elif isinstance(event, Frame) and not self._ended:
                self._take(event)
        if self._ws.parser_exc is not None:
            # A broken limit: the engine drops the socket without a close frame.
            self._end()
            self.transport.abort()
        else:
            self._flush()

    def eof_received(self) -> bool | None:
        self._ws.receive_eof()
        self._flush()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._connected.discard(self)
        self._end()

    def _shake_hands(self, request: Request) -> None:
        path = request.path.split("?")[0]
        if path not in PATHS:
            self._ws.send_response(self._ws.reject(404, "no such endpoint\n"))
            return
        origin = request.headers.get("Origin")
        if origin is not None and not is_loopback(urlsplit(origin).hostname or ""):
            # A browser sends the page's origin along: no site on the internet may talk to an engine on this machine.
            self._ws.send_response(self._ws.reject(403, "pages of other machines are not served\n"))
            return
        response = self._ws.accept(request)
        self._ws.send_response(response)
        self._flush()
        if response.status_code == 101:
            self._on_open(self, path)

    def _take(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            self._parts.append(bytes(frame.data))
            self._text = self._text or frame.opcode is Opcode.TEXT
            if len(frame.data) > MAX_FRAME or (frame.fin and self._text and not _is_utf8(self._parts)):
                self._end()
                self.transport.abort()
            elif frame.fin:
                message = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
                self._parts, self._text = [], False
                self.on_message(message)
        elif frame.opcode is Opcode.CLOSE:
            self._end()

    def _flush(self) -> None:
        self._flushing = False
        chunks = self._ws.data_to_send()
        if not chunks or self.transport.is_closing():
            return
        at_end = not chunks[-1]  # an empty chunk is the end of the stream
        self.transport.writelines(chunks[:-1] if at_end else chunks)
        if at_end and self.transport.can_write_eof():
            self.transport.write_eof()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._on_end(self)


def _is_utf8(parts: list[bytes]) -> bool:
    """Whether the parts together are text; a character may lie across two of them."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for part in parts:
            decoder.decode(part)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether a host, by its name or address, is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
