"""Publishers of the numbered messages that the clients of `host` receive, over the broker or directly."""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import threading

from tools.bench.dialects import read_packet
from tools.bench.hosts import sync
from tools.bench.hosts.job import HOST, packet

_TIMEOUT_S = 120
_PIECE = 1 << 16


class FloodError(Exception):
    """The messages could not be sent."""


def _send(to: socket.socket, qos: int, messages: int, left: int) -> None:
    """Send messages at full speed, and read `left` bytes or until the end."""
    block = memoryview(b"".join(packet(qos, i) for i in range(messages)))
    to.setblocking(False)
    while block or left > 0:
        readable, writable, _ = select.select([to], [to] if block else [], [], _TIMEOUT_S)
        if not readable and not writable:
            raise FloodError("the peer accepts no more bytes")
        try:
            if readable:
                answers = to.recv(_PIECE)
                left -= len(answers)
                if not answers:
                    break
            if writable:
                block = block[to.send(block[:_PIECE]) :]
        except ConnectionError:
            break
    if block:
        raise FloodError("the peer disconnected before all messages were sent")


class BrokerFlood:
    """A publisher connected to the broker at `port`; `start` sends."""

    def __init__(self, port: int, qos: int, messages: int) -> None:
        self.port = port
        self._work = (qos, messages)
        self._socket = sync.join(port, b"bench-flood")

    def start(self) -> None:
        """Publish all messages; at QoS 1 until they are acknowledged. Raises FloodError."""
        qos, messages = self._work
        _send(self._socket, qos, messages, 4 * messages if qos else 0)

    def close(self) -> None:
        """Disconnect."""
        self._socket.close()


class CannedFlood:
    """A minimal broker at `port` for one subscriber; `start` sends without waiting, so that the client is the
    bottleneck.
    """

    def __init__(self, qos: int, messages: int) -> None:
        self._work = (qos, messages)
        self._server = socket.create_server((HOST, 0))
        self._server.settimeout(_TIMEOUT_S)
        self.port: int = self._server.getsockname()[1]
        self._peer: socket.socket | None = None
        self._thread = threading.Thread(target=self._greet, daemon=True)
        self._thread.start()

    def _greet(self) -> None:
        # ``start`` notices a client that disconnects before.
        with contextlib.suppress(OSError):
            peer, _ = self._server.accept()
            try:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                read_packet(peer)
                peer.sendall(b"\x20\x02\x00\x00")
                request = read_packet(peer)
                peer.sendall(b"\x90\x03" + request[:2] + request[-1:])
                self._peer = peer
            finally:
                if self._peer is None:
                    peer.close()

    def start(self) -> None:
        """Send all messages and wait until the client disconnects. Raises FloodError."""
        self._thread.join(_TIMEOUT_S)
        if self._peer is None:
            raise FloodError("the client did not subscribe")
        _send(self._peer, *self._work, sys.maxsize)

    def close(self) -> None:
        """Disconnect after the client."""
        self._server.close()
        if self._peer is not None:
            self._peer.close()
