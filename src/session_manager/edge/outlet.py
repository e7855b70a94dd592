"""The way out of a WebSocket, for its event loop and for a thread that makes changes durable.

An answer that waits for the disk could go from that thread to the event loop and be sent there; but to wake up an event
loop that has nothing else to do takes longer than to send. So the answer is made ready beforehand, and leaves from the
thread; the event loop is told afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from typing import Any

from websockets.frames import Frame, Opcode
from websockets.protocol import State

from session_manager.edge.frames import result
from session_manager.edge.haste import SMALL
from session_manager.model import encode


class Outlet:
    """Of one open connection of websockets, whose `send_data` it replaces. All on its event loop but `aside`."""

    def __init__(self, ws: Any) -> None:
        self._ws = ws
        self._send_each = ws.send_data
        self._lock = threading.Lock()
        """Whoever has it writes whole frames, or knows that a beginning is out and whose turn the end is."""
        self._rest = b""
        """The end of a frame that left aside in part."""
        self._midway = ws.protocol.expect_continuation_frame
        """Whether a message is on its way of which only some frames have gone out."""
        self._clogged = ws.transport.get_write_buffer_size() > 0
        """Whether something waited in the transport when it was looked at last, which is whenever a frame comes."""
        self._socket = _plain_socket(ws)

    def send_data(self) -> None:
        """Sends what was said in one write. The connection's own way is a write for each frame, whenever something
        arrives as well."""
        with self._lock:
            if self._rest:
                self._ws.transport.write(self._rest)
                self._rest = b""
            if self._ws.state is not State.OPEN:
                self._send_each()  # which knows the end of a connection
            elif said := self._ws.protocol.data_to_send():
                self._ws.transport.writelines(said)
            self._midway = self._ws.protocol.expect_continuation_frame
            self._clogged = self._ws.transport.get_write_buffer_size() > 0

    def aside(self, frame: bytes) -> bool:
        """Sends a frame from any thread. False where it may not, or cannot go at once; then nothing was sent."""
        with self._lock:
            if not self._is_free():
                return False
            assert self._socket is not None
            try:
                sent = self._socket.send(frame)
            except OSError:  # the kernel takes nothing now, or the connection is broken; the event loop will see
                return False
            if sent < len(frame):
                self._rest = frame[sent:]
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._ws.loop.call_soon_threadsafe(self.send_data)
            return True

    def _is_free(self) -> bool:
        """Whether nothing else is on its way out, and the connection takes a message."""
        return (
            self._socket is not None
            and self._ws.state is State.OPEN
            and not self._midway
            and not self._clogged
            and not self._rest
        )

    def lost(self) -> None:
        """To be called before the transport closes the socket."""
        with self._lock:
            self._rest = b""
            if self._socket is not None:
                self._socket.detach()
                self._socket = None


def _plain_socket(ws: Any) -> socket.socket | None:
    """The socket, where messages go over it as they are. A connection may have ended before anybody looks at it."""
    transport = ws.transport
    if ws.protocol.extensions or transport.is_closing() or transport.get_extra_info("ssl_object") is not None:
        return None
    descriptor = transport.get_extra_info("socket").fileno()
    return socket.socket(fileno=descriptor) if descriptor >= 0 else None


class Early:
    """The answer of one call, which may leave as soon as the call's change is durable."""

    def __init__(self, outlet: Outlet, head: bytes) -> None:
        self._outlet, self._head = outlet, head
        self._lock = threading.Lock()
        self._frame: bytes | None = None
        self.answer = b""
        """What was said last."""
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        """Ends when the event loop knows what the answer tells."""
        self.left_at: float | None = None
        """When it left, or is about to leave, by the monotonic clock."""

    def say(self, reply: Any) -> None:
        self.answer = self._head + result(encode(reply))
        self._frame = Frame(Opcode.TEXT, self.answer).serialize(mask=True) if len(self.answer) <= SMALL else None

    def leave(self) -> None:
        with self._lock:
            if self._frame is not None:
                self.left_at = time.monotonic()  # beforehand: what it makes somebody ask may come at once
                if not self._outlet.aside(self._frame):
                    self.left_at = None

    def stay(self) -> bool:
        """Leaves the answer to the event loop, if it has not left yet."""
        with self._lock:
            self._frame = None
            return self.left_at is None
