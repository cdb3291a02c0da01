"""PUBLISH and PUBREL, REGISTER and UNREGISTER."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from headwater.fmq import spec
from headwater.fmq.frames import Frame
from headwater.mqtt import spec5
from headwater_host.hub import frames, requests
from headwater_host.hub.connection import Connection
from headwater_host.hub.contracts import Receiving
from headwater_host.hub.errors import RefusedError
from headwater_host.hub.metrics import Metric
from headwater_host.hub.observer import Durable, Observer
from headwater_host.hub.registry import Registry, check_ours
from headwater_host.hub.topics import check_topic

#: Where responders publish their answers.
REPLY = "$rpc/reply"
_QOS = ("0", "1", "2")
#: Topics that are remembered of a connection, and their characters.
_KNOWN = 1000
_LONGEST_KNOWN = 256
#: Bytes that a message grows by at most on its way to a client: a correlation, ``$dead/``, a name for a hash.
_GROWS = 32


class Backpressure(Protocol):
    """A consumer of messages for which publishers wait while it cannot keep up."""

    is_behind: bool

    def after(self, done: Callable[[], None]) -> None:
        """Call ``done`` once it has caught up."""


def check_size(size: int, limit: int) -> None:
    """Raise RefusedError when a message, its topic's name included, would not fit a frame of ``limit`` bytes to a
    client."""
    if size > limit - _GROWS:
        raise RefusedError(
            spec5.PACKET_TOO_LARGE, f"the message has {size} bytes; at most {limit - _GROWS} fit"
        )


def process_of(ident: bytes) -> int:
    """Return the process number in a message id."""
    return int.from_bytes(ident[1 : 1 + (ident[0] & 15)], "little")


@dataclass
class Publishing:
    """Handlers of the requests by which messages and topics get into the storage."""

    store: Receiving
    registry: Registry
    durable: Durable
    observer: Observer | None
    broadcasts: Backpressure
    received: Metric
    #: Bytes of the largest frame.
    frame: int
    #: Handles a PUBLISH to ``REPLY``.
    on_reply: Callable[[Connection, Frame, bytes], None]

    def on_register(self, connection: Connection, f: Frame, ident: bytes) -> None:
        """Register a topic, and answer when it is stored."""
        topic, queues = requests.register(f)
        check_ours(topic)
        connection.check("REGISTER", topic)
        self.registry.register(topic, queues)
        if self.observer is not None:
            self.observer.registered(connection, requests.raw(f))
        self.durable.after(partial(connection.send, frames.ack(ident)))

    def on_unregister(self, connection: Connection, f: Frame, ident: bytes) -> None:
        """Delete a topic, and answer when that is stored."""
        topic = requests.unregister(f)
        check_topic(topic)
        connection.check("UNREGISTER", topic)
        self.registry.unregister(topic)
        self.store.after(partial(connection.send, frames.ack(ident)))

    def on_publish(self, connection: Connection, f: Frame, ident: bytes) -> None:
        """Store a message, and answer when it is on the disk."""
        store = self.store
        topic = connection.topics.get(requests.topic_key(f))
        if topic is None or topic not in store.topics:
            topic = self._topic(connection, f)
            if topic == REPLY:
                self.on_reply(connection, f, ident)
                return
        size = f.end - f.body
        check_size(size, self.frame)
        head = f.head
        qos = head >> 1 & 3
        store.publish(
            topic,
            ident,
            ident[1] if ident[0] & 15 == 1 else process_of(ident),
            requests.payload(f),
            tags=requests.tags(f),
            qos=qos,
            retain=head & 1 == 1,
            time_ns=store.age.now(),
        )
        if self.observer is not None:
            self.observer.published(connection, requests.raw(f))
        self.received.add(1, _QOS[qos])
        if qos:
            # A duplicate is answered in the same way: its first copy may not be on the disk yet.
            self.durable.answer(
                connection, frames.ack(ident) if qos == 1 else frames.bare(spec.PUBREC, ident)
            )
        if store.share(connection, size):
            connection.hold()
            store.next_turn(connection.release)
        if self.broadcasts.is_behind:
            connection.hold()
            self.broadcasts.after(connection.release)
        if store.waiting > store.limits.waiting // 2:
            connection.hold()
            store.after(connection.release)

    def _topic(self, connection: Connection, f: Frame) -> str:
        """Return the topic of a message, which exists and may be published to, or ``REPLY``. Raises RefusedError."""
        given = requests.topic(f)
        topic = self.registry.name(given)
        if given is not topic:
            # The name is longer than the hash in its place.
            check_size(len(topic.encode()) + f.end - f.tags_at, self.frame)
        check_topic(topic)
        connection.check("PUBLISH", topic)
        if topic == REPLY and topic not in self.registry:
            return topic
        check_ours(topic)
        self.registry.require(topic)
        # A hash is not remembered: it may be another topic's one day.
        if given is topic and len(topic) <= _LONGEST_KNOWN:
            known = connection.topics
            if len(known) >= _KNOWN:
                known.clear()
            known[requests.topic_key(f)] = topic
        return topic

    def on_pubrel(self, connection: Connection, f: Frame, ident: bytes) -> None:
        """Answer PUBREL. The id it names is remembered in any case, so there is no state to change."""
        connection.send(frames.bare(spec.PUBCOMP, ident))
