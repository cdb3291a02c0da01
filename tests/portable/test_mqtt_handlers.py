"""What an application's handlers may do inside a session: fill buffers, end the connection, begin another."""

from pipe import Ends, Sink, again, small_ends

from headwater.connection import CLOSING, CONNECTING, IDLE, ONLINE
from headwater.errors import E_AGAIN
from headwater.mqtt.manual_ack import ManualAck
from headwater.mqtt.server import ServerSession
from headwater.streaming import stream_to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet
    from headwater.types import Bytes

LARGE = 150


# -- filling the transmit buffer ---------------------------------------------------------------------------------------


def test_a_handler_may_fill_the_transmit_buffer() -> None:
    """Room is kept for the answer to the message that is being handled, at every QoS, and for whatever is behind it."""
    for tx_size in (16, 20, 29, 64):
        for qos in (1, 2):
            e = small_ends(64, tx_size)
            refused = [0]

            def fill(p: "Packet", e: Ends = e, refused: "list[int]" = refused) -> None:
                e.at_client.message(p)
                size = 0
                while size < 40:
                    status = e.client.publish(b"t", bytes(size % 7), 0)
                    if status == E_AGAIN:
                        refused[0] += 1
                    size += 1

            e.client.on_message = fill
            for n in range(5):
                e.from_server.publish(b"t", bytes([n]), qos)
            e.run()
            assert e.at_client.payloads(qos) == [bytes([n]) for n in range(5)]
            assert e.client.tx_size == tx_size
            assert len(e.client.tx) == tx_size
            assert refused[0]
            e.quiet()


def test_a_handler_that_ends_the_connection_leaves_its_room_to_the_next() -> None:
    """The room that is kept for an acknowledgement is the transmit buffer's again."""
    for qos in (1, 2):
        e = small_ends(64, 64)
        e.client.on_message = lambda p, e=e: e.lose()
        e.from_server.publish(b"t", b"x", qos)
        e.run()
        e.client.on_message = e.at_client.message
        e.connect()
        assert e.client.publish(b"t", bytes(64 - 5)) == 0, qos


def test_a_sink_may_fill_the_transmit_buffer() -> None:
    e = small_ends(64, 16)

    class Filling(Sink):
        def close(self, complete: bool) -> None:
            super().close(complete)
            while e.client.publish(b"t", b"", 0) == 0:
                pass

    stream_to(e.client, Filling(e.at_client))
    e.from_server.publish(b"t", bytes(LARGE), 1)
    e.from_server.publish(b"t", bytes(LARGE), 2)
    e.run()
    assert len(e.at_client.got) == 2
    e.quiet()


def test_on_subscribe_may_fill_the_transmit_buffer() -> None:
    """A server that sends the retained message from within ``on_subscribe``: its SUBACK follows."""
    e = small_ends(64, 16)

    def retained(p: "Packet", qos: int) -> int:
        while e.server.publish(b"t", b"r", 0, True) == 0:
            pass
        return qos

    answers: list[tuple[int, int]] = []
    e.client.on_answer = lambda packet_id, code: answers.append((packet_id, code))
    e.server.on_subscribe = retained
    packet_id = e.client.subscribe(b"t", 1)
    e.run()
    assert answers == [(packet_id, 1)]
    assert e.at_client.payloads(0)
    e.server.on_unsubscribe = lambda p: retained(p, 0)
    packet_id = e.client.unsubscribe(b"t")
    e.run()
    assert answers[1:] == [(packet_id, 0)]
    e.quiet()


# -- ending the connection, beginning another --------------------------------------------------------------------------


def test_a_handler_may_disconnect() -> None:
    for qos in (0, 1, 2):
        e = small_ends()

        def leave(p: "Packet", e: Ends = e) -> None:
            e.at_client.message(p)
            assert e.client.disconnect() == 0

        e.client.on_message = leave
        for n in range(3):
            e.from_server.publish(b"t", bytes([n]), qos)
        e.run()
        # What was behind the message is not looked at any more, and nothing follows DISCONNECT.
        assert e.at_client.payloads(qos) == [b"\x00"]
        assert e.client.state == e.server.state == CLOSING
        assert bytes(e.link().up.log[-2:]) == b"\xe0\x00"
        assert e.server.graceful
        e.client.on_message = e.at_client.message
        again(e)
        payloads = e.at_client.payloads(qos)
        assert payloads == [b"\x00"] if qos == 0 else payloads[-2:] == [b"\x01", b"\x02"]
        assert qos != 2 or payloads == [b"\x00", b"\x01", b"\x02"]
        e.quiet()


def test_a_handler_may_drop_the_connection_and_begin_another() -> None:
    """It does what ``Client.connect`` does: new transport, CONNECT, and feeding until CONNACK, inside the handler."""
    for qos in (0, 1, 2):
        for to_the_end in (False, True):
            e = small_ends()
            times = [0]

            def restart(
                p: "Packet", e: Ends = e, times: "list[int]" = times, to_the_end: bool = to_the_end
            ) -> None:
                payload = p.payload_bytes()
                e.at_client.message(p)
                if payload == b"one" and times[0] == 0:
                    times[0] = 1
                    e.lose()
                    e.open()
                    if to_the_end:
                        e.run()

            e.client.on_message = restart
            for payload in (b"one", b"two"):
                e.from_server.publish(b"t", payload, qos)
            e.run()
            e.run()
            assert e.client.state == e.server.state == ONLINE
            assert len(e.links) == 2
            got = e.at_client.payloads(qos)
            if qos == 2:
                assert got == [b"one", b"two"], (got, to_the_end)
            elif qos == 1:
                assert got == [b"one", b"one", b"two"], (got, to_the_end)
                # Nothing but CONNECT and two acknowledgements went over the second connection.
                assert len(e.link().up.log) == 15 + 2 * 4
            else:
                assert got == [b"one"]
            assert e.client.strays == e.server.strays == 0
            if qos == 2 and to_the_end:
                # The repetition came while its message was still being handled, and was answered after it.
                assert e.client.duplicates == 1
            e.quiet()


def test_a_handler_may_begin_a_connection_to_a_server_without_the_session() -> None:
    """The ids mean something else there: the answer to the old message must not go to the new connection."""
    for qos in (1, 2):
        e = small_ends()
        second = [False]

        def restart(p: "Packet", e: Ends = e, second: "list[bool]" = second, qos: int = qos) -> None:
            e.at_client.message(p)
            if not second[0]:
                second[0] = True
                e.lose()
                e.server.on_connect = lambda connect, packet: 0
                e.from_server.pending.clear()
                e.open()
                e.run()
                assert e.server.publish(b"t", b"other", qos) > 0

        e.client.on_message = restart
        assert e.from_server.publish(b"t", b"old", qos) > 0
        e.server.on_delivered = None
        e.run()
        assert e.at_client.payloads(qos) == [b"old", b"other"]
        assert e.server.strays == e.client.strays == 0
        e.quiet()


def test_a_sink_may_end_the_connection_anywhere() -> None:
    for where in ("open", "write", "close"):
        for qos in (0, 1, 2):
            for how in ("disconnect", "reconnect"):
                sink_ends(where, qos, how)


def sink_ends(where: str, qos: int, how: str) -> None:
    e = small_ends()
    e.server = ServerSession(64, 256, 512, slots=6)
    e = Ends(e.client, e.server)
    e.client.lost()
    e.connect()
    times = [0]

    def end(here: str) -> None:
        if here == where and times[0] == 0:
            times[0] = 1
            if how == "disconnect":
                assert e.client.disconnect() == 0
            else:
                e.lose()
                e.open()

    class Ending(Sink):
        def open(self, p: "Packet", size: int) -> bool:
            taken = super().open(p, size)
            end("open")
            return taken

        def write(self, buf: "Bytes", at: int, n: int) -> None:
            super().write(buf, at, n)
            end("write")

        def close(self, complete: bool) -> None:
            super().close(complete)
            end("close")

    sink = Ending(e.at_client)
    stream_to(e.client, sink)
    # The payload looks like packets, should anybody take it for some.
    large = b"\x30\x04\x00\x01t!" * 25
    e.from_server.publish(b"t", large, qos)
    e.run()
    if how == "disconnect":
        assert e.client.state == CLOSING
        assert bytes(e.link().up.log[-2:]) == b"\xe0\x00", (where, qos)
        assert not e.client.status
        e.lose()
    assert sink.idle(), (where, qos, how)
    if how == "disconnect":
        e.connect()
    assert all(m[1] == large for m in e.at_client.got), (where, qos, how, e.at_client.got)
    expected = 1 if qos == 2 or (qos == 0 and where == "close") else 0 if qos == 0 else None
    if expected is None:
        assert len(e.at_client.got) == (2 if where == "close" else 1), (where, qos, how)
    else:
        assert len(e.at_client.got) == expected, (where, qos, how, len(e.at_client.got))
    assert sink.cut == (0 if where == "close" else 1)
    e.quiet()


def test_on_online_may_disconnect() -> None:
    e = small_ends()
    e.lose()

    def leave(session_present: bool) -> None:
        e.client.disconnect()

    e.client.on_online = leave
    e.from_client.publish(b"t", b"later", 1)
    e.open()
    e.run()
    assert e.client.state == CLOSING and e.server.graceful
    assert e.client.outbox.count == 1
    e.client.on_online = None
    again(e)
    assert e.at_server.payloads(1) == [b"later"]


def test_on_delivered_may_publish_and_reconnect() -> None:
    e = small_ends()
    count = [0]

    def more(packet_id: int) -> None:
        e.from_client.done(packet_id)
        count[0] += 1
        if count[0] < 20:
            assert e.from_client.publish(b"t", bytes([count[0]]), 1 + count[0] % 2) > 0
        if count[0] == 10:
            e.lose()
            e.open()

    e.client.on_delivered = more
    e.from_client.publish(b"t", b"first", 1)
    e.run()
    e.run()
    assert count[0] == 20
    assert len(e.from_client.delivered) == 20
    e.quiet()


def test_on_connect_and_on_subscribe_may_end_the_connection() -> None:
    e = small_ends()
    e.lose()

    def refuse_hard(connect: object, packet: "Packet") -> int:
        e.server.lost()
        return 0

    e.server.on_connect = refuse_hard
    e.open()
    e.step()
    assert e.server.state == IDLE and e.client.state == CONNECTING
    assert e.server.out() == 0 and not e.link().down.log
    e.server.on_connect = None
    again(e)

    def leave(packet: "Packet", qos: int) -> int:
        e.server.lost()
        return 0

    e.server.on_subscribe = leave
    assert e.client.subscribe(b"t", 0) > 0
    sent = len(e.link().down.log)
    e.step()
    assert e.server.state == IDLE and e.server.out() == 0
    assert len(e.link().down.log) == sent


def test_on_delivered_may_reconnect_when_the_server_has_lost_the_session() -> None:
    """It is told in the middle of CONNACK; what the connection it begins does is that one's own affair."""
    for window in (1, 6):
        e = small_ends()
        e.client.window = window
        ManualAck(e.server)
        packet_id = e.from_client.publish(b"t", b"had", 2)
        e.run()
        assert e.server.acks.acknowledge(packet_id, 2, e.server.epoch) == 0
        # PUBREC reaches the client; its PUBREL does not reach the server.
        link = e.link()
        link.up.cut = len(link.up.log)
        e.reconnect = False
        e.run()
        e.reconnect = True
        e.server.acks.automatic = True
        e.server.on_connect = lambda connect, packet: 0
        for payload in (b"one", b"two", b"three"):
            e.from_client.publish(b"t", payload, 1)
        online: list[int] = []

        def note(session_present: bool, e: Ends = e, online: "list[int]" = online) -> None:
            online.append(e.client.epoch)

        def again_at_once(packet_id: int, e: Ends = e) -> None:
            e.from_client.done(packet_id)
            e.client.on_delivered = e.from_client.done
            e.lose()
            e.connect()

        e.client.on_online = note
        e.client.on_delivered = again_at_once
        again(e)
        assert online == [e.client.epoch]
        assert e.at_server.payloads(1) == [b"one", b"two", b"three"]
        assert e.from_client.delivered == [b"had", b"one", b"two", b"three"]
        e.quiet()
