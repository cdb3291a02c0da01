"""MQTT 3.1, attached to a client's session.

session = ClientSession(b"board-1", version=V31())
"""

from headwater import errors
from headwater.mqtt import spec
from headwater.mqtt.packets import check_filter, decode_connack
from headwater.mqtt.session import CLIENT_HANDLERS, CLIENT_TAKES
from headwater.wire import NOT_BYTES, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet
    from headwater.mqtt.session import ClientSession

_MAX_CLIENT_ID = const(23)


class V31:
    """The rules of MQTT 3.1 for a client.

    The client identifier must have 1 to 23 characters (3.1): ``connect`` returns E_ARGUMENT otherwise. A server of 3.1
    does not report whether it has kept the session. Therefore ``on_online`` always gets False, so that the application
    subscribes again, which is harmless. Unacknowledged messages, however, are retransmitted as if the server had kept
    the session, unless ``clean_start`` requests a new one: a server answers PUBREL even for an unknown identifier, and
    without PUBREL a message that it still holds would never be delivered. SUBACK of 3.1 has no code for a refused
    filter; that of 3.1.1 is accepted.
    """

    is_5 = False
    #: No bytes are needed after the receive buffer.
    room = 0

    def attach(self, session: "ClientSession") -> None:
        """Attach to a session; its constructor calls this."""
        self.session = session
        session.packet.flags = spec.FLAGS_31
        session.use_version(spec.PROTOCOL_31, check_filter, CLIENT_TAKES, _HANDLERS, b"")

    def connecting(self) -> int:
        """Check the client identifier. Return 0 or E_ARGUMENT."""
        session = self.session
        try:
            n = 0
            for c in session.client_id:
                # Continuation bytes of UTF-8 are not counted.
                n += c & 0xC0 != 0x80
            if 0 < n <= _MAX_CLIENT_ID:
                return 0
        except NOT_BYTES:
            pass
        if session.state:
            session.lost()
        return errors.E_ARGUMENT

    def resuming(self, session_present: bool) -> int:
        """Return 1 if the session continues, as far as the client knows, otherwise 0."""
        return 0 if self.session.clean_start else 1

    def opening(self, packet_id: int) -> None:
        """Release an identifier of an earlier connection that arrives without DUP.

        A server that has lost the session reuses identifiers from the start, so this is another message.
        """
        session = self.session
        i = session.find_qos2(packet_id)
        if packet_id and i >= 0 and not session.opened_now[i] & 1 and not session.packet.dup():
            session.close_qos2(i)


def _on_connack(s: "ClientSession", p: "Packet") -> int:
    # The first byte is reserved and has no meaning.
    s.rx.buf[p.body] = 0
    return decode_connack(p) or s.accepted(p)


_HANDLERS = CLIENT_HANDLERS[:2] + (_on_connack,) + CLIENT_HANDLERS[3:]
