"""The client's session at MQTT 3.1 (``MQIsdp``), for servers that speak nothing newer: ``ClientSession`` but for what
follows.
"""

from headwater import errors
from headwater.mqtt import spec
from headwater.mqtt.session import ClientSession
from headwater.wire import NOT_BYTES, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet

_MAX_CLIENT_ID = const(23)
_DUP = const(8)
_QOS_2 = const(4)


class ClientSession31(ClientSession):
    """A client's end. The client id must have 1 to 23 characters (3.1): ``connect`` answers E_ARGUMENT otherwise.

    A server of 3.1 does not say whether it had kept the session. So ``on_online`` is always told that it had not, for
    the application to subscribe again, which harms nothing. What is unacknowledged, however, goes on as if it had,
    unless ``clean`` asks for a new one: PUBREL for an id that the server has forgotten is answered all the same, and
    without it a message that the server still holds would never be delivered. In 3.1 SUBACK has no code for a refused
    filter; a server that sends 3.1.1's nevertheless is understood.
    """

    _protocol = spec.PROTOCOL_31

    def connect(self, now_ms: int) -> int:
        """As of ``ClientSession``."""
        self.packet.flags = spec.FLAGS_31
        try:
            n = 0
            for c in self.client_id:
                # Bytes that go on with a character are not counted.
                n += c & 0xC0 != 0x80
            if not 0 < n <= _MAX_CLIENT_ID:
                return self._no_connect()
        except NOT_BYTES:
            return self._no_connect()
        return super().connect(now_ms)

    def _no_connect(self) -> int:
        if self.state:
            self.lost()
        return errors.E_ARGUMENT

    def resume(self, session_present: bool) -> None:
        """As of ``Session``: with the session, as far as we know."""
        super().resume(not self.clean)

    def _on_connack(self, p: "Packet") -> int:
        # Its first byte is reserved, and nothing to go by.
        self.rx.buf[p.body] = 0
        return super()._on_connack(p)

    def _open(self, packet_id: int) -> int:
        self._forget(packet_id)
        return super()._open(packet_id)

    def _read_publish(self, p: "Packet") -> int:
        bad = super()._read_publish(p)
        if bad == 0 and p.head & _QOS_2:
            self._forget(p.packet_id)
        return bad

    def _forget(self, packet_id: int) -> None:
        """An id that was opened on an earlier connection comes without DUP: a server that has lost the session begins
        to count anew, and this is another message."""
        i = self._find_open(packet_id) if packet_id else -1
        if i >= 0 and self._open_epoch[i] != self.epoch and not self.packet.head & _DUP:
            self._open_ids[i] = 0
