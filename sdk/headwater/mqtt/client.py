"""The MQTT client for applications: a session over a transport, driven by polling.

    client = Client(Tcp("broker.local"), b"board-1", clean_start=False)
    client.on_message = lambda message: print(message.topic_text(), message.payload_bytes())
    client.connect()
    client.subscribe(b"board-1/commands", 1)
    while True:
        client.publish(b"board-1/telemetry", sample(), 1)
        client.wait(1000)

``Tcp`` is a dialer of the port (``headwater.types.Dialer``): it opens transports, reads the clock and waits. The core
reads no clock itself. Publishing, polling and receiving allocate nothing once connected.
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
    """A connection to a broker, and the session, which survives the connection.

    ``session`` may be given; otherwise it is created from ``client_id`` and the other keywords of ``ClientSession``.
    Methods return a status integer (``headwater.errors``): 0 or more is success. Only ``connect`` and ``flush`` raise
    exceptions.

    A negative status of ``poll`` means that the connection has ended. ``connect``, or ``begin_connect`` without
    blocking, starts the next one, on which unacknowledged messages are retransmitted. ``connected`` is True while
    messages can pass.
    """

    session: ClientSession
    on_message: "Callable[[Packet], object] | None"
    make_session = ClientSession

    def publish(self, topic: "Bytes", payload: "Bytes", qos: int = 0, retain: bool = False) -> int:
        """Publish a message. Bytes-like arguments allocate nothing.

        Returns 0 at QoS 0 (sent or waiting to be sent); the packet identifier at QoS 1 and 2 (stored until
        ``on_delivered`` is called); or an error of ``ClientSession.publish``. On E_WINDOW, poll and try again. At QoS
        0, E_CLOSED means that the connection has ended and the message is lost.
        """
        session = self.session
        if (
            topic is session.ready
            and session.tx[0] == _PUBLISH_0
            and not (qos or retain or session.tx_end or session.out_n)
        ):
            # The last packet had this topic, and nothing waits: only the payload changes.
            if rewrite(session, payload):
                return send_ready(self, session.tx_end)
        if qos != 0 and qos != 1 and qos != 2:
            return E_QOS
        # ``qos`` is reused for the flags of PUBLISH's first byte, then for the result: a frame over 11 words is
        # heap-allocated.
        qos = qos << 1 | (1 if retain else 0)
        qos = self._enqueue(topic, payload, qos)
        if qos == E_AGAIN and send_out(self) == 0:
            # Only messages at QoS 0 wait for the transmit buffer.
            qos = self._enqueue(topic, payload, 1 if retain else 0)
        if qos > 0:
            send_out(self)
            return qos
        # At QoS 0 a message is lost with its connection.
        return qos or send_out(self)

    def subscribe(self, topic_filter: "Bytes", qos: int = 0) -> int:
        """Send SUBSCRIBE with one filter. Return its packet identifier, or an error of ``ClientSession.subscribe``.

        The answer is passed to ``session.on_answer``. Without that handler, ``poll`` and ``wait`` raise HeadwaterError
        with E_REFUSED if the server refuses the filter; the connection stays open.
        """
        return send_request(self, self.session.subscribe(topic_filter, qos))

    def unsubscribe(self, topic_filter: "Bytes") -> int:
        """Send UNSUBSCRIBE with one filter. Return its packet identifier, or an error."""
        return send_request(self, self.session.unsubscribe(topic_filter))
