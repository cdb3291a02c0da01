# heap: 512K
"""The client over transports that take and give what they like, fail, and close; a server's session is behind them."""

from pipe import Wire, packets, receive, send

from headwater import errors
from headwater.client import Client
from headwater.errors import HeadwaterError
from headwater.mqtt.server import ServerSession
from headwater.mqtt.session import ClientSession
from headwater.mqtt.transitions import IDLE, ONLINE
from headwater.wire import TICKS_MASK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.decode import Packet
    from headwater.types import Bytes


class Line:
    """A client's transport: two wires, with a server at the other end that works while the client waits."""

    def __init__(self, up: Wire, down: Wire):
        self.up = up
        self.down = down
        self.closed = 0
        self.writes = 0
        #: What the next calls are to fail with.
        self.read_error: OSError | None = None
        self.write_error: OSError | None = None
        self.hung_up = False

    def readinto(self, buf: "bytearray | memoryview", n: int) -> "int | None":
        assert not self.closed, "read behind close"
        if self.read_error is not None:
            raise self.read_error
        k = self.down.readinto(buf, n)
        return 0 if k is None and self.hung_up else k

    def write(self, buf: "Bytes", off: int, n: int) -> "int | None":
        assert not self.closed, "written behind close"
        if self.write_error is not None:
            raise self.write_error
        self.writes += 1
        return self.up.write(buf, off, n)

    def close(self) -> None:
        self.closed += 1


class Dialer:
    """Opens lines to ``server``; time passes only in ``wait``. ``wires`` makes the wires of a connection."""

    def __init__(self, server: ServerSession, start: int = 0):
        self.server = server
        self.lines: list[Line] = []
        self.now = start
        self.waits = 0
        self.faults = (0, 0, 0)
        self.refuse: OSError | None = None
        self.deaf = False

    def open(self) -> Line:
        if self.refuse is not None:
            raise self.refuse
        self.lines.append(Line(Wire(*self.faults), Wire(*self.faults)))
        self.server.lost()
        self.server.listen(self.now)
        return self.lines[-1]

    def ticks_ms(self) -> int:
        return self.now

    def wait(self, ms: int) -> None:
        assert ms > 0
        self.waits += 1
        self.now = (self.now + ms) & TICKS_MASK
        self.serve()

    def serve(self) -> None:
        """The server's turn."""
        line = self.lines[-1]
        moved = 0 if self.deaf else 1
        while moved:
            moved = receive(self.server, line.up)
            assert moved >= 0, moved
            moved += send(self.server, line.down)
        if not self.deaf:
            self.server.poll(self.now)

    def line(self) -> Line:
        return self.lines[-1]


class Pair:
    """A connected client; ``got`` has what arrived at either end."""

    def __init__(self, start: int = 0, **options: object):
        options.setdefault("clean", False)
        self.server = ServerSession()
        self.dialer = Dialer(self.server, start)
        self.client = Client(self.dialer, b"c", **options)  # type: ignore[arg-type]
        self.at_server: list[bytes] = []
        self.at_client: list[bytes] = []
        self.delivered: list[int] = []
        self.server.on_message = lambda p: self.at_server.append(p.payload_bytes())
        self.client.on_message = lambda p: self.at_client.append(p.payload_bytes())
        self.client.on_delivered = self.delivered.append

    def settle(self) -> None:
        for _ in range(200):
            assert self.client.poll() == 0
            self.dialer.serve()

    def settle_server(self) -> None:
        for _ in range(200):
            self.dialer.serve()


def raised(call: object, *arguments: object) -> int:
    """The code of the HeadwaterError that a call raises."""
    try:
        call(*arguments)  # type: ignore[operator]
    except HeadwaterError as error:
        return error.code
    raise AssertionError("nothing was raised")


# -- connecting --------------------------------------------------------------------------------------------------------


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
    session = ClientSession(b"mine", clean=False)
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


# -- the end of a connection -------------------------------------------------------------------------------------------


def test_the_peer_closes() -> None:
    p = Pair()
    p.client.connect()
    p.client.publish(b"t", b"kept", 1)
    p.dialer.line().hung_up = True
    assert p.client.poll() == errors.E_CLOSED
    assert p.client.poll() == errors.E_CLOSED and p.client.status == errors.E_CLOSED
    assert p.dialer.line().closed == 1 and p.client.session.state == IDLE
    assert p.client.publish(b"t", b"", 0) == errors.E_OFFLINE
    assert p.client.publish(b"t", b"later", 2) > 0
    assert raised(p.client.flush, 100) == errors.E_CLOSED
    assert p.client.connect() is True
    p.settle()
    assert p.at_server[-2:] == [b"kept", b"later"] and len(p.delivered) == 2


def test_the_transport_fails() -> None:
    for how in ("read", "publish", "poll"):
        p = Pair()
        p.client.connect()
        line = p.dialer.line()
        if how == "read":
            line.read_error = OSError(104)
            assert p.client.poll() == errors.E_CLOSED
        elif how == "publish":
            topic = b"t"
            line.write_error = OSError(32)
            assert p.client.publish(topic, b"", 0) == errors.E_CLOSED
            # The same for a packet that is made from the one before.
            p.client.connect()
            assert line.closed == 1 and p.client.publish(topic, b"", 0) == 0
            line = p.dialer.line()
            line.write_error = OSError(32)
            assert p.client.publish(topic, b"", 0) == errors.E_CLOSED
        else:
            line.write_error = OSError(32)
            assert p.client.publish(b"t", b"kept", 1) > 0
            assert p.client.poll() == errors.E_CLOSED
        assert line.closed == 1 and p.client.status == errors.E_CLOSED and not p.client.connected
        assert p.client.connect() is True


def test_disconnect_is_said() -> None:
    p = Pair()
    p.client.connect()
    p.client.disconnect()
    assert bytes(p.dialer.line().up.log[-2:]) == b"\xe0\x00"
    assert p.dialer.line().closed == 1 and p.client.poll() == errors.E_OFFLINE
    p.dialer.serve()
    assert p.server.graceful
    # Twice is harmless; so is closing.
    p.client.disconnect()
    p.client.close()
    assert p.dialer.line().closed == 1


def test_disconnect_is_said_behind_what_waits() -> None:
    p = Pair(tx_size=32)
    p.client.connect()
    line = p.dialer.line()
    line.up.room = 1
    line.up.arrived = len(line.up.log)
    assert p.client.publish(b"t", bytes(27), 0) == 0
    line.up.room = 0
    p.client.disconnect()
    assert [head for head, _, _ in packets(line.up.log)][-2:] == [0x30, 0xE0]


def test_wait_and_flush() -> None:
    p = Pair()
    p.client.connect()
    begin = p.dialer.now
    assert p.client.wait(1000) == 0
    assert p.dialer.now - begin == 1000
    assert p.client.wait(0) == 0 and p.dialer.now - begin == 1000
    p.client.publish(b"t", b"x", 2)
    p.client.flush(1000)
    assert p.at_server == [b"x"] and len(p.delivered) == 1
    p.dialer.deaf = True
    p.client.publish(b"t", b"y", 1)
    begin = p.dialer.now
    assert raised(p.client.flush, 1000) == errors.E_TIMEOUT
    assert p.dialer.now - begin == 1000 and p.client.connected


def test_keep_alive_over_a_dead_line() -> None:
    p = Pair(TICKS_MASK - 3000, keep_alive=4, response_ms=2000)
    p.client.connect()
    begin = p.dialer.now
    assert p.client.wait(20000) == 0
    p.dialer.deaf = True
    begin = p.dialer.now
    status = p.client.wait(20000)
    assert status == errors.E_TIMEOUT == p.client.status
    # At the latest three quarters of the keep-alive, and the time for an answer.
    assert 2000 <= (p.dialer.now - begin) & TICKS_MASK <= 5040
    assert p.dialer.line().closed == 1


# -- handlers that use the client --------------------------------------------------------------------------------------


def test_a_handler_may_publish() -> None:
    p = Pair()
    p.client.connect()
    p.client.on_message = lambda m: p.client.publish(b"echo", m.payload_bytes(), m.qos())
    for qos in (0, 1, 2):
        p.server.publish(b"t", bytes([qos]), qos)
    p.settle()
    assert p.at_server == [b"\x00", b"\x01", b"\x02"] and p.server.outbox.count == 0


def test_a_handler_may_disconnect() -> None:
    for qos in (0, 1, 2):
        p = Pair()
        p.client.connect()

        def leave(m: "Packet", p: Pair = p) -> None:
            p.at_client.append(m.payload_bytes())
            p.client.disconnect()

        p.client.on_message = leave
        for n in range(3):
            p.server.publish(b"t", bytes([n]), qos)
        p.dialer.serve()
        assert p.client.poll() == 0
        assert p.client.poll() == errors.E_OFFLINE
        assert p.at_client == [b"\x00"]
        assert bytes(p.dialer.line().up.log[-2:]) == b"\xe0\x00"
        assert p.dialer.line().closed == 1


def test_a_handler_may_reconnect() -> None:
    """Also when the read that brought the message was a full one, so that poll would have gone on reading."""
    for qos in (0, 1, 2):
        p = Pair(rx_size=64)
        p.client.connect()

        def again(m: "Packet", p: Pair = p) -> None:
            p.at_client.append(m.payload_bytes())
            if len(p.dialer.lines) == 1:
                p.client.connect()

        p.client.on_message = again
        for n in range(12):
            p.server.publish(b"topic", bytes([n]) * 4, qos)
        p.dialer.serve()
        assert p.dialer.line().down.waiting() >= 64
        assert p.client.poll() == 0
        assert p.client.connected and len(p.dialer.lines) == 2
        p.settle()
        assert p.dialer.line().closed == 0
        payloads = [bytes([n]) * 4 for n in range(12)]
        if qos == 0:
            assert p.at_client[0] == payloads[0]
        elif qos == 1:
            assert p.at_client[0] == payloads[0] and p.at_client[1:] == payloads
        else:
            assert p.at_client == payloads
        if qos:
            assert p.server.outbox.count == 0


def test_a_sink_that_raises_does_not_keep_the_transport_open() -> None:
    p = Pair(rx_size=64)
    p.server.tx_size = 0

    class Angry:
        def open(self, m: "Packet", size: int) -> bool:
            return True

        def write(self, buf: "Bytes", at: int, n: int) -> None:
            pass

        def close(self, complete: bool) -> None:
            raise RuntimeError("full")

    p.client.sink = Angry()
    p.server.tx_size = len(p.server.tx)
    p.client.connect()
    p.server.publish(b"t", bytes(500), 0)
    p.dialer.serve()
    p.dialer.line().down.chunk = 50
    try:
        p.client.poll()
        for _ in range(3):
            p.client.poll()
        p.client.close()
        raise AssertionError("nothing was raised")
    except RuntimeError:
        pass
    p.client.close()
    assert p.dialer.line().closed == 1
    assert p.client.connect() is True


def test_on_delivered_may_publish_when_the_server_has_lost_the_session() -> None:
    """It is told in the middle of CONNACK of a message that the server had: nothing else may leave before its turn."""
    for qos in (1, 2):
        p = Pair()
        p.client.connect()
        p.client.publish(b"t", b"done", 2)
        p.settle()
        p.server.auto_ack = False
        had = p.client.publish(b"t", b"had", 2)
        p.settle()
        assert p.server.acknowledge(had, 2, p.server.epoch) == 0
        # PUBREC reaches the client; its PUBREL does not reach the server.
        send(p.server, p.dialer.line().down)
        assert p.client.poll() == 0
        p.server.auto_ack = True
        p.server.on_connect = lambda connect, packet: 0
        p.client.publish(b"t", b"waiting", qos)

        def reply(packet_id: int, p: Pair = p, qos: int = qos, had: int = had) -> None:
            p.delivered.append(packet_id)
            if packet_id == had:
                assert p.client.publish(b"t", b"reply", qos) > 0

        p.client.on_delivered = reply
        p.client.connect()
        p.settle()
        up = p.dialer.line().up.log
        heads = [head for head, _, _ in packets(up) if head >> 4 == 3]
        assert p.at_server == [b"done", b"had", b"waiting", b"reply"], p.at_server
        # "waiting" went out on the connection before, but to a session that is no more: both are new to this one.
        assert heads == [0x30 | qos << 1] * 2
        assert p.client.session.outbox.count == p.client.session.in_flight == p.client.session.strays == 0


def test_what_came_behind_a_message_whose_handler_raised_does_not_wait_for_more() -> None:
    for qos in (0, 1, 2):
        p = Pair()
        p.client.connect()

        def angry(m: "Packet", p: Pair = p) -> None:
            p.at_client.append(m.payload_bytes())
            if p.at_client == [b"0"]:
                raise RuntimeError("no")

        p.client.on_message = angry
        for n in range(3):
            p.server.publish(b"t", b"%d" % n, qos)
        p.dialer.serve()
        try:
            p.client.poll()
            raise AssertionError("nothing was raised")
        except RuntimeError:
            pass
        # The server has no more to say: it answers nothing now.
        assert p.client.poll() == 0
        assert p.at_client == [b"0", b"1", b"2"]


def test_a_handler_may_poll() -> None:
    """It takes nothing then, and the messages behind come when it returns."""
    for qos in (0, 1, 2):
        p = Pair()
        p.client.connect()
        deep: list[int] = []

        def waits(m: "Packet", p: Pair = p, deep: "list[int]" = deep) -> None:
            assert not deep
            deep.append(1)
            payload = m.payload_bytes()
            assert p.client.publish(b"echo", payload, 0) == 0
            if payload == b"0":
                p.client.flush(1000)
            assert p.client.wait(50) == 0
            assert m.payload_bytes() == payload
            assert p.client.publish(b"echo", payload, 1) > 0
            assert raised(p.client.flush, 1000) == errors.E_STATE
            p.at_client.append(payload)
            deep.clear()

        p.client.on_message = waits
        payloads = [b"%d" % n for n in range(4)]
        for payload in payloads:
            p.server.publish(b"t", payload, qos)
        p.dialer.serve()
        p.settle()
        assert p.at_client == payloads
        assert sorted(p.at_server) == sorted(payloads * 2)
        assert p.server.outbox.count == p.client.session.outbox.count == 0
        p.client.flush(0)


def test_the_other_handlers_may_poll() -> None:
    p = Pair()
    p.client.session.on_online = lambda present: p.client.wait(100)
    p.client.session.on_answer = lambda packet_id, code: p.client.poll()
    p.client.on_delivered = lambda packet_id: p.delivered.append(p.client.wait(100))
    p.client.connect()
    assert p.client.subscribe(b"t", 1) > 0
    for n in range(3):
        p.client.publish(b"t", bytes([n]), n % 2 + 1)
    p.settle()
    assert p.delivered == [0, 0, 0] and len(p.at_server) == 3
    p.client.flush(0)
    # A handler that begins another connection, and polls on it.
    p.client.session.on_online = None

    def again(m: "Packet") -> None:
        p.at_client.append(m.payload_bytes())
        if len(p.dialer.lines) == 1:
            p.client.connect()
            assert p.client.wait(100) == 0

    p.client.on_message = again
    for n in range(3):
        p.server.publish(b"t", bytes([n]), 2)
    p.dialer.serve()
    p.settle()
    assert p.at_client == [b"\x00", b"\x01", b"\x02"] and p.server.outbox.count == 0


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
