"""The FMQ client for applications.

    client = Client(Tcp("hub.local", 7760), b"board-1", clean_start=False)
    client.on_message = lambda frame: print(frame.topic_text(), frame.payload_bytes())
    client.connect()
    client.subscribe(b"board-1/commands")
    while True:
        client.publish(b"board-1/telemetry", sample(), 1)
        client.wait(1000)

``Tcp`` is a dialer (``headwater.types.Dialer``), as are TLS and the serial link. Publishing,
polling, receiving and acknowledging allocate nothing once connected; requests do. Consumers are in
``headwater.fmq.queues``, calls in ``headwater.fmq.calls``.
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
    from headwater.types import Bytes


class Client(Driver):
    """A connection to a hub, and the session, which survives the connection.

    ``session`` may be given; otherwise it is created from ``client_id`` and the other keywords of ``ClientSession``,
    which documents methods and handlers. Methods return a status integer (``headwater.errors``): 0 or more is success.
    Only ``connect`` and ``flush`` raise exceptions.
    """

    session: ClientSession
    on_message: "Callable[[Frame], object] | None"
    _tags: "Bytes" = NO_TAGS
    make_session = ClientSession

    @property
    def on_answer(self) -> "Callable[[int, int], object] | None":
        """Called with the number of each answered request, and 0 or a reason code."""
        return self.session.on_answer

    @on_answer.setter
    def on_answer(self, handler: "Callable[[int, int], object] | None") -> None:
        self.session.on_answer = handler

    def publish(
        self, topic: "Bytes", payload: "Bytes", qos: int = 0, retain: bool = False, tags: "Bytes" = NO_TAGS
    ) -> int:
        """Publish a message. Bytes-like arguments allocate nothing; ``tags`` is the result of ``frames.tag_list``.

        Returns 0 (QoS 0: sent or waiting for the transport), the number of the message (QoS 1, 2: in the outbox until
        ``on_delivered``), or an error of ``ClientSession.publish``. On E_WINDOW, poll and try again. At QoS 0, E_CLOSED
        means that the connection has ended and the message is lost.
        """
        if (
            topic is self.session.ready
            and tags is NO_TAGS
            and self.session.tx[0] == _PUBLISH_0
            and not (qos or retain or self.session.tx_end or self.session.out_n)
        ):
            # The last frame had this topic, and nothing waits: only id and payload change.
            if rewrite(self.session, payload):
                return send_ready(self, self.session.tx_end)
        if qos != 0 and qos != 1 and qos != 2:
            return E_QOS
        # QoS and RETAIN as in the first byte of PUBLISH. A frame over 11 words is heap-allocated, so ``qos`` is reused
        # and tags are passed in an attribute.
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
        """Send SUBSCRIBE. Return the number of the subscription, which is passed to ``on_answer``, or an error."""
        return send_request(self, self.session.subscribe(topic_filter, tags, condition, group))

    def unsubscribe(self, subscription: int) -> int:
        """Send UNSUBSCRIBE. Return the number of the request, or an error."""
        return send_request(self, self.session.unsubscribe(subscription))


def _publish(client: Client, topic: "Bytes", payload: "Bytes", flags: int) -> int:
    status = client._enqueue(topic, payload, flags, client._tags)
    if status == E_AGAIN and send_out(client) == 0:
        status = client._enqueue(topic, payload, flags, client._tags)
    if status < 0:
        return status
    # At QoS 0 a message is lost with its connection. Reuses ``flags`` to stay within 11 words.
    flags = send_out(client)
    return status or flags
