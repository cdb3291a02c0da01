"""QoS 2 with acknowledgements left to the application, over the loss of a connection (MQTT 3.1.1, 4.3.3).

The server's end takes messages with ``auto_ack`` off; a client's end publishes to it.
"""

from pipe import FIRST, SECOND

from headwater.connection import ONLINE
from headwater.errors import E_UNKNOWN_ID
from headwater.mqtt.manual_ack import ManualAck
from headwater.mqtt.server import SESSION_PRESENT, ServerSession
from headwater.mqtt.session import ClientSession


def _carry(source: "ClientSession | ServerSession", target: "ClientSession | ServerSession") -> int:
    """Everything one end has to send goes to the other; how many bytes that was."""
    carried = 0
    n = source.out()
    while n > 0:
        rx = target.rx
        assert rx.window() >= n
        for i in range(n):
            rx.view[i] = source.out_buf[source.out_at + i]
        source.sent(n)
        assert target.feed(n) == 0
        carried += n
        n = source.out()
    return carried


def _exchange(client: ClientSession, server: ServerSession) -> None:
    while _carry(client, server) or _carry(server, client):
        pass


def _online(client: ClientSession, server: ServerSession) -> None:
    if client.epoch:
        client.lost()
        server.lost()
    server.listen(0)
    assert client.connect(0) == 0
    _exchange(client, server)
    assert client.state == server.state == ONLINE


class _Ends:
    """A client and a server that keeps its session; ``came`` has the packet id and epoch of each message."""

    def __init__(self) -> None:
        self.client = ClientSession(b"board", clean_start=False)
        self.server = ServerSession()
        ManualAck(self.server)
        self.came: list[tuple[int, int]] = []
        self.server.on_message = lambda p: self.came.append((p.packet_id, self.server.epoch))
        self.delivered: list[int] = []
        self.client.on_delivered = self.delivered.append
        _online(self.client, self.server)


def test_repetition_before_the_acknowledgement_is_answered_when_that_comes() -> None:
    ends = _Ends()
    packet_id = ends.client.publish(b"t", b"once", 2)
    _exchange(ends.client, ends.server)
    _online(ends.client, ends.server)
    assert ends.server.duplicates == 1
    assert ends.came == [(packet_id, FIRST)]
    assert ends.delivered == []
    # The application is done with it now, on the second connection: the client is told at once.
    assert ends.server.acks.acknowledge(packet_id, 2, FIRST) == 0
    _exchange(ends.client, ends.server)
    assert ends.delivered == [packet_id]
    assert len(ends.came) == 1


def test_acknowledgement_between_connections_answers_the_repetition() -> None:
    ends = _Ends()
    packet_id = ends.client.publish(b"t", b"once", 2)
    _exchange(ends.client, ends.server)
    ends.client.lost()
    ends.server.lost()
    assert ends.server.acks.acknowledge(packet_id, 2, FIRST) == 0
    _online(ends.client, ends.server)
    assert ends.delivered == [packet_id]
    assert len(ends.came) == 1


def test_repetition_waits_again_on_each_connection() -> None:
    ends = _Ends()
    packet_id = ends.client.publish(b"t", b"once", 2)
    _exchange(ends.client, ends.server)
    _online(ends.client, ends.server)
    ends.client.lost()
    ends.server.lost()
    # No connection: nothing to answer on, so it is noted for the next one.
    assert ends.server.acks.acknowledge(packet_id, 2, FIRST) == 0
    assert ends.server.out() == 0
    _online(ends.client, ends.server)
    assert ends.delivered == [packet_id]
    assert len(ends.came) == 1


def test_late_acknowledgement_does_not_meet_another_message_with_the_same_id() -> None:
    ends = _Ends()
    packet_id = ends.client.publish(b"t", b"first", 2)
    _exchange(ends.client, ends.server)
    # Both ends lose the session; the new one uses the id again.
    ends.client = ClientSession(b"board", clean_start=False)
    ends.client.on_delivered = ends.delivered.append
    ends.server.on_connect = lambda connect, packet: 0
    ends.server.lost()
    _online(ends.client, ends.server)
    assert ends.client.publish(b"t", b"second", 2) == packet_id
    _exchange(ends.client, ends.server)
    assert ends.came == [(packet_id, FIRST), (packet_id, SECOND)]
    assert ends.server.acks.acknowledge(packet_id, 2, FIRST) == E_UNKNOWN_ID
    # Had it counted, this repetition would be answered although nobody has acknowledged the second message.
    ends.server.on_connect = lambda connect, packet: SESSION_PRESENT
    _online(ends.client, ends.server)
    assert ends.delivered == []
    assert ends.server.acks.acknowledge(packet_id, 2, SECOND) == 0
    _exchange(ends.client, ends.server)
    assert ends.delivered == [packet_id]
