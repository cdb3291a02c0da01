"""TCP under MicroPython (ESP32, RP2, unix): a dialer whose transport is the socket itself.

A MicroPython socket already is a transport: non-blocking, its ``readinto`` and ``write`` answer None instead
of raising, and nothing of Python stands between the session and the network.
"""

import errno
import select
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    def ticks_ms() -> int:
        """``time.ticks_ms``, as the integer that it is."""
        ...
else:
    from time import ticks_ms

_IPPROTO_TCP = 6
_TCP_NODELAY = 1


class Tcp:
    """``host`` is a name or an address; ``timeout_ms`` bounds the connecting."""

    def __init__(self, host: str, port: int = 1883, timeout_ms: int = 10000):
        self.host = host
        self.port = port
        self.timeout_ms = timeout_ms
        self.ticks_ms = ticks_ms
        self._poll = select.poll()
        self._socket: socket.socket | None = None

    def open(self) -> "Any":
        """Connect; raises OSError (ETIMEDOUT when nobody answered)."""
        if self._socket is not None:
            self._poll.unregister(self._socket)
            self._socket = None
        address = socket.getaddrinfo(self.host, self.port, 0, socket.SOCK_STREAM)[0]
        s = socket.socket(address[0], socket.SOCK_STREAM)
        try:
            s.setblocking(False)
            try:
                s.connect(address[-1])
            except OSError as e:
                if e.errno != errno.EINPROGRESS:
                    raise
            self._poll.register(s, select.POLLOUT)
            events = self._poll.poll(self.timeout_ms)
            self._poll.unregister(s)
            if not events:
                raise OSError(errno.ETIMEDOUT)
            if events[0][1] & (select.POLLERR | select.POLLHUP):
                # Reading tells why.
                s.read(1)
                raise OSError(errno.ECONNREFUSED)
            try:
                # One packet is one write here; waiting to join small ones only delays acknowledgements.
                s.setsockopt(_IPPROTO_TCP, _TCP_NODELAY, 1)
            except (OSError, ValueError):
                # This port's stack does not have the option.
                pass
        except OSError:
            s.close()
            raise
        self._poll.register(s, select.POLLIN)
        self._socket = s
        return s

    def wait(self, ms: int) -> None:
        """Sleep until something arrives, at most ``ms`` milliseconds."""
        self._poll.poll(ms)
