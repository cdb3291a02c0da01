"""TCP under MicroPython (ESP32, RP2, unix): a dialer whose transport is the socket itself.

A non-blocking MicroPython socket is a transport as it is: ``readinto`` and ``write`` return None instead of raising. No
Python code runs between session and network.
"""

import errno
import select
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    def ticks_ms() -> int:
        """Return ``time.ticks_ms()``, typed as an integer."""
        ...

    def sleep_ms(ms: int) -> None:
        """``time.sleep_ms``."""
        ...
else:
    from time import sleep_ms, ticks_ms

_IPPROTO_TCP = 6
_TCP_NODELAY = 1
_TICKS_MASK = 0x3FFFFFFF


class Tcp:
    """Dials ``host``, a name or an address, within ``timeout_ms``. After a failed attempt, the next address of a name
    with several is tried."""

    def __init__(self, host: str, port: int = 1883, timeout_ms: int = 10000):
        self.host = host
        self.port = port
        self.timeout_ms = timeout_ms
        self.ticks_ms = ticks_ms
        self.sleep = sleep_ms
        self._poll = select.poll()
        # The socket that ``wait`` looks at: the transport, or the one that is being connected.
        self._socket: socket.socket | None = None
        self._connecting = False
        self._connected = False
        self._began = 0
        # Attempts that failed: each goes on to the next address of the name.
        self._failed = 0

    def open(self) -> "Any":
        """Connect. Raises OSError (ETIMEDOUT: no answer)."""
        while not self.ready():
            self._poll.poll(max(1, self.timeout_ms - (ticks_ms() - self._began & _TICKS_MASK)))
        s = self._socket
        self._connected = False
        return s

    def ready(self) -> bool:
        """Begin or continue to connect: whether ``open`` returns at once. Blocks only to resolve the name.

        Raises OSError: ETIMEDOUT after ``timeout_ms``, or the error of the connection.
        """
        if self._connected:
            return True
        if not self._connecting:
            self._begin()
        for event in self._poll.ipoll(0):
            self._finish(event[1])
            return True
        if ticks_ms() - self._began & _TICKS_MASK >= self.timeout_ms:
            self.hang_up()
            raise OSError(errno.ETIMEDOUT)
        return False

    def hang_up(self) -> None:
        """Forget the socket; close it unless it was handed out."""
        s = self._socket
        if s is not None:
            self._socket = None
            self._poll.unregister(s)
            if self._connecting:
                self._failed += 1
            if self._connecting or self._connected:
                self._connecting = self._connected = False
                s.close()

    def source(self) -> "Any":
        """The object for ``select.poll``; None without a connection."""
        return self._socket

    def _begin(self) -> None:
        self.hang_up()
        addresses = socket.getaddrinfo(self.host, self.port, 0, socket.SOCK_STREAM)
        address = addresses[self._failed % len(addresses)]
        s = socket.socket(address[0], socket.SOCK_STREAM)
        try:
            s.setblocking(False)
            try:
                s.connect(address[-1])
            except OSError as e:
                if e.errno != errno.EINPROGRESS:
                    raise
            self._poll.register(s, select.POLLOUT)
        except OSError:
            self._failed += 1
            s.close()
            raise
        self._socket = s
        self._connecting = True
        self._began = ticks_ms()

    def _finish(self, event: int) -> None:
        s: Any = self._socket
        try:
            if event & (select.POLLERR | select.POLLHUP):
                # Reading tells why.
                s.read(1)
                raise OSError(errno.ECONNREFUSED)
            self._poll.modify(s, select.POLLIN)
        except OSError:
            self.hang_up()
            raise
        try:
            # One packet is one write here; waiting to join small ones only delays acknowledgements.
            s.setsockopt(_IPPROTO_TCP, _TCP_NODELAY, 1)
        except (OSError, ValueError):
            # This port's stack does not have the option.
            pass
        self._connecting = False
        self._connected = True

    def wait(self, ms: int) -> None:
        """Sleep until bytes arrive, at most ``ms`` milliseconds."""
        # ``poll`` would allocate a list.
        for _ in self._poll.ipoll(ms):
            return
