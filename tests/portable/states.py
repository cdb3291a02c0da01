"""Sessions brought to each of their states, and a packet of each type."""

from pipe import Ends, drain, feed

from headwater.connection import CLOSING, CONNECTING, ERROR, IDLE
from headwater.mqtt import spec
from headwater.mqtt.server import ServerSession
from headwater.mqtt.session import ClientSession

CONNACK = b"\x20\x02\x00\x00"
SESSION_KEPT = b"\x20\x02\x01\x00"
#: A well-formed packet of each type.
PACKETS = {
    spec.CONNECT: b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00",
    spec.CONNACK: CONNACK,
    spec.PUBLISH: b"\x30\x03\x00\x01t",
    spec.PUBACK: b"\x40\x02\x00\x09",
    spec.PUBREC: b"\x50\x02\x00\x09",
    spec.PUBREL: b"\x62\x02\x00\x09",
    spec.PUBCOMP: b"\x70\x02\x00\x09",
    spec.SUBSCRIBE: b"\x82\x06\x00\x09\x00\x01t\x00",
    spec.SUBACK: b"\x90\x03\x00\x09\x00",
    spec.UNSUBSCRIBE: b"\xa2\x05\x00\x09\x00\x01t",
    spec.UNSUBACK: b"\xb0\x02\x00\x09",
    spec.PINGREQ: b"\xc0\x00",
    spec.PINGRESP: b"\xd0\x00",
    spec.DISCONNECT: b"\xe0\x00",
}


def client_in(state: int) -> ClientSession:
    c = ClientSession(b"c", keep_alive=0)
    if state == IDLE:
        return c
    assert c.connect(0) == 0
    if state == CONNECTING:
        return c
    drain(c)
    assert feed(c, CONNACK) == 0
    if state == CLOSING:
        assert c.disconnect() == 0
    elif state == ERROR:
        assert feed(c, b"\x00") < 0
    assert c.state == state
    return c


def server_in(state: int) -> ServerSession:
    s = ServerSession()
    if state == IDLE:
        return s
    s.listen(0)
    if state == CONNECTING:
        return s
    assert feed(s, b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00") == 0
    drain(s)
    if state == CLOSING:
        assert feed(s, b"\xe0\x00") == 0
    elif state == ERROR:
        assert feed(s, b"\x00") < 0
    assert s.state == state
    return s


def online(**options: object) -> Ends:
    # One dictionary, because MicroPython takes ** once in a call.
    options.setdefault("clean_start", False)
    options.setdefault("keep_alive", 0)
    e = Ends(ClientSession(b"c", **options), ServerSession())  # type: ignore[arg-type]
    e.connect()
    return e


#: A message at QoS 1 with packet id 9.
GOOD = b"\x32\x07\x00\x01t\x00\x09ok"


def sessions() -> "list[Ends]":
    """Two connected pairs: bad input goes to the client of the first, and to the server of the second."""
    pairs = []
    for _ in range(2):
        e = Ends(ClientSession(b"c", 0, False), ServerSession(512, 512))
        e.connect()
        pairs.append(e)
    return pairs
