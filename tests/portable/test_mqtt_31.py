# heap: 768K
"""MQTT 3.1: what it has otherwise than 3.1.1, at both ends. ``test_mqtt_cuts`` cuts its links."""

from cuts import LARGE, ends
from pipe import FIRST, Ends, Sink, Wire, drain, feed, packets, receive, send
from sessions import session31

from headwater import errors
from headwater.connection import CLOSING, CONNECTING, ERROR, IDLE, ONLINE, REL
from headwater.mqtt import spec
from headwater.mqtt.manual_ack import ManualAck
from headwater.mqtt.server import SESSION_PRESENT, ServerSession
from headwater.mqtt.server31 import ServerSession31
from headwater.mqtt.session import ClientSession
from headwater.streaming import stream_to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet


def test_connect_on_the_wire() -> None:
    c = session31(b"c", 60)
    assert c.connect(0) == 0
    assert drain(c) == b"\x10\x0f\x00\x06MQIsdp\x03\x02\x00\x3c\x00\x01c"


def test_client_ids_have_1_to_23_characters() -> None:
    for client_id, status in (
        (b"", errors.E_ARGUMENT),
        (b"x" * 23, 0),
        (b"x" * 24, errors.E_ARGUMENT),
        (b"\xc3\xa9" * 23, 0),
        (b"\xc3\xa9" * 24, errors.E_ARGUMENT),
        (None, errors.E_ARGUMENT),
        ("text", errors.E_ARGUMENT),
    ):
        c = session31(client_id, tx_size=128)
        for _ in range(2):
            assert c.connect(0) == status, client_id
            assert c.state == (IDLE if status else CONNECTING)
            assert (c.out() == 0) == (status != 0)
    # Also from within a connection: that is over then.
    e = ends(3)
    e.connect()
    e.client.client_id = b""
    assert e.client.connect(0) == errors.E_ARGUMENT
    assert e.client.state == IDLE and e.client.out() == 0


def test_a_server_looks_at_the_client_id_as_well() -> None:
    for client_id, code in (
        (b"", spec.BAD_CLIENT_ID),
        (b"x" * 24, spec.BAD_CLIENT_ID),
        (b"\xc3\xa9" * 23, 0),
    ):
        s = ServerSession31()
        s.listen(0)
        body = b"\x00\x06MQIsdp\x03\x02\x00\x00\x00" + bytes([len(client_id)]) + client_id
        assert feed(s, b"\x10" + bytes([len(body)]) + body) == 0
        assert drain(s) == b"\x20\x02\x00" + bytes([code])
        assert s.state == (CLOSING if code else ONLINE)


def test_who_speaks_with_whom() -> None:
    """A server of 3.1 takes both versions; one of 3.1.1 refuses 3.1, whose name it does not know."""
    e = Ends(ClientSession(b"", 0), ServerSession31())
    e.connect()
    e = Ends(ClientSession(b"c", 0), ServerSession31(protocols=(spec.PROTOCOL_31,)))
    e.open()
    send(e.client, e.link().up)
    assert receive(e.server, e.link().up) == errors.E_PROTOCOL
    e = Ends(session31(b"c", 0), ServerSession())
    e.open()
    send(e.client, e.link().up)
    assert receive(e.server, e.link().up) == errors.E_PROTOCOL
    assert e.server.state == ERROR


def test_the_reserved_byte_of_connack_says_nothing() -> None:
    for byte in (0, 1, 0xFF):
        for clean in (False, True):
            c = session31(b"c", 0, clean)
            said: list[bool] = []
            c.on_online = said.append
            c.connect(0)
            drain(c)
            assert feed(c, bytes([0x20, 2, byte, 0])) == 0
            assert c.state == ONLINE and said == [False] and not c.session_present
    c = session31(b"c", 0)
    c.connect(0)
    drain(c)
    assert feed(c, b"\x20\x02\x07\x02") == errors.E_REFUSED and c.return_code == 2


def test_a_server_says_nothing_of_the_session() -> None:
    e = ends(3)
    e.server.on_connect = lambda c, p: SESSION_PRESENT
    e.connect()
    assert bytes(e.link().down.log[:4]) == b"\x20\x02\x00\x00"


def test_what_is_unacknowledged_goes_on_as_if_the_server_had_kept_it() -> None:
    """PUBREL goes out again: the server still holds the message, or answers all the same when it has forgotten."""
    for kept in (True, False):
        e = ends(3)
        e.connect()
        ManualAck(e.server)
        packet_id = e.from_client.publish(b"t", b"m", 2)
        e.run()
        assert e.server.acks.acknowledge(packet_id, 2, FIRST) == 0
        send(e.server, e.link().down)
        receive(e.client, e.link().down)
        assert e.client.outbox.state[packet_id - 1] == REL
        e.lose()
        if not kept:
            e.server = ServerSession31()
            second = Ends(e.client, e.server)
            second.from_client.pending = e.from_client.pending
            e = second
        e.connect()
        assert [head for head, _, _ in packets(e.link().up.log)] == [0x10, 0x62]
        assert e.from_client.delivered == [b"m"]
        e.quiet()


def test_a_board_that_was_reset_releases_its_ids() -> None:
    """Whether or not the server still had any: it does not say."""
    e = Ends(session31(b"c", 0, False, slots=4), ServerSession31())
    e.connect()
    e.from_client.publish(b"t", b"m", 1)
    e.run()
    # A server without QoS 2 never hears of it.
    assert [head for head, _, _ in packets(e.link().up.log)] == [0x10, 0x32]
    e.from_client.publish(b"t", b"m", 2)
    e.run()
    assert [head for head, _, _ in packets(e.link().up.log)] == [0x10, 0x32] + 4 * [0x62] + [0x34, 0x62]
    assert e.server.strays == 4 and e.client.strays == 0
    e.quiet()
    e.lose()
    e.connect()
    assert [head for head, _, _ in packets(e.link().up.log)] == [0x10]


def test_a_clean_session_begins_anew() -> None:
    e = ends(3)
    e.connect()
    ManualAck(e.client)
    e.from_server.publish(b"t", b"old", 2)
    e.run()
    assert e.client.open_ids[0]
    e.client.clean_start = True
    e.client.acks.automatic = True
    e.lose()
    e.connect()
    assert not any(e.client.open_ids)


def test_a_known_id_without_dup_is_another_message() -> None:
    """The server lost the session and counts from 1 again: what it sends is new. With DUP it is what was."""
    for size in (2, LARGE):
        for dup in (False, True):
            e = ends(3)
            sink = Sink(e.at_client)
            stream_to(e.client, sink)
            e.connect()
            c = e.client
            assert feed(c, b"\x34\x07\x00\x01t\x00\x01\x00o") == 0 and c.open_ids[0] == 1
            e.lose()
            assert c.connect(0) == 0
            drain(c)
            assert feed(c, b"\x20\x02\x00\x00") == 0
            length = size + 5
            head = (
                bytes([0x3C if dup else 0x34, length & 127 | 128, 1])
                if length > 127
                else bytes([0x3C if dup else 0x34, length])
            )
            wire = Wire()
            wire.log += head + b"\x00\x01t\x00\x01" + b"n" * size
            while receive(c, wire):
                pass
            assert [m[1] for m in e.at_client.got] == [b"\x00o"] + ([] if dup else [b"n" * size])
            assert drain(c) == b"\x50\x02\x00\x01"
            assert c.duplicates == dup
            if not dup:
                # On the same connection a repetition is one, DUP or not.
                assert feed(c, b"\x34\x07\x00\x01t\x00\x01\x00o") == 0
                assert c.duplicates == 1


def test_dup_may_stand_on_pubrel_subscribe_and_unsubscribe() -> None:
    e = ends(3)
    e.connect()
    filters: list[bytes] = []

    def granted(p: "Packet", qos: int) -> int:
        filters.append(p.topic_bytes())
        return qos

    e.server.on_subscribe = granted
    assert feed(e.server, b"\x8a\x06\x00\x09\x00\x01t\x01\xaa\x05\x00\x0a\x00\x01t\x6a\x02\x00\x09") == 0
    assert drain(e.server) == b"\x90\x03\x00\x09\x01\xb0\x02\x00\x0a\x70\x02\x00\x09"
    assert filters == [b"t"]
    assert feed(e.client, b"\x6a\x02\x00\x09") == 0
    assert drain(e.client) == b"\x70\x02\x00\x09"
    # 3.1.1 does not know that.
    e = Ends(ClientSession(b"c", 0, False), ServerSession31())
    e.connect()
    assert feed(e.server, b"\x6a\x02\x00\x09") == errors.E_FLAGS
    assert feed(e.client, b"\x6a\x02\x00\x09") == errors.E_FLAGS


def test_a_refused_filter_is_acknowledged() -> None:
    def refuse(p: "Packet", qos: int) -> int:
        return 0x80

    for client, code in ((session31(b"c", 0), 1), (ClientSession(b"c", 0), 0x80)):
        e = Ends(client, ServerSession31())
        e.server.on_subscribe = refuse
        answers: list[tuple[int, int]] = []
        e.client.on_answer = lambda packet_id, code, a=answers: a.append((packet_id, code))
        e.connect()
        packet_id = e.client.subscribe(b"secret", 1)
        e.run()
        assert answers == [(packet_id, code)]


def test_connect_may_promise_more_than_it_has() -> None:
    """User name and password flags without the strings: the connection goes on (3.1)."""
    for flags in (0x82, 0xC2):
        s = ServerSession31()
        s.listen(0)
        assert feed(s, b"\x10\x0f\x00\x06MQIsdp\x03" + bytes([flags]) + b"\x00\x00\x00\x01c") == 0
        assert s.state == ONLINE and s.connect_packet.user_at == -1
