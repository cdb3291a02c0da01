"""The network behind the radio: sockets in memory, with a latency. The stand-ins' ``socket`` is on top of it."""

import errno
import select

from standins import network, radio

from world.clock import clock

AF_INET = 2
SOCK_STREAM = 1
SOCK_DGRAM = 2
SOL_SOCKET = 1
SO_REUSEADDR = 2
SO_BROADCAST = 6

#: One way, in milliseconds: a home network and a broker in the same country.
LATENCY = 15
_NAME_SERVER = ("192.168.4.1", 53)
_HEADER = 12
_REFUSED = bytearray(b"\x80\x03")

#: ``accept(peer)`` by address and port.
listeners = {}


def getaddrinfo(host, port, *_):
    """The stand-ins resolve names; this is for addresses."""
    return [(AF_INET, SOCK_STREAM, 0, "", (host, port))]


class Peer:
    """The broker's end of a connection."""

    def __init__(self, end):
        self._end = end
        self.on_data = None
        self.on_close = None
        self.open = True

    def send(self, data):
        """Send bytes; they arrive after the latency."""
        clock.at(LATENCY, self._end._arrived, data)

    def close(self):
        """Close the connection in order."""
        self.open = False
        clock.at(LATENCY, self._end._arrived, b"")

    def reset(self):
        """Reset the connection, as a host whose process was killed."""
        self.open = False
        clock.at(LATENCY, self._end._broken, errno.ECONNRESET)


class socket:
    """The board's end of a connection, or of datagrams."""

    def __init__(self, af=AF_INET, kind=SOCK_STREAM, proto=0):
        self._kind = kind
        self._open = False
        self._error = 0
        self._ended = False
        self._rx = bytearray()
        self._peer = None
        self._source = None

    def setblocking(self, flag):
        """Never blocks."""

    def setsockopt(self, *_):
        """Options have no effect."""

    def connect(self, address):
        self._to = address
        if self._kind == SOCK_STREAM:
            clock.at(2 * LATENCY, self._answered)
            raise OSError(errno.EINPROGRESS)

    def _answered(self, _):
        accept = listeners.get(self._to)
        if self._error:
            return
        self._peer = Peer(self)
        if accept is None or not accept(self._peer):
            self._error = errno.ECONNREFUSED
            self._peer = None
        else:
            self._open = True

    def _arrived(self, data):
        if data:
            self._rx += data
        else:
            self._ended = True

    def _broken(self, number):
        self._error = number

    def write(self, buf, off=0, n=None):
        if self._error:
            raise OSError(self._error)
        if not self._open:
            return None
        data = bytes(memoryview(buf)[off : len(buf) if n is None else off + n])
        clock.at(LATENCY, self._delivered, data)
        return len(data)

    def _delivered(self, data):
        if self._peer is not None and self._peer.open:
            self._peer.on_data(data)

    def readinto(self, buf, n=None):
        if self._error:
            raise OSError(self._error)
        n = min(len(buf) if n is None else n, len(self._rx))
        if not n:
            return 0 if self._ended else None
        buf[:n] = self._rx[:n]
        self._rx = self._rx[n:]
        return n

    def read(self, n):
        buf = bytearray(n)
        k = self.readinto(buf)
        return None if k is None else bytes(buf[:k])

    def close(self):
        """Tell the peer, unless the link carries nothing: then it learns nothing."""
        peer = self._peer
        self._error = errno.EBADF
        if peer is not None and peer.open and network.route() == radio.PASSES:
            clock.at(LATENCY, self._told)

    def _told(self, _):
        if self._peer.open:
            self._peer.open = False
            self._peer.on_close()

    def ioctl(self, request, events):
        if self._error:
            return select.POLLERR | select.POLLHUP
        found = 0
        if self._rx or self._ended:
            found |= select.POLLIN
        if self._open:
            found |= select.POLLOUT
        return found & events

    # -- datagrams: a name server --------------------------------------------------------------------------------------

    def sendto(self, data, address):
        if address == _NAME_SERVER and network.air().dns:
            clock.at(2 * LATENCY, self._arrived, _answer(bytes(data)))

    def recvfrom(self, n):
        data = bytes(self._rx)
        self._rx = bytearray()
        return data, _NAME_SERVER


def _answer(query):
    """Return the name server's answer to a query for an A record (RFC 1035)."""
    labels = []
    at = _HEADER
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode())
        at += query[at] + 1
    address = network.air().names.get(".".join(labels))
    question = query[_HEADER : at + 5]
    if address is None:
        return query[:2] + b"\x81\x83\x00\x01\x00\x00\x00\x00\x00\x00" + question
    number = bytes([int(part) for part in address.split(".")])
    record = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04" + number
    return query[:2] + b"\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00" + question + record
