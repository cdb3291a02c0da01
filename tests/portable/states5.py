"""Sessions of MQTT 5.0, back to back, and what to feed them."""

from pipe import Ends, drain, feed
from sessions import server5, session5

from headwater.mqtt.properties import Properties, find, number
from headwater.mqtt.server import ServerSession
from headwater.mqtt.session import ClientSession
from headwater.wire import get_u16

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pipe import Link

    from headwater.mqtt.packets import Packet
    from headwater.mqtt.properties import Packet5

CONNACK5 = b"\x20\x03\x00\x00\x00"


class Ends5(Ends):
    """A client's session and a server's, back to back."""

    client: ClientSession
    server: ServerSession

    def __init__(
        self, client: ClientSession, server: ServerSession, links: "list[Link] | tuple[Link, ...]" = ()
    ):
        super().__init__(client, server, links)


def online5(**options: object) -> Ends5:
    """Two connected sessions; the client's is kept."""
    options.setdefault("clean_start", False)
    options.setdefault("keep_alive", 0)
    e = Ends5(session5(b"c", **options), server5())
    e.connect()
    return e


def client5(connack: bytes = CONNACK5, **options: object) -> ClientSession:
    """A client that has got this CONNACK."""
    options.setdefault("keep_alive", 0)
    c = session5(b"c", **options)
    assert c.connect(0) == 0
    drain(c)
    assert feed(c, connack) == 0
    return c


def connack5(*properties: "tuple[int, int | bytes]") -> bytes:
    """A CONNACK with properties."""
    block = made(*properties)
    return bytes([0x20, 2 + len(block), 0, 0]) + block


def made(*properties: "tuple[int, int | bytes]") -> bytes:
    """A block of properties."""
    block = Properties(300)
    for ident, value in properties:
        assert block.add(ident, value) == 0, (ident, value)
    return bytes(block.block)


def as5(p: "Packet") -> "Packet5":
    """The packet, which is one of 5.0."""
    return p  # type: ignore[return-value]


def number_in(p: "Packet", ident: int) -> int:
    """The number that a property of the packet has, or -1."""
    five = as5(p)
    at = find(five.buf, five.props_at, five.props_end, ident)
    return number(five.buf, at, ident) if at >= 0 else -1


def text_in(p: "Packet", ident: int) -> "bytes | None":
    """The text or binary data that a property of the packet has, or None."""
    five = as5(p)
    at = find(five.buf, five.props_at, five.props_end, ident)
    return bytes(five.buf[at + 2 : at + 2 + get_u16(five.buf, at)]) if at >= 0 else None
