"""A connection between two sessions, without a network: in pieces, with partial writes, cut at any byte.

``Wire`` is one direction, ``Link`` both, and ``Line`` a client's transport over two. ``Ends`` sets a client's and a
server's session back to back over links, and connects them again when a link is cut, as applications do.
"""

import sys

from headwater.connection import ONLINE
from headwater.mqtt.server import ServerSession
from headwater.mqtt.session import ClientSession

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from headwater.mqtt.packets import Packet
    from headwater.types import Bytes


#: ``session.epoch`` on the first connection (opened, accepted), and on the next, when nothing but the transport's loss
#: came between.
FIRST = 2
SECOND = 5


class Random:
    """A sequence of numbers that is the same on every Python (a linear congruential generator)."""

    def __init__(self, seed: int):
        self._state = seed & 0xFFFF

    def below(self, n: int) -> int:
        """A number from 0 to n - 1; n at most 4096."""
        self._state = (self._state * 25173 + 13849) & 0xFFFF
        return (self._state >> 4) % n


class Wire:
    """One direction of a connection.

    ``take``: how many bytes a write takes at most; ``chunk``: how many a read gives at most; ``room``: how many may be
    under way; 0 means no limit. ``cut``: how many bytes arrive before the connection breaks, -1 for never. What was
    taken and did not arrive is lost with it.
    """

    def __init__(self, take: int = 0, chunk: int = 0, room: int = 0, cut: int = -1):
        self.take = take
        self.chunk = chunk
        self.room = room
        self.cut = cut
        #: Every byte that was taken, whether it arrived or not.
        self.log = bytearray()
        self.arrived = 0

    def write(self, buf: "Bytes", off: int, n: int) -> "int | None":
        """Take bytes, as a transport does; None when there is no room."""
        if self.take and n > self.take:
            n = self.take
        if self.room:
            n = min(n, self.room - self.waiting())
        if n <= 0:
            return None
        self.log += bytes(buf[off : off + n])
        return n

    def waiting(self) -> int:
        """How many bytes are under way."""
        return len(self.log) - self.arrived

    def broken(self) -> bool:
        """Whether the connection is cut in this direction."""
        return 0 <= self.cut <= self.arrived

    def readinto(self, buf: "bytearray | memoryview", n: int) -> "int | None":
        """Give bytes, as a transport does; None when there are none, 0 when the connection is cut."""
        n = min(n, self.waiting())
        if self.chunk:
            n = min(n, self.chunk)
        if self.cut >= 0:
            n = min(n, self.cut - self.arrived)
            if n == 0 and self.broken():
                return 0
        if n == 0:
            return None
        buf[:n] = self.log[self.arrived : self.arrived + n]
        self.arrived += n
        return n


class Line:
    """A client's transport: two wires; what is at their other end works while the client waits."""

    def __init__(self, up: Wire, down: Wire):
        self.up = up
        self.down = down
        self.closed = 0
        self.writes = 0
        #: What the next calls are to fail with.
        self.read_error: OSError | None = None
        self.write_error: OSError | None = None
        self.hung_up = False

    def readinto(self, buf: "bytearray | memoryview", n: int) -> "int | None":
        assert not self.closed, "read behind close"
        if self.read_error is not None:
            raise self.read_error
        k = self.down.readinto(buf, n)
        return 0 if k is None and self.hung_up else k

    def write(self, buf: "Bytes", off: int, n: int) -> "int | None":
        assert not self.closed, "written behind close"
        if self.write_error is not None:
            raise self.write_error
        self.writes += 1
        return self.up.write(buf, off, n)

    def close(self) -> None:
        self.closed += 1


class Link:
    """Both directions; ``up`` is from the client to the server."""

    def __init__(self, up: "Wire | None" = None, down: "Wire | None" = None):
        self.up = up or Wire()
        self.down = down or Wire()

    def broken(self) -> bool:
        """Whether either direction is cut: then both are."""
        return self.up.broken() or self.down.broken()


def send(end: "ClientSession | ServerSession", wire: Wire) -> int:
    """Let ``wire`` take what ``end`` has to send: how many bytes it took."""
    total = 0
    while True:
        n = end.out()
        if n <= 0:
            return total
        k = wire.write(end.out_buf, end.out_at, n)
        if not k:
            return total
        end.sent(k)
        total += k


def receive(end: "ClientSession | ServerSession", wire: Wire) -> int:
    """Read once and feed: how many bytes arrived, or the negative status of ``feed``."""
    room = end.rx.window()
    k = wire.readinto(end.rx.view, room) if room else None
    if k or end.stalled:
        bad = end.feed(k or 0)
        if bad < 0:
            return bad
    return k or 0


def feed(end: "ClientSession | ServerSession", data: bytes) -> int:
    """Feed all of it at once."""
    assert end.rx.window() >= len(data)
    end.rx.view[: len(data)] = data
    return end.feed(len(data))


def drain(end: "ClientSession | ServerSession") -> bytes:
    """Take all that is to be sent."""
    wire = Wire()
    send(end, wire)
    return bytes(wire.log)


def packets(data: "Bytes") -> "Iterator[tuple[int, int, int]]":
    """The packets in a direction's bytes: (first byte, begin, end); the last may be cut short."""
    at = 0
    while at < len(data):
        size = shift = 0
        i = at + 1
        while i < len(data):
            size |= (data[i] & 127) << shift
            shift += 7
            i += 1
            if data[i - 1] < 128:
                break
        yield data[at], at, min(i + size, len(data))
        at = i + size


class Inbox:
    """What arrived at an end: ``got`` has (topic, payload, QoS, retain, DUP, packet id) of each message."""

    def __init__(self, end: "ClientSession | ServerSession"):
        self.got: list[tuple[bytes, bytes, int, bool, bool, int]] = []
        self._end = end
        end.on_message = self.message

    def message(self, p: "Packet") -> None:
        """Take a message."""
        self.got.append((p.topic_bytes(), p.payload_bytes(), p.qos(), p.retain(), p.dup(), p.packet_id))

    def payloads(self, qos: int) -> "list[bytes]":
        """The payloads that came at a QoS, in order."""
        return [m[1] for m in self.got if m[2] == qos]


class Sink:
    """Takes large messages into an ``Inbox``; ``cut`` counts the ones that were cut short."""

    def __init__(self, inbox: Inbox):
        self.cut = 0
        self._inbox = inbox
        self._head: tuple[bytes, int, bool, bool, int] | None = None
        self._payload = bytearray()
        self._size = 0

    def open(self, p: "Packet", size: int) -> bool:
        """A message begins."""
        assert self._head is None, "open twice"
        self._head = (p.topic_bytes(), p.qos(), p.retain(), p.dup(), p.packet_id)
        self._payload = bytearray()
        self._size = size
        return True

    def write(self, buf: "Bytes", at: int, n: int) -> None:
        """It goes on."""
        assert self._head is not None and n > 0
        self._payload += bytes(buf[at : at + n])

    def close(self, complete: bool) -> None:
        """It is over."""
        head = self._head
        assert head is not None, "closed twice"
        self._head = None
        if complete:
            assert len(self._payload) == self._size, "complete, but not all"
            topic, qos, retain, dup, packet_id = head
            self._inbox.got.append((topic, bytes(self._payload), qos, retain, dup, packet_id))
        else:
            assert len(self._payload) < self._size or self._size == 0, "all there, but not complete"
            self.cut += 1

    def idle(self) -> bool:
        """Whether no message is under way."""
        return self._head is None


class Outgoing:
    """What an end has published: all of it, what is pending of QoS 1 and 2 by packet id, and what was delivered."""

    def __init__(self, end: "ClientSession | ServerSession"):
        self.pending: dict[int, bytes] = {}
        self.delivered: list[bytes] = []
        self.published: list[tuple[bytes, int]] = []
        self._end = end
        end.on_delivered = self.done

    def publish(self, topic: bytes, payload: bytes, qos: int, retain: bool = False) -> int:
        """Publish, and remember; returns the session's answer."""
        packet_id = self._end.publish(topic, payload, qos, retain)
        if packet_id >= 0:
            self.published.append((payload, qos))
        if packet_id > 0:
            assert packet_id not in self.pending, "a packet id is in use twice"
            self.pending[packet_id] = payload
        return packet_id

    def done(self, packet_id: int) -> None:
        """``on_delivered``: once for each message."""
        self.delivered.append(self.pending.pop(packet_id))

    def payloads(self, qos: int) -> "list[bytes]":
        """What was published at a QoS, in order."""
        return [payload for payload, at in self.published if at == qos]


class Ends:
    """A client's session and a server's, back to back.

    ``links`` gives the link of each connection in turn, and after those links without faults. ``now`` is the time.
    """

    def __init__(
        self, client: ClientSession, server: ServerSession, links: "list[Link] | tuple[Link, ...]" = ()
    ):
        self.client = client
        self.server = server
        self.at_client = Inbox(client)
        self.at_server = Inbox(server)
        self.from_client = Outgoing(client)
        self.from_server = Outgoing(server)
        self.now = 0
        self.reconnect = True
        #: Every link there was, the last one being in use.
        self.links: list[Link] = []
        self._next = list(links)
        #: Called with the link when a connection was cut, before the next one.
        self.on_cut: Callable[[Link], object] | None = None

    def link(self) -> Link:
        """The link in use."""
        return self.links[-1]

    def open(self) -> None:
        """Begin a connection, without carrying anything yet."""
        self.links.append(self._next.pop(0) if self._next else Link())
        self.server.listen(self.now)
        assert self.client.connect(self.now) == 0

    def lose(self) -> None:
        """Both ends lose the connection."""
        self.client.lost()
        self.server.lost()

    def step(self) -> int:
        """Carry what can be carried once in each direction: how many bytes moved, or a negative status."""
        link = self.link()
        moved = send(self.client, link.up)
        for k in (
            receive(self.server, link.up),
            send(self.server, link.down),
            receive(self.client, link.down),
        ):
            if k < 0:
                return k
            moved += k
        return moved

    def run(self) -> None:
        """Carry until nothing moves any more; a cut connection is replaced, as often as there are links for it."""
        while True:
            moved = self.step()
            assert moved >= 0, moved
            if self.link().broken():
                if not self.reconnect:
                    return
                self.lose()
                if self.on_cut is not None:
                    self.on_cut(self.link())
                self.open()
            elif moved == 0:
                return

    def connect(self) -> None:
        """Open a connection and carry until both ends are online and nothing moves."""
        self.open()
        self.run()
        if self.reconnect:
            assert self.client.state == self.server.state == ONLINE

    def quiet(self) -> None:
        """Check that nothing is left to do at either end."""
        for end in (self.client, self.server):
            assert end.outbox.count == 0, end.outbox.count
            assert end.in_flight == 0, end.in_flight
            assert end.tx_end == 0
            assert end.out() == 0
            assert not end.stalled
            assert end.rx.start == end.rx.end
            assert not any(end.open_ids), list(end.open_ids)
        assert not self.from_client.pending
        assert not self.from_server.pending


# (take, chunk, room) of both directions: nothing in the way; pieces; and a transport that is nearly always full.
FAULTS = ((0, 0, 0), (5, 3, 0), (2, 0, 6))


def cut_everywhere(run: "Callable[[list[Link]], Any]", number: int = 0) -> "list[Any]":
    """Run without a fault, and then with a connection cut behind each byte of either direction; the runs without one.

    ``run`` gets the links to use; ``number`` is which of its connections is the one to be cut.
    """
    whole = []
    for f in range(len(FAULTS)):
        take, chunk, room = FAULTS[f]
        fair = run([Link(Wire(take, chunk, room), Wire(take, chunk, room))])
        whole.append(fair)
        link = fair.links[number]
        # MicroPython meets every byte without other faults, and samples with them.
        step = 5 if f and sys.implementation.name == "micropython" else 1
        for k in range(f, len(link.up.log) + 1, step):
            run([Link(Wire(take, chunk, room, k), Wire(take, chunk, room))])
        for k in range(f, len(link.down.log) + 1, step):
            run([Link(Wire(take, chunk, room), Wire(take, chunk, room, k))])
    return whole


def again(e: Ends) -> None:
    """A new connection for the same sessions."""
    e.lose()
    e.connect()


def small_ends(rx_size: int = 64, tx_size: int = 64) -> Ends:
    """Two ends with small buffers and a session that is kept, connected."""
    e = Ends(
        ClientSession(b"c", 0, False, None, None, rx_size, tx_size, 512, slots=6),
        ServerSession(rx_size, tx_size, 512, slots=6),
    )
    e.connect()
    return e
