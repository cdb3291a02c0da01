# heap: 768K
"""Windows, packet ids and room: what two sessions do when there is no more of them."""

from pipe import FIRST, Ends, Link, Random, Wire, drain, feed, packets, receive, send
from states import CONNACK, PACKETS, client_in, online, server_in

from headwater import errors
from headwater.connection import ERROR, FIRST_REQUEST_ID, ONLINE
from headwater.mqtt import spec
from headwater.mqtt.manual_ack import ManualAck
from headwater.mqtt.server import ServerSession
from headwater.mqtt.session import ClientSession

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet


def test_no_more_in_flight_than_the_window() -> None:
    for window in (1, 2, 5, 16):
        e = online(window=window, slots=12, outbox_size=400)
        ManualAck(e.server)
        for n in range(12):
            assert e.from_client.publish(b"t", bytes([n]), 1 + n % 2) > 0
        assert e.client.publish(b"t", b"one too many", 1) == errors.E_WINDOW
        e.run()
        assert len(e.at_server.got) == e.client.in_flight == min(window, 12)
        answered = 0
        while answered < 12:
            _, _, qos, _, _, packet_id = e.at_server.got[answered]
            assert e.server.acks.acknowledge(packet_id, qos, FIRST) == 0
            answered += 1
            e.run()
            assert e.client.in_flight == min(window, 12 - answered)
            assert len(e.at_server.got) == min(window + answered, 12)
        e.quiet()
        assert [m[1] for m in e.at_server.got] == [bytes([n]) for n in range(12)]


def test_a_window_that_shrinks() -> None:
    """Fewer in flight on the next connection; what was acknowledged out of order on the first is not sent again."""
    e = online(window=4, slots=6)
    ManualAck(e.server)
    for n in range(4):
        e.from_client.publish(b"t", bytes([n]), 1)
    e.run()
    for packet_id in (3, 2):
        assert e.server.acks.acknowledge(packet_id, 1, FIRST) == 0
    e.run()
    e.client.window = 1
    e.server.acks.automatic = True
    e.lose()
    e.connect()
    assert e.at_server.payloads(1) == [b"\x00", b"\x01", b"\x02", b"\x03", b"\x00", b"\x03"]
    e.quiet()


def test_a_full_outbox_loses_nothing() -> None:
    """E_WINDOW by slots and by bytes; every message that was taken arrives, at QoS 2 once, over thousands of ids."""
    random = Random(7)
    for slots, size in ((1, 64), (2, 64), (3, 40), (7, 100), (16, 64)):
        e = online(slots=slots, outbox_size=size, window=4)
        refused = 0
        sent = {1: 0, 2: 0}
        for n in range(300):
            qos = 1 + random.below(2)
            payload = bytes([n >> 8, n & 255]) + bytes(random.below(9))
            status = e.from_client.publish(b"t", payload, qos)
            if status == errors.E_WINDOW:
                refused += 1
                e.run()
                status = e.from_client.publish(b"t", payload, qos)
            assert 0 < status <= slots, status
            sent[qos] += 1
            if random.below(4) == 0:
                e.step()
        e.run()
        e.quiet()
        assert refused, (slots, size)
        for qos in (1, 2):
            assert len(e.at_server.payloads(qos)) == sent[qos]
            assert e.at_server.payloads(qos) == e.from_client.payloads(qos)


def test_request_ids_are_never_a_message_s() -> None:
    e = online()
    answers: list[int] = []
    e.client.on_answer = lambda packet_id, code: answers.append(packet_id)
    seen = set()
    for n in range(700):
        packet_id = e.client.subscribe(b"t/%d" % (n % 7), n % 3) if n % 2 else e.client.unsubscribe(b"t")
        assert FIRST_REQUEST_ID <= packet_id <= 65535
        seen.add(packet_id)
        if n % 5 == 4:
            e.run()
    e.run()
    assert len(answers) == 700 and e.client.strays == 0
    assert len(seen) > 30


def test_eight_requests_wait_for_their_answers() -> None:
    e = online(tx_size=256)
    ids = [e.client.subscribe(b"t", 1) for _ in range(8)]
    assert len(set(ids)) == 8
    assert e.client.subscribe(b"t", 1) == e.client.unsubscribe(b"t") == errors.E_AGAIN
    answers: list[tuple[int, int]] = []
    e.client.on_answer = lambda packet_id, code: answers.append((packet_id, code))
    e.run()
    assert answers == [(packet_id, 1) for packet_id in ids]
    assert e.client.subscribe(b"t", 1) > 0


def test_answers_of_another_kind_or_to_nobody() -> None:
    c = client_in(ONLINE)
    packet_id = c.subscribe(b"t", 1)
    assert feed(c, bytes([0xB0, 2, 1, 1])) == 0 and c.strays == 1
    assert feed(c, bytes([0x90, 3, 1, 1, 0])) == 0 and c.strays == 2
    assert feed(c, bytes([0xB0, 2, packet_id >> 8, packet_id & 255])) == errors.E_ACK_KIND
    c = client_in(ONLINE)
    packet_id = c.unsubscribe(b"t")
    assert feed(c, bytes([0x90, 3, packet_id >> 8, packet_id & 255, 0])) == errors.E_ACK_KIND


def test_suback_codes_reach_the_application() -> None:
    for code in (0, 1, 2, 0x80):
        e = online()
        e.server.on_subscribe = lambda p, qos, code=code: code
        answers: list[tuple[int, int]] = []
        e.client.on_answer = lambda packet_id, code, a=answers: a.append((packet_id, code))
        packet_id = e.client.subscribe(b"t/#", 2)
        e.run()
        assert answers == [(packet_id, code)]


def test_a_server_takes_many_filters_at_once() -> None:
    s = server_in(ONLINE)
    filters: list[tuple[bytes, int]] = []

    def granted(p: "Packet", qos: int) -> int:
        filters.append((p.topic_bytes(), qos))
        return qos

    s.on_subscribe = granted
    body = b"\x00\x05" + b"".join([b"\x00\x02t" + bytes([48 + n, n % 3]) for n in range(64)])
    assert feed(s, b"\x82" + bytes([len(body) & 127 | 128, len(body) >> 7]) + body) == 0
    assert filters == [(b"t" + bytes([48 + n]), n % 3) for n in range(64)]
    assert drain(s) == b"\x90\x42\x00\x05" + bytes([n % 3 for n in range(64)])
    # One more than it has room to answer.
    body += b"\x00\x01t\x00"
    assert feed(s, b"\x82" + bytes([len(body) & 127 | 128, len(body) >> 7]) + body) == errors.E_RX_TOO_LARGE


def test_a_subscription_whose_answer_can_never_fit() -> None:
    """With the smallest transmit buffer SUBACK has room for twelve codes: more is an error, not a wait for ever."""
    s = ServerSession(tx_size=16)
    s.listen(0)
    assert feed(s, PACKETS[spec.CONNECT]) == 0
    assert drain(s) == CONNACK
    for count in (12, 13):
        body = b"\x00\x05" + b"\x00\x01t\x00" * count
        status = feed(s, b"\x82" + bytes([len(body)]) + body)
        assert status == (0 if count == 12 else errors.E_RX_TOO_LARGE)
        assert not s.stalled
        assert len(drain(s)) == (16 if count == 12 else 0)


def test_acknowledgements_wait_for_room() -> None:
    """The smallest transmit buffer, a transport that takes a byte at a time or nothing: feeding stops, and goes on."""
    for take, room in ((1, 0), (1, 2), (3, 4), (0, 5)):
        e = Ends(
            ClientSession(b"c", 0, False, rx_size=64, tx_size=16),
            ServerSession(rx_size=64, tx_size=16),
            [Link(Wire(take, 0, room), Wire(0, 0, 0))],
        )
        e.connect()
        for n in range(12):
            e.from_server.publish(b"t", bytes([n]), 1 + n % 2)
        stalls = 0
        for _ in range(3):
            # The client reads, and its transport takes nothing.
            send(e.server, e.link().down)
            while receive(e.client, e.link().down):
                pass
            stalls += e.client.stalled
            assert e.client.tx_end <= 16
        assert stalls
        e.run()
        e.quiet()
        assert [m[1] for m in e.at_client.got] == [bytes([n]) for n in range(12)]


def test_a_full_receive_buffer_while_stalled() -> None:
    e = Ends(ClientSession(b"c", 0, False, rx_size=32, tx_size=16), ServerSession())
    e.connect()
    for n in range(16):
        e.from_server.publish(b"t", bytes([n]), 1)
    send(e.server, e.link().down)
    while receive(e.client, e.link().down):
        pass
    assert e.client.stalled and e.client.rx.window() == 0
    assert e.client.feed(0) == 0 and e.client.stalled
    e.run()
    e.quiet()
    assert len(e.at_client.got) == 16


def test_publish_refusals() -> None:
    e = online(tx_size=32, outbox_size=64, slots=2)
    c = e.client
    c.on_delivered = None
    assert c.publish(b"t", bytes(27), 0) == 0
    assert c.publish(b"t", b"", 0) == errors.E_AGAIN
    assert c.publish(b"t", bytes(28), 0) == errors.E_TOO_LARGE
    e.run()
    assert c.publish(b"t", bytes(28), 0) == errors.E_TOO_LARGE
    assert c.publish(b"t", bytes(57), 1) > 0
    assert c.publish(b"t", b"", 1) == errors.E_WINDOW
    assert c.publish(b"t", bytes(58), 1) == errors.E_TOO_LARGE
    e.run()
    assert c.publish(b"t", bytes(58), 1) == errors.E_TOO_LARGE
    e.lose()
    assert c.publish(b"t", b"", 0) == errors.E_OFFLINE
    assert c.subscribe(b"t") == c.unsubscribe(b"t") == errors.E_OFFLINE
    assert c.publish(b"t", b"kept", 2) > 0
    assert [
        errors.blame(code) for code in (errors.E_AGAIN, errors.E_WINDOW, errors.E_TOO_LARGE, errors.E_OFFLINE)
    ] == [errors.ROOM] * 4


def test_a_server_that_opens_too_many_gets_everything_across() -> None:
    """However often the connection ends for it: what was delivered is acknowledged first, so each brings some more."""
    e = Ends(ClientSession(b"c", 0, False, receive_window=3), ServerSession(window=16))
    e.connect()
    for n in range(10):
        e.from_server.publish(b"t", bytes([n]), 2)
    connections = 1
    while e.at_client.payloads(2) != [bytes([n]) for n in range(10)]:
        # The server sends all it may before it looks at an answer.
        send(e.server, e.link().down)
        status = 0
        while status >= 0 and (e.link().down.waiting() or e.client.stalled):
            status = receive(e.client, e.link().down)
            send(e.client, e.link().up)
        assert receive(e.server, e.link().up) >= 0
        if status < 0:
            assert status == errors.E_RX_WINDOW
            connections += 1
            assert connections < 10
            e.lose()
            e.open()
            send(e.client, e.link().up)
            assert receive(e.server, e.link().up) >= 0
    e.run()
    assert e.at_client.payloads(2) == [bytes([n]) for n in range(10)]
    assert connections == 4
    assert e.server.outbox.count == 0


def test_what_has_no_place_is_left_to_the_next_connection() -> None:
    """A client that says so receives what lies behind it, an acknowledgement for instance."""
    e = Ends(ClientSession(b"c", 0, False, receive_window=3), ServerSession(window=16, outbox_size=8000))
    e.connect()
    ManualAck(e.client)
    e.client.acks.defer_excess_qos2 = True
    for n in range(8):
        # Also one that is larger than the receive buffer.
        e.from_server.publish(b"t", bytes([n]) + bytes(1000 if n == 5 else 0), 2)
    send(e.server, e.link().down)
    delivered: list[int] = []
    e.client.on_delivered = delivered.append
    assert e.client.publish(b"u", b"", 1) == 1
    e.run()
    assert delivered == [1]
    assert e.client.acks.excess == 5
    assert e.at_client.payloads(2) == [b"\x00", b"\x01", b"\x02"]
    # A free place is not for one of those behind.
    assert e.client.acks.acknowledge(1, 2, FIRST) == 0
    e.run()
    e.from_server.publish(b"t", b"\x08", 2)
    e.run()
    assert e.client.acks.excess == 6
    assert e.client.acks.acknowledge(2, 2, FIRST) == e.client.acks.acknowledge(3, 2, FIRST) == 0
    e.client.acks.automatic = True
    e.server.window = 3
    e.lose()
    e.open()
    assert e.client.acks.excess == 0
    e.run()
    assert e.at_client.payloads(2) == [bytes([n]) for n in range(9) if n != 5]
    assert e.client.skipped == 1
    assert e.server.outbox.count == 0


def test_open_qos_2_messages_are_bounded() -> None:
    """A peer with more of them open than there is room for: the connection ends, and nothing is delivered twice."""
    e = Ends(ClientSession(b"c", 0, False, receive_window=3), ServerSession(window=16))
    e.connect()
    ManualAck(e.client)
    for n in range(4):
        e.from_server.publish(b"t", bytes([n]), 2)
    send(e.server, e.link().down)
    assert receive(e.client, e.link().down) == errors.E_RX_WINDOW
    assert errors.blame(errors.E_RX_WINDOW) == errors.ROOM
    assert e.client.state == ERROR
    assert e.at_client.payloads(2) == [b"\x00", b"\x01", b"\x02"]
    for packet_id in (1, 2, 3):
        assert e.client.acks.acknowledge(packet_id, 2, FIRST) == 0
    e.client.acks.automatic = True
    e.server.window = 3
    e.lose()
    e.connect()
    assert e.at_client.payloads(2) == [bytes([n]) for n in range(4)]
    e.quiet()


def test_a_board_that_was_reset_releases_its_ids() -> None:
    """Its outbox was in memory; the server kept the session and a QoS 2 id of it open."""
    e = online(slots=4)
    link = e.link()
    packet_id = e.client.publish(b"t", b"before the reset", 2)
    send(e.client, link.up)
    assert receive(e.server, link.up) >= 0
    for end in (e.client, e.server):
        end.lost()
    reborn = Ends(ClientSession(b"c", 0, False, slots=4), e.server)
    reborn.connect()
    assert reborn.client.session_present
    # Not before there is need to: a server without QoS 2 does not know PUBREL.
    assert [head for head, _, _ in packets(reborn.link().up.log)] == [0x10]
    # The same id again, and another message.
    assert reborn.from_client.publish(b"t", b"after it", 2) == packet_id
    reborn.run()
    assert [head for head, _, _ in packets(reborn.link().up.log)] == [0x10] + 4 * [0x62] + [0x34, 0x62]
    assert reborn.at_server.payloads(2) == [b"after it"]
    reborn.quiet()
    # Once is enough.
    reborn.lose()
    reborn.connect()
    assert [head for head, _, _ in packets(reborn.link().up.log)] == [0x10]


def test_ids_are_released_behind_what_is_under_way() -> None:
    """QoS 1 does without; and PUBCOMP for an id that a message at QoS 1 has would be an error."""
    e = online(slots=4)
    e.lose()
    reborn = Ends(ClientSession(b"c", 0, False, slots=4), e.server)
    reborn.connect()
    for n, qos in enumerate((1, 1, 2, 1)):
        assert reborn.from_client.publish(b"t", bytes([n]), qos) == n + 1
    link = reborn.link()
    send(reborn.client, link.up)
    # What stands before the message at QoS 2 has left, and nothing else while it is not acknowledged.
    heads = [0x10, 0x32, 0x32]
    assert [head for head, _, _ in packets(link.up.log)] == heads
    reborn.run()
    heads += 4 * [0x62] + [0x34, 0x32, 0x62]
    assert [head for head, _, _ in packets(link.up.log)] == heads
    assert [m[1] for m in reborn.at_server.got] == [bytes([n]) for n in range(4)]
    assert reborn.client.strays == 0
    reborn.quiet()
