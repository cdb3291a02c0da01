"""``socket`` of a board: the unix build's sockets on loopback, behind the radio or the cable.

While the interface has no address, connecting fails at once with EHOSTUNREACH (lwIP, ip4_route: ERR_RTE). While the
link carries nothing, connecting and reading wait, and writing fills the send buffer. When the link carries again, what
was held is sent with TCP's next retransmission: after 1, 3, 7, 15, ... s of silence. When the interface goes down, lwIP
(tcp_netif_ip_addr_changed) aborts its connections: ECONNABORTED.
"""

import errno
import io
import select
import socket as _unix
import time

from standins import network, radio
from standins.chip import pump

AF_INET = _unix.AF_INET
SOCK_STREAM = _unix.SOCK_STREAM
SOCK_DGRAM = _unix.SOCK_DGRAM
SOL_SOCKET = _unix.SOL_SOCKET
SO_REUSEADDR = _unix.SO_REUSEADDR
SO_BROADCAST = _unix.SO_BROADCAST
IPPROTO_TCP = 6
TCP_NODELAY = 1

# TCP_SND_BUF: ESP-IDF's default, CONFIG_LWIP_TCP_SND_BUF_DEFAULT.
_SEND_BUFFER = 5760
# EAI_FAIL of ESP32's getaddrinfo, and the -2 of extmod/modlwip.c's lwip_getaddrinfo_cb.
_NO_SUCH_NAME = {"esp32": -202, "rp2": -2}
_POLL = 3
_GET_FILENO = 10

_port = "esp32"
_open = []


def install(port):
    """Choose the port's error codes, and let the interface abort the sockets."""
    global _port
    _port = port
    network.on_abort(_abort)


def _abort():
    for s in _open[:]:
        s._abort()


def getaddrinfo(host, port, af=0, kind=0, proto=0, flags=0):
    """Blocks without a time-out of its own: extmod/modlwip.c, ports/esp32/modsocket.c."""
    air = network.air()
    address = host
    if not _is_address(host):
        route = network.route()
        if route == radio.SILENT or (route == radio.PASSES and not air.dns):
            pump(air.ms("no name server"))
        found = route == radio.PASSES and air.dns
        address = air.names.get(host, "127.0.0.1" if host == "localhost" else None) if found else None
        if address is None:
            raise OSError(_NO_SUCH_NAME[_port])
    return [(AF_INET, kind or SOCK_STREAM, 0, "", (address, port))]


def _is_address(name):
    parts = name.split(".")
    return len(parts) == 4 and all(part.isdigit() for part in parts)


def _real(address):
    """Return the unix build's address of an address in the board's world."""
    if not isinstance(address, tuple):
        return address
    host, port = address[0], address[1]
    found = network.air().reach.get("%s:%d" % (host, port))
    if found is not None:
        host, port = "127.0.0.1", found
    return _unix.getaddrinfo(host, port)[0][-1]


def _key(real):
    """Return an address as a key: the unix build's are bytearrays, those of the simulated world tuples."""
    return real if isinstance(real, tuple) else bytes(real)


class socket(io.IOBase):
    """A socket of the unix build, non-blocking; this class waits where the program's socket blocks."""

    def __init__(self, af=AF_INET, kind=SOCK_STREAM, proto=0):
        self._s = _unix.socket(af, kind)
        self._s.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._s, select.POLLIN | select.POLLOUT)
        self._kind = kind
        self._timeout = -1  # milliseconds; -1: for ever, 0: non-blocking
        self._to = None  # where a connection goes that the link has not let through yet
        self._held = bytearray()
        # Since when something waits for the link, and when it is retransmitted.
        self._silent_at = self._resume_at = None
        self._error = 0
        self._peers = {}
        _open.append(self)

    # -- options -------------------------------------------------------------------------------------------------------

    def settimeout(self, seconds):
        self._timeout = -1 if seconds is None else int(seconds * 1000)

    def setblocking(self, flag):
        self._timeout = -1 if flag else 0

    def setsockopt(self, level, option, value):
        if level == SOL_SOCKET:
            self._s.setsockopt(level, option, value)

    def makefile(self, *mode):
        return self

    # -- connections ---------------------------------------------------------------------------------------------------

    def connect(self, address):
        route = network.route()
        if route == radio.NO_ROUTE:
            raise OSError(errno.EHOSTUNREACH)
        self._to = _real(address)
        self._link_up(route)
        if self._kind == SOCK_DGRAM:
            return
        if not self._timeout:
            raise OSError(errno.EINPROGRESS)
        began = time.ticks_ms()
        while not self._ready(select.POLLOUT):
            self._tick(began)
        if self._ready(select.POLLERR | select.POLLHUP):
            self._s.read(1)  # raises the connection's error
            raise OSError(errno.ECONNREFUSED)

    def bind(self, address):
        self._s.bind(_unix.getaddrinfo(address[0] or "0.0.0.0", address[1])[0][-1])

    def listen(self, backlog=2):
        self._s.listen(backlog)

    def accept(self):
        began = time.ticks_ms()
        while not self._ready(select.POLLIN):
            self._tick(began)
        accepted, address = self._s.accept()
        made = socket()
        made._poll.unregister(made._s)
        made._s.close()
        accepted.setblocking(False)
        made._s = accepted
        made._poll.register(accepted, select.POLLIN | select.POLLOUT)
        return made, address

    def close(self):
        if self in _open:
            _open.remove(self)
            self._s.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # -- streams -------------------------------------------------------------------------------------------------------

    def write(self, buf, off=None, n=None):
        if n is None:
            n = len(buf) if off is None else off
            off = 0
        if self._timeout == 0:
            return self._write_some(buf, off, n)
        began = time.ticks_ms()
        done = 0
        while done < n:
            k = self._write_some(buf, off + done, n - done)
            if k is None:
                self._tick(began)
            else:
                done += k
        return done

    def send(self, buf):
        while True:
            k = self._write_some(buf, 0, len(buf))
            if k is not None:
                return k
            if self._timeout == 0:
                raise OSError(errno.EAGAIN)
            self._tick(time.ticks_ms())

    def sendall(self, buf):
        self.write(buf)

    def sendto(self, buf, address):
        if network.route() == radio.NO_ROUTE:
            raise OSError(errno.EHOSTUNREACH)
        if network.route() == radio.PASSES:
            real = _real(address)
            self._peers[_key(real)] = address
            self._s.sendto(buf, real)
        return len(buf)

    def readinto(self, buf, n=None):
        n = len(buf) if n is None else n
        if self._timeout == 0:
            return self._read_some(buf, n)
        began = time.ticks_ms()
        done = 0
        view = memoryview(buf)
        while done < n:
            k = self._read_some(view[done:], n - done)
            if k == 0:
                break
            if k is None:
                self._tick(began)
            else:
                done += k
        return done

    def read(self, n=-1):
        if n >= 0:
            buf = bytearray(n)
            k = self.readinto(buf)
            return None if k is None else bytes(buf[:k])
        data = b""
        while True:
            more = self.recv(512) if self._timeout else self.read(512)
            if not more:
                return data or more
            data += more

    def recv(self, n):
        buf = bytearray(n)
        began = time.ticks_ms()
        while True:
            k = self._read_some(buf, n)
            if k is not None:
                return bytes(buf[:k])
            self._tick(began)

    def readline(self, *size):
        line = b""
        while not line.endswith(b"\n"):
            byte = self.read(1)
            if not byte:
                return line or byte
            line += byte
        return line

    def recvfrom(self, n):
        self._carries()
        began = time.ticks_ms()
        while not self._ready(select.POLLIN):
            self._tick(began)
        data, real = self._s.recvfrom(n)
        return data, self._peers.get(_key(real), real)

    def ioctl(self, request, argument):
        if request == _POLL:
            return self._ready(argument)
        return -errno.EINVAL if request == _GET_FILENO else 0

    # -- the link ------------------------------------------------------------------------------------------------------

    def _abort(self):
        self._error = errno.ECONNABORTED

    def _link_up(self, route):
        """Let through what the link has held: whether the socket carries now."""
        waits = self._to is not None or len(self._held) > 0
        if route != radio.PASSES:
            if self._silent_at is None and waits:
                self._silent_at = time.ticks_ms()
            self._resume_at = None
            return False
        if self._silent_at is not None:
            now = time.ticks_ms()
            if self._resume_at is None:
                passed = time.ticks_diff(now, self._silent_at)
                first = wait = network.air().ms("retransmission")
                while wait < passed:
                    wait += wait + first
                self._resume_at = time.ticks_add(self._silent_at, wait)
            if time.ticks_diff(now, self._resume_at) < 0:
                return False
            self._silent_at = self._resume_at = None
        if self._to is not None:
            to = self._to
            self._to = None
            try:
                self._s.connect(to)
            except OSError as error:
                if error.errno != errno.EINPROGRESS:
                    raise
        if self._held:
            k = self._s.write(self._held)
            if k:
                self._held = self._held[k:]
            return not self._held
        return True

    def _passes(self):
        return self._silent_at is None and network.route() == radio.PASSES

    def _carries(self):
        if self._error:
            raise OSError(self._error)
        return self._link_up(network.route())

    def _write_some(self, buf, off, n):
        if self._carries():
            return self._s.write(buf, off, n)
        k = min(n, _SEND_BUFFER - len(self._held))
        if k <= 0 or self._to is not None:
            return None
        self._held += memoryview(buf)[off : off + k]
        if self._silent_at is None:
            self._silent_at = time.ticks_ms()
        return k

    def _read_some(self, buf, n):
        self._carries()
        return self._s.readinto(buf, n) if self._passes() else None

    def _ready(self, events):
        """Return the events that are there, as ``select.poll`` reports them."""
        if self._error:
            return select.POLLERR | select.POLLHUP | events & select.POLLIN
        route = network.route()
        try:
            if not self._link_up(route):
                events &= ~select.POLLOUT
        except OSError:
            return select.POLLERR
        if not self._passes():
            return 0
        for event in self._poll.ipoll(0):
            return event[1] & (events | select.POLLERR | select.POLLHUP)
        return 0

    def _tick(self, began):
        """Wait a moment for the link or the peer; raises ETIMEDOUT, or EAGAIN for a non-blocking socket."""
        if self._timeout == 0:
            raise OSError(errno.EAGAIN)
        if self._timeout > 0 and time.ticks_diff(time.ticks_ms(), began) >= self._timeout:
            raise OSError(errno.ETIMEDOUT)
        pump(1)
