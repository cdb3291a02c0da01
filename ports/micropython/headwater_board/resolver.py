"""Resolve host names without blocking, for ports whose ``getaddrinfo`` waits for its answer (RP2: up to 7 s).

    dialer = Tcp("broker.example.com", resolver=Resolver())

Names that end in ``.local`` are resolved by multicast DNS (a one-shot query, RFC 6762, 5.1), all others by the name
server of the interface (A records only, RFC 1035).
"""

import errno
import os
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    def ticks_ms() -> int:
        """Return ``time.ticks_ms()``, typed as an integer."""
        ...
else:
    from time import ticks_ms

_TICKS_MASK = 0x3FFFFFFF
_HEADER = 12
_QUESTION_TAIL = b"\x00\x00\x01\x00\x01"
_MDNS = ("224.0.0.251", 5353)
# Of a name and of a label (RFC 1035, 2.3.4).
_LONGEST_NAME = 253
_LONGEST_LABEL = 63


class Resolver:
    """Asks ``server`` (None: the interface's name server), every ``retry_ms`` and no longer than ``timeout_ms``.

    ``addresses`` has known addresses by name. An address given here is used once without asking, for instance one that
    a board has kept while it was in deep sleep; the last answer for each name is here too.
    """

    def __init__(
        self,
        server: "str | None" = None,
        timeout_ms: int = 4000,
        retry_ms: int = 1000,
        addresses: "dict[str, list[str]] | None" = None,
        port: int = 53,
    ):
        self.server = server
        self.timeout_ms = timeout_ms
        self.retry_ms = retry_ms
        self.addresses = addresses or {}
        self.port = port
        self.ticks_ms = ticks_ms
        self._kept = list(self.addresses)
        self._socket: Any = None
        self._host = ""
        self._query = b""
        # Where the query goes, and where the answer must come from.
        self._to: Any = None
        self._began = self._sent = 0

    def check(self, host: str) -> "list[bytes]":
        """Return the labels of a host name. Raises ValueError for a name that no query can have."""
        labels = [label.encode() for label in (host[:-1] if host[-1:] == "." else host).split(".")]
        if len(host.encode()) > _LONGEST_NAME or not all(
            0 < len(label) <= _LONGEST_LABEL for label in labels
        ):
            raise ValueError(
                "host %r: a host name has 1 to %d bytes between dots, and up to %d in all"
                % (host[:_LONGEST_LABEL], _LONGEST_LABEL, _LONGEST_NAME)
            )
        return labels

    def resolve(self, host: str) -> "list[str] | None":
        """Begin or continue to resolve ``host``: its addresses, or None for now.

        Without an answer in time, these are the last known ones. Raises OSError: EHOSTUNREACH, if there are none or
        the name does not exist; ValueError for a name that ``check`` refuses.
        """
        if not host.strip("0123456789."):
            return [host]
        if host in self._kept:
            self._kept.remove(host)
            return self.addresses[host]
        if self._socket is None or host != self._host:
            self._begin(host)
        found = self._received()
        if found:
            self.addresses[host] = found
        elif found is None:
            if self._passed(self._began) < self.timeout_ms:
                if self._passed(self._sent) >= self.retry_ms:
                    self._send()
                return None
            found = self.addresses.get(host)
        self.close()
        if not found:
            raise OSError(errno.EHOSTUNREACH)
        return found

    def close(self) -> None:
        """End the current query."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _passed(self, since: int) -> int:
        return (self.ticks_ms() - since) & _TICKS_MASK

    def _begin(self, host: str) -> None:
        self.close()
        question = b"".join([bytes([len(label)]) + label for label in self.check(host)])
        self._query = os.urandom(2) + b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + question + _QUESTION_TAIL
        self._host = host
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._began = self.ticks_ms()
        self._send()

    def _send(self) -> None:
        self._sent = self.ticks_ms()
        server, port = self.server, self.port
        if self._host.endswith(".local"):
            server, port = _MDNS
        elif server is None:
            import network

            server = network.ipconfig("dns")
        try:
            self._to = socket.getaddrinfo(server, port)[0][-1]
            self._socket.sendto(self._query, self._to)
        except OSError:
            # No route for now: the next time.
            pass

    def _is_local(self, source: "Any") -> bool:
        """Return whether this is a response of multicast DNS: any host's, from its port (RFC 6762, 6)."""
        # The unix build has addresses as bytes (struct sockaddr_in).
        port = source[1] if isinstance(source, tuple) else source[2] << 8 | source[3]
        return self._host.endswith(".local") and port == _MDNS[1]

    def _received(self) -> "list[str] | None":
        """Return the addresses of the answer, [] if the name has none, None without an answer."""
        query = self._query
        while True:
            try:
                answer, source = self._socket.recvfrom(512)
            except OSError:
                return None
            if source != self._to and not self._is_local(source):
                continue
            end = len(query)
            # The same id and question; a response, without an error but "no such name".
            if answer[:2] == query[:2] and answer[_HEADER:end] == query[_HEADER:] and answer[2] & 0x80:
                code = answer[3] & 0x0F
                if code == 0 or code == 3:
                    return _addresses(answer, end)


def _addresses(answer: bytes, at: int) -> "list[str]":
    """Return the A records of the answer's records, which begin at ``at``."""
    found = []
    for _ in range(answer[6] << 8 | answer[7]):
        while at < len(answer) and 0 < answer[at] < 0xC0:
            at += answer[at] + 1
        # A name ends with a zero byte, or with a pointer of two bytes; then type, class, TTL and length.
        at += 2 if at < len(answer) and answer[at] else 1
        if at + 10 > len(answer):
            break
        n = answer[at + 8] << 8 | answer[at + 9]
        if answer[at : at + 2] == b"\x00\x01" and n == 4 and at + 14 <= len(answer):
            found.append(".".join([str(byte) for byte in answer[at + 10 : at + 14]]))
        at += 10 + n
    return found
