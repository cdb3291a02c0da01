"""The server's session for MQTT 3.1."""

from headwater.mqtt import spec
from headwater.mqtt.packets import PROTOCOL
from headwater.mqtt.packets_server import Connect
from headwater.mqtt.server import ServerSession
from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet

_MAX_CLIENT_ID = const(23)
_LEVEL = const(3)


class ServerSession31(ServerSession):
    """``ServerSession`` that also accepts clients of MQTT 3.1; ``protocols`` are the accepted names and levels.

    For a client of 3.1, CONNACK does not report a kept session, and SUBACK no refused filter: the granted QoS is then
    the requested one (3.1, 3.9). Such a client must have an identifier of 1 to 23 characters.
    """

    def __init__(
        self,
        *args: "object",
        protocols: "tuple[bytes, ...]" = (spec.PROTOCOL_31, PROTOCOL),
        **options: "object",
    ):
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.connect_packet = Connect(protocols)
        self._flags = self.packet.flags

    def listen(self, now_ms: int) -> None:
        """Start over a new transport and wait for CONNECT."""
        self.packet.flags = self._flags
        super().listen(now_ms)

    def decide(self, p: "Packet") -> int:
        """Check the client identifier of 3.1, then pass CONNECT to the application. Return 0 or an error."""
        c = self.connect_packet
        if c.level != _LEVEL:
            return super().decide(p)
        n = 0
        for i in range(c.client_id_at, c.client_id_end):
            n += p.buf[i] & 0xC0 != 0x80
        if not 0 < n <= _MAX_CLIENT_ID:
            return self.refuse_connect(spec.BAD_CLIENT_ID)
        self.packet.flags = spec.FLAGS_31
        return super().decide(p)

    def _put_connack(self, present: bool, code: int) -> None:
        super()._put_connack(present and self.connect_packet.level != _LEVEL, code)

    def _grant(self, p: "Packet", qos: int) -> int:
        code = super()._grant(p, qos)
        return qos if code == spec.SUBSCRIBE_FAILED and self.connect_packet.level == _LEVEL else code
