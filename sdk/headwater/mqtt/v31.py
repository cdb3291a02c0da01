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
    """What MQTT 3.1 does otherwise at a client's end.

    The client identifier must have 1 to 23 characters (3.1): ``connect`` returns E_ARGUMENT otherwise. A server of 3.1
    does not say whether it has kept the session. So ``on_online`` always gets False, for the application to subscribe
    again, which harms nothing. What is unacknowledged, however, is retransmitted as if the server had kept it, unless
    ``clean_start`` asks for a new session: PUBREL for an identifier that the server has forgotten is answered all the
    same, and without it a message that the server still holds would never be delivered. In 3.1 SUBACK has no code for a
    refused filter; a server that sends 3.1.1's nevertheless is understood.
    """

    is_5 = False
    #: Nothing is kept behind the receive buffer.
    room = 0

    def attach(self, session: "ClientSession") -> None:
        """Begin to serve a session, which calls this from its constructor."""
        self.session = session
        session.packet.flags = spec.FLAGS_31
        session.use_version(spec.PROTOCOL_31, check_filter, CLIENT_TAKES, _HANDLERS, b"")

    def connecting(self) -> int:
        """Check the client identifier: 0 or E_ARGUMENT."""
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
        """Return whether to go on with the session: as far as we know."""
        return 0 if self.session.clean_start else 1

    def opening(self, packet_id: int) -> None:
        """Forget an identifier of an earlier connection that arrives without DUP: a server that has lost the session
        counts from the beginning, and this is another message."""
        session = self.session
        i = session.find_qos2(packet_id)
        if packet_id and i >= 0 and not session.opened_now[i] & 1 and not session.packet.dup():
            session.close_qos2(i)


def _on_connack(s: "ClientSession", p: "Packet") -> int:
    # The first byte is reserved, and means nothing.
    s.rx.buf[p.body] = 0
    return decode_connack(p) or s.accepted(p)


_HANDLERS = CLIENT_HANDLERS[:2] + (_on_connack,) + CLIENT_HANDLERS[3:]
