"""Set the board's clock: by SNTP without blocking, from an FMQ hub, or to a time from elsewhere.

    sntp = Sntp(("pool.ntp.org",))
    while keeper.wait(100) == 0:
        sntp.poll()

TLS compares the dates of certificates with this clock, so it must be set before the first TLS connection.
"""

import os
import select
import socket
import time

from micropython import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from headwater.fmq.client import Client
    from headwater.fmq.frames import Frame
    from headwater.fmq.session import ClientSession
    from headwater.types import Network
    from headwater_board.resolver import Resolver

    def ticks_ms() -> int:
        """Return ``time.ticks_ms()``, typed as an integer."""
        ...
else:
    from time import ticks_ms

_TICKS_MASK = const(0x3FFFFFFF)

# Seconds from 1970 to the zero of ``time.time()``: ESP32 counts from 2000.
_EPOCH = 946684800 if time.gmtime(0)[0] == 2000 else 0
# Seconds from 1900, the zero of NTP's first era, to 1970; and an era.
_NTP_1970 = const(2208988800)
_ERA = 1 << 32
_SIZE = const(48)
# The years 2025 to 2099.
_SINCE_MS = 1735689600000
_UNTIL_MS = 4102444800000
# Of ``headwater.errors``.
_E_TIMEOUT = const(-61)
# A kind of value of FMQ.
_DATETIME = const(11)
# RFC 4330, 10: at least 15 s between two queries to a server.
_RETRY_MS = const(16000)
_DOUBLINGS = const(6)


def is_set() -> bool:
    """Return whether the clock was set: a board without a battery starts in 2000 or 2021."""
    return time.gmtime()[0] > 2024


def unix_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1000000 + _EPOCH * 1000


def set_clock(ms: int) -> bool:
    """Set ``machine.RTC`` to ``ms`` milliseconds since 1970. RP2 stores whole seconds.

    Return False for a time before 2025 or after 2099, which comes from a clock that is not set: it changes nothing.
    """
    if not _SINCE_MS <= ms < _UNTIL_MS:
        return False
    import machine

    t = time.gmtime(ms // 1000 - _EPOCH)
    machine.RTC().datetime((t[0], t[1], t[2], t[6], t[3], t[4], t[5], ms % 1000 * 1000))
    return True


def ask_hub(client: "Client") -> int:
    """Call ``$hub/time`` over a connected FMQ client; its result sets the clock. Return the number of the call, or an
    error.

    A hub whose own clock is not synchronized refuses the call. The handler of other results stays. Each call replaces
    the one before, whose result may be lost.
    """
    from headwater.connection import send_request
    from headwater.fmq.calls import call

    session = client.session
    number = send_request(client, call(session, b"$hub/time"))
    if number > 0:
        handler = session.on_result
        if not isinstance(handler, _HubTime):
            session.on_result = handler = _HubTime(session, handler)
        handler.number = number
    return number


class _HubTime:
    """Handles the result of the call ``number``, and passes all others to ``others``."""

    def __init__(self, session: "ClientSession", others: "Callable[[Frame], object] | None"):
        self.number = 0
        self._session = session
        self._others = others

    def __call__(self, frame: "Frame") -> None:
        from headwater.fmq.values import Value, read

        session = self._session
        if session.source != self.number:
            if self._others is not None:
                self._others(frame)
            return
        self.number = 0
        if session.on_result is self:
            session.on_result = self._others
        value = Value(frame.payload_bytes())
        if read(value, 0, len(value.buf)) > 0 and value.kind == _DATETIME:
            set_clock(int.from_bytes(value.buf[value.at : value.end], "little") // 1000000)


class Sntp:
    """Asks ``servers``, one after the other, until one answers, and again every ``period_ms``.

    ``resolver`` resolves their names without blocking; a ``Tcp`` needs another one. Answers within ``timeout_ms``
    count. After a round without an answer comes a pause of 16 s, which doubles up to 17 minutes. Raises ValueError for
    a server name that the resolver refuses.
    """

    def __init__(
        self,
        servers: "Sequence[str]" = ("pool.ntp.org",),
        resolver: "Resolver | None" = None,
        period_ms: int = 43200000,
        timeout_ms: int = 2000,
        port: int = 123,
    ):
        if resolver is not None:
            for server in servers:
                resolver.check(server)
        self.servers = servers
        self.resolver = resolver
        self.period_ms = period_ms
        self.timeout_ms = timeout_ms
        self.port = port
        self.ticks_ms = ticks_ms
        #: The number of times the clock was set, and of unanswered queries.
        self.syncs = self.failures = 0
        # Of the servers that did not answer in a row.
        self._tries = 0
        self._socket: Any = None
        self._poll = select.poll()
        self._nonce = b""
        self._at = ticks_ms()
        self._pause_ms = 0

    def poll(self) -> bool:
        """Query the time if it is due and the network is up. Return True once the clock has been set. Allocates only
        for queries."""
        if self._socket is not None:
            for _ in self._poll.ipoll(0):
                self._receive()
                return self.syncs > 0
            if self._passed() >= self.timeout_ms:
                self._failed()
        elif self._passed() >= self._pause_ms:
            try:
                self._ask()
            except OSError:
                self._failed()
        return self.syncs > 0

    def close(self) -> None:
        """End the current query."""
        if self._socket is not None:
            self._poll.unregister(self._socket)
            self._socket.close()
            self._socket = None

    def _passed(self) -> int:
        return (self.ticks_ms() - self._at) & _TICKS_MASK

    def _ask(self) -> None:
        name = self.servers[self._tries % len(self.servers)]
        if self.resolver is not None:
            found = self.resolver.resolve(name)
            if found is None:
                return
            name = found[self._tries // len(self.servers) % len(found)]
        address = socket.getaddrinfo(name, self.port, 0, socket.SOCK_DGRAM)[0][-1]
        # An answer repeats the query's time: with a random number there, only a host that has seen the query can
        # answer.
        self._nonce = os.urandom(8)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._poll.register(self._socket, select.POLLIN)
        self._at = self.ticks_ms()
        # Version 4, client.
        self._socket.sendto(b"\x23" + bytes(39) + self._nonce, address)

    def _receive(self) -> None:
        try:
            answer = self._socket.recv(_SIZE)
        except OSError:
            self._failed()
            return
        if len(answer) < _SIZE or answer[24:32] != self._nonce:
            return
        # A server (mode 4) that is synchronized: not leap 3, and stratum 1 to 15. Stratum 0 asks us to stay away.
        if answer[0] & 7 != 4 or answer[0] >> 6 == 3 or not 0 < answer[1] < 16:
            self._failed()
            return
        seconds = int.from_bytes(answer[40:44], "big")
        if seconds < _ERA >> 1:
            # The second era begins in 2036.
            seconds += _ERA
        fraction = int.from_bytes(answer[44:46], "big") * 1000 >> 16
        if not set_clock((seconds - _NTP_1970) * 1000 + fraction + self._passed() // 2):
            self._failed()
            return
        self.syncs += 1
        self._tries = 0
        self._wait(self.period_ms)

    def _failed(self) -> None:
        self.failures += 1
        self._tries += 1
        rounds, rest = divmod(self._tries, len(self.servers))
        self._wait(0 if rest else _RETRY_MS << min(rounds - 1, _DOUBLINGS))

    def _wait(self, ms: int) -> None:
        self.close()
        self._at = self.ticks_ms()
        self._pause_ms = ms


class TimedNetwork:
    """A network that a keeper sees as up only once the clock is set, so that TLS can check dates of certificates.

    Polls ``sntp`` while ``network`` is up. A clock that was set before (``is_set``) delays nothing.
    """

    def __init__(self, network: "Network", sntp: Sntp):
        self._poll = network.poll
        self._sntp = sntp
        self._is_set = is_set()
        self.start = network.start
        self.stop = network.stop
        self.failed = network.failed
        self.works = network.works

    def poll(self, busy: bool = True) -> bool:
        """Poll the network and the clock. Return whether the network is up and the clock is set."""
        if not self._poll(busy):
            return False
        failures = self._sntp.failures
        if self._sntp.poll():
            self._is_set = True
        elif not self._is_set and self._sntp.failures != failures:
            # Nothing else can notice a dead link before the first connection.
            self.failed(_E_TIMEOUT, 0)
        return self._is_set
