"""``Client`` for MQTT 5.0 whose calls take properties.

    client = Client5(Tcp("broker.local"), b"board-1", clean=False, session_expiry=3600)
    unit = Properties(32)
    unit.add(spec5.USER_PROPERTY, b"unit", b"kelvin")
    client.publish(b"board-1/telemetry", sample(), 1, properties=unit.block)

A program that needs none of them does as well with ``Client(dialer, session=ClientSession5(...))``.
"""

from headwater.connection import send_out, send_request
from headwater.errors import E_AGAIN, HeadwaterError
from headwater.mqtt.client import Client
from headwater.mqtt.session5 import ClientSession5
from headwater.mqtt.spec5 import NO_PROPERTIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes, Dialer


class Client5(Client):
    """As ``Client``, over a ``ClientSession5``: the keywords are that class's."""

    session: ClientSession5

    def __init__(
        self,
        dialer: "Dialer",
        client_id: "Bytes" = b"",
        session: "ClientSession5 | None" = None,
        **options: "object",
    ):
        super().__init__(dialer, client_id, session or ClientSession5(client_id, **options))  # type: ignore[arg-type]

    def publish(
        self,
        topic: "Bytes",
        payload: "Bytes",
        qos: int = 0,
        retain: bool = False,
        properties: "Bytes" = NO_PROPERTIES,
    ) -> int:
        """As of ``Client``, with a block of properties (``headwater.mqtt.properties``)."""
        if properties is NO_PROPERTIES:
            return super().publish(topic, payload, qos, retain)
        status = self.session.publish(topic, payload, qos, retain, properties)
        if status == E_AGAIN and send_out(self) == 0:
            status = self.session.publish(topic, payload, qos, retain, properties)
        if status < 0:
            return status
        # At QoS 0 a message is lost with its connection.
        bad = send_out(self)
        return status or bad

    def subscribe(self, topic_filter: "Bytes", qos: int = 0, properties: "Bytes" = NO_PROPERTIES) -> int:
        """As of ``ClientSession5``: ``qos`` may have options beside it."""
        return send_request(self, self.session.subscribe(topic_filter, qos, properties))

    def unsubscribe(self, topic_filter: "Bytes", properties: "Bytes" = NO_PROPERTIES) -> int:
        """As of ``ClientSession5``."""
        return send_request(self, self.session.unsubscribe(topic_filter, properties))

    def authenticate(self, properties: "Bytes") -> int:
        """As of ``ClientSession5``."""
        return send_request(self, self.session.authenticate(properties))

    def disconnect(self, code: int = 0, properties: "Bytes" = NO_PROPERTIES) -> None:
        """As of ``Client``, with a reason code: ``spec5.DISCONNECT_WITH_WILL`` lets the server publish the will.

        Raises HeadwaterError, and goes on, when there is no such DISCONNECT: E_ARGUMENT or E_TOO_LARGE of the session.
        """
        if self.connected and send_out(self) == 0:
            bad = self.session.disconnect(code, properties)
            if bad and bad != E_AGAIN:
                raise HeadwaterError(bad)
            send_out(self)
        self.close()
