"""The client that applications use: an MQTT session over a transport, on boards and wherever a loop polls.

    client = Client(Tcp("broker.local"), b"board-1", clean_start=False)
    client.on_message = lambda message: print(message.topic_text(), message.payload_bytes())
    client.connect()
    client.subscribe(b"board-1/commands", 1)
    while True:
        client.publish(b"board-1/telemetry", sample(), 1)
        client.wait(1000)

``Tcp`` stands for a dialer (``headwater.types.Dialer``): what opens a transport, tells the time and waits, on
this port. The core itself has no clock. Publishing, polling and receiving allocate nothing once connected.
"""

from headwater.connection import Driver, send_out, send_ready, send_request
from headwater.errors import E_AGAIN, E_QOS
from headwater.mqtt.session import ClientSession, rewrite
from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.mqtt.packets import Packet
    from headwater.types import Bytes

# The first byte of PUBLISH at QoS 0.
_PUBLISH_0 = const(0x30)


class Client(Driver):
    """One connection to a broker, and the session that outlives it.

    ``session`` may be given; otherwise it is made from ``client_id`` and the other keywords of
    ``ClientSession``. Methods return a status integer (``headwater.errors``): 0 or more is success. Only
    ``connect`` and ``flush`` raise.

    A negative status of ``poll`` says that the connection is over; ``connect`` begins the next one, or
    ``begin_connect`` does without waiting, and what was unacknowledged is sent again. ``connected`` says whether
    messages can pass.
    """

    session: ClientSession
    on_message: "Callable[[Packet], object] | None"
    make_session = ClientSession

    def publish(self, topic: "Bytes", payload: "Bytes", qos: int = 0, retain: bool = False) -> int:
        """Publish; bytes-like arguments allocate nothing.

        0 (QoS 0: handed to the transport or waiting for it), or the packet id (QoS 1, 2: kept until
        acknowledged; ``on_delivered`` tells), or an error as of ``ClientSession.publish``: E_WINDOW means
        poll, and try again. At QoS 0 also E_CLOSED: the connection broke, and the message is lost.
        """
        session = self.session
        if (
            topic is session.ready
            and session.tx[0] == _PUBLISH_0
            and not (qos or retain or session.tx_end or session.out_n)
        ):
            # The packet before had this topic, and nothing waits: the payload is all that changes.
            if rewrite(session, payload):
                return send_ready(self, session.tx_end)
        if qos != 0 and qos != 1 and qos != 2:
            return E_QOS
        # ``qos`` is reused for the flags of PUBLISH's first byte, then for the result: a frame over 11 words is
        # heap-allocated.
        qos = qos << 1 | (1 if retain else 0)
        qos = self._enqueue(topic, payload, qos)
        if qos == E_AGAIN and send_out(self) == 0:
            # Only QoS 0 waits for the transmit buffer.
            qos = self._enqueue(topic, payload, 1 if retain else 0)
        if qos > 0:
            send_out(self)
            return qos
        # At QoS 0 a message is lost with its connection.
        return qos or send_out(self)

    def subscribe(self, topic_filter: "Bytes", qos: int = 0) -> int:
        """Ask for the messages of a filter: the request's packet id, or an error of ``ClientSession.subscribe``.

        The answer comes to ``session.on_answer``. Without that handler ``poll`` and ``wait`` raise HeadwaterError,
        E_REFUSED, for a filter that the server refuses; the connection goes on.
        """
        return send_request(self, self.session.subscribe(topic_filter, qos))

    def unsubscribe(self, topic_filter: "Bytes") -> int:
        """Take a subscription back; as ``subscribe``."""
        return send_request(self, self.session.unsubscribe(topic_filter))
