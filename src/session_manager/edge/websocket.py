"""The WebSocket under a line."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.frames import Frame as Part
from websockets.frames import Opcode
from websockets.protocol import OPEN, Event

from session_manager.edge.frames import FAREWELL, FRAME_BYTES, MESSAGE_BYTES

PING, PONG = 10.0, 20.0
"""Seconds between two looks whether the engine is still there, and that it may take to answer."""

PIECE = 1 << 20
"""Bytes of each part of a message that does not fit into one frame."""

Take = Callable[[bytes], None]
"""Is handed each message. Raises nothing."""

Expects = Callable[[], bool]
"""Whether more messages should be on their way."""


async def connected(url: str, take: Take, expects: Expects, seconds: float) -> Socket:
    """An open WebSocket to an engine, with the token that the environment has for it. Raises whatever may go wrong."""
    token = os.environ.get("III_TOKEN", "").strip()
    opened = await connect(
        url,
        additional_headers={"Authorization": f"Bearer {token}"} if token else None,
        compression=None,
        open_timeout=seconds,
        ping_interval=PING,
        ping_timeout=PONG,
        close_timeout=FAREWELL,
        max_size=MESSAGE_BYTES,
        create_connection=partial(Socket, take, expects),  # type: ignore[arg-type] # it is called and nothing else
    )
    assert isinstance(opened, Socket)
    return opened


class Socket(ClientConnection):
    """A WebSocket whose messages are handed over as they arrive, instead of waiting in a queue until a task wakes up;
    and which acknowledges at once what is not all: the engine holds the end of a message, or a small one, back while
    something before it is not acknowledged, which the kernel may put off for 40 ms."""

    def __init__(self, take: Take, expects: Expects, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._take, self._expects = take, expects
        self._took = False
        self._parts: list[bytes] = []
        self._kernel: socket.socket | None = None

    def put(self, text: bytes) -> None:
        """Sends a message. Raises OSError or WebSocketException when it is not open."""
        if self.protocol.state is not OPEN:
            raise ConnectionError
        if len(text) <= FRAME_BYTES:
            self.protocol.send_text(text)
        else:
            first, *others = _pieces(text)
            self.protocol.send_text(first, fin=False)
            for number, piece in enumerate(others, 1):
                self.protocol.send_continuation(piece, fin=number == len(others))
        self.send_data()

    async def close(self, *args: Any, **options: Any) -> None:
        """Who hangs at the other end takes no close frame, nor what was to be sent before."""
        given_up = self.loop.call_later(FAREWELL, self.transport.abort)
        try:
            await super().close(*args, **options)
        finally:
            given_up.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if hasattr(socket, "TCP_QUICKACK"):
            self._kernel = socket.socket(fileno=transport.get_extra_info("socket").fileno())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._kernel is not None:
            self._kernel.detach()  # it is the transport that closes it
            self._kernel = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._took = False
        super().data_received(data)
        if self._kernel is not None and (self._expects() or not self._took):
            self._kernel.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)  # holds for a while only

    def process_event(self, event: Event) -> None:
        if isinstance(event, Part) and event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            self._parts.append(bytes(event.data))
            if event.fin:
                message, self._parts = b"".join(self._parts), []
                self._took = True
                self._take(message)
        else:
            super().process_event(event)


def _pieces(text: bytes) -> Iterator[bytes]:
    """Parts that end where a character ends."""
    start = 0
    while start < len(text):
        end = min(start + PIECE, len(text))
        while end < len(text) and text[end] & 0b1100_0000 == 0b1000_0000:
            end -= 1
        yield text[start:end]
        start = end
