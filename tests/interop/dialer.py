"""A dialer on CPython's sockets for the core's client, which can cut its connections at any byte."""

import select
import socket
import struct
import time


class CutError(OSError):
    """The connection was cut on purpose."""


class SocketTransport:
    """A non-blocking socket as the core wants it. ``cut_up``, ``cut_down``: break behind so many bytes, -1 = never."""

    def __init__(self, s: socket.socket, cut_up: int = -1, cut_down: int = -1):
        self.socket = s
        self.sent = bytearray()
        self.received = bytearray()
        self._cut_up = cut_up
        self._cut_down = cut_down

    def readinto(self, buf: bytearray | memoryview, n: int) -> int | None:
        if self._cut_down >= 0:
            n = min(n, self._cut_down - len(self.received))
            if n == 0:
                raise self.cut()
        view = memoryview(buf)[:n]
        try:
            k = self.socket.recv_into(view)
        except BlockingIOError:
            return None
        self.received += view[:k]
        return k

    def write(self, buf: bytes | bytearray | memoryview, off: int, n: int) -> int | None:
        if self._cut_up >= 0:
            n = min(n, self._cut_up - len(self.sent))
            if n == 0:
                raise self.cut()
        view = memoryview(buf)[off : off + n]
        try:
            k = self.socket.send(view)
        except BlockingIOError:
            return None
        self.sent += view[:k]
        return k

    def cut(self) -> CutError:
        """Break the connection: what was sent may still arrive, and nothing else; no orderly end."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()
        return CutError()

    def close(self) -> None:
        self.socket.close()


class SocketDialer:
    """Connects to a port of this machine; ``cuts`` has (cut_up, cut_down) of each connection to come."""

    def __init__(self, port: int, cuts: list[tuple[int, int]] | None = None):
        self.port = port
        self.cuts = cuts or []
        self.opened: list[SocketTransport] = []

    def open(self) -> SocketTransport:
        s = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        s.setblocking(False)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.opened.append(SocketTransport(s, *(self.cuts.pop(0) if self.cuts else ())))
        return self.opened[-1]

    def ticks_ms(self) -> int:
        return int(time.monotonic() * 1000)

    def wait(self, ms: int) -> None:
        s = self.opened[-1].socket
        if s.fileno() < 0:
            return
        select.select([s], [], [], ms / 1000)
