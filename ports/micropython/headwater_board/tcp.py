"""TCP under MicroPython (ESP32, RP2, unix): a dialer whose transport is the socket itself.

A non-blocking MicroPython socket is a transport: its ``readinto`` and ``write`` return None instead of raising an
exception. No Python code runs between session and network.
"""

import errno
import select
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headwater_board.resolver import Resolver

    def ticks_ms() -> int:
        """Return ``time.ticks_ms()``, typed as an integer."""
        ...

    def sleep_ms(ms: int) -> None:
        """Sleep (``time.sleep_ms``)."""
        ...
else:
    from time import sleep_ms, ticks_ms

_IPPROTO_TCP = 6
_TCP_NODELAY = 1
_TICKS_MASK = 0x3FFFFFFF
_RESOLVING_MS = 20


class Tcp:
    """Dials ``host``, a name or an address, within ``timeout_ms``.

    A name is resolved for the first attempt and after a failed one, which continues with the next of several addresses.
    If the name cannot be resolved then, its addresses stay in use. Resolving blocks unless there is a ``resolver``
    (``headwater_board.resolver``), which raises ValueError here for a host that no query can have.
    """

    def __init__(
        self, host: str, port: int = 1883, timeout_ms: int = 10000, resolver: "Resolver | None" = None
    ):
        if resolver is not None:
            resolver.check(host)
        self.host = host
        self.port = port
        self.timeout_ms = timeout_ms
        self.resolver = resolver
        self.ticks_ms = ticks_ms
        self.sleep = sleep_ms
        self._poll = select.poll()
        # The socket for ``wait``: the transport, or the one that connects.
        self._socket: socket.socket | None = None
        self._connecting = False
        self._connected = False
        self._began = 0
        # The number of failed attempts, now and when the name was resolved.
        self._failed = 0
        self._resolved = -1
        self._addresses: list[Any] = []
        # The address of the next connection, if it is another one.
        self._aimed: tuple[str, int] | None = None

    def open(self) -> "Any":
        """Connect. Raises OSError (ETIMEDOUT: no answer)."""
        while not self.ready():
            if self._connecting:
                self._poll.poll(max(1, self.timeout_ms - (ticks_ms() - self._began & _TICKS_MASK)))
            else:
                sleep_ms(_RESOLVING_MS)
        s = self._socket
        self._connected = False
        return s

    def ready(self) -> bool:
        """Start or continue to connect. Return whether ``open`` returns at once.

        Blocks only to resolve the name without a ``resolver``. Raises OSError: ETIMEDOUT after ``timeout_ms``, or the
        error of the connection.
        """
        if self._connected:
            return True
        if not self._connecting and not self._begin():
            return False
        for event in self._poll.ipoll(0):
            self._finish(event[1])
            return True
        if ticks_ms() - self._began & _TICKS_MASK >= self.timeout_ms:
            self.hang_up()
            raise OSError(errno.ETIMEDOUT)
        return False

    def aim(self, host: str, port: int) -> None:
        """Have the next connection, and only that one, lead to this address."""
        self._aimed = (host, port)
        self._resolved = -1

    def hang_up(self) -> None:
        """Release the socket; close it unless ``open`` has returned it. End the resolver's query."""
        self._release()
        if self.resolver is not None:
            self.resolver.close()

    def _release(self) -> None:
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

    def _begin(self) -> bool:
        """Start to connect. Return whether the name is resolved."""
        self._release()
        if self._resolved != self._failed:
            try:
                if not self._resolve():
                    return False
            except OSError:
                if not self._addresses:
                    raise
            # The addresses of another host are used once.
            self._resolved = -1 if self._aimed else self._failed
            self._aimed = None
        address = self._addresses[self._failed % len(self._addresses)]
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
        return True

    def _resolve(self) -> bool:
        host, port = self._aimed or (self.host, self.port)
        hosts = [host] if self.resolver is None else self.resolver.resolve(host)
        if hosts is None:
            return False
        found: list[Any] = []
        for host in hosts:
            found += socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
        self._addresses = found
        return True

    def _finish(self, event: int) -> None:
        s: Any = self._socket
        try:
            if event & (select.POLLERR | select.POLLHUP):
                # Reading raises the actual error.
                s.read(1)
                raise OSError(errno.ECONNREFUSED)
            self._poll.modify(s, select.POLLIN)
        except OSError:
            self.hang_up()
            raise
        try:
            # Each write is a complete packet; joining small ones (Nagle) only delays acknowledgements.
            s.setsockopt(_IPPROTO_TCP, _TCP_NODELAY, 1)
        except (OSError, ValueError):
            # Not every port's network stack has the option.
            pass
        self._connecting = False
        self._connected = True

    def wait(self, ms: int) -> None:
        """Sleep until bytes arrive, at most ``ms`` milliseconds."""
        # ``poll`` would allocate a list.
        for _ in self._poll.ipoll(ms):
            return
