"""MQTT, FMQ and Redis Streams as a load generator speaks them: messages made beforehand, answers found by stride.

All messages of a connection have one size, and so have all answers of one kind. A link is a socket and what it says;
``take`` gets what was read and gives what it means, what is to be answered, and what is not whole yet.
"""

from __future__ import annotations

import abc
import re
import socket
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from headwater.fmq import spec
from headwater.fmq.frames import Frame
from headwater.fmq.frames_hub import decode_frame
from headwater_host.fmq.kinds import DateTime
from headwater_host.fmq.values import decode_at, encode
from headwater_host.hub import frames
from tools.bench.hosts import sync

SIZE = 64
#: The payload begins with the message's number, in so many digits.
DIGITS = 8
HOST = "127.0.0.1"
#: What a subscriber is sent before it answers, where that can be chosen.
RECEIVE_WINDOW = 16
SECONDS = 30.0


class WireError(Exception):
    """The server said something else than it should."""


class Link(abc.ABC):
    """A connection. ``take`` returns what is done, or the numbers of the messages joined, an answer and a rest."""

    socket: socket.socket

    def close(self) -> None:
        self.socket.close()


class Publisher(Link):
    """One who publishes at a QoS. ``mark`` is a message whose answer says that all before it were read; ``process`` is
    FMQ's process number."""

    mark = b""
    size = 0
    process = 0

    @abc.abstractmethod
    def messages(self, count: int) -> bytes:
        """So many messages, numbered from 0, behind each other."""

    @abc.abstractmethod
    def take(self, data: bytes) -> tuple[int, bytes, bytes]: ...


class Subscriber(Link):
    """One who receives what one publisher sends."""

    @abc.abstractmethod
    def take(self, data: bytes) -> tuple[bytes, bytes, bytes]: ...


class Wire(abc.ABC):
    """A protocol, spoken with the server at ``port``. Publisher n sends to topic n, of which subscriber n hears."""

    def __init__(self, port: int, qos: int, name: str):
        """``name`` is in those of its topics and clients: what was there before does not matter."""
        self.port = port
        self.qos = qos
        self.name = name

    def topic(self, n: int) -> str:
        return f"bench/{self.name}/{n}"

    def client(self, role: str, n: int) -> str:
        return f"{role}-{self.name}-{n}"

    @abc.abstractmethod
    def publisher(self, n: int) -> Publisher: ...

    @abc.abstractmethod
    def subscriber(self, n: int) -> Subscriber:
        """It is known to the server from now on, connected or not."""


def _rows(template: bytes, count: int, columns: Iterable[tuple[int, str, int]] = ()) -> bytes:
    """``template`` so many times, with a number in each payload. ``columns``: where, of which type, and from what on
    something else counts."""
    rows = np.tile(np.frombuffer(template, np.uint8), (count, 1))
    at = template.index(_PAYLOAD)
    numbers = np.char.zfill(np.arange(count).astype("S8"), DIGITS)
    rows[:, at : at + DIGITS] = numbers.view(np.uint8).reshape(count, DIGITS)
    for place, kind, first in columns:
        values = (np.arange(count) + first).astype(kind)
        rows[:, place : place + values.itemsize] = values.view(np.uint8).reshape(count, -1)
    return rows.tobytes()


_PAYLOAD = b"-" * DIGITS + bytes(SIZE - DIGITS)


def _split(data: bytes, sizes: dict[int, int]) -> tuple[dict[int, list[bytes]], bytes]:
    """Packets by the upper half of their first byte, and the rest."""
    found: dict[int, list[bytes]] = {kind: [] for kind in sizes}
    at, end = 0, len(data)
    try:
        while at < end:
            kind = data[at] >> 4
            stop = at + sizes[kind]
            if stop > end:
                break
            found[kind].append(data[at:stop])
            at = stop
    except KeyError:
        raise WireError(f"the server sent {data[at : at + 40].hex()}") from None
    return found, data[at:]


# -- MQTT --------------------------------------------------------------------------------------------------------------


class _MqttPublisher(Publisher):
    def __init__(self, wire: Wire, n: int):
        self.socket = sync.join(wire.port, wire.client("p", n).encode())
        self._qos = qos = wire.qos
        name = wire.topic(n).encode()
        body = len(name).to_bytes(2, "big") + name + bytes(2 if qos else 0) + _PAYLOAD
        self._template = bytes((0x30 | qos << 1, len(body))) + body
        self._id_at = 4 + len(name)
        self.size = len(self._template)
        self.mark = b"\x32\x0e\x00\x0abench/mark\x00\x01"

    def messages(self, count: int) -> bytes:
        return _rows(self._template, count, [(self._id_at, ">u2", 1)] if self._qos else [])

    def take(self, data: bytes) -> tuple[int, bytes, bytes]:
        found, rest = _split(data, {4: 4, 5: 4, 7: 4})
        release = b"".join([b"\x62\x02" + packet[2:] for packet in found[5]])
        return len(found[7] if self._qos == 2 else found[4]), release, rest


class _MqttSubscriber(Subscriber):
    def __init__(self, wire: Wire, n: int):
        self.socket = sync.join(wire.port, wire.client("s", n).encode(), clean=False)
        topic = wire.topic(n).encode()
        sync.subscribe(self.socket, wire.qos, topic)
        self._id_at = 4 + len(topic)
        self._sizes = {3: self._id_at + (2 if wire.qos else 0) + SIZE, 6: 4}
        self._answer = (b"", b"\x40\x02", b"\x50\x02")[wire.qos]

    def take(self, data: bytes) -> tuple[bytes, bytes, bytes]:
        found, rest = _split(data, self._sizes)
        at, head = self._id_at, self._answer
        answer = b"".join([head + packet[at : at + 2] for packet in found[3]]) if head else b""
        answer += b"".join([b"\x70\x02" + packet[2:] for packet in found[6]])
        return b"".join([packet[-SIZE : DIGITS - SIZE] for packet in found[3]]), answer, rest


class Mqtt(Wire):
    """MQTT 3.1.1. The subscriber's session is kept, so that the server has to store what comes while it is away."""

    def publisher(self, n: int) -> Publisher:
        return _MqttPublisher(self, n)

    def subscriber(self, n: int) -> Subscriber:
        return _MqttSubscriber(self, n)


# -- FMQ ---------------------------------------------------------------------------------------------------------------


def ident_of(kind: int, process: int, time_ns: int) -> bytes:
    """A message id. Process numbers have one byte here, as long as few clients have been there."""
    return bytes((kind << 4 | 1, process, 0)) + encode(DateTime(time_ns))


class FmqLink:
    """A connection to a hub that has accepted it."""

    def __init__(self, port: int, name: str, clean: bool = True):
        self.socket = socket.create_connection((HOST, port), timeout=SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.process = 0
        self.process = int(self.ask(spec.AUTH, name, None, None, 0, clean)[1])

    def ask(self, kind: int, *values: object, flags: int = 0) -> list[Any]:
        """Send a request: the values of its ACK."""
        self.tell(kind, *values, flags=flags)
        data = b""
        f = Frame(b"", 1 << 16)
        while True:
            data += sync.some(self.socket)
            f.buf = f.value.buf = data
            if decode_frame(f, 0, len(data)) > 0:
                break
        answer = [decode_at(data, f.at[n], f.end)[0] for n in range(f.count)]
        if f.code:
            raise WireError(f"the hub refused: {answer}")
        return answer

    def tell(self, kind: int, *values: object, flags: int = 0) -> None:
        ident = ident_of(kind, self.process, time.time_ns())
        body = b"".join(encode(value) for value in values)
        self.socket.sendall(frames.framed(kind << 4 | flags, ident, body))


class _FmqPublisher(Publisher):
    def __init__(self, wire: Wire, n: int):
        link = FmqLink(wire.port, wire.client("p", n))
        self.socket = link.socket
        self._qos = wire.qos
        self.process = link.process
        self._template = _publish(link.process, wire.topic(n), wire.qos)
        self.size = len(self._template)
        self.mark = _publish(link.process, "bench/mark", 1)

    def messages(self, count: int) -> bytes:
        # The eight bytes of its time, behind type, process and thread.
        return _rows(self._template, count, [(5, "<u8", time.time_ns())])

    def take(self, data: bytes) -> tuple[int, bytes, bytes]:
        ident = len(ident_of(0, self.process, 1 << 60))
        found, rest = _split(data, {spec.ACK: ident + 2, spec.PUBREC: ident + 1, spec.PUBCOMP: ident + 1})
        release = b"".join([frames.bare(spec.PUBREL, packet[1:]) for packet in found[spec.PUBREC]])
        return len(found[spec.PUBCOMP if self._qos == 2 else spec.ACK]), release, rest


def _publish(process: int, topic: str, qos: int) -> bytes:
    body = frames.message(topic, (), _PAYLOAD)
    return frames.publish(ident_of(spec.PUBLISH, process, time.time_ns()), body, qos)


class _FmqSubscriber(Subscriber):
    """A session that is kept."""

    def __init__(self, wire: Wire, n: int):
        link = FmqLink(wire.port, wire.client("s", n), clean=False)
        self.socket = link.socket
        link.ask(spec.SUBSCRIBE, wire.topic(n))
        size = len(_publish(1, wire.topic(n), wire.qos))
        self._ident = slice(1, 1 + len(ident_of(0, 1, 1 << 60)))
        self._sizes = {spec.PUBLISH: size, spec.PUBREL: self._ident.stop}
        self._answer = (None, frames.ack, lambda ident: frames.bare(spec.PUBREC, ident))[wire.qos]

    def take(self, data: bytes) -> tuple[bytes, bytes, bytes]:
        found, rest = _split(data, self._sizes)
        messages, make = found[spec.PUBLISH], self._answer
        answer = b"".join([make(packet[self._ident]) for packet in messages]) if make else b""
        answer += b"".join([frames.bare(spec.PUBCOMP, packet[1:]) for packet in found[spec.PUBREL]])
        return b"".join([packet[-SIZE : DIGITS - SIZE] for packet in messages]), answer, rest


class _FmqConsumer(Subscriber):
    """A member of a consumer group."""

    def __init__(self, wire: Wire, n: int):
        link = FmqLink(wire.port, wire.client("s", n))
        self.socket = link.socket
        number = link.ask(spec.SUBSCRIBE, wire.topic(n), [], "", "bench")[1]
        link.tell(spec.CONSUME, number, RECEIVE_WINDOW, flags=spec.NEEDACK)
        ident = ident_of(spec.PUBLISH, 1, 1 << 60)
        body = frames.message(None, (), _PAYLOAD)
        self._ident = slice(1, 1 + len(ident))
        self._sizes = {spec.CONSUMERESP: len(frames.response(ident, encode(number), body))}

    def take(self, data: bytes) -> tuple[bytes, bytes, bytes]:
        found, rest = _split(data, self._sizes)
        messages = found[spec.CONSUMERESP]
        answer = b"".join([frames.ack(packet[self._ident]) for packet in messages])
        return b"".join([packet[-SIZE : DIGITS - SIZE] for packet in messages]), answer, rest


class Fmq(Wire):
    """FMQ, with broadcast subscriptions of sessions that are kept."""

    def publisher(self, n: int) -> Publisher:
        return _FmqPublisher(self, n)

    def subscriber(self, n: int) -> Subscriber:
        return _FmqSubscriber(self, n)


class FmqGroup(Fmq):
    """FMQ, with a consumer group."""

    def subscriber(self, n: int) -> Subscriber:
        return _FmqConsumer(self, n)


# -- Redis -------------------------------------------------------------------------------------------------------------


def _command(*parts: bytes) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def _redis(port: int, *command: bytes) -> socket.socket:
    """A connection that has sent one command, to which Redis said something else than no."""
    connection = socket.create_connection((HOST, port), timeout=SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(_command(*command))
    answer = sync.some(connection)
    if answer.startswith(b"-"):
        raise WireError(f"Redis said {answer!r}")
    return connection


class _RedisPublisher(Publisher):
    def __init__(self, wire: Wire, n: int):
        self.socket = _redis(wire.port, b"PING")
        self._template = _command(b"XADD", wire.topic(n).encode(), b"*", b"p", _PAYLOAD)
        self.size = len(self._template)

    def messages(self, count: int) -> bytes:
        return _rows(self._template, count)

    def take(self, data: bytes) -> tuple[int, bytes, bytes]:
        whole = data.rfind(b"\r\n") + 2 if b"\r\n" in data else 0
        if data[:1] == b"-":
            raise WireError(f"Redis said {data!r}")
        # An id and its length are two lines.
        lines = data[:whole].count(b"\r\n")
        if lines % 2:
            whole = data.rfind(b"\r\n", 0, whole - 2) + 2 if lines > 1 else 0
        return lines // 2, b"", data[whole:]


class _RedisWaitingPublisher(_RedisPublisher):
    """Sends WAIT behind the messages that Redis has answered. They are done when a replica has them too."""

    _WAIT = _command(b"WAIT", b"1", b"10000")

    def __init__(self, wire: Wire, n: int):
        super().__init__(wire, n)
        self._answered = self._waiting = 0

    def take(self, data: bytes) -> tuple[int, bytes, bytes]:
        done = 0
        answer = b""
        while True:
            if self._waiting and data.startswith(b":"):
                line, whole, rest = data.partition(b"\r\n")
                if not whole:
                    return done, answer, data
                if line != b":1":
                    raise WireError(f"WAIT said {line!r}")
                done += self._waiting
                self._waiting, data = 0, rest
            end = data.find(b":") if self._waiting else -1
            count, _, rest = super().take(data if end < 0 else data[:end])
            # The answer to WAIT stands between those to XADD, whose ids have no colon.
            self._answered += count
            data = rest if end < 0 else rest + data[end:]
            if not (self._waiting and data.startswith(b":") and b"\r\n" in data):
                break
        if self._answered and not self._waiting:
            self._waiting, self._answered = self._answered, 0
            answer = self._WAIT
        return done, answer, data


class _RedisConsumer(Subscriber):
    """Asks for the next messages when it acknowledges the last ones."""

    _COUNT = re.compile(rb"\*1\r\n\*2\r\n\$\d+\r\n[^\r]*\r\n\*(\d+)\r\n")
    _ENTRY = re.compile(rb"\$\d+\r\n(\d+-\d+)\r\n\*2\r\n\$1\r\np\r\n\$64\r\n(\d{8})\0{56}\r\n")

    def __init__(self, wire: Wire, n: int):
        topic = wire.topic(n).encode()
        self.socket = _redis(wire.port, b"XGROUP", b"CREATE", topic, b"bench", b"$", b"MKSTREAM")
        count = b"%d" % RECEIVE_WINDOW
        self._topic = topic
        self._next = _command(
            *(
                b"XREADGROUP",
                b"GROUP",
                b"bench",
                b"c",
                b"COUNT",
                count,
                b"BLOCK",
                b"0",
                b"STREAMS",
                topic,
                b">",
            )
        )
        self.socket.sendall(self._next)

    def take(self, data: bytes) -> tuple[bytes, bytes, bytes]:
        # The answer to XACK, an integer, comes before that to XREADGROUP.
        while data.startswith(b":") and b"\r\n" in data:
            data = data[data.index(b"\r\n") + 2 :]
        head = self._COUNT.match(data)
        entries = self._ENTRY.findall(data)
        if head is None or len(entries) < int(head[1]):
            return b"", b"", data
        idents = [ident for ident, _ in entries]
        answer = _command(b"XACK", self._topic, b"bench", *idents) + self._next
        return b"".join([number for _, number in entries]), answer, b""


class Redis(Wire):
    """Redis Streams: XADD, XREADGROUP, XACK."""

    def publisher(self, n: int) -> Publisher:
        return _RedisPublisher(self, n)

    def subscriber(self, n: int) -> Subscriber:
        return _RedisConsumer(self, n)


class RedisWait(Redis):
    """Redis Streams whose publishers wait for a replica."""

    def publisher(self, n: int) -> Publisher:
        return _RedisWaitingPublisher(self, n)
