# heap: 768K
"""MQTT 5.0: messages, their acknowledgements, their properties, and topic aliases."""

from pipe import FIRST, Wire, drain, feed, packets, receive, send
from sessions import server5, session5
from states5 import Ends5, as5, client5, made, number_in, online5, text_in

from headwater import errors
from headwater.connection import DONE, FIRST_REQUEST_ID, REL
from headwater.mqtt import spec5
from headwater.mqtt.manual_ack import ManualAck
from headwater.mqtt.properties import PAIR, TABLE, find, skip
from headwater.streaming import stream_to
from headwater.wire import get_u16

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet

# -- reason codes ------------------------------------------------------------------------------------------------------


def test_acknowledgements_of_every_length() -> None:
    """A code of success and properties that say nothing may be there or not."""
    for tail in (b"", b"\x00", b"\x10", b"\x00\x00", b"\x10\x05\x1f\x00\x02ok"):
        c = client5()
        delivered: list[int] = []
        c.on_delivered = delivered.append
        one, two = c.publish(b"t", b"", 1), c.publish(b"t", b"", 2)
        drain(c)
        assert feed(c, bytes([0x40, 2 + len(tail), 0, one]) + tail) == 0
        assert feed(c, bytes([0x50, 2 + len(tail), 0, two]) + tail) == 0
        assert drain(c) == bytes([0x62, 2, 0, two])
        tail = tail.replace(b"\x10", b"\x00")
        assert feed(c, bytes([0x70, 2 + len(tail), 0, two]) + tail) == 0
        assert delivered == [one, two] and c.outbox.count == 0 and c.in_flight == 0


def test_a_refused_message_is_over() -> None:
    """PUBACK or PUBREC with an error: it is not sent again, not delivered, and its place is free."""
    for qos, head in ((1, 0x40), (2, 0x50)):
        for tail in (b"\x87", b"\x97\x00", b"\x99\x05\x1f\x00\x02no"):
            c = client5(slots=2)
            refused: list[tuple[int, int]] = []
            c.v5.on_refused = lambda packet_id, code, refused=refused: refused.append((packet_id, code))
            c.on_delivered = None
            ids = [c.publish(b"t", b"", qos) for _ in range(2)]
            drain(c)
            assert feed(c, bytes([head, 2 + len(tail), 0, ids[0]]) + tail) == 0
            assert refused == [(ids[0], tail[0])]
            assert c.out() == 0 and c.in_flight == 1 and c.outbox.count == 1
            assert c.publish(b"t", b"", qos) == ids[0]
            # What is refused and not under way is nobody's error.
            assert feed(c, bytes([head, 3, 0, 9, 0x87])) == 0 and c.strays == 1
            assert len(refused) == 1


def test_a_refusal_of_the_wrong_kind() -> None:
    for qos, head in ((1, 0x50), (2, 0x40)):
        c = client5()
        packet_id = c.publish(b"t", b"", qos)
        drain(c)
        assert feed(c, bytes([head, 3, 0, packet_id, 0x80])) == errors.E_ACK_KIND
    # What was answered with PUBREC cannot be refused any more.
    c = client5()
    packet_id = c.publish(b"t", b"", 2)
    drain(c)
    assert feed(c, bytes([0x50, 2, 0, packet_id])) == 0
    assert feed(c, bytes([0x50, 3, 0, packet_id, 0x80])) == errors.E_ACK_KIND


def test_a_message_is_refused_by_the_application() -> None:
    for client_refuses in (False, True):
        e = online5()
        end, out = (e.client, e.from_server) if client_refuses else (e.server, e.from_client)
        other = e.server if client_refuses else e.client
        inbox = e.at_client if client_refuses else e.at_server
        refused: list[tuple[int, int]] = []
        other.v5.on_refused = lambda packet_id, code, refused=refused: refused.append((packet_id, code))
        ManualAck(end)
        ids = [out.publish(b"t", bytes([n]), 1 + n % 2) for n in range(4)]
        e.run()
        codes = (spec5.NOT_AUTHORIZED, spec5.QUOTA_EXCEEDED, 0, spec5.NO_MATCHING_SUBSCRIBERS)
        for n in range(4):
            assert end.acks.acknowledge(inbox.got[n][5], 1 + n % 2, FIRST, codes[n]) == 0
        e.run()
        assert refused == [(ids[0], codes[0]), (ids[1], codes[1])]
        assert out.delivered == [b"\x02", b"\x03"]
        out.pending.clear()
        e.quiet()
        # The refused id means another message now.
        end.acks.automatic = True
        out.publish(b"t", b"next", 2)
        e.run()
        assert inbox.got[-1][1] == b"next"
        e.quiet()


def test_acknowledge_says_what_is_wrong() -> None:
    e = online5()
    ManualAck(e.server)
    e.from_client.publish(b"t", b"", 2)
    e.from_client.publish(b"t", b"", 1)
    e.run()
    s = e.server
    for packet_id, qos, epoch, code, status in (
        (1, 3, 1, 0x80, errors.E_QOS),
        (1, 2, 1, 256, errors.E_ARGUMENT),
        (1, 2, 1, -1, errors.E_ARGUMENT),
        (0, 2, 1, 0x80, errors.E_UNKNOWN_ID),
        (65536, 1, 1, 0x80, errors.E_UNKNOWN_ID),
        (7, 2, 1, 0x80, errors.E_UNKNOWN_ID),
        (1, 2, 0, 0x80, errors.E_UNKNOWN_ID),
        (2, 1, 0, 0x80, errors.E_STATE),
    ):
        assert s.acks.acknowledge(packet_id, qos, epoch, code) == status
    while s.tx_size - s.tx_end >= 5:
        s.tx_end += 1
    assert s.acks.acknowledge(1, 2, FIRST, 0x80) == errors.E_AGAIN
    s.tx_end = 0
    assert s.acks.acknowledge(1, 2, FIRST, 0x10) == 0
    assert s.acks.acknowledge(1, 2, FIRST, 0x10) == errors.E_UNKNOWN_ID
    e.lose()
    assert s.acks.acknowledge(2, 1, FIRST, 0x80) == errors.E_STATE


def test_qos_2_with_ids_that_are_not_known() -> None:
    """4.3.3: PUBREL for an unknown id is answered with 0x92, and so is a stray PUBREC; PUBCOMP with it is the end."""
    c = client5()
    assert feed(c, b"\x62\x02\x00\x07") == 0
    assert drain(c) == bytes([0x70, 3, 0, 7, spec5.PACKET_IDENTIFIER_NOT_FOUND])
    assert feed(c, b"\x50\x02\x00\x07") == 0
    assert drain(c) == bytes([0x62, 3, 0, 7, spec5.PACKET_IDENTIFIER_NOT_FOUND])
    assert feed(c, b"\x70\x02\x00\x07\x40\x02\x00\x07\x40\x03\x00\x07\x80\x50\x03\x00\x07\x80") == 0
    assert drain(c) == b"" and c.strays == 6
    delivered: list[int] = []
    c.on_delivered = delivered.append
    packet_id = c.publish(b"t", b"", 2)
    drain(c)
    assert feed(c, bytes([0x50, 2, 0, packet_id])) == 0
    assert c.outbox.state[packet_id - 1] == REL
    drain(c)
    assert feed(c, bytes([0x70, 3, 0, packet_id, spec5.PACKET_IDENTIFIER_NOT_FOUND])) == 0
    assert delivered == [packet_id] and c.outbox.count == 0 and c.outbox.state[packet_id - 1] != DONE
    # And PUBREL with it, from a sender that does not know what PUBREC was about.
    assert feed(c, b"\x34\x06\x00\x01t\x00\x01\x00") == 0
    drain(c)
    assert feed(c, bytes([0x62, 3, 0, 1, spec5.PACKET_IDENTIFIER_NOT_FOUND])) == 0
    assert drain(c) == b"\x70\x02\x00\x01" and not any(c.open_ids)


def test_a_long_answer_waits_for_room() -> None:
    """An answer with a code needs five bytes, which the smallest buffer has not got behind three others."""
    for said, head in ((b"\x62\x02\x00\x07", 0x70), (b"\x50\x02\x00\x07", 0x62)):
        c = client5(tx_size=36)
        c.tx_size = 16
        for packet_id in (1, 2, 3):
            assert feed(c, bytes([0x32, 6, 0, 1, 116, 0, packet_id, 0])) == 0
        assert c.tx_end == 12
        assert feed(c, said) == 0
        assert c.stalled and c.tx_end == 12
        assert len(drain(c)) == 12
        assert c.feed(0) == 0 and not c.stalled
        assert drain(c) == bytes([head, 3, 0, 7, spec5.PACKET_IDENTIFIER_NOT_FOUND])


def test_a_board_that_was_reset_releases_its_ids() -> None:
    e = online5(slots=4)
    e.client.publish(b"t", b"before the reset", 2)
    send(e.client, e.link().up)
    assert receive(e.server, e.link().up) >= 0
    for end in (e.client, e.server):
        end.lost()
    reborn = Ends5(session5(b"c", 0, False, slots=4), e.server)
    reborn.connect()
    assert [head for head, _, _ in packets(reborn.link().up.log)] == [0x10]
    reborn.from_client.publish(b"t", b"after it", 2)
    reborn.run()
    assert [head for head, _, _ in packets(reborn.link().up.log)] == [0x10] + 4 * [0x62] + [0x34, 0x62]
    assert reborn.client.strays == 0
    assert reborn.at_server.payloads(2) == [b"after it"]
    reborn.quiet()


def test_a_reason_that_is_no_refusal_is_told() -> None:
    """Of what is under way only; and the message counts as delivered."""
    c = client5()
    told: list[tuple[int, ...]] = []
    c.v5.on_reason = lambda packet_id, code: told.append((packet_id, code))
    c.on_delivered = lambda packet_id: told.append((packet_id,))
    c.v5.on_refused = lambda packet_id, code: told.append((packet_id, -code))
    for qos in (1, 2, 1, 1):
        assert c.publish(b"t", b"", qos) > 0
    drain(c)
    for packet in (
        b"\x40\x03\x00\x01\x10",
        b"\x50\x03\x00\x02\x10\x70\x02\x00\x02",
        b"\x40\x03\x00\x03\x87",
        b"\x40\x03\x00\x09\x10",
        b"\x40\x02\x00\x04",
    ):
        assert feed(c, packet) == 0
    assert told == [(1, 0x10), (1,), (2, 0x10), (2,), (3, -0x87), (4,)]
    assert c.in_flight == c.outbox.count == 0
    # It may end the connection, over which nothing counts any more.
    assert c.publish(b"t", b"", 1) > 0
    drain(c)
    c.v5.on_reason = lambda packet_id, code: c.lost()
    assert feed(c, b"\x40\x03\x00\x05\x10") == 0
    assert c.outbox.count == 1


# -- receive maximum ---------------------------------------------------------------------------------------------------


def test_no_more_open_messages_than_were_announced() -> None:
    """At QoS 1 and 2 together, as long as the application has not acknowledged them (3.3.4)."""
    for levels in ((1, 1, 1, 1), (2, 2, 2, 2), (1, 2, 2, 1), (2, 1, 1, 2)):
        c = client5(receive_window=3)
        ManualAck(c)
        for n in (1, 2, 3, 4):
            status = feed(c, bytes([0x30 | levels[n - 1] << 1, 6, 0, 1, 116, 0, n, 0]))
            assert status == (errors.E_RX_WINDOW if n == 4 else 0), (levels, n)
        assert drain(c) == bytes([0xE0, 1, spec5.RECEIVE_MAXIMUM_EXCEEDED])
    # What is acknowledged does not count; nor what another connection brought.
    c = client5(receive_window=3, clean_start=False)
    ManualAck(c)
    for n in range(1, 20):
        assert feed(c, bytes([0x32, 6, 0, 1, 116, 0, n, 0])) == 0
        if n > 2:
            assert c.acks.acknowledge(n - 2, 1, FIRST) == 0
            drain(c)
    c.lost()
    c.connect(0)
    drain(c)
    assert feed(c, b"\x20\x03\x01\x00\x00") == 0
    for n in range(1, 4):
        assert feed(c, bytes([0x3A, 6, 0, 1, 116, 0, n, 0])) == 0


def test_a_large_message_counts_as_well() -> None:
    c = client5(receive_window=1, rx_size=64)
    ManualAck(c)

    class Sink:
        def open(self, p: "Packet", size: int) -> bool:
            return True

        def write(self, buf: object, at: int, n: int) -> None:
            pass

        def close(self, complete: bool) -> None:
            pass

    stream_to(c, Sink())
    for n in (1, 2):
        wire = Wire()
        wire.log += bytes([0x32, 0x86, 1, 0, 1, 116, 0, n, 0]) + bytes(128)
        k = 1
        while k > 0:
            k = receive(c, wire)
        assert k == (errors.E_RX_WINDOW if n == 2 else 0)


# -- properties --------------------------------------------------------------------------------------------------------

MESSAGE = (
    (spec5.PAYLOAD_FORMAT_INDICATOR, 1),
    (spec5.MESSAGE_EXPIRY_INTERVAL, 3600),
    (spec5.CONTENT_TYPE, b"text/plain"),
    (spec5.RESPONSE_TOPIC, b"answers/7"),
    (spec5.CORRELATION_DATA, b"\x00\xff"),
)


def test_every_property_of_a_message_arrives() -> None:
    for qos in (0, 1, 2):
        e = online5()
        seen: list[bytes] = []

        def look(p: "Packet", seen: "list[bytes]" = seen) -> None:
            assert number_in(p, spec5.PAYLOAD_FORMAT_INDICATOR) == 1
            assert number_in(p, spec5.MESSAGE_EXPIRY_INTERVAL) == 3600
            assert text_in(p, spec5.CONTENT_TYPE) == b"text/plain"
            assert text_in(p, spec5.RESPONSE_TOPIC) == b"answers/7"
            assert text_in(p, spec5.CORRELATION_DATA) == b"\x00\xff"
            seen.append(p.payload_bytes())

        e.server.on_message = e.client.on_message = look
        block = made(*MESSAGE)
        e.client.on_delivered = e.server.on_delivered = None
        assert e.client.publish(b"t", b"up", qos, False, block) >= 0
        assert e.server.publish(b"t", b"down", qos, False, block) >= 0
        e.run()
        assert seen == [b"up", b"down"]
        # Its properties are not the next message's.
        e.server.on_message = lambda p, seen=seen: seen.append(
            bytes(as5(p).buf[as5(p).props_at : as5(p).props_end])
        )
        assert e.client.publish(b"t", b"", qos) >= 0
        e.run()
        assert seen[2:] == [b""]


def test_request_and_response() -> None:
    """The answer goes to the response topic, with the correlation data of its request."""
    e = online5()
    answers: list[tuple[bytes, bytes, bytes | None]] = []

    def answer(p: "Packet") -> None:
        topic, data = text_in(p, spec5.RESPONSE_TOPIC), text_in(p, spec5.CORRELATION_DATA)
        assert topic is not None and data is not None
        assert e.server.publish(topic, b"42", 1, False, made((spec5.CORRELATION_DATA, data))) > 0

    e.server.on_message = answer
    e.server.on_delivered = None
    e.client.on_message = lambda p: answers.append(
        (p.topic_bytes(), p.payload_bytes(), text_in(p, spec5.CORRELATION_DATA))
    )
    question = made((spec5.RESPONSE_TOPIC, b"c/answers"), (spec5.CORRELATION_DATA, b"q1"))
    assert e.client.publish(b"service", b"?", 0, False, question) == 0
    e.run()
    assert answers == [(b"c/answers", b"42", b"q1")]


def test_user_properties_repeat_and_keep_their_order() -> None:
    e = online5()
    block = b"\x15\x26\x00\x01a\x00\x011\x26\x00\x01b\x00\x012\x26\x00\x01a\x00\x013"
    got: list[tuple[bytes, bytes]] = []

    def look(p: "Packet") -> None:
        five = as5(p)
        assert TABLE[spec5.USER_PROPERTY * 3] & 15 == PAIR
        at = find(five.buf, five.props_at, five.props_end, spec5.USER_PROPERTY)
        while at >= 0:
            n = get_u16(five.buf, at)
            m = get_u16(five.buf, at + 2 + n)
            got.append((bytes(five.buf[at + 2 : at + 2 + n]), bytes(five.buf[at + 4 + n : at + 4 + n + m])))
            at = find(five.buf, skip(five.buf, at - 1), five.props_end, spec5.USER_PROPERTY)

    e.server.on_message = look
    assert e.client.publish(b"t", b"", 0, False, block) == 0
    e.run()
    assert got == [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]


def test_properties_a_publisher_cannot_have() -> None:
    alias = made((spec5.TOPIC_ALIAS, 1))
    ident = made((spec5.SUBSCRIPTION_IDENTIFIER, 7))
    e = online5()
    e.client.on_delivered = e.server.on_delivered = None
    for qos in (0, 1):
        for block in (alias, ident, None, 5, b"\x05"):
            status = e.client.publish(b"t", b"", qos, False, block)  # type: ignore[arg-type]
            assert status == (errors.E_ARGUMENT if block != b"\x05" else status), block
        assert e.server.publish(b"t", b"", qos, False, alias) == errors.E_ARGUMENT
        assert e.server.publish(b"t", b"", qos, False, ident) >= 0
        assert e.client.publish(b"t", b"", 3, False, ident) == errors.E_QOS


def test_subscription_identifiers() -> None:
    """They come with the messages that match; from a client they are an error (3.3.4-6)."""
    e = online5()
    asked: list[int] = []

    def granted(p: "Packet", options: int) -> int:
        asked.append(number_in(p, spec5.SUBSCRIPTION_IDENTIFIER))
        return options & 3

    e.server.on_subscribe = granted
    assert e.client.subscribe(b"a/#", 1, made((spec5.SUBSCRIPTION_IDENTIFIER, 300))) == FIRST_REQUEST_ID
    e.run()
    got: list[int] = []
    e.client.on_message = lambda p: got.append(number_in(p, spec5.SUBSCRIPTION_IDENTIFIER))
    assert e.server.publish(b"a/b", b"", 0, False, made((spec5.SUBSCRIPTION_IDENTIFIER, 300))) == 0
    e.run()
    assert asked == [300] and got == [300]
    # Short and whole, and one that is streamed.
    assert feed(e.server, b"\x30\x06\x00\x01t\x02\x0b\x05") == errors.E_UNEXPECTED
    assert drain(e.server) == bytes([0xE0, 1, spec5.PROTOCOL_ERROR])
    s = server5(rx_size=64)
    s.listen(0)
    assert feed(s, b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01c") == 0
    assert feed(s, b"\x30\x70\x00\x01t\x02\x0b\x05") == errors.E_UNEXPECTED


def test_the_options_of_a_subscription() -> None:
    e = online5()
    seen: list[int] = []

    def granted(p: "Packet", options: int) -> int:
        seen.append(options)
        return options & 3

    e.server.on_subscribe = granted
    good = (0, 1, 2, 1 | spec5.NO_LOCAL, 2 | spec5.RETAIN_AS_PUBLISHED, 1 << 4, 2 << 4 | spec5.NO_LOCAL | 2)
    for options in good:
        assert e.client.subscribe(b"t", options) > 0
        e.run()
    assert seen == list(good)
    for wrong, status in (
        (3, errors.E_QOS),
        (3 << 4, errors.E_ARGUMENT),
        (1 << 6, errors.E_ARGUMENT),
        (1 << 7, errors.E_ARGUMENT),
        (1 << 8, errors.E_ARGUMENT),
        (-2, errors.E_ARGUMENT),
        ("1", errors.E_ARGUMENT),  # not a number
    ):
        assert e.client.subscribe(b"t", wrong) == status, wrong  # type: ignore[arg-type]
    assert e.client.subscribe(b"$share/g/t", spec5.NO_LOCAL) == errors.E_ARGUMENT
    for topic_filter in (b"", b"a#", b"$share/g", b"$share//t", b"$share/+/t", b"$share/g/", bytes(65536)):
        assert e.client.subscribe(topic_filter) == errors.E_FILTER, topic_filter
    assert e.client.subscribe(b"t", 0, 5) == errors.E_ARGUMENT  # type: ignore[arg-type]
    assert e.client.unsubscribe(b"t", 5) == errors.E_ARGUMENT  # type: ignore[arg-type]
    e.lose()
    assert e.client.subscribe(b"t") == e.client.unsubscribe(b"t") == errors.E_OFFLINE


def test_the_codes_of_suback_and_unsuback() -> None:
    for code in (0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2):
        e = online5()
        e.server.on_subscribe = lambda p, options, code=code: code
        answers: list[tuple[int, int]] = []
        e.client.on_answer = lambda packet_id, code, a=answers: a.append((packet_id, code))
        packet_id = e.client.subscribe(b"t/#", 2)
        e.run()
        assert answers == [(packet_id, code)]
    for code in (0, 0x11, 0x80, 0x87):
        e = online5()
        e.server.on_unsubscribe = lambda p, code=code: code
        seen: list[int] = []
        e.client.on_answer = lambda packet_id, code, a=seen: a.append(code)
        e.client.unsubscribe(b"t/#")
        e.run()
        assert seen == [code]
    # One of 3.1.1's, without a code; and two codes for one filter.
    c = client5()
    packet_id = c.unsubscribe(b"t")
    assert feed(c, bytes([0xB0, 2, packet_id >> 8, packet_id & 255])) < 0
    c = client5()
    packet_id = c.subscribe(b"t")
    assert feed(c, bytes([0x90, 5, packet_id >> 8, packet_id & 255, 0, 0, 0])) == errors.E_SIZE


def test_a_server_takes_many_filters_at_once() -> None:
    e = online5()
    filters: list[bytes] = []

    def granted(p: "Packet", options: int) -> int:
        filters.append(p.topic_bytes())
        return 0x80 + len(filters)

    e.server.on_subscribe = granted
    drain(e.server)
    body = b"\x00\x05\x02\x0b\x07" + b"\x00\x01a\x01" + b"\x00\x01b\x02"
    e.server.on_unsubscribe = lambda p: 0x11
    assert feed(e.server, b"\x82" + bytes([len(body)]) + body) == 0
    assert filters == [b"a", b"b"]
    assert drain(e.server) == b"\x90\x05\x00\x05\x00\x81\x82"
    assert feed(e.server, b"\xa2\x09\x00\x06\x00\x00\x01a\x00\x01b") == 0
    assert drain(e.server) == b"\xb0\x05\x00\x06\x00\x11\x11"


def test_what_has_not_been_sent_cannot_be_refused() -> None:
    c = client5()
    refused: list[tuple[int, int]] = []
    c.v5.on_refused = lambda packet_id, code: refused.append((packet_id, code))
    packet_id = c.publish(b"t", b"", 1)
    assert feed(c, bytes([0x40, 3, 0, packet_id, 0x87])) == 0
    assert refused == [] and c.strays == 1 and c.outbox.count == 1 and c.in_flight == 0
