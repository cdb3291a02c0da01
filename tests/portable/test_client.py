# heap: 512K
"""The client over transports that take and give what they like: connecting, messages."""

from client_pair import Dialer, Pair, raised
from pipe import Line, packets

from headwater import errors
from headwater.connection import ONLINE
from headwater.mqtt.client import Client
from headwater.mqtt.server import ServerSession
from headwater.mqtt.session import ClientSession
from headwater.wire import TICKS_MASK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet
    from headwater.types import Bytes


# -- connecting --------------------------------------------------------------------------------------------------------


def test_the_session_keeps_room_in_its_table_of_attributes() -> None:
    """MicroPython looks a method up among the attributes first, and searches a full table to its end."""
    # The sizes that its tables grow to (py/map.c).
    tables = (47, 59, 73, 97, 127, 167)
    count = len(ClientSession(b"c").__dict__)
    size = min(n for n in tables if n >= count)
    assert count <= size * 9 // 10, (count, size)


def test_connect_says_whether_the_session_was_kept() -> None:
    p = Pair()
    assert not p.client.connected
    assert p.client.poll() == errors.E_OFFLINE
    assert p.client.connect() is False
    assert p.client.connected and p.client.session.state == ONLINE
    assert p.client.connect() is True
    assert p.client.session_present
    assert len(p.dialer.lines) == 2 and p.dialer.lines[0].closed == 1 and p.dialer.lines[1].closed == 0


def test_connect_that_is_refused() -> None:
    p = Pair()
    p.server.on_connect = lambda connect, packet: 5
    assert raised(p.client.connect) == errors.E_REFUSED
    assert p.client.session.return_code == 5
    assert p.client.status == errors.E_REFUSED == p.client.poll()
    assert p.dialer.line().closed == 1
    p.server.on_connect = None
    assert p.client.connect() is False


def test_connect_that_is_not_answered() -> None:
    for start in (0, TICKS_MASK - 5000):
        p = Pair(start, response_ms=8000)
        p.dialer.deaf = True
        assert raised(p.client.connect) == errors.E_TIMEOUT
        assert (p.dialer.now - start) & TICKS_MASK == 8000
        assert p.dialer.line().closed == 1 and not p.client.connected


def test_connect_to_who_hangs_up_or_talks_nonsense() -> None:
    p = Pair()
    before = p.dialer.open

    def hang_up() -> Line:
        line = before()
        line.hung_up = True
        return line

    p.dialer.open = hang_up  # type: ignore[method-assign]
    assert raised(p.client.connect) == errors.E_CLOSED

    def nonsense() -> Line:
        line = before()
        line.down.log += b"HTTP/1.1 400 Bad Request\r\n"
        return line

    p.dialer.open = nonsense  # type: ignore[method-assign]
    assert raised(p.client.connect) == errors.E_FLAGS
    p.dialer.open = before  # type: ignore[method-assign]
    assert p.client.connect() is False


def test_connect_that_cannot_open_or_be_built() -> None:
    p = Pair()
    p.dialer.refuse = OSError(111)
    code = 0
    try:
        p.client.connect()
    except OSError as error:
        code = error.args[0]
    assert code == 111
    assert p.client.poll() == errors.E_OFFLINE
    p.dialer.refuse = None
    p.client.session.client_id = bytes(70000)
    assert raised(p.client.connect) == errors.E_ARGUMENT
    p.client.session.client_id = b"c" * 600
    assert raised(p.client.connect) == errors.E_TOO_LARGE
    assert p.dialer.line().closed == 1 and not p.dialer.line().up.log
    p.client.session.client_id = b"c"
    assert p.client.connect() is False


def test_a_given_session_is_used() -> None:
    session = ClientSession(b"mine", clean_start=False)
    client = Client(Dialer(ServerSession()), session=session)
    assert client.session is session
    client.connect()
    assert session.state == ONLINE


# -- messages ----------------------------------------------------------------------------------------------------------


def test_one_write_for_each_packet() -> None:
    p = Pair()
    p.client.connect()
    line = p.dialer.line()
    line.writes = 0
    topic = b"t"
    for n in range(5):
        assert p.client.publish(topic, bytes([n]), 0) == 0
        assert line.writes == n + 1
    for n in range(5, 9):
        assert p.client.publish(topic, bytes([n]), 1 + n % 2) > 0
        assert line.writes == n + 1
    assert p.client.subscribe(b"a/#", 1) > 0 and line.writes == 10
    assert p.client.unsubscribe(b"a/#") > 0 and line.writes == 11
    heads = [head for head, _, _ in packets(line.up.log)]
    assert heads == [0x10] + 5 * [0x30] + [0x34, 0x32, 0x34, 0x32, 0x82, 0xA2]
    p.settle()
    assert p.at_server == [bytes([n]) for n in range(9)]
    assert len(p.delivered) == 4


def test_answers_leave_together() -> None:
    p = Pair()
    p.client.connect()
    line = p.dialer.line()
    for n in range(10):
        p.server.publish(b"t", bytes([n]), 1)
    p.dialer.serve()
    line.writes = 0
    assert p.client.poll() == 0
    assert p.at_client == [bytes([n]) for n in range(10)]
    assert line.writes == 1
    p.settle()
    assert p.server.outbox.count == 0


def test_every_kind_of_transport() -> None:
    """Partial writes and reads, and a transport that is full: everything arrives, in order."""
    for faults in ((0, 0, 0), (1, 1, 0), (3, 2, 5), (0, 0, 1), (7, 100, 11)):
        p = Pair(tx_size=64, rx_size=64, outbox_size=300)
        p.dialer.faults = faults
        p.client.connect()
        sent = {0: [], 1: [], 2: []}  # type: ignore[var-annotated]
        refused = 0
        for n in range(60):
            qos = n % 3
            payload = bytes([n]) * (1 + n % 9)
            status = p.client.publish(b"topic", payload, qos)
            while status in (errors.E_AGAIN, errors.E_WINDOW):
                refused += 1
                assert p.client.wait(20) == 0
                status = p.client.publish(b"topic", payload, qos)
            assert status >= 0
            sent[qos].append(payload)
            if n % 7 == 0:
                p.server.publish(b"t", payload, 1 + n % 2)
        p.client.flush(100000)
        p.settle()
        assert refused, faults
        for qos in (0, 1, 2):
            assert [m for m in p.at_server if m[0] % 3 == qos] == sent[qos], (faults, qos)
        assert len(p.at_client) == 9 and p.server.outbox.count == 0
        assert len(p.delivered) == 40


def test_publish_again_flushes_once_before_it_refuses() -> None:
    p = Pair(tx_size=32)
    p.client.connect()
    line = p.dialer.line()
    line.up.room = 1
    line.up.arrived = len(line.up.log)
    assert p.client.publish(b"t", bytes(20), 0) == 0
    assert p.client.publish(b"t", bytes(20), 0) == errors.E_AGAIN
    line.up.room = 0
    # The transport takes again: the buffer is emptied and the message fits.
    assert p.client.publish(b"t", bytes(20), 0) == 0
    assert p.client.session.tx_end == 0


def test_topics_and_payloads_in_any_order() -> None:
    """Whatever was sent before and however it left, a message goes out as itself: the packet at the beginning of the
    transmit buffer is used again for the next message of its topic."""
    topics = (b"a", b"a/longer/topic", bytearray(b"changing"))
    for faults in ((0, 0, 0), (5, 0, 0), (0, 0, 3)):
        p = Pair(tx_size=160, outbox_size=600)
        p.dialer.faults = faults
        got: list[tuple[bytes, int, int, bytes]] = []
        p.server.on_message = lambda m, got=got: got.append(
            (m.topic_bytes(), m.qos(), m.retain(), m.payload_bytes())
        )
        p.client.connect()
        sent = {0: [], 1: [], 2: []}  # type: ignore[var-annotated]
        x = 7
        for n in range(150):
            x = (x * 75 + 74) % 65537
            topic = topics[(x >> 4) % 3 if x & 1 else 0]
            qos = (x >> 6) % 3 if x & 8 else 0
            retain = x & 0x700 == 0
            payload: Bytes = bytes([n & 255]) * ((x >> 8) % 140 if x & 2 else n % 4)
            if x & 0x3000 == 0:
                payload = memoryview(payload)
            if topic is topics[2]:
                topics[2][0] = 97 + n % 26
            if x & 0xC000 == 0:
                status = p.client.publish(topic, "text", qos)  # type: ignore[arg-type]
                assert status in (errors.E_ARGUMENT, errors.E_AGAIN, errors.E_WINDOW)
            status = p.client.publish(topic, payload, qos, retain)
            while status in (errors.E_AGAIN, errors.E_WINDOW):
                assert p.client.wait(20) == 0
                status = p.client.publish(topic, payload, qos, retain)
            assert status >= 0, status
            sent[qos].append((bytes(topic), qos, retain, bytes(payload)))
            if x % 11 == 0:
                assert p.client.subscribe(b"a", 1) > 0 or faults[2]
            if x % 31 == 0:
                p.client.flush(100000)
                p.client.disconnect()
                p.settle_server()
                p.client.connect()
        p.client.flush(100000)
        p.settle()
        for qos in (0, 1, 2):
            assert [m for m in got if m[1] == qos] == sent[qos], (faults, qos)


def test_nothing_leaves_behind_disconnect() -> None:
    p = Pair()
    p.client.connect()
    topic = b"t"
    assert p.client.publish(topic, b"1") == p.client.publish(topic, b"2") == 0
    line = p.dialer.line()
    line.up.room = 1
    line.up.arrived = len(line.up.log)
    assert p.client.publish(topic, b"3") == 0
    assert p.client.session.disconnect() == 0
    line.up.room = 0
    p.client.poll()
    assert p.client.publish(topic, b"4") == errors.E_OFFLINE
    assert [head for head, _, _ in packets(line.up.log)] == [0x10, 0x30, 0x30, 0x30, 0xE0]


def test_subscribing() -> None:
    p = Pair()
    p.client.connect()
    answers: list[tuple[int, int]] = []
    filters: list[bytes] = []

    def grant(packet: "Packet", qos: int) -> int:
        filters.append(packet.topic_bytes())
        return qos

    p.client.session.on_answer = lambda packet_id, code: answers.append((packet_id, code))
    p.server.on_subscribe = grant
    first = p.client.subscribe(b"a/+", 2)
    second = p.client.unsubscribe(b"a/+")
    p.settle()
    assert answers == [(first, 2), (second, 0)] and filters == [b"a/+"]
    assert p.client.subscribe(b"a+", 0) == errors.E_FILTER
    p.client.close()
    assert p.client.subscribe(b"a", 0) == p.client.unsubscribe(b"a") == errors.E_OFFLINE


def test_a_refused_subscription_raises_where_no_handler_is_told() -> None:
    p = Pair()
    p.client.connect()
    p.server.on_subscribe = lambda packet, qos: 0x80
    p.client.subscribe(b"a", 1)
    assert raised(p.settle) == errors.E_REFUSED
    assert p.client.connected
    codes: list[int] = []
    p.client.session.on_answer = lambda packet_id, code: codes.append(code)
    p.client.subscribe(b"a", 1)
    p.settle()
    assert codes == [0x80]


def test_bad_arguments_have_no_effect() -> None:
    p = Pair()
    p.client.connect()
    topic = b"t"
    assert p.client.publish(topic, b"", 0) == 0
    for qos in (0, 1):
        assert p.client.publish(b"", b"x", qos) == errors.E_TOPIC
        assert p.client.publish(topic, "text", qos) == errors.E_ARGUMENT  # type: ignore[arg-type]
        assert p.client.publish("t", b"", qos) == errors.E_ARGUMENT  # type: ignore[arg-type]
        assert p.client.publish(None, b"", qos) == errors.E_ARGUMENT  # type: ignore[arg-type]
        assert p.client.publish(topic, bytes(2000), qos) == errors.E_TOO_LARGE
    assert p.client.publish(topic, b"", 3) == errors.E_QOS
    assert p.client.publish(topic, b"fine", 0) == 0
    p.settle()
    assert p.at_server == [b"", b"fine"]


def test_poll_gives_the_application_its_turn() -> None:
    """However much arrives, one poll reads only so often."""
    p = Pair(rx_size=64)
    p.client.connect()
    for _ in range(400):
        if p.server.publish(b"t", b"0123456789", 0) < 0:
            p.dialer.serve()
    p.dialer.serve()
    waiting = p.dialer.line().down.waiting()
    assert p.client.poll() == 0
    assert 0 < p.dialer.line().down.waiting() < waiting


# -- handlers that use the client --------------------------------------------------------------------------------------


def test_a_packet_made_from_the_one_before_leaves_as_far_as_the_transport_takes_it() -> None:
    p = Pair(tx_size=140)
    p.client.connect()
    topic = b"topic"
    line = p.dialer.line()
    line.up.take = 3
    for n in range(3):
        begin = len(line.up.log)
        assert p.client.publish(topic, bytes([n]) * 20) == 0
        assert len(line.up.log) == begin + 29 and p.client.session.tx_end == 0
    line.up.room = line.up.waiting() + 10
    assert p.client.publish(topic, b"waits", 0) == 0
    assert p.client.session.tx_end == 14 and line.up.waiting() == line.up.room
    line.up.room = 0
    p.settle()
    assert p.at_server == [bytes([n]) * 20 for n in range(3)] + [b"waits"]
