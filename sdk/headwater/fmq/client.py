"""The FMQ client that applications use: a session over a transport, as ``headwater.mqtt.client`` is for MQTT.

    client = Client(Tcp("hub.local", 7760), b"board-1", clean=False)
    client.on_message = lambda frame: print(frame.topic_text(), frame.payload_bytes())
    client.connect()
    client.subscribe(b"board-1/commands")
    while True:
        client.publish(b"board-1/telemetry", sample(), 1)
        client.wait(1000)

``Tcp`` stands for a dialer (``headwater.types.Dialer``); TLS and the serial link are dialers as well. Publishing,
polling, receiving and acknowledging allocate nothing once connected; requests do.
"""

from headwater.connection import Driver, send_out, send_ready, send_request
from headwater.errors import E_AGAIN, E_QOS
from headwater.fmq.frames import NO_TAGS
from headwater.fmq.session import ClientSession, rewrite
from headwater.wire import const

_PUBLISH_0 = const(0x30)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headwater.fmq.frames import Frame
    from headwater.types import Bytes, Dialer


class Client(Driver):
    """One connection to a hub, and the session that outlives it.

    ``session`` may be given; otherwise it is made from ``client_id`` and the other keywords of ``ClientSession``, whose
    methods these are as well: there is what they mean. Handlers that are not here are the session's. Methods return a
    status integer (``headwater.errors``): 0 or more is success. Only ``connect`` and ``flush`` raise.
    """

    session: ClientSession
    on_message: "Callable[[Frame], object] | None"

    def __init__(
        self,
        dialer: "Dialer",
        client_id: "Bytes" = b"",
        session: "ClientSession | None" = None,
        **options: "object",
    ):
        super().__init__(dialer, session or ClientSession(client_id, **options))  # type: ignore[arg-type]
        # Bound once, because binding allocates.
        self._enqueue = self.session.enqueue
        self._tags: Bytes = NO_TAGS

    @property
    def on_answer(self) -> "Callable[[int, int], object] | None":
        """Called with the number of each request that is answered, and 0 or a reason code."""
        return self.session.on_answer

    @on_answer.setter
    def on_answer(self, handler: "Callable[[int, int], object] | None") -> None:
        self.session.on_answer = handler

    def publish(
        self, topic: "Bytes", payload: "Bytes", qos: int = 0, retain: bool = False, tags: "Bytes" = NO_TAGS
    ) -> int:
        """Publish; bytes-like arguments allocate nothing. ``tags`` is what ``frames.tag_list`` makes.

        0 (QoS 0: handed to the transport or waiting for it), or the message's number (QoS 1, 2: kept until answered;
        ``on_delivered`` tells), or an error as of ``ClientSession.publish``: E_WINDOW means poll, and try again. At QoS
        0 also E_CLOSED: the connection broke, and the message is lost.
        """
        if (
            topic is self.session.ready
            and tags is NO_TAGS
            and self.session.tx[0] == _PUBLISH_0
            and not (qos or retain or self.session.tx_end or self.session.out_n)
        ):
            # The frame before had this topic, and nothing waits: the id and the payload are all that changes.
            if rewrite(self.session, payload):
                return send_ready(self, self.session.tx_end)
        if qos != 0 and qos != 1 and qos != 2:
            return E_QOS
        # QoS and RETAIN as in PUBLISH's first byte; under the same name, and tags as an attribute, because of what
        # ``outgoing`` says of names.
        qos = qos << 1 | (1 if retain else 0)
        self._tags = tags
        return _publish(self, topic, payload, qos)

    def subscribe(
        self,
        topic_filter: "Bytes",
        tags: "Sequence[Bytes]" = (),
        condition: "Bytes" = b"",
        group: "Bytes" = b"",
    ) -> int:
        """Ask for the messages of a filter: the subscription's number, which ``on_answer`` gets; or an error."""
        return send_request(self, self.session.subscribe(topic_filter, tags, condition, group))

    def unsubscribe(self, subscription: int) -> int:
        """Take a subscription back."""
        return send_request(self, self.session.unsubscribe(subscription))

    def register(self, topic: "Bytes", queues: int = 1) -> int:
        """Let there be a topic."""
        return send_request(self, self.session.register(topic, queues))

    def unregister(self, topic: "Bytes") -> int:
        """Let a topic be no more."""
        return send_request(self, self.session.unregister(topic))

    def consume(self, subscription: int, window: int = 0, need_ack: bool = False) -> int:
        """Begin to consume from a subscription with a group."""
        return send_request(self, self.session.consume(subscription, window, need_ack))


def _publish(client: Client, topic: "Bytes", payload: "Bytes", flags: int) -> int:
    status = client._enqueue(topic, payload, flags, client._tags)
    if status == E_AGAIN and send_out(client) == 0:
        status = client._enqueue(topic, payload, flags, client._tags)
    if status < 0:
        return status
    # At QoS 0 a message is lost with its connection. Under the same name, as in ``publish``.
    flags = send_out(client)
    return status or flags
