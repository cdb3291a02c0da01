# heap: 768K
"""MQTT 5.0: how a connection ends: DISCONNECT of either end, and what is said of a broken protocol."""

from pipe import Wire, drain, feed, receive, send
from sessions import server5, session5
from states5 import CONNACK5, client5, made, online5, text_in

from headwater import errors
from headwater.connection import CLOSING, ERROR, ONLINE
from headwater.mqtt import spec5


def test_the_server_disconnects() -> None:
    block = made((spec5.REASON_STRING, b"shutting down"), (spec5.SERVER_REFERENCE, b"b:1"))
    c = client5()
    for said, code in (
        (b"\xe0\x00", 0),
        (b"\xe0\x01\x8b", spec5.SERVER_SHUTTING_DOWN),
        (bytes([0xE0, 1 + len(block), 0x9D]) + block, spec5.SERVER_MOVED),
    ):
        c = client5()
        assert feed(c, said) == errors.E_DISCONNECTED
        assert errors.blame(errors.E_DISCONNECTED) == errors.CONNECTION
        assert c.return_code == code and c.state == ERROR
        # It is not answered.
        assert c.out() == errors.E_DISCONNECTED
    assert text_in(c.packet, spec5.REASON_STRING) == b"shutting down"
    # What only a client may say.
    for said, status in (
        (bytes([0xE0, 7, 0]) + made((spec5.SESSION_EXPIRY_INTERVAL, 1)), errors.E_UNEXPECTED),
        (b"\xe0\x01\x04", errors.E_CODE),
    ):
        assert feed(client5(), said) == status


def test_a_server_session_disconnects() -> None:
    e = online5()
    assert e.server.disconnect(spec5.ADMINISTRATIVE_ACTION, made((spec5.REASON_STRING, b"x"))) == 0
    assert e.server.state == CLOSING
    send(e.server, e.link().down)
    assert receive(e.client, e.link().down) == errors.E_DISCONNECTED
    assert e.client.return_code == spec5.ADMINISTRATIVE_ACTION
    assert e.server.disconnect("no") == 0  # type: ignore[arg-type]
    e = online5()
    assert e.server.disconnect(0, 5) == errors.E_ARGUMENT  # type: ignore[arg-type]
    assert e.server.state == ONLINE


def test_the_client_disconnects() -> None:
    for code, graceful in ((0, True), (spec5.DISCONNECT_WITH_WILL, False), (spec5.UNSPECIFIED_ERROR, False)):
        e = online5()
        assert e.client.disconnect(code) == 0
        e.run()
        assert e.server.state == CLOSING and e.server.graceful == graceful
        assert e.server.v5.return_code == code


def test_disconnect_may_change_the_session_expiry() -> None:
    for before, after, status, kept in (
        (100, 0, 0, False),
        (100, 5, 0, True),
        (0, 0, errors.E_ARGUMENT, False),
        (0, 5, errors.E_ARGUMENT, False),
    ):
        e = online5(session_expiry=before)
        block = made((spec5.SESSION_EXPIRY_INTERVAL, after))
        assert e.client.disconnect(0, block) == status
        if status:
            # 3.14.2.2.2: a client that does so nevertheless is in error.
            assert feed(e.server, bytes([0xE0, 1 + len(block), 0]) + block) == (
                errors.E_VALUE if after else 0
            )
            continue
        e.run()
        assert e.server.v5.session_expiry == after
        e.lose()
        e.connect()
        assert e.client.session_present == kept
    assert (
        feed(online5().server, bytes([0xE0, 6, 0]) + made((spec5.SERVER_REFERENCE, b"x")))
        == errors.E_UNEXPECTED
    )
    assert online5().client.disconnect(0, 5) == errors.E_ARGUMENT  # type: ignore[arg-type]


#: What a server may send, and what the client says of it: its status, and the reason code of its DISCONNECT.
BROKEN = (
    (b"\x32\x06\x00\x01t\x00\x00\x00", errors.E_PACKET_ID, spec5.PROTOCOL_ERROR),
    (b"\x36\x06\x00\x01t\x00\x01\x00", errors.E_RX_QOS, spec5.MALFORMED_PACKET),
    (b"\x00\x00", errors.E_TYPE, spec5.MALFORMED_PACKET),
    (b"\xd1\x00", errors.E_FLAGS, spec5.MALFORMED_PACKET),
    (b"\xd0\x01\x00", errors.E_SIZE, spec5.MALFORMED_PACKET),
    (b"\x30\xff\xff\xff\xff\x01", errors.E_LENGTH, spec5.MALFORMED_PACKET),
    (b"\x30\x04\x00\x09t\x00", errors.E_FIELD, spec5.MALFORMED_PACKET),
    (b"\x30\x04\x00\x01\xff\x00", errors.E_UTF8, spec5.MALFORMED_PACKET),
    (b"\x30\x04\x00\x01#\x00", errors.E_RX_TOPIC, spec5.TOPIC_NAME_INVALID),
    (b"\x30\x03\x00\x00\x00", errors.E_RX_TOPIC, spec5.TOPIC_NAME_INVALID),
    (b"\x10\x00", errors.E_UNEXPECTED, spec5.PROTOCOL_ERROR),
    (b"\x82\x00", errors.E_UNEXPECTED, spec5.PROTOCOL_ERROR),
    (CONNACK5, errors.E_UNEXPECTED, spec5.PROTOCOL_ERROR),
    (b"\xf0\x00", errors.E_UNEXPECTED, spec5.PROTOCOL_ERROR),
    (b"\x40\x03\x00\x01\x01", errors.E_CODE, spec5.MALFORMED_PACKET),
    (b"\x30\x06\x00\x01t\x02\x19\x00", errors.E_PROPERTY, spec5.MALFORMED_PACKET),
    (b"\x30\x08\x00\x01t\x04\x01\x00\x01\x00", errors.E_REPEATED, spec5.PROTOCOL_ERROR),
    (b"\x30\x06\x00\x01t\x02\x01\x02", errors.E_VALUE, spec5.PROTOCOL_ERROR),
    (b"\x30\x07\x00\x01t\x03\x23\x00\x01", errors.E_ALIAS, spec5.TOPIC_ALIAS_INVALID),
    (b"\x90\xff\x7f", errors.E_RX_TOO_LARGE, spec5.PACKET_TOO_LARGE),
)


def test_a_broken_protocol_is_answered_with_its_reason() -> None:
    for bad, status, reason in BROKEN:
        c = client5()
        assert feed(c, bad) == status, bad
        assert errors.blame(status) in (errors.PEER, errors.ROOM)
        assert c.state == ERROR and c.status == status
        assert drain(c) == bytes([0xE0, 1, reason]), bad
        # Once; then the status is all there is.
        assert c.out() == c.feed(0) == c.poll(1) == status
        assert c.connect(5) == 0
        assert drain(c)[0] == 0x10


def test_no_reason_in_the_middle_of_a_packet() -> None:
    """Nobody could read it: only behind whole packets, or before what has not begun to leave."""
    for qos in (0, 1):
        for taken in (0, 3):
            c = client5()
            assert c.publish(b"topic", b"payload", qos) >= 0
            assert c.out() > 3
            if taken:
                c.sent(taken)
            assert feed(c, b"\x00\x00") == errors.E_TYPE
            assert drain(c) == (b"" if taken else bytes([0xE0, 1, spec5.MALFORMED_PACKET]))


def test_no_reason_before_connack_is_there() -> None:
    c = session5(b"c")
    c.connect(0)
    drain(c)
    assert feed(c, b"\x00\x00") == errors.E_TYPE
    assert c.out() == errors.E_TYPE


def test_a_time_out_says_nothing() -> None:
    c = client5(keep_alive=10)
    assert c.poll(7500) == 0 and drain(c) == b"\xc0\x00"
    assert c.poll(17500) == errors.E_TIMEOUT
    assert c.out() == errors.E_TIMEOUT


def test_a_server_answers_a_broken_connect() -> None:
    s = server5()
    good = b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01c"
    for bad, status, answer in (
        (good.replace(b"\x02\x00\x00\x00", b"\x03\x00\x00\x00"), errors.E_FLAGS, spec5.MALFORMED_PACKET),
        (
            b"\x10\x10\x00\x04MQTT\x05\x02\x00\x00\x02\x01\x00\x00\x01c",
            errors.E_PROPERTY,
            spec5.MALFORMED_PACKET,
        ),
        (
            b"\x10\x14\x00\x04MQTT\x05\x02\x00\x00\x06\x21\x00\x01\x21\x00\x01\x00\x01c",
            errors.E_REPEATED,
            spec5.PROTOCOL_ERROR,
        ),
        (good.replace(b"MQTT", b"MQTX"), errors.E_PROTOCOL, -1),
        (b"\xc0\x00", errors.E_UNEXPECTED, -1),
    ):
        s = server5()
        s.listen(0)
        assert feed(s, bad) == status, bad
        assert drain(s) == (bytes([0x20, 3, 0, answer, 0]) if answer >= 0 else b"")
        assert s.out() == status
    s.listen(0)
    assert feed(s, good) == 0 and s.state == ONLINE


def test_only_what_may_arrive() -> None:
    """Before CONNACK nothing but CONNACK and AUTH; a server takes no AUTH before CONNECT."""
    for said in (b"\x30\x04\x00\x01t\x00", b"\xe0\x00", b"\xd0\x00"):
        c = session5(b"c")
        c.connect(0)
        drain(c)
        assert feed(c, said) == errors.E_UNEXPECTED
    s = server5()
    s.listen(0)
    assert feed(s, b"\xf0\x00") == errors.E_UNEXPECTED
    assert s.connect_packet.level != 5 and s.out() == errors.E_UNEXPECTED


def test_a_cut_in_the_last_word() -> None:
    """DISCONNECT with its reason is a packet like any other: in pieces, and not for ever."""
    c = client5()
    assert feed(c, b"\x00\x00") == errors.E_TYPE
    wire = Wire(take=1)
    assert send(c, wire) == 3 and bytes(wire.log) == b"\xe0\x01\x81"
    c.lost()
    assert c.state == ERROR and c.out() == errors.E_TYPE
