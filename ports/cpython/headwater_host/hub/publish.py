"""Messages in, and the topics that they need: REGISTER, UNREGISTER, PUBLISH, wills (docs/protocols/fmq.md)."""

import time
from functools import partial
from typing import TYPE_CHECKING

from headwater.fmq import spec
from headwater.fmq.frames import Frame
from headwater_host.fmq.hashes import hash_of
from headwater_host.fmq.kinds import DateTime
from headwater_host.fmq.values import decode_at, encode
from headwater_host.hub import frames
from headwater_host.hub.clients import Will
from headwater_host.hub.errors import PACKET_TOO_LARGE, TOPIC_NAME_INVALID, RefusedError
from headwater_host.hub.rpc import REPLY
from headwater_host.hub.topics import check_topic

if TYPE_CHECKING:
    from headwater_host.hub.broker import Broker
    from headwater_host.hub.connection import Connection

#: Topics that begin so are the hub's.
_OWN = "$"
_NO_TAGS = spec.LIST << 4
_QOS = ("0", "1", "2")
#: Topics that are remembered of a connection, and their characters.
_KNOWN = 1000
_LONGEST_KNOWN = 256
#: Bytes that a message gets longer at most on its way to a client: a correlation, ``$dead/``, a name for a hash.
_GROWS = 32
#: The name under which the hub has a process number itself.
HUB = "$hub"


class Topics:
    """Registered topics, and their hashes as soon as somebody uses one."""

    def __init__(self, broker: "Broker"):
        self._broker = broker
        self._hashes: dict[int, str] | None = None
        #: Those that were made since the broker last heard of it, too.
        self.known = set(broker.store.topics)

    def name(self, topic: object) -> str:
        """A topic, given by its name or by its hash. Raises RefusedError."""
        if isinstance(topic, str):
            return topic
        if self._hashes is None:
            self._hashes = {hash_of(name): name for name in self._broker.store.topics}
        assert isinstance(topic, int)
        name = self._hashes.get(topic)
        if name is None:
            raise RefusedError(TOPIC_NAME_INVALID, "there is no topic with this hash")
        return name

    def have(self, name: str) -> None:
        """Register a topic that is not there, if that goes by itself. Raises RefusedError."""
        if name in self._broker.store.topics:
            return
        if not self._broker.config.auto_register:
            raise RefusedError(TOPIC_NAME_INVALID, f"there is no topic {name!r}")
        self.register(name, 1)

    def register(self, name: str, queues: int) -> None:
        """Register a topic, or have it grow. Raises RefusedError."""
        if self._broker.store.register(name, queues):
            self.made(name)

    def made(self, name: str) -> None:
        """A topic is new, or has grown."""
        self.known.add(name)
        if self._hashes is not None:
            self._hashes[hash_of(name)] = name
        self._broker.topic_made(name)

    def unregister(self, name: str) -> None:
        """Forget a topic. Raises RefusedError when it is not there."""
        if name not in self._broker.store.topics:
            raise RefusedError(TOPIC_NAME_INVALID, f"there is no topic {name!r}")
        self._broker.topic_gone(name)
        self._broker.store.unregister(name)
        self.known.discard(name)
        if self._hashes is not None:
            self._hashes.pop(hash_of(name), None)


def check_ours(topic: str) -> None:
    """Raises RefusedError when clients do not register, or publish to, a topic of this name."""
    check_topic(topic)
    if topic.startswith(_OWN):
        raise RefusedError(TOPIC_NAME_INVALID, "what begins with $ is the hub's")


def check_size(broker: "Broker", size: int) -> None:
    """Raises RefusedError when a message, its topic's name among it, would be longer than a frame where it goes."""
    limit = broker.config.clients.frame
    if size > limit - _GROWS:
        raise RefusedError(PACKET_TOO_LARGE, f"a message of {size} bytes: {limit - _GROWS} can be handed on")


def on_register(broker: "Broker", connection: "Connection", f: Frame, ident: bytes) -> None:
    """REGISTER."""
    buf = bytes(f.buf)
    topic = decode_at(buf, f.at[0], f.end)[0]
    queues = decode_at(buf, f.at[1], f.end)[0] if f.count > 1 else 1
    check_ours(topic)
    connection.check("REGISTER", topic)
    broker.topics.register(topic, queues)
    if broker.observer is not None:
        broker.observer.registered(connection, buf[f.id_at - 1 : f.end])
    broker.after(partial(connection.send, frames.ack(ident)))


def on_unregister(broker: "Broker", connection: "Connection", f: Frame, ident: bytes) -> None:
    """UNREGISTER."""
    topic = decode_at(bytes(f.buf), f.at[0], f.end)[0]
    check_topic(topic)
    connection.check("UNREGISTER", topic)
    broker.topics.unregister(topic)
    broker.store.after(partial(connection.send, frames.ack(ident)))


def process_of(ident: bytes) -> int:
    """The process number in a message id."""
    return int.from_bytes(ident[1 : 1 + (ident[0] & 15)], "little")


def on_publish(broker: "Broker", connection: "Connection", f: Frame, ident: bytes) -> None:
    """PUBLISH: stored, and then answered when it is on the disk."""
    buf, store = f.buf, broker.store
    topic = connection.topics.get(bytes(buf[f.body : f.tags_at]))
    if topic is None or topic not in store.topics:
        topic = _topic(broker, connection, f)
        if topic == REPLY:
            broker.calls.on_reply(connection, f, ident)
            return
    check_size(broker, f.end - f.body)
    head = f.head
    qos = head >> 1 & 3
    store.publish(
        topic,
        ident,
        ident[1] if ident[0] & 15 == 1 else process_of(ident),
        bytes(buf[f.payload_at : f.end]),
        tags=() if buf[f.tags_at] == _NO_TAGS else tuple(decode_at(bytes(buf), f.tags_at, f.end)[0]),
        qos=qos,
        retain=head & 1 == 1,
        time_ns=store.age.now(),
    )
    if broker.observer is not None:
        broker.observer.published(connection, bytes(buf[f.id_at - 1 : f.end]))
    broker.received.add(1, _QOS[qos])
    if qos:
        # Stored before or just now: the answer waits until it is on the disk.
        broker.answer(connection, frames.ack(ident) if qos == 1 else frames.bare(spec.PUBREC, ident))
    if store.share(connection, f.end - f.body):
        connection.hold()
        store.next_turn(connection.release)
    if broker.broadcast.is_behind:
        connection.hold()
        broker.broadcast.after(connection.release)
    if store.waiting > store.limits.waiting // 2:
        connection.hold()
        store.after(connection.release)


def _topic(broker: "Broker", connection: "Connection", f: Frame) -> str:
    """The topic of a PUBLISH, which is registered now and may be published to, or ``REPLY``. Raises RefusedError."""
    buf, known = f.buf, connection.topics
    if f.has_topic():
        topic = str(buf[f.topic_at : f.topic_end], "utf-8")
    else:
        topic = broker.topics.name(decode_at(bytes(buf), f.at[0], f.end)[0])
        check_size(broker, len(topic.encode()) + f.end - f.tags_at)
    check_topic(topic)
    connection.check("PUBLISH", topic)
    if topic == REPLY and topic not in broker.store.topics:
        return topic
    check_ours(topic)
    broker.topics.have(topic)
    # A hash might one day be another topic's.
    if f.has_topic() and len(topic) <= _LONGEST_KNOWN:
        if len(known) >= _KNOWN:
            known.clear()
        known[bytes(buf[f.body : f.tags_at])] = topic
    return topic


def on_pubrel(broker: "Broker", connection: "Connection", f: Frame, ident: bytes) -> None:
    """PUBREL. The id of what it is about is remembered in any case, so there is no state to give up."""
    connection.send(frames.bare(spec.PUBCOMP, ident))


class Voice:
    """What the hub itself has to say: its message ids, and clients' wills."""

    def __init__(self, broker: "Broker"):
        self._broker = broker
        process = broker.store.sessions.process(HUB)
        size = (process.bit_length() + 7) // 8
        # Each start is a thread of its own: the clock may have been set back since the one before.
        thread = broker.store.start()
        more = ((thread >> 4).bit_length() + 7) // 8
        self._head = (
            bytes([spec.PUBLISH << 4 | size])
            + process.to_bytes(size, "little")
            + bytes([more << 4 | thread & 15])
            + (thread >> 4).to_bytes(more, "little")
        )
        self._process = process
        self._last = 0

    def ident(self) -> bytes:
        """A fresh message id."""
        self._last = max(self._last + 1, time.time_ns())
        return self._head + encode(DateTime(self._last))

    def publish(self, will: Will) -> None:
        """Publish for somebody. Raises RefusedError."""
        broker, ident = self._broker, self.ident()
        broker.topics.have(will.topic)
        broker.store.publish(
            will.topic,
            ident,
            self._process,
            will.payload,
            qos=will.qos,
            retain=will.retain,
            time_ns=broker.store.age.now(),
        )
        if broker.observer is not None:
            body = frames.message(will.topic, (), will.payload)
            broker.observer.published(None, frames.publish(ident, body, will.qos, retain=will.retain))
