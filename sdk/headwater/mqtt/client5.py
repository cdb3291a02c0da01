"""The client for MQTT 5.0 with properties in its calls.

    client = Client5(Tcp("broker.local"), b"board-1", clean_start=False, version=ClientV5(session_expiry=3600))
    unit = Properties(32)
    unit.add(spec5.USER_PROPERTY, b"unit", b"kelvin")
    client.publish(b"board-1/telemetry", sample(), 1, properties=unit.block)

A program without properties can use ``Client(dialer, b"board-1", version=ClientV5())``.
"""

from headwater.connection import send_out, send_request
from headwater.errors import E_AGAIN, E_QOS, HeadwaterError
from headwater.mqtt.client import Client
from headwater.mqtt.session import ClientSession
from headwater.mqtt.v5 import ClientV5

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes, Dialer


class Client5(Client):
    """``Client`` over a session of 5.0; ``version`` is a ``ClientV5``, by default one without options."""

    def __init__(
        self,
        dialer: "Dialer",
        client_id: "Bytes" = b"",
        session: "ClientSession | None" = None,
        **options: "object",
    ):
        if session is None and "version" not in options:
            options["version"] = ClientV5()
        super().__init__(dialer, client_id, session, **options)

    def publish(
        self,
        topic: "Bytes",
        payload: "Bytes",
        qos: int = 0,
        retain: bool = False,
        properties: "Bytes" = b"",
    ) -> int:
        """Publish with a property block (``properties.Properties.block``). Results are those of ``Client.publish``."""
        if not properties:
            return super().publish(topic, payload, qos, retain)
        if qos != 0 and qos != 1 and qos != 2:
            return E_QOS
        # ``qos`` is reused for the flags of PUBLISH's first byte and for the result.
        qos = qos << 1 | (1 if retain else 0)
        enqueue = self._enqueue
        status = enqueue(topic, payload, qos, properties)
        if status == E_AGAIN and send_out(self) == 0:
            status = enqueue(topic, payload, qos, properties)
        if status < 0:
            return status
        # At QoS 0 a message is lost with its connection.
        qos = send_out(self)
        return status or qos

    def subscribe(self, topic_filter: "Bytes", qos: int = 0, properties: "Bytes" = b"") -> int:
        """Send SUBSCRIBE with one filter. Results are those of ``ClientSession.subscribe``."""
        return send_request(self, self.session.subscribe(topic_filter, qos, properties))

    def unsubscribe(self, topic_filter: "Bytes", properties: "Bytes" = b"") -> int:
        """Send UNSUBSCRIBE with one filter. Results are those of ``ClientSession.unsubscribe``."""
        return send_request(self, self.session.unsubscribe(topic_filter, properties))

    def authenticate(self, properties: "Bytes") -> int:
        """Start re-authentication. Results are those of ``ClientV5.authenticate``."""
        return send_request(self, self.session.v5.authenticate(properties))

    def disconnect(self, code: int = 0, properties: "Bytes" = b"") -> None:
        """Disconnect with a reason code; ``spec5.DISCONNECT_WITH_WILL`` makes the server publish the will.

        Raises HeadwaterError with E_ARGUMENT or E_TOO_LARGE if DISCONNECT cannot be encoded; the connection then stays
        open.
        """
        if self.connected and send_out(self) == 0:
            bad = self.session.disconnect(code, properties)
            if bad and bad != E_AGAIN:
                raise HeadwaterError(bad)
            send_out(self)
        self.close()
