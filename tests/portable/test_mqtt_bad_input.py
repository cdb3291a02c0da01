# heap: 1M
"""Every kind of bad input, by name, and what becomes of it.

A broken packet ends the connection: the status says what was wrong and whose fault it is, nothing of it is delivered,
every further call answers the same, and the next connection goes on where the session was.
"""

from pipe import Ends, drain, feed
from rows import each
from states import CONNACK, GOOD, PACKETS, client_in, server_in, sessions

from headwater import errors
from headwater.connection import CONNECTING, ERROR, ONLINE
from headwater.mqtt import spec
from headwater.mqtt.server import ServerSession
from headwater.mqtt.session import ClientSession

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet
    from headwater.mqtt.packets_server import Connect


def breaks(data: bytes, code: int, blame: int, to: str) -> None:
    """``data`` breaks the connection with ``code``, at the ends named, whole and byte by byte."""
    for piece in (len(data) + len(GOOD), 1):
        at_client, at_server = sessions()
        if "client" in to:
            break_one(at_client, at_client.client, data, code, blame, piece)
        if "server" in to:
            break_one(at_server, at_server.server, data, code, blame, piece)


def break_one(
    e: Ends, end: "ClientSession | ServerSession", data: bytes, code: int, blame: int, piece: int
) -> None:
    inbox = e.at_client if end is e.client else e.at_server
    outgoing = e.from_client if end is e.client else e.from_server
    # Before it a good message, behind it another; and one of ours that is unacknowledged.
    assert outgoing.publish(b"t", b"ours", 2) > 0
    assert len(drain(end)) > 0
    assert feed(end, b"\x30\x08\x00\x01tfirst") == 0
    status = 0
    stream = data + GOOD
    at = 0
    while at < len(stream) and status == 0:
        status = feed(end, stream[at : at + piece])
        at += piece
    assert status == code, (data, status, code)
    assert errors.blame(status) == blame, (data, status)
    assert end.state == ERROR and end.status == code
    # Nothing in part, nothing twice, nothing from behind it.
    assert [m[1] for m in inbox.got] == [b"first"], inbox.got
    # The same answer for ever, and nothing happens any more.
    for _ in range(3):
        assert feed(end, GOOD) == code
        assert end.feed(0) == end.out() == end.poll(5) == code
    assert end.publish(b"t", b"", 0) == errors.E_OFFLINE
    assert [m[1] for m in inbox.got] == [b"first"]
    # The next connection: ours is sent again, and what comes is delivered.
    e.lose()
    assert end.state == ERROR
    e.connect()
    assert end.state == ONLINE and end.status == 0
    assert outgoing.delivered == [b"ours"]
    assert feed(end, b"\x30\x07\x00\x01tnext") == 0
    assert [m[1] for m in inbox.got] == [b"first", b"next"]


# -- broken packets ----------------------------------------------------------------------------------------------------


def topic(name: bytes, qos: int = 0) -> bytes:
    body = bytes([0, len(name)]) + name + (b"\x00\x01" if qos else b"") + b"!"
    return bytes([0x30 | qos << 1, len(body)]) + body


def filters(*names: bytes) -> "list[bytes]":
    """A SUBSCRIBE and an UNSUBSCRIBE for each."""
    found = []
    for name in names:
        size = len(name)
        found.append(b"\x82" + bytes([5 + size, 0, 1, 0, size]) + name + b"\x00")
        found.append(b"\xa2" + bytes([4 + size, 0, 1, 0, size]) + name)
    return found


def announcing(heads: "tuple[int, ...]", lengths: "tuple[int, ...]") -> "list[bytes]":
    return [bytes([head, length]) + bytes(length) for head in heads for length in lengths]


BOTH, CLIENT, SERVER = "client server", "client", "server"
OVERLONG = (b"\xc0\x80", b"\xc1\xbf", b"a\xe0\x9f\xbf", b"\xf0\x8f\xbf\xbf")
SURROGATES = (b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xed\xa0\xbd\xed\xb8\x80")
#: What is wrong; the status; which ends it is fed to; the packets.
BROKEN: "tuple[tuple[str, int, str, list[bytes]], ...]" = (
    (
        "a remaining length of five bytes", errors.E_LENGTH, BOTH,
        [b"\x30\xff\xff\xff\xff\x01", b"\x32\x80\x80\x80\x80\x00", b"\x40\x82\x80\x80\x80\x00\x00\x01"],
    ),
    ("packet type 0", errors.E_TYPE, BOTH, [b"\x00\x00", b"\x02\x02\x00\x01"]),
    ("packet type 15", errors.E_TYPE, BOTH, [b"\xf0\x00", b"\xff\xff\xff\xff\x7f"]),
    ("QoS 3", errors.E_RX_QOS, BOTH, [bytes([head]) + b"\x05\x00\x01t\x00\x01" for head in (0x36, 0x37, 0x3E, 0x3F)]),
    ("DUP at QoS 0", errors.E_FLAGS, BOTH, [b"\x38\x03\x00\x01t", b"\x39\x03\x00\x01t"]),
    (
        "reserved flags of every type", errors.E_FLAGS, BOTH,
        [bytes([data[0] ^ bit]) + data[1:] for kind, data in PACKETS.items() if kind != spec.PUBLISH
         for bit in (1, 2, 4, 8)],
    ),
    (
        "wrong length of every type with a fixed one", errors.E_SIZE, BOTH,
        announcing((0x20, 0x40, 0x50, 0x62, 0x70, 0xB0), (0, 1, 3, 4, 127)) + announcing((0xC0, 0xD0, 0xE0), (1, 2)),
    ),
    # It is refused by its header: nobody waits for what it announces.
    ("a fixed type that announces megabytes", errors.E_SIZE, BOTH, [b"\x40\xff\xff\xff\x7f", b"\xd0\x80\x80\x40"]),
    # SUBACK and SUBSCRIBE vary in length; these are too large for a buffer of 512 bytes, and cannot be skipped.
    ("oversized for a client", errors.E_RX_TOO_LARGE, CLIENT, [b"\x90\x80\x08\x00\x01\x00"]),
    (
        "oversized for a server", errors.E_RX_TOO_LARGE, SERVER,
        [b"\x82\xff\xff\xff\x7f\x00\x01", b"\xa2\x80\x08\x00\x01"],
    ),
    # The last one would reach exactly to the end of the next packet.
    (
        "topic length beyond the packet", errors.E_FIELD, BOTH,
        [b"\x30\x04\x00\x03to", b"\x30\x05\xff\xffabc", b"\x30\x00", b"\x30\x01\x00", b"\x30\x04\x00\x0bto"],
    ),
    ("no room for the packet id", errors.E_FIELD, BOTH, [b"\x32\x03\x00\x01t", b"\x34\x04\x00\x01t\x01"]),
    ("SUBACK without a code, or with two", errors.E_SIZE, CLIENT, [b"\x90\x02\x00\x01", b"\x90\x04\x00\x01\x00\x00"]),
    ("no filter", errors.E_SIZE, SERVER, [b"\x82\x02\x00\x01", b"\xa2\x02\x00\x01"]),
    ("overlong UTF-8", errors.E_UTF8, BOTH, [topic(name, qos) for name in OVERLONG for qos in (0, 1)]),
    ("surrogates", errors.E_UTF8, BOTH, [topic(name) for name in SURROGATES]),
    ("a lone continuation", errors.E_UTF8, BOTH, [topic(name, 2) for name in (b"\x80", b"a\xbf", b"\xc3\xa9\xa9")]),
    (
        "beyond Unicode", errors.E_UTF8, BOTH,
        [topic(name) for name in (b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xff")],
    ),
    (
        "UTF-8 that is cut short", errors.E_UTF8, BOTH,
        [topic(name) for name in (b"\xc3", b"a\xe6\xb8", b"\xf0\x9d\x84", b"\xe6\xb8a")],
    ),
    ("U+0000 in a topic", errors.E_UTF8, BOTH, [topic(b"\x00"), topic(b"a\x00b")]),
    (
        "wildcards in a topic name", errors.E_RX_TOPIC, BOTH,
        [topic(name, qos) for name in (b"#", b"+", b"a/#", b"a/+/b") for qos in (0, 2)],
    ),
    ("an empty topic", errors.E_RX_TOPIC, BOTH, [topic(b"")]),
    (
        "packet id 0", errors.E_PACKET_ID, BOTH,
        [b"\x32\x05\x00\x01t\x00\x00", b"\x34\x05\x00\x01t\x00\x00"]
        + [bytes([head, 2, 0, 0]) for head in (0x40, 0x50, 0x62, 0x70)],
    ),
    ("packet id 0 in an answer", errors.E_PACKET_ID, CLIENT, [b"\x90\x03\x00\x00\x00", b"\xb0\x02\x00\x00"]),
    (
        "packet id 0 in a request", errors.E_PACKET_ID, SERVER,
        [b"\x82\x06\x00\x00\x00\x01t\x00", b"\xa2\x05\x00\x00\x00\x01t"],
    ),
    ("bad filters", errors.E_RX_TOPIC, SERVER, filters(b"", b"a#", b"#/a", b"a+", b"+a")),
    ("a filter that is no UTF-8", errors.E_UTF8, SERVER, [b"\x82\x07\x00\x01\x00\x02a\xff\x00"]),
    ("bad SUBACK code", errors.E_CODE, CLIENT, [bytes([0x90, 3, 0, 1, code]) for code in (3, 0x7F, 0x81, 0xFF)]),
    ("requested QoS 3", errors.E_RX_QOS, SERVER, [b"\x82\x06\x00\x01\x00\x01t\x03"]),
    ("requested QoS 4", errors.E_CODE, SERVER, [b"\x82\x06\x00\x01\x00\x01t\x04"]),
    # Those of the other end, and of a handshake that is over.
    (
        "packets for a server", errors.E_UNEXPECTED, CLIENT,
        [PACKETS[kind] for kind in (spec.CONNECT, spec.SUBSCRIBE, spec.UNSUBSCRIBE, spec.PINGREQ, spec.DISCONNECT)]
        + [CONNACK],
    ),
    (
        "packets for a client", errors.E_UNEXPECTED, SERVER,
        [PACKETS[kind] for kind in (spec.CONNACK, spec.SUBACK, spec.UNSUBACK, spec.PINGRESP, spec.CONNECT)],
    ),
)  # fmt: skip


def test_broken_packets() -> None:
    def run(name: str, code: int, to: str, broken: "list[bytes]") -> None:
        for data in broken:
            breaks(data, code, errors.ROOM if code == errors.E_RX_TOO_LARGE else errors.PEER, to)

    each(BROKEN, run)


def test_truncated_packets() -> None:
    """A packet that is not all there is waited for, and thrown away with the connection."""
    for data in (GOOD, b"\x30\x07\x00\x01t1234", b"\x34\x81\x81\x00\x00\x01t\x00\x01" + bytes(124)):
        for n in range(1, len(data)):
            for e in sessions():
                for end, inbox in ((e.client, e.at_client), (e.server, e.at_server)):
                    assert feed(end, data[:n]) == 0
                    assert not inbox.got and end.out() == 0
                e.lose()
                e.connect()
                assert not e.at_client.got and not e.at_server.got
                assert feed(e.client, GOOD) == 0
                assert [m[1] for m in e.at_client.got] == [b"ok"]


# -- packets at the wrong time -----------------------------------------------------------------------------------------


def test_anything_before_the_handshake() -> None:
    for kind, data in PACKETS.items():
        for make, first in ((client_in, spec.CONNACK), (server_in, spec.CONNECT)):
            if kind == first:
                continue
            end = make(CONNECTING)
            got: list[int] = []
            end.on_message = lambda p, got=got: got.append(1)
            assert feed(end, data) == errors.E_UNEXPECTED == end.status
            assert end.state == ERROR and not got


def test_connack_that_never_comes() -> None:
    c = client_in(CONNECTING)
    assert c.poll(9999) == 0
    assert c.poll(10000) == errors.E_TIMEOUT
    assert c.state == ERROR


def test_bad_connack() -> None:
    for data, code in (
        (b"\x20\x02\x02\x00", errors.E_FLAGS),
        (b"\x20\x02\x00\x06", errors.E_CODE),
        (b"\x20\x02\x01\x05", errors.E_CODE),
        (b"\x20\x03\x00\x00\x00", errors.E_SIZE),
        (b"\x20\x01\x00", errors.E_SIZE),
        (b"\x21\x02\x00\x00", errors.E_FLAGS),
    ):
        c = client_in(CONNECTING)
        online: list[bool] = []
        c.on_online = online.append
        assert feed(c, data) == code and errors.blame(code) == errors.PEER
        assert c.state == ERROR and not online


def test_bad_connect() -> None:
    """The server closes without a word [MQTT-3.1.4-1], but answers a level that it does not speak [MQTT-3.1.2-2]."""
    for data, code in (
        (b"\x10\x0c\x00\x04MQTX\x04\x02\x00\x00\x00\x00", errors.E_PROTOCOL),
        (b"\x10\x0c\x00\x04MQTT\x04\x03\x00\x00\x00\x00", errors.E_FLAGS),
        (b"\x10\x0c\x00\x04MQTT\x04\x1e\x00\x00\x00\x00", errors.E_RX_QOS),
        (b"\x10\x0c\x00\x04MQTT\x04\x42\x00\x00\x00\x00", errors.E_FLAGS),
        (b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x01", errors.E_FIELD),
        (b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01\xff", errors.E_UTF8),
        (b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x00\x00", errors.E_SIZE),
        (b"\x10\x80\x08\x00\x04MQTT\x04\x02\x00\x00\x03\xf4", errors.E_RX_TOO_LARGE),
    ):
        s = ServerSession(512, 512)
        asked: list[int] = []

        def ask(connect: "Connect", packet: "Packet", asked: "list[int]" = asked) -> int:
            asked.append(1)
            return 0

        s.on_connect = ask
        s.listen(0)
        assert feed(s, data) == code == s.status, data
        assert s.state == ERROR and not asked and s.out() == code
        s.lost()
        s.listen(1)
        assert feed(s, PACKETS[spec.CONNECT]) == 0 and s.state == ONLINE


# -- acknowledgements that nobody waits for ----------------------------------------------------------------------------


def stray(head: int, packet_id: int, answer: bytes) -> None:
    """A stray acknowledgement: counted, answered if it must be, and nothing else; at both ends."""
    for e in sessions():
        for end, inbox, outgoing in (
            (e.client, e.at_client, e.from_client),
            (e.server, e.at_server, e.from_server),
        ):
            assert outgoing.publish(b"t", b"one", 1) == 1
            assert outgoing.publish(b"t", b"two", 2) == 2
            drain(end)
            before = end.strays
            assert feed(end, bytes([head, 2, packet_id >> 8, packet_id & 255])) == 0
            assert end.strays == before + 1
            assert drain(end) == answer, (head, packet_id)
            assert end.state == ONLINE and end.in_flight == 2 and end.outbox.count == 2
            assert not outgoing.delivered and not inbox.got
            assert feed(end, GOOD) == 0 and inbox.payloads(1) == [b"ok"]
            drain(end)
        e.lose()
        e.connect()
        assert e.at_server.payloads(2) == e.at_client.payloads(2) == [b"two"]
        assert len(e.from_client.delivered) == len(e.from_server.delivered) == 2


def test_stray_puback() -> None:
    for packet_id in (3, 16, 17, 65280, 65281, 65535):
        stray(0x40, packet_id, b"")


def test_stray_pubrec() -> None:
    # Answered, so that the other end can forget the id.
    for packet_id in (3, 17, 65535):
        stray(0x50, packet_id, bytes([0x62, 2, packet_id >> 8, packet_id & 255]))


def test_stray_pubrel() -> None:
    for packet_id in (1, 3, 65535):
        stray(0x62, packet_id, bytes([0x70, 2, packet_id >> 8, packet_id & 255]))


def test_stray_pubcomp() -> None:
    for packet_id in (3, 17, 65535):
        stray(0x70, packet_id, b"")


def test_stray_suback_and_unsuback() -> None:
    for data in (b"\x90\x03\x00\x01\x00", b"\x90\x03\xff\xff\x80", b"\xb0\x02\x00\x01", b"\xb0\x02\xff\x01"):
        c = client_in(ONLINE)
        answers: list[int] = []
        c.on_answer = lambda packet_id, code, answers=answers: answers.append(packet_id)
        assert feed(c, data) == 0
        assert c.strays == 1 and not answers and c.out() == 0


def test_acknowledgement_before_its_message_was_sent() -> None:
    """It is in the outbox, not on the wire: what acknowledges it cannot mean it."""
    c = client_in(ONLINE)
    done: list[int] = []
    c.on_delivered = done.append
    assert c.publish(b"t", b"x", 1) == 1
    assert feed(c, b"\x40\x02\x00\x01") == 0
    assert c.strays == 1 and not done and c.outbox.count == 1
    n = c.out()
    c.sent(n - 1)
    assert feed(c, b"\x40\x02\x00\x01") == 0
    assert c.strays == 2 and not done
    c.sent(1)
    assert feed(c, b"\x40\x02\x00\x01") == 0
    assert done == [1]
    assert feed(c, b"\x40\x02\x00\x01") == 0
    assert c.strays == 3 and done == [1]


def test_acknowledgement_of_the_wrong_kind() -> None:
    for qos, head in ((1, 0x50), (1, 0x70), (2, 0x40), (2, 0x70)):
        for e in sessions():
            for end, outgoing in ((e.client, e.from_client), (e.server, e.from_server)):
                assert outgoing.publish(b"t", b"x", qos) == 1
                drain(end)
                status = feed(end, bytes([head, 2, 0, 1]))
                assert status == errors.E_ACK_KIND == end.status and end.state == ERROR
                assert errors.blame(status) == errors.PEER
            e.lose()
            e.connect()
            # It was not taken for an acknowledgement: the message went out again, and arrived.
            assert e.at_server.payloads(qos) == e.at_client.payloads(qos) == [b"x"]
            e.quiet()
