# heap: 512K
"""The end of a client's connection: said, or found out; and what its handlers may do to it."""

from client_pair import Pair, raised
from pipe import Line, packets, send

from headwater import errors
from headwater.connection import IDLE
from headwater.mqtt.manual_ack import ManualAck
from headwater.streaming import stream_to
from headwater.wire import TICKS_MASK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet
    from headwater.types import Bytes


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

    stream_to(p.client.session, Angry())
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
        ManualAck(p.server)
        had = p.client.publish(b"t", b"had", 2)
        p.settle()
        assert p.server.acks.acknowledge(had, 2, p.server.epoch) == 0
        # PUBREC reaches the client; its PUBREL does not reach the server.
        send(p.server, p.dialer.line().down)
        assert p.client.poll() == 0
        p.server.acks.automatic = True
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


# -- a program that is busy elsewhere ----------------------------------------------------------------------------------


def test_what_has_arrived_counts_before_the_silence() -> None:
    """The program polls once in 100 s, and what it waits for lies in the transport: the connection is alive."""
    for start in (0, TICKS_MASK - 150000):
        p = Pair(start, keep_alive=120)
        p.client.connect()
        for _ in range(5):
            p.dialer.now = (p.dialer.now + 100000) & TICKS_MASK
            assert p.client.poll() == 0 and p.client.pinged
            p.dialer.serve()
        assert [head for head, _, _ in packets(p.dialer.line().up.log)].count(0xC0) == 5
        # Without the answer it is dead.
        p.dialer.deaf = True
        p.dialer.now = (p.dialer.now + 100000) & TICKS_MASK
        assert p.client.poll() == 0
        p.dialer.now = (p.dialer.now + 10000) & TICKS_MASK
        assert p.client.poll() == errors.E_TIMEOUT


def test_an_accepted_connection_is_not_late() -> None:
    """CONNACK lies in the transport when the program comes back."""
    p = Pair()
    assert p.client.begin_connect() == 0 and p.client.poll() == 0
    p.dialer.serve()
    p.dialer.now += 60000
    assert p.client.poll() == 0 and p.client.connected


def test_what_was_stuck_is_offered_before_it_is_late() -> None:
    """The transport took nothing, and would take it again when the program comes back."""
    p = Pair(tx_size=64)
    p.client.connect()
    line = p.dialer.line()
    line.up.room = 1
    line.up.arrived = len(line.up.log)
    assert p.client.publish(b"t", b"1", 0) == 0 and p.client.publish(b"t", b"2", 0) == 0
    assert p.client.poll() == 0
    line.up.room = 0
    p.dialer.now += 60000
    assert p.client.poll() == 0 and p.client.session.out() == 0


def test_a_handler_that_takes_long_is_no_silence() -> None:
    """While it polls nothing is received; pings leave all the same."""
    p = Pair(keep_alive=4)
    p.client.connect()
    waited: list[int] = []

    def take(m: "Packet") -> None:
        waited.append(p.client.wait(60000))

    p.client.on_message = take
    p.server.publish(b"t", b"", 1)
    p.dialer.serve()
    assert p.client.poll() == 0 and waited == [0]
    assert [head for head, _, _ in packets(p.dialer.line().up.log)].count(0xC0) > 10
    p.settle()


def test_waiting_in_a_handler_does_not_spin() -> None:
    """Bytes that cannot be received yet end no wait: the time is slept, where the dialer can."""
    p = Pair()
    p.client.connect()
    slept: list[int] = []

    def sleep(ms: int) -> None:
        slept.append(ms)
        p.dialer.now += ms

    p.dialer.sleep = sleep  # type: ignore[attr-defined]
    p.client.on_message = lambda m: p.client.wait(1000)
    p.server.publish(b"t", b"", 0)
    p.dialer.serve()
    waits = p.dialer.waits
    assert p.client.poll() == 0
    assert sum(slept) == 1000 and len(slept) == 50 and p.dialer.waits == waits


def test_a_handshake_of_the_transport_has_a_timeout_of_its_own() -> None:
    """Until it is done, or has failed, no answer is late; the time for CONNACK begins behind it."""
    p = Pair(response_ms=5000)
    before = p.dialer.open
    under_way = [True]

    def open_slowly() -> Line:
        line = before()
        write = line.write
        line.write = lambda buf, off, n: 0 if under_way[0] else write(buf, off, n)  # type: ignore[method-assign]
        return line

    p.dialer.open = open_slowly  # type: ignore[method-assign]
    p.dialer.deaf = True
    assert p.client.begin_connect() == 0
    assert p.client.wait(30000) == 0
    # Also when the program polls rarely.
    p.dialer.now += 30000
    assert p.client.poll() == 0
    under_way[0] = False
    assert p.client.wait(4999) == 0
    assert p.client.wait(100) == errors.E_TIMEOUT
