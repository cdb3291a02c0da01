"""Sessions of every version, at either end, for tests that do not care which; and one of them under observation.

``KINDS`` is the table. A new session is one line there.
"""

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipe import drain
from sessions import server5, session5, session31

from headwater.connection import ERROR, ONLINE
from headwater.mqtt.manual_ack import ManualAck
from headwater.mqtt.packets import Packet
from headwater.mqtt.server import ServerSession
from headwater.mqtt.server31 import ServerSession31
from headwater.mqtt.session import ClientSession
from headwater.mqtt.topic_aliases import IncomingAliases
from headwater.reasons import REASONS
from headwater.streaming import stream_to
from headwater.types import Bytes
from tests.fuzz import mqtt_reference as reference

TX = 64
RECEIVE_WINDOW = 4
#: Topics that 5.0's ends let the other end give numbers to, and how long they may be.
ALIASES, ALIAS_SIZE = 2, 16
#: A message that begins so makes its handler raise, in tests that want that.
RAISES = b"!"


@dataclass(frozen=True)
class Kind:
    """One end of one version: how it is made, and what brings it online."""

    name: str
    level: int
    make: Callable[..., Any]
    hello: bytes

    @property
    def server(self) -> bool:
        """Whether it is a server's end."""
        return self.name.startswith("server")


def _client(session: Callable[..., ClientSession]) -> Callable[..., Any]:
    def make(rx: int, **more: Any) -> ClientSession:
        return session(b"c", 0, False, rx_size=rx, tx_size=TX, receive_window=RECEIVE_WINDOW, **more)

    return make


def _server(session: Callable[..., ServerSession]) -> Callable[..., Any]:
    def make(rx: int, **more: Any) -> ServerSession:
        return session(rx, TX, receive_window=RECEIVE_WINDOW, **more)

    return make


def _five(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda rx: make(rx, aliases_in=IncomingAliases(ALIASES, ALIAS_SIZE))


_OLD_CONNACK = b"\x20\x02\x00\x00"
KINDS = {
    kind.name: kind
    for kind in (
        Kind("client-3.1", 3, _client(session31), _OLD_CONNACK),
        Kind("server-3.1", 3, _server(ServerSession31), b"\x10\x0f\x00\x06MQIsdp\x03\x00\x00\x00\x00\x01c"),
        Kind("client-3.1.1", 4, _client(ClientSession), _OLD_CONNACK),
        Kind("server-3.1.1", 4, _server(ServerSession), b"\x10\x0d\x00\x04MQTT\x04\x00\x00\x00\x00\x01c"),
        Kind("client-5.0", 5, _five(_client(session5)), b"\x20\x03\x00\x00\x00"),
        Kind(
            "server-5.0",
            5,
            _five(_server(server5)),
            b"\x10\x0e\x00\x04MQTT\x05\x00\x00\x00\x00\x00\x01c",
        ),
    )
}
#: The smallest receive buffer into which a server's CONNECT above fits.
SMALLEST_RX = 40


class Raised(Exception):  # noqa: N818 (it is no error)
    """What a handler raises here."""


def begin(kind: Kind, end: Any) -> None:
    """A connection begins: nothing has arrived."""
    if kind.server:
        end.listen(0)
    else:
        assert end.connect(0) == 0
        drain(end)


class Watched:
    """A session, and everything that can be seen of it while it is fed.

    ``seen`` has what it told its application, in order; ``messages`` only the messages: topic, payload, QoS, RETAIN,
    DUP and packet id; ``out`` what it sent since it was online. With ``raises``, the handlers raise at some messages.
    """

    def __init__(
        self,
        kind: Kind,
        rx_size: int,
        *,
        sink: bool = True,
        online: bool = True,
        auto_ack: bool = True,
        raises: bool = False,
    ) -> None:
        self.kind = kind
        self.seen: list[Any] = []
        self.messages: list[Any] = []
        self.out = b""
        self.steps = 0
        self.end = end = kind.make(rx_size)
        # No earlier life whose ids are to be released: when that is done depends on when bytes are taken.
        end.outbox.settle()
        self._raises = raises
        self._large: list[Any] = []
        if not auto_ack:
            ManualAck(end)
        end.on_message = self.message
        end.on_delivered = lambda packet_id: self.seen.append(packet_id)
        if sink:
            stream_to(end, self)
        if kind.server:
            end.on_subscribe = self.subscribed
        else:
            end.on_answer = lambda packet_id, code: self.seen.append((packet_id, code))
        begin(kind, end)
        if online:
            self.go_online()

    def go_online(self) -> None:
        """The handshake, and something of ours that acknowledgements may meet."""
        assert self.feed(self.kind.hello, [1000]) == 0 and self.end.state == ONLINE
        for qos in (1, 2, 1):
            assert self.end.publish(b"t", b"ours", qos) > 0
        drain(self.end)
        self.out = b""

    def message(self, p: Packet) -> None:
        """``on_message``."""
        self._take((p.topic_text(), p.payload_bytes(), p.qos(), p.retain(), p.dup(), p.packet_id))

    def _take(self, message: tuple[Any, ...]) -> None:
        if self._raises and message[1].startswith(RAISES):
            raise Raised
        self.seen.append(message)
        self.messages.append(message)

    def subscribed(self, p: Packet, qos: int) -> int:
        """``on_subscribe``."""
        self.seen.append((p.topic_text(), qos))
        return qos & 3

    # A sink, too: what it gets counts as a message.

    def open(self, p: Packet, size: int) -> bool:
        """A large message begins."""
        assert not self._large, "open twice"
        self._large = [p.topic_text(), b"", p.qos(), p.retain(), p.dup(), p.packet_id, size]
        return True

    def write(self, buf: Bytes, at: int, n: int) -> None:
        """It goes on."""
        assert n > 0
        self._large[1] += bytes(buf[at : at + n])

    def close(self, complete: bool) -> None:
        """It is over."""
        large, self._large = self._large, []
        assert large, "closed twice"
        size = large.pop()
        if complete:
            assert len(large[1]) == size
            self._take(tuple(large))

    def feed(self, data: bytes, pieces: list[int]) -> int:
        """Feed in pieces, sending what there is to send in between; the status.

        In bounded steps, each of which takes something in or gives something out.
        """
        end = self.end
        at = k = 0
        status = 0
        # Each byte may fill the transmit buffer anew; each handler may raise once.
        most = self.steps + 4 * len(data) + 8
        raised = False
        while at < len(data) or end.stalled or raised:
            self.steps += 1
            assert self.steps <= most, "it does not come to an end"
            n = min(end.rx.window(), pieces[k % len(pieces)], len(data) - at)
            assert n or end.stalled or raised, "no room to read into"
            k += 1
            end.rx.view[:n] = data[at : at + n]
            at += n
            raised = False
            try:
                status = end.feed(n)
            except Raised:
                raised = True
            self.out += drain(end)
            assert end.tx_size == len(end.tx) and 0 <= end.tx_end <= len(end.tx)
            if status:
                assert status in REASONS and end.state == ERROR and end.status == status
                assert end.feed(0) == end.out() == end.poll(1) == status
                break
        return status

    def outcome(self) -> tuple[Any, ...]:
        """All of it but what was sent."""
        end = self.end
        return (self.seen, end.status, end.state, end.strays, end.duplicates, end.in_flight)


class Footprint:
    """What a session is made of: that it keeps its parts, and each its size."""

    def __init__(self, end: Any) -> None:
        self._owners: list[tuple[dict[str, Any], int]] = []
        self._parts: list[tuple[dict[str, Any], str, Any, int]] = []
        self._look(end, 2)

    def _look(self, thing: Any, depth: int) -> None:
        owned = vars(thing)
        self._owners.append((owned, len(owned)))
        for name, value in owned.items():
            kind = type(value)
            if kind in _CONTAINERS:
                if name not in _CHANGING:
                    self._parts.append((owned, name, value, len(value)))
            elif depth and kind not in _SIMPLE and kind.__module__.startswith("headwater"):
                self._look(value, depth - 1)

    def check(self) -> None:
        """Nothing has grown, nothing was put in another's place."""
        for owned, count in self._owners:
            assert len(owned) == count, "it grows"
        for owned, name, part, size in self._parts:
            assert owned[name] is part and len(part) == size, f"{name} grows"


_CONTAINERS = {bytearray, array, list, dict, set, deque}
_SIMPLE = {int, bool, bytes, tuple, type(None), type(lambda: 0), type(print), type([].append), memoryview}
#: What stands for one of several.
_CHANGING = {"out_buf", "ready"}


# -- what a session ought to deliver -----------------------------------------------------------------------------------

_PUBLISH, _PUBACK, _PUBREC, _PUBREL, _PUBCOMP = range(3, 8)
_TAKES = {False: {3, 4, 5, 6, 7, 9, 11, 13}, True: {3, 4, 5, 6, 7, 8, 10, 12, 14}}


class Expected:
    """What an end that is online delivers of a stream, by the reference, and how it answers.

    ``messages`` and ``answers`` (packet type, packet id) are as far as the stream goes at most: an end stops earlier
    where it finds an error that is no matter of delivery. ``whole``: no packet of the stream is malformed, and none is
    cut short.
    """

    def __init__(
        self, kind: Kind, data: bytes, capacity: int, *, sink: bool, auto_ack: bool, raises: bool
    ) -> None:
        self.messages: list[Any] = []
        self.answers: list[tuple[int, int]] = []
        self._kind = kind
        self._capacity = capacity
        self._sink = sink
        self._auto_ack = auto_ack
        self._raises = raises
        self._open: dict[int, bool] = {}
        self._aliases: dict[int, str] = {}
        at = 0
        going = True
        while at < len(data) and going:
            size = self._packet(data[at:])
            at += size
            going = size > 0
        self.whole = at == len(data)

    def _packet(self, data: bytes) -> int:
        """Take one packet: its size, 0 when it goes no further."""
        level = self._kind.level
        try:
            parts = reference.split(data, level)
            if parts is None or parts[0] >> 4 not in _TAKES[self._kind.server]:
                return 0
            head, body, size = parts
            if head >> 4 == _PUBLISH:
                return size if self._publish(head, body, size) else 0
            m = reference.meaning(head, body, level)
        except reference.Malformed:
            return 0
        if m[0] == _PUBREL:
            self._open.pop(m[1], None)
            self.answers.append((_PUBCOMP, m[1]))
        return size

    def _publish(self, head: int, body: bytes, size: int) -> bool:
        """Take a message; False ends the connection."""
        qos = head >> 1 & 3
        large = size > self._capacity
        if large and self._is_unshown(head, body, size):
            r = reference.Reader(body)
            r.binary()
            packet_id = r.number(2) if qos else 0
            if qos and not packet_id:
                return False
            return self._deliver(None, qos, packet_id)
        _, topic, payload, qos, dup, retain, packet_id, said = reference.meaning(head, body, self._kind.level)
        alias = dict(said).get(35)
        if alias is not None:
            if alias > ALIASES:
                return False
            if topic:
                self._aliases[alias] = topic
            topic = self._aliases.get(alias, "")
            if not topic or (body.startswith(b"\0\0") and len(topic.encode()) > ALIAS_SIZE):
                return False
        if 11 in dict(said) and self._kind.server:
            return False
        shown = not large or self._sink
        return self._deliver((topic, payload, qos, retain, dup, packet_id) if shown else None, qos, packet_id)

    def _is_unshown(self, head: int, body: bytes, size: int) -> bool:
        """Whether what stands before the payload is too much for the buffer."""
        r = reference.Reader(body)
        r.binary()
        if head & 6:
            r.number(2)
        before = size - len(r.data)
        if self._kind.level < 5:
            return before > self._capacity
        if before + 4 > self._capacity:
            reference.demand(r.data)
            return True
        r.take(r.varint())
        return size - len(r.data) > self._capacity

    def _deliver(self, message: Any, qos: int, packet_id: int) -> bool:
        if qos == 2 and packet_id in self._open:
            if self._open[packet_id]:
                self.answers.append((_PUBREC, packet_id))
            return True
        if qos == 2 and len(self._open) == RECEIVE_WINDOW:
            return False
        raised = False
        if message is not None:
            raised = self._raises and message[1].startswith(RAISES)
            if not raised:
                self.messages.append(message)
        if raised:
            return True
        answered = self._auto_ack or message is None
        if qos == 2:
            self._open[packet_id] = answered
        if qos and answered:
            self.answers.append((_PUBREC if qos == 2 else _PUBACK, packet_id))
        return True


def answers(out: bytes, level: int) -> list[tuple[int, int]]:
    """The acknowledgements in what a session has sent, all of which must be well-formed."""
    found = []
    at = 0
    for one in reference.stream(out, level):
        assert one is not None, "it sends what is malformed"
        m, at = one
        if m[0] in (_PUBACK, _PUBREC, _PUBCOMP):
            found.append((m[0], m[1]))
    assert at == len(out), "it sends half a packet"
    return found
