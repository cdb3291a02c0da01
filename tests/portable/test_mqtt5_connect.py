# heap: 2M
"""MQTT 5.0: how a connection begins and ends, and what either end says of itself."""

from pipe import FIRST, drain, feed, packets, receive, send
from sessions import server5, session5
from states import CONNACK
from states5 import CONNACK5, Ends5, client5, connack5, made, online5, text_in

from headwater import errors
from headwater.connection import CLOSING, ERROR, IDLE, ONLINE
from headwater.mqtt import spec5
from headwater.mqtt.manual_ack import ManualAck
from headwater.mqtt.server import SESSION_PRESENT, ServerSession
from headwater.mqtt.session import ClientSession
from headwater.mqtt.topic_aliases import IncomingAliases, OutgoingAliases
from headwater.mqtt.v5 import ClientV5

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet
    from headwater.mqtt.packets_server import Connect

NEVER = b"\xff\xff\xff\xff"

# -- CONNECT -----------------------------------------------------------------------------------------------------------


def test_connect_on_the_wire() -> None:
    for options, block in (
        ({"clean_start": True}, b"\x21\x00\x14"),
        ({"clean_start": False}, b"\x21\x00\x14\x11" + NEVER),
        ({"clean_start": True, "session_expiry": 7}, b"\x21\x00\x14\x11\x00\x00\x00\x07"),
        ({"clean_start": False, "session_expiry": 0}, b"\x21\x00\x14"),
        ({"max_packet": 1000}, b"\x21\x00\x14\x27\x00\x00\x03\xe8"),
        ({"aliases_in": IncomingAliases(5, 9)}, b"\x21\x00\x14\x22\x00\x05"),
        ({"aliases_out": OutgoingAliases(5)}, b"\x21\x00\x14"),
    ):
        c = session5(b"c", 60, **options)
        assert c.connect(0) == 0
        flags = 2 if options.get("clean_start", True) else 0
        body = b"\x00\x04MQTT\x05" + bytes([flags, 0, 60, len(block)]) + block + b"\x00\x01c"
        assert drain(c) == b"\x10" + bytes([len(body)]) + body, options


def test_the_largest_receive_maximum_is_not_said() -> None:
    version = ClientV5()
    assert (
        bytes(ClientSession(b"c", receive_window=65535, version=version).v5.connect_properties.block)
        == b"\x00"
    )


def test_constructors_refuse_what_cannot_work() -> None:
    for make in (
        lambda: session5(b"c", rx_size=15),
        lambda: session5(b"c", receive_window=0),
        lambda: session5(b"c", max_packet=100),
        lambda: session5(b"c", session_expiry=1 << 32),
        lambda: session5(b"c", properties_size=2),
        lambda: server5(properties_size=2),
        lambda: server5(receive_window=0),
        lambda: IncomingAliases(0),
        lambda: IncomingAliases(65536),
        lambda: IncomingAliases(1, 0),
        lambda: OutgoingAliases(0),
        lambda: session5(b"c", rx=session5(b"d").rx, aliases_in=IncomingAliases(1, 1)),
    ):
        try:
            make()
        except ValueError:
            continue
        raise AssertionError("taken")


def test_the_server_sees_what_connect_says() -> None:
    c = session5(b"", 5, False, None, b"\x00secret", properties_size=120, tx_size=256)
    for ident, value in (
        (spec5.REQUEST_RESPONSE_INFORMATION, 1),
        (spec5.REQUEST_PROBLEM_INFORMATION, 0),
        (spec5.USER_PROPERTY, b"one"),
        (spec5.USER_PROPERTY, b"one"),
    ):
        assert c.v5.connect_properties.add(ident, value, b"x") == 0
    will = made(
        (spec5.WILL_DELAY_INTERVAL, 30), (spec5.MESSAGE_EXPIRY_INTERVAL, 9), (spec5.CONTENT_TYPE, b"text")
    )
    assert c.set_will(b"gone", b"\xff", 1, True, will) == 0
    assert c.set_will(b"gone", b"", 1, True, None) == errors.E_ARGUMENT  # type: ignore[arg-type]
    e = Ends5(c, server5())
    seen: list[object] = []

    def look(connect: "Connect", p: "Packet") -> int:
        five = e.server.connect_packet
        buf = p.buf
        seen.append(bytes(buf[five.props_at : five.props_end]))
        seen.append(bytes(buf[five.will_props_at : five.will_props_end]))
        seen.append(
            (five.client_id_end - five.client_id_at, five.user_at, five.clean_start(), five.will_qos())
        )
        seen.append(bytes(buf[five.password_at : five.password_end]))
        e.server.v5.connack_properties.add(spec5.ASSIGNED_CLIENT_IDENTIFIER, b"yours")
        return 0

    e.server.on_connect = look
    e.connect()
    user = b"\x26\x00\x03one\x00\x01x"
    assert seen == [
        b"\x21\x00\x14\x11" + NEVER + b"\x19\x01\x17\x00" + user + user,
        will[1:],
        (0, -1, False, 1),
        b"\x00secret",
    ]
    assert c.client_id == b"yours"
    e.lose()
    e.connect()
    assert seen[6] == (5, -1, False, 1)


def test_a_server_takes_no_empty_client_id_without_giving_one() -> None:
    e = Ends5(session5(b""), server5())
    e.open()
    send(e.client, e.link().up)
    receive(e.server, e.link().up)
    send(e.server, e.link().down)
    assert receive(e.client, e.link().down) == errors.E_REFUSED
    assert e.client.return_code == spec5.CLIENT_IDENTIFIER_NOT_VALID


def test_connect_that_cannot_be_built() -> None:
    for c, status in (
        (session5(b"x" * 600), errors.E_TOO_LARGE),
        (session5("text"), errors.E_ARGUMENT),
        (session5(b"c", 65536), errors.E_ARGUMENT),
    ):
        for _ in range(2):
            assert c.connect(0) == status
            assert c.state == IDLE and c.out() == 0


# -- CONNACK -----------------------------------------------------------------------------------------------------------


def test_the_receive_maximum_narrows_the_window() -> None:
    """As long as its connection lasts; then ours holds again."""
    for ours, theirs, window in ((16, 3, 3), (2, 3, 2), (3, 200, 3)):
        e = Ends5(session5(b"c", 0, False, window=ours, slots=12), server5(receive_window=theirs))
        ManualAck(e.server)
        for n in range(10):
            assert e.from_client.publish(b"t", bytes([n]), 1 + n % 2) > 0
        e.connect()
        assert len(e.at_server.got) == e.client.in_flight == window
        done = 0
        while done < 10:
            _, _, qos, _, _, packet_id = e.at_server.got[done]
            assert e.server.acks.acknowledge(packet_id, qos, FIRST) == 0
            done += 1
            e.run()
            assert len(e.at_server.got) == min(10, window + done)
        e.quiet()
        e.lose()
        assert e.client.window == ours


def test_a_client_s_receive_maximum_narrows_the_server_s_window() -> None:
    e = Ends5(session5(b"c", 0, False, receive_window=2), server5(window=9))
    ManualAck(e.client)
    e.connect()
    for n in range(5):
        e.from_server.publish(b"t", bytes([n]), 1 + n % 2)
    e.run()
    assert len(e.at_client.got) == 2
    for n in range(5):
        _, _, qos, _, _, packet_id = e.at_client.got[n]
        assert e.client.acks.acknowledge(packet_id, qos, FIRST) == 0
        e.run()
    e.quiet()
    e.lose()
    assert e.server.window == 9


def test_maximum_qos() -> None:
    for most in (0, 1):
        c = client5(connack5((spec5.MAXIMUM_QOS, most)))
        for qos in (0, 1, 2):
            status = c.publish(b"t", b"", qos)
            assert (status >= 0) == (qos <= most), (most, qos, status)
            if qos > most:
                assert status == errors.E_LIMIT and errors.blame(status) == errors.ROOM
        # A subscription may ask for more: the server grants less (3.2.2.3.4).
        assert c.subscribe(b"t", 2) > 0
        assert c.outbox.count == most


def test_retain_not_available() -> None:
    c = client5(connack5((spec5.RETAIN_AVAILABLE, 0)))
    for qos in (0, 1, 2):
        assert c.publish(b"t", b"", qos, True) == errors.E_LIMIT
        assert c.publish(b"t", b"", qos, False) >= 0


def test_maximum_packet_size() -> None:
    """Nothing above it is sent: not built, not stored, and the caller is told."""
    c = client5(connack5((spec5.MAXIMUM_PACKET_SIZE, 30)))
    for qos, payload in ((0, 24), (1, 22), (2, 22)):
        assert c.publish(b"t", bytes(payload), qos) >= 0
        assert c.publish(b"t", bytes(payload + 1), qos) == errors.E_TOO_LARGE
    assert c.outbox.count == 2
    assert c.subscribe(b"t" * 22) > 0
    assert c.subscribe(b"t" * 23) == errors.E_TOO_LARGE
    assert c.unsubscribe(b"t" * 23) > 0
    assert c.unsubscribe(b"t" * 24) == errors.E_TOO_LARGE
    assert c.disconnect(0, made((spec5.REASON_STRING, b"x" * 26))) == 0
    for head, at, end in packets(drain(c)):
        assert end - at <= 30, head
    # Also what is sent again with another payload in the same place.
    assert c.ready == b""
    # One that is no small integer on any board.
    c = client5(connack5((spec5.MAXIMUM_PACKET_SIZE, 0xFFFFFFFF)))
    assert c.publish(b"t", bytes(400), 1) > 0


def test_what_a_server_offers_to_subscribers() -> None:
    block = made((spec5.SUBSCRIPTION_IDENTIFIER, 5))
    none = b"\x00"
    asked = (
        (b"a/b", none, ()),
        (b"a/+", none, (spec5.WILDCARD_SUBSCRIPTION_AVAILABLE,)),
        (b"#", none, (spec5.WILDCARD_SUBSCRIPTION_AVAILABLE,)),
        (b"$share/g/a", none, (spec5.SHARED_SUBSCRIPTION_AVAILABLE,)),
        (
            b"$share/g/a/#",
            block,
            (
                spec5.SHARED_SUBSCRIPTION_AVAILABLE,
                spec5.WILDCARD_SUBSCRIPTION_AVAILABLE,
                spec5.SUBSCRIPTION_IDENTIFIER_AVAILABLE,
            ),
        ),
        (b"a", block, (spec5.SUBSCRIPTION_IDENTIFIER_AVAILABLE,)),
    )
    for missing in (
        0,
        spec5.WILDCARD_SUBSCRIPTION_AVAILABLE,
        spec5.SHARED_SUBSCRIPTION_AVAILABLE,
        spec5.SUBSCRIPTION_IDENTIFIER_AVAILABLE,
    ):
        c = client5(connack5((missing, 0)) if missing else CONNACK5)
        for topic_filter, properties, needs in asked:
            status = c.subscribe(topic_filter, 1, properties)
            assert (status > 0) == (missing not in needs), (missing, topic_filter)
            assert status > 0 or status == errors.E_LIMIT


def test_server_keep_alive_replaces_ours() -> None:
    for theirs, ping_at in ((10, 7500), (0, -1)):
        c = session5(b"c", 100)
        for _ in range(2):
            assert c.connect(0) == 0
            drain(c)
            assert feed(c, connack5((spec5.SERVER_KEEP_ALIVE, theirs))) == 0
            assert c.keep_alive == theirs
            for now in range(0, 200000, 500):
                assert c.poll(now) == 0
                if c.out():
                    break
            assert (now if c.out() else -1) == ping_at
            c.lost()
            assert c.keep_alive == 100
            c.rx_time = c.tx_time = 0


def test_a_limit_ends_with_its_connection() -> None:
    """What is published without one is judged by the next server, which may be another: its limits are not known."""
    c = client5(
        connack5((spec5.MAXIMUM_QOS, 1), (spec5.MAXIMUM_PACKET_SIZE, 20), (spec5.RETAIN_AVAILABLE, 0)),
        clean_start=False,
    )
    refused: list[tuple[int, int]] = []
    c.v5.on_refused = lambda packet_id, code: refused.append((packet_id, code))
    assert c.publish(b"t", b"", 2) == errors.E_LIMIT
    assert c.publish(b"t", bytes(20), 1) == errors.E_TOO_LARGE
    c.lost()
    for qos, size, retain in ((2, 0, False), (1, 20, False), (1, 0, True), (1, 1, False)):
        assert c.publish(b"t", bytes(size), qos, retain) > 0
    c.connect(0)
    drain(c)
    assert feed(c, connack5((spec5.MAXIMUM_PACKET_SIZE, 20))) == 0
    assert refused == [(2, spec5.PACKET_TOO_LARGE)]
    assert [head for head, _, _ in packets(drain(c))] == [0x34, 0x33, 0x32]


def test_what_was_handed_in_before_the_limits_were_known() -> None:
    """It is given up, and said so; the rest goes out, in its order."""
    c = session5(b"c", 0, False)
    refused: list[tuple[int, int]] = []
    c.v5.on_refused = lambda packet_id, code: refused.append((packet_id, code))
    given = ((1, 3, False), (1, 30, False), (2, 3, False), (1, 3, True), (1, 4, False), (2, 30, True))
    for qos, size, retain in given:
        assert c.publish(b"t", bytes(size), qos, retain) > 0
    c.connect(0)
    drain(c)
    limits = connack5((spec5.MAXIMUM_PACKET_SIZE, 20), (spec5.MAXIMUM_QOS, 1), (spec5.RETAIN_AVAILABLE, 0))
    assert feed(c, limits) == 0
    assert refused == [
        (2, spec5.PACKET_TOO_LARGE),
        (3, spec5.QOS_NOT_SUPPORTED),
        (4, spec5.RETAIN_NOT_SUPPORTED),
        (6, spec5.PACKET_TOO_LARGE),
    ]
    sent = drain(c)
    assert [(head, end - at) for head, at, end in packets(sent)] == [(0x32, 11), (0x32, 12)]
    assert feed(c, b"\x40\x02\x00\x05\x40\x02\x00\x01") == 0
    assert c.outbox.count == 0 and c.in_flight == 0 and c.strays == 0


def test_on_refused_may_publish_and_may_end_the_connection() -> None:
    for end in (False, True):
        c = session5(b"c", 0, False)

        def again(packet_id: int, code: int, c: ClientSession = c, end: bool = end) -> None:
            if end:
                c.lost()
            else:
                assert c.publish(b"t", b"small", 1) > 0
                assert c.out() == 0

        c.v5.on_refused = again
        for _ in range(3):
            assert c.publish(b"t", bytes(30), 1) > 0
        c.connect(0)
        drain(c)
        assert feed(c, connack5((spec5.MAXIMUM_PACKET_SIZE, 20))) == 0
        if end:
            assert c.state == IDLE and c.outbox.count == 2
        else:
            assert c.state == ONLINE and c.outbox.count == 3
            assert [head for head, _, _ in packets(drain(c))] == [0x32] * 3


def test_what_would_be_announced_and_not_kept_is_refused() -> None:
    """Each limit is an argument of the session."""
    for ident in (spec5.MAXIMUM_PACKET_SIZE, spec5.TOPIC_ALIAS_MAXIMUM):
        c = session5(b"c")
        assert c.v5.connect_properties.add(ident, 600) == 0
        assert c.connect(0) == errors.E_ARGUMENT and c.state == IDLE
    c = session5(b"c", receive_maximum=3, max_packet=600, aliases_in=IncomingAliases(2, 9))
    for ident in (spec5.RECEIVE_MAXIMUM, spec5.MAXIMUM_PACKET_SIZE, spec5.TOPIC_ALIAS_MAXIMUM):
        # Said twice.
        assert c.v5.connect_properties.add(ident, 600) < 0
    assert c.connect(0) == 0
    drain(c)


def test_an_assigned_client_id_is_for_who_has_none() -> None:
    assigned = connack5((spec5.ASSIGNED_CLIENT_IDENTIFIER, b"yours"))
    for given, used in ((b"", b"yours"), (b"mine", b"mine")):
        c = session5(given)
        for _ in range(2):
            assert c.connect(0) == 0
            drain(c)
            assert feed(c, assigned) == 0
            assert c.client_id == used
            c.lost()


def test_a_refused_connection_says_why() -> None:
    block = made((spec5.REASON_STRING, b"not you"), (spec5.SERVER_REFERENCE, b"other:1883"))
    c = session5(b"c")
    c.connect(0)
    drain(c)
    assert feed(c, bytes([0x20, 2 + len(block), 0, spec5.USE_ANOTHER_SERVER]) + block) == errors.E_REFUSED
    assert c.return_code == spec5.USE_ANOTHER_SERVER and c.state == ERROR
    assert text_in(c.packet, spec5.REASON_STRING) == b"not you"
    assert text_in(c.packet, spec5.SERVER_REFERENCE) == b"other:1883"
    assert c.out() == errors.E_REFUSED


def test_a_server_refuses() -> None:
    e = Ends5(session5(b"c"), server5())
    e.server.on_connect = lambda connect, packet: spec5.BANNED
    e.open()
    send(e.client, e.link().up)
    assert receive(e.server, e.link().up) > 0
    assert e.server.state == CLOSING
    send(e.server, e.link().down)
    assert receive(e.client, e.link().down) == errors.E_REFUSED
    assert e.client.return_code == spec5.BANNED


def test_versions_that_do_not_fit() -> None:
    """Each is told in a form it understands."""
    e = Ends5(session5(b"c"), ServerSession())
    e.open()
    send(e.client, e.link().up)
    receive(e.server, e.link().up)
    send(e.server, e.link().down)
    assert receive(e.client, e.link().down) == errors.E_REFUSED
    assert e.client.return_code == spec5.UNSUPPORTED_PROTOCOL_VERSION
    e = Ends5(ClientSession(b"c"), server5())
    e.open()
    send(e.client, e.link().up)
    receive(e.server, e.link().up)
    send(e.server, e.link().down)
    assert receive(e.client, e.link().down) == errors.E_REFUSED
    assert e.client.return_code == 1
    # CONNACK of 3.1.1 is none of 5.0.
    c = session5(b"c")
    c.connect(0)
    drain(c)
    assert feed(c, CONNACK) == errors.E_SIZE


def test_a_clean_start_is_one() -> None:
    c = session5(b"c", 0, True)
    c.connect(0)
    drain(c)
    assert feed(c, b"\x20\x03\x01\x00\x00") == errors.E_CODE
    e = Ends5(session5(b"c", 0, True), server5())
    e.server.on_connect = lambda connect, packet: SESSION_PRESENT
    e.connect()
    assert not e.client.session_present


def test_session_expiry_decides_what_is_kept() -> None:
    for expiry, kept in ((-1, True), (100, True), (0, False)):
        e = Ends5(session5(b"c", 0, False, session_expiry=expiry), server5())
        e.connect()
        assert e.server.v5.session_expiry == {-1: (1 << 30) - 1, 100: 100, 0: 0}[expiry]
        e.lose()
        e.connect()
        assert e.client.session_present == kept
    # Also of a session that began clean.
    e = Ends5(session5(b"c", 0, True, session_expiry=100), server5())
    e.connect()
    e.client.clean_start = False
    e.lose()
    e.connect()
    assert e.client.session_present
    # The server may decide otherwise.
    e = Ends5(session5(b"c", 0, False), server5())
    e.server.v5.connack_properties.add(spec5.SESSION_EXPIRY_INTERVAL, 0)
    said: list[int] = []
    e.client.on_online = lambda present: said.append(e.client.v5.limits[spec5.SESSION_EXPIRY_INTERVAL])
    e.connect()
    assert said == [0] and e.server.v5.session_expiry == 0
    e.lose()
    e.connect()
    assert not e.client.session_present


def test_connack_s_properties_can_be_read_in_on_online() -> None:
    e = Ends5(session5(b"c", 0, False), server5())
    e.server.v5.connack_properties.add(spec5.RESPONSE_INFORMATION, b"answers/c")
    seen: list[object] = []
    e.client.on_online = lambda present: seen.append(text_in(e.client.packet, spec5.RESPONSE_INFORMATION))
    e.connect()
    assert seen == [b"answers/c"]


def test_a_server_gives_its_limits_and_keeps_to_them() -> None:
    for ident, head, reason in (
        (spec5.MAXIMUM_QOS, 0x34, spec5.QOS_NOT_SUPPORTED),
        (spec5.RETAIN_AVAILABLE, 0x33, spec5.RETAIN_NOT_SUPPORTED),
    ):
        e = online5()
        assert feed(e.server, bytes([head]) + b"\x06\x00\x01t\x00\x01\x00") == 0
        e = Ends5(session5(b"c", 0, False), server5())
        assert e.server.v5.connack_properties.add(ident, 1 if ident == spec5.MAXIMUM_QOS else 0) == 0
        e.connect()
        assert feed(e.server, b"\x32\x06\x00\x01t\x00\x01\x00") == 0
        drain(e.server)
        assert feed(e.server, bytes([head]) + b"\x06\x00\x01t\x00\x01\x00") < 0
        assert drain(e.server) == bytes([0xE0, 1, reason])


def test_filters_a_server_does_not_offer() -> None:
    ident = made((spec5.SUBSCRIPTION_IDENTIFIER, 5))
    for missing, topic_filter, block, code in (
        (spec5.WILDCARD_SUBSCRIPTION_AVAILABLE, b"a/+", b"\x00", spec5.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED),
        (
            spec5.WILDCARD_SUBSCRIPTION_AVAILABLE,
            b"$share/g/#",
            b"\x00",
            spec5.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
        ),
        (
            spec5.SHARED_SUBSCRIPTION_AVAILABLE,
            b"$share/g/a",
            b"\x00",
            spec5.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
        ),
        (
            spec5.SUBSCRIPTION_IDENTIFIER_AVAILABLE,
            b"a",
            ident,
            spec5.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
        ),
        (0, b"a", ident, 1),
    ):
        e = Ends5(session5(b"c", 0, False), server5())
        if missing:
            e.server.v5.connack_properties.add(missing, 0)
        e.connect()
        # As a client that does not care.
        for limit in e.client.v5.limits:
            e.client.v5.limits[limit] = max(1, e.client.v5.limits[limit])
        answers: list[int] = []
        e.client.on_answer = lambda packet_id, code, answers=answers: answers.append(code)
        assert e.client.subscribe(topic_filter, 1, block) > 0
        e.run()
        assert answers == [code]


def test_a_server_grants_no_more_than_it_has() -> None:
    e = Ends5(session5(b"c", 0, False), server5())
    e.server.v5.connack_properties.add(spec5.MAXIMUM_QOS, 0)
    answers: list[int] = []
    e.client.on_answer = lambda packet_id, code: answers.append(code)
    e.connect()
    e.client.subscribe(b"t", 2)
    e.run()
    assert answers == [0]


def test_a_server_gives_a_keep_alive() -> None:
    e = Ends5(session5(b"c", 1000, False), server5())
    e.server.v5.connack_properties.add(spec5.SERVER_KEEP_ALIVE, 4)
    e.connect()
    assert e.client.keep_alive == e.server.keep_alive == 4
    assert e.server.poll(5999) == 0
    assert e.server.poll(6000) == errors.E_TIMEOUT
    assert drain(e.server) == bytes([0xE0, 1, spec5.KEEP_ALIVE_TIMEOUT])
