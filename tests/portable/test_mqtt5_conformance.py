# heap: 768K
"""What MQTT 5.0 demands of a client, where no other test says it plainly: see docs/conformance.md.

Numbers in brackets are the statements'. What 3.1.1 demands as well is in ``test_mqtt_conformance``.
"""

from client_pair import Dialer, raised
from pipe import drain, feed, packets
from sessions import server5, session5
from states5 import CONNACK5, client5, connack5, made

from headwater import errors
from headwater.connection import CLOSING, ERROR, ONLINE
from headwater.mqtt import spec, spec5
from headwater.mqtt.client5 import Client5
from headwater.mqtt.manual_ack import ManualAck
from headwater.mqtt.session import ClientSession
from headwater.mqtt.topic_aliases import IncomingAliases

METHOD = made((spec5.AUTHENTICATION_METHOD, b"M"))
RESUMED = b"\x20\x03\x01\x00\x00"


def ack(head: int, packet_id: int, code: int = -1) -> bytes:
    return bytes([head, 2, 0, packet_id]) if code < 0 else bytes([head, 3, 0, packet_id, code])


def publish(head: int, packet_id: int, block: bytes = b"\x00") -> bytes:
    """A PUBLISH at QoS 1 or 2."""
    return bytes([head, 5 + len(block), 0, 1, 116, 0, packet_id]) + block


def auth(code: int, block: bytes) -> bytes:
    return bytes([0xF0, 1 + len(block), code]) + block


def alias(number: int) -> bytes:
    """A block with a topic alias."""
    return b"\x03\x23" + bytes([number >> 8, number & 255])


def begun(**options: object) -> ClientSession:
    """A client with an authentication method that has sent its CONNECT."""
    c = session5(b"c", 10, False, **options)
    assert c.v5.connect_properties.add(spec5.AUTHENTICATION_METHOD, b"M") == 0
    c.v5.on_auth = lambda p: METHOD
    assert c.connect(0) == 0
    drain(c)
    return c


# -- packets -----------------------------------------------------------------------------------------------------------


def test_reserved_flags_end_the_connection() -> None:
    """[2.1.3-1, 3.14.1-1, 3.15.1-1]: every value there is of every packet that may come, and 0x81 says so."""
    for kind, good in (
        (spec.PUBACK, 0),
        (spec.PUBREC, 0),
        (spec.PUBREL, 2),
        (spec.PUBCOMP, 0),
        (spec.SUBACK, 0),
        (spec.UNSUBACK, 0),
        (spec.PINGRESP, 0),
        (spec.DISCONNECT, 0),
        (spec5.AUTH, 0),
    ):
        for flags in range(16):
            c = client5()
            status = feed(c, bytes([kind << 4 | flags, 0]))
            assert (status == errors.E_FLAGS) == (flags != good), (kind, flags, status)
            if flags != good:
                assert drain(c) == bytes([0xE0, 1, spec5.MALFORMED_PACKET])
    for flags in range(1, 16):
        c = session5(b"c")
        c.connect(0)
        drain(c)
        assert feed(c, bytes([0x20 | flags]) + CONNACK5[1:]) == errors.E_FLAGS


def test_strings_in_properties_are_utf8() -> None:
    """[1.5.4-1, 1.5.4-2, 1.5.7-1, 3.3.2-13, 3.3.2-14, 3.3.2-19]: nothing else can be added to a block."""
    for bad in (b"\xff", b"a\x00", b"\xed\xa0\x80", b"\xc3"):
        block = client5().v5.connect_properties
        before = bytes(block.block)
        for ident in (spec5.USER_PROPERTY, spec5.AUTHENTICATION_METHOD):
            assert block.add(ident, bad, b"v") == errors.E_ARGUMENT
        assert block.add(spec5.USER_PROPERTY, b"k", bad) == errors.E_ARGUMENT
        assert block.block == before
        for ident in (spec5.CONTENT_TYPE, spec5.RESPONSE_TOPIC):
            assert not _can_be_made(ident, bad)
    for topic in (b"#", b"a/+", b"a/#/b", b""):
        assert not _can_be_made(spec5.RESPONSE_TOPIC, topic)
    assert _can_be_made(spec5.RESPONSE_TOPIC, b"a/b")


def _can_be_made(ident: int, value: bytes) -> bool:
    try:
        made((ident, value))
    except AssertionError:
        return False
    return True


def test_bad_topics_and_filters_are_the_caller_s_error() -> None:
    """[3.1.2-12, 3.1.3-11, 3.3.2-1, 3.3.2-2, 3.8.3-1, 3.10.3-1, 4.7.0-1, 4.7.1, 4.7.3, 4.8.2]: nothing is sent."""
    c = client5()
    block = made((spec5.CONTENT_TYPE, b"x"))
    no_text = (b"", b"\xff", b"a\x00", b"\xed\xa0\x80", b"x" * 65536)
    for bad in no_text + (b"#", b"+", b"a/#", b"a/+/b", b"a+", b"$share/g/+"):
        for qos in (0, 1, 2):
            assert c.publish(bad, b"", qos) == errors.E_TOPIC, bad
            assert c.publish(bad, b"", qos, False, block) == errors.E_TOPIC, bad
        assert c.set_will(bad) == errors.E_TOPIC, bad
    assert c.set_will(b"w", b"", 3) == errors.E_QOS
    shares = (b"$share/", b"$share/g", b"$share/g/", b"$share//t", b"$share/+/t", b"$share/#", b"$share/g#/t")
    for bad in no_text + shares + (b"a#", b"#/a", b"a/#/b", b"a+", b"+a/b", b"a/b+"):
        assert c.subscribe(bad) == errors.E_FILTER, bad
        assert c.unsubscribe(bad) == errors.E_FILTER, bad
    assert c.out() == 0 and c.outbox.count == 0
    for good in (b"#", b"+", b"+/a/+", b"a/#", b"/", b"$share/g/#"):
        assert c.subscribe(good) > 0, good
        assert drain(c) and feed(c, bytes([0x90, 4]) + _last_id(c) + b"\x00\x00") == 0


def _last_id(c: ClientSession) -> bytes:
    """The packet id of the request that waits for its answer."""
    packet_id = max(c._request_ids)
    return bytes([packet_id >> 8, packet_id & 255])


def test_what_has_no_properties_says_so() -> None:
    """[2.2.2-1]: a property length of 0, or a packet that ends before it where it may (3.4.2.2.1, 3.14.2.2.1)."""
    c = session5(b"c", 0)
    c.v5.connect_properties.clear()
    assert c.set_will(b"w", b"") == 0
    assert c.connect(0) == 0
    assert drain(c) == b"\x10\x14\x00\x04MQTT\x05\x06\x00\x00\x00\x00\x01c\x00\x00\x01w\x00\x00"
    assert feed(c, CONNACK5) == 0
    for status, sent in (
        (c.publish(b"t", b"m"), b"\x30\x05\x00\x01t\x00m"),
        (c.subscribe(b"t"), b"\x82\x07\xff\x01\x00\x00\x01t\x00"),
        (c.unsubscribe(b"t"), b"\xa2\x06\xff\x0a\x00\x00\x01t"),
        (c.publish(b"t", b"m", 1), b"\x32\x07\x00\x01t\x00\x01\x00m"),
    ):
        assert status >= 0
        assert _next(c) == sent


def _next(c: ClientSession) -> bytes:
    """The next packet of what is to be sent."""
    n = c.out()
    for _, at, end in packets(bytes(c.out_buf[c.out_at : c.out_at + n])):
        data = bytes(c.out_buf[c.out_at + at : c.out_at + end])
        c.sent(end - at)
        return data
    return b""


# -- reason codes ------------------------------------------------------------------------------------------------------


def test_only_its_reason_codes_are_sent_in_a_packet() -> None:
    """[3.4.2-1, 3.5.2-1, 3.14.2-1]: any other is the caller's error, and nothing leaves."""
    table = {
        0x40: (0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99),
        0xE0: (0, 4, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95, 0x96)
        + (0x97, 0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2),
    }  # fmt: skip
    for code in range(-1, 257):
        for qos, head in ((1, 0x40), (2, 0x50)):
            if code == 0:
                continue
            c = client5()
            ManualAck(c)
            assert feed(c, publish(0x30 | qos << 1, 7)) == 0
            good = code in table[0x40]
            assert c.acks.acknowledge(7, qos, c.epoch, code) == (0 if good else errors.E_ARGUMENT), code
            assert drain(c) == (ack(head, 7, code) if good else b"")
            if not good:
                assert c.acks.acknowledge(7, qos, c.epoch) == 0
        c = client5()
        good = code in table[0xE0]
        assert c.disconnect(code) == (0 if good else errors.E_ARGUMENT), code
        assert c.state == (CLOSING if good else ONLINE)
        assert drain(c) == ((bytes([0xE0, 1, code]) if code else b"\xe0\x00") if good else b"")
    for wrong in ("0", None, b"\x00", 1.5):
        assert client5().disconnect(wrong) == errors.E_ARGUMENT  # type: ignore[arg-type]


def test_answers_of_ours_have_no_properties() -> None:
    """[3.4.2-2, 3.4.2-3; 3.5.2; 3.6.2; 3.7.2]: no reason string and no user property, of whatever maximum packet size;
    and the codes of PUBREL and PUBCOMP are theirs [3.6.2-1, 3.7.2-1]."""
    for connack in (CONNACK5, connack5((spec5.MAXIMUM_PACKET_SIZE, 5))):
        c = client5(connack)
        asked = (
            (publish(0x32, 1), ack(0x40, 1)),
            (publish(0x34, 2), ack(0x50, 2)),
            (ack(0x62, 2), ack(0x70, 2)),
            (ack(0x62, 3), ack(0x70, 3, 0x92)),
            (ack(0x50, 4), ack(0x62, 4, 0x92)),
        )
        for said, answer in asked:
            assert feed(c, said) == 0
            assert drain(c) == answer
        ManualAck(c)
        for qos, head in ((1, 0x40), (2, 0x50)):
            assert feed(c, publish(0x30 | qos << 1, 9)) == 0
            assert c.acks.acknowledge(9, qos, c.epoch, 0x97) == 0
            assert drain(c) == ack(head, 9, 0x97)


def test_a_refused_id_means_another_message() -> None:
    """[4.3.3-9]: what comes under the id behind a PUBREC with an error is new, DUP or not."""
    for head in (0x34, 0x3C):
        c = client5()
        ManualAck(c)
        got: list[int] = []
        c.on_message = lambda p, got=got: got.append(p.packet_id)
        assert feed(c, publish(0x34, 7)) == 0
        assert c.acks.acknowledge(7, 2, c.epoch, 0x83) == 0
        assert feed(c, publish(head, 7)) == 0
        assert got == [7, 7] and c.duplicates == 0


def test_a_refused_message_is_not_sent_again() -> None:
    """[4.4.0-2]: nor over the next connection."""
    c = client5(clean_start=False)
    one, two, three = c.publish(b"t", b"", 1), c.publish(b"t", b"", 2), c.publish(b"t", b"", 1)
    drain(c)
    assert feed(c, ack(0x40, one, 0x87) + ack(0x50, two, 0x80)) == 0
    assert drain(c) == b""
    c.lost()
    assert c.connect(0) == 0
    drain(c)
    assert feed(c, RESUMED) == 0
    assert drain(c) == publish(0x3A, three)


# -- flow control ------------------------------------------------------------------------------------------------------


def test_a_full_window_holds_up_nothing_but_messages() -> None:
    """[3.3.4-8, 4.9.0-2, 4.9.0-3]: requests, answers, pings, QoS 0, PUBREL and DISCONNECT go on."""
    c = client5(connack5((spec5.RECEIVE_MAXIMUM, 2)), keep_alive=10)
    assert c.publish(b"t", b"", 2) == 1 and c.publish(b"t", b"", 1) == 2 and c.publish(b"t", b"", 1) == 3
    assert drain(c) == publish(0x34, 1) + publish(0x32, 2)
    assert feed(c, ack(0x50, 1)) == 0
    assert drain(c) == ack(0x62, 1) and c.in_flight == 2
    assert c.subscribe(b"t") > 0 and c.unsubscribe(b"t") > 0 and c.publish(b"t", b"") == 0
    assert [head for head, _, _ in packets(drain(c))] == [0x82, 0xA2, 0x30]
    assert feed(c, publish(0x32, 7) + publish(0x34, 8) + ack(0x62, 8)) == 0
    assert drain(c) == ack(0x40, 7) + ack(0x50, 8) + ack(0x70, 8)
    assert c.poll(7500) == 0 and drain(c) == b"\xc0\x00"
    # The third message leaves when one of the two is over.
    assert feed(c, ack(0x70, 1)) == 0
    assert drain(c) == publish(0x32, 3)
    assert c.publish(b"t", b"", 1) > 0
    assert c.disconnect() == 0 and drain(c) == b"\xe0\x00"


def test_pubrel_waits_for_no_window_on_a_new_connection() -> None:
    """[3.3.4-8, 4.9.0-3]: nor for the messages before it, where the server takes fewer than before; also when the
    transmit buffer does not hold every PUBREL."""
    c = client5(clean_start=False, tx_size=32)
    assert c.publish(b"t", b"", 1) == 1
    released = range(2, 12)
    for packet_id in released:
        assert c.publish(b"t", b"", 2) == packet_id
    assert c.publish(b"t", b"", 1) == 12
    drain(c)
    for packet_id in released:
        assert feed(c, ack(0x50, packet_id)) == 0 and drain(c) == ack(0x62, packet_id)
    c.lost()
    assert c.connect(0) == 0
    drain(c)
    resumed = connack5((spec5.RECEIVE_MAXIMUM, 1))
    assert feed(c, resumed[:2] + b"\x01" + resumed[3:]) == 0
    first = c.out()
    assert first == 32 and c.publish(b"t", b"", 1) == 13
    assert drain(c) == b"".join(ack(0x62, packet_id) for packet_id in released)
    # They count among what is under way.
    assert c.in_flight == len(released)
    for packet_id in released:
        assert drain(c) == b"" and feed(c, ack(0x70, packet_id)) == 0
    for packet_id, head in ((1, 0x3A), (12, 0x3A), (13, 0x32)):
        assert drain(c) == publish(head, packet_id) and c.in_flight == 1
        assert feed(c, ack(0x40, packet_id)) == 0
    assert drain(c) == b"" and c.in_flight == c.outbox.count == c.strays == 0


def test_a_pubcomp_before_its_pubrel_ends_the_message() -> None:
    """Then there is nothing to release, and the messages leave as the window lets them."""
    c = client5(clean_start=False, tx_size=32)
    ids = [c.publish(b"t", b"", 2) for _ in range(10)]
    drain(c)
    for packet_id in ids:
        assert feed(c, ack(0x50, packet_id)) == 0 and drain(c) == ack(0x62, packet_id)
    assert c.publish(b"t", b"", 1) == 11
    drain(c)
    c.lost()
    assert c.connect(0) == 0
    drain(c)
    assert feed(c, RESUMED + ack(0x70, ids[0]) + ack(0x70, ids[9])) == 0 and c.in_flight == 8
    assert drain(c) == b"".join(ack(0x62, packet_id) for packet_id in ids[1:9]) + publish(0x3A, 11)
    assert c.in_flight == 9 and c.strays == 0


def test_every_alias_that_was_offered_is_taken() -> None:
    """[3.3.2-10]: 1 to the maximum, first with a topic and then without; and not beyond it."""
    for count in (1, 2, 7, 300):
        c = client5(aliases_in=IncomingAliases(count, 4), rx_size=64)
        got: list[bytes] = []
        c.on_message = lambda p, got=got: got.append(p.topic_bytes())
        topics = [bytes([97 + n % 26, 97 + n // 26]) for n in range(count)]
        for topic in topics:
            assert feed(c, b"\x30\x08\x00\x02" + topic + alias(topics.index(topic) + 1)) == 0
        for n in range(count):
            assert feed(c, b"\x30\x06\x00\x00" + alias(n + 1)) == 0
        assert got == topics * 2
        assert feed(c, b"\x30\x06\x00\x00" + alias(count + 1)) == errors.E_ALIAS


def test_expiry_changes_nothing_of_an_exchange() -> None:
    """[4.3.3-7, 4.3.3-13]: a message that was sent, or has come, goes its way to the end, however late it is."""
    block = made((spec5.MESSAGE_EXPIRY_INTERVAL, 1))
    c = client5(clean_start=False)
    ids = [c.publish(b"t", b"", qos, False, block) for qos in (1, 2)]
    assert drain(c) == publish(0x32, ids[0], block) + publish(0x34, ids[1], block)
    assert feed(c, publish(0x34, 7, block)) == 0
    assert drain(c) == ack(0x50, 7)
    assert c.poll(3600 * 1000) == 0
    assert feed(c, publish(0x3C, 7, block)) == 0
    assert drain(c) == ack(0x50, 7) and c.duplicates == 1
    c.lost()
    assert c.connect(3600 * 1000) == 0
    drain(c)
    assert feed(c, RESUMED) == 0
    assert drain(c) == publish(0x3A, ids[0], block) + publish(0x3C, ids[1], block)
    assert feed(c, ack(0x62, 7)) == 0
    assert drain(c) == ack(0x70, 7)


# -- authentication ----------------------------------------------------------------------------------------------------


def test_nothing_but_auth_before_connack() -> None:
    """[3.1.2-30]: whatever is handed in, and however long it takes. The answer to AUTH is AUTH, of 0x18 [4.12.0-3]."""
    c = begun()
    for n in range(3):
        for qos in (1, 2):
            assert c.publish(b"t", b"", qos) > 0
        assert c.publish(b"t", b"") == c.subscribe(b"t") == c.unsubscribe(b"t") == errors.E_OFFLINE
        assert c.v5.authenticate(METHOD) == errors.E_OFFLINE
        assert c.poll(1000 * n) == 0 and c.out() == 0
        assert feed(c, auth(0x18, METHOD)) == 0
        assert drain(c) == auth(0x18, METHOD)
    assert feed(c, bytes([0x20, 2 + len(METHOD), 0, 0]) + METHOD) == 0
    assert [head for head, _, _ in packets(drain(c))] == [0x32, 0x34] * 3


def test_auth_names_the_method_of_connect() -> None:
    """[4.12.0-5]: or it is not sent."""
    for block in (
        b"\x00",
        made((spec5.AUTHENTICATION_DATA, b"M")),
        made((spec5.AUTHENTICATION_METHOD, b"N")),
        made((spec5.AUTHENTICATION_METHOD, b"MM")),
        made((spec5.AUTHENTICATION_METHOD, b"")),
    ):
        c = begun()
        c.v5.on_auth = lambda p, block=block: block
        assert feed(c, auth(0x18, METHOD)) == errors.E_ARGUMENT
        assert c.state == ERROR and drain(c) == b""


def test_no_auth_without_a_method_in_connect() -> None:
    """[4.12.0-7]: neither of our own accord nor as an answer."""
    c = client5()
    c.v5.on_auth = lambda p: METHOD
    assert c.v5.authenticate(METHOD) == errors.E_ARGUMENT and c.out() == 0
    assert feed(c, auth(0x18, METHOD)) == errors.E_UNEXPECTED
    assert drain(c) == bytes([0xE0, 1, spec5.PROTOCOL_ERROR])


def test_properties_that_make_a_packet_too_large_are_not_sent() -> None:
    """[3.14.2-3, 3.14.2-4, 3.15.2-2, 3.15.2-3]: reason string and user properties are left out, the rest is sent."""
    connack = bytes([0x20, 7 + len(METHOD), 0, 0, len(METHOD) + 4]) + METHOD[1:] + b"\x27\x00\x00\x00\x14"
    expiry = (spec5.SESSION_EXPIRY_INTERVAL, 7)
    bare = b"\xe0\x00"
    for ident in (spec5.REASON_STRING, spec5.USER_PROPERTY):
        # What stands around the text, without the method: 4 bytes in a packet, 3 or 5 in its property.
        most = 20 - 4 - (3 if ident == spec5.REASON_STRING else 5)
        for n in range(most - 5, most + 3):
            c = begun()
            assert feed(c, connack) == 0
            block = made((ident, b"x" * n))
            assert c.disconnect(0, block) == 0
            said = bytes([0xE0, 1 + len(block), 0]) + block
            assert drain(c) == (said if n <= most else bare), n
            c = begun(session_expiry=9)
            assert feed(c, connack) == 0
            texts = [(ident, b"x" * n)]
            if ident == spec5.USER_PROPERTY:
                texts = [(ident, b""), (spec5.REASON_STRING, b"y"), (ident, b"x" * n)]
            block = made(texts[0], expiry, *texts[1:])
            if 3 + len(block) > 20:
                block = made(expiry)
            assert c.disconnect(4, made(texts[0], expiry, *texts[1:])) == 0
            assert drain(c) == bytes([0xE0, 1 + len(block), 4]) + block, n
            c = begun()
            assert feed(c, connack) == 0
            block = made((spec5.AUTHENTICATION_METHOD, b"M"), (ident, b"x" * n))
            assert c.v5.authenticate(block) == 0
            if n + 4 > most:
                block = METHOD
            assert drain(c) == bytes([0xF0, 1 + len(block), spec5.RE_AUTHENTICATE]) + block, n
    # What must be said and is too large is the caller's error.
    c = begun()
    assert feed(c, connack) == 0
    block = made((spec5.AUTHENTICATION_METHOD, b"M"), (spec5.AUTHENTICATION_DATA, b"x" * 20))
    assert c.v5.authenticate(block) == errors.E_TOO_LARGE and drain(c) == b""


# -- the end -----------------------------------------------------------------------------------------------------------


def test_disconnect_closes_the_transport() -> None:
    """[3.14.4-2]: with any reason code; and so does what ends the connection with an error [4.13.2-1, 4.12.1-2]."""
    for code in (0, 4, 0x80):
        dialer = Dialer(server5())
        client = Client5(dialer, b"c")
        client.connect()
        # What cannot be said is the caller's error, and the connection goes on.
        assert raised(client.disconnect, 1) == raised(client.disconnect, 0, 5) == errors.E_ARGUMENT
        assert client.connected and client.poll() == 0
        client.disconnect(code)
        line = dialer.line()
        last = bytes([0xE0, 1, code]) if code else b"\xe0\x00"
        assert bytes(line.up.log)[-len(last) :] == last
        assert line.closed == 1 and not client.connected
    for said, answer in (
        (b"\xe0\x01\x8b", b""),
        (b"\x30\x00", bytes([0xE0, 1, 0x81])),
        (b"\xf0\x00", bytes([0xE0, 1, 0x82])),
    ):
        dialer = Dialer(server5())
        client = Client5(dialer, b"c")
        client.connect()
        line = dialer.line()
        sent = len(line.up.log)
        line.down.log += said
        assert client.poll() < 0
        assert line.up.log[sent:] == answer and line.closed == 1
