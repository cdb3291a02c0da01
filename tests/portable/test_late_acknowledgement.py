"""QoS 2 with acknowledgements left to the application, over the loss of a connection (MQTT 3.1.1, 4.3.3).

The server's end leaves messages to ``ManualAck``; a client's end publishes to it.
"""

from pipe import FIRST, SECOND, Ends, again

from headwater.errors import E_UNKNOWN_ID
from headwater.mqtt.manual_ack import ManualAck
from headwater.mqtt.server import SESSION_PRESENT, ServerSession
from headwater.mqtt.session import ClientSession


class _Ends(Ends):
    """A client and a server that keeps its session; ``came`` has the packet id and epoch of each message."""

    def __init__(self) -> None:
        Ends.__init__(self, ClientSession(b"board", clean_start=False), ServerSession())
        self.acks = ManualAck(self.server)
        self.came: list[tuple[int, int]] = []
        self.server.on_message = lambda p: self.came.append((p.packet_id, self.server.epoch))
        self.delivered: list[int] = []
        self.client.on_delivered = self.delivered.append
        self.connect()

    def published(self, payload: bytes) -> int:
        packet_id = self.client.publish(b"t", payload, 2)
        self.run()
        return packet_id


def test_repetition_before_the_acknowledgement_is_answered_when_that_comes() -> None:
    e = _Ends()
    packet_id = e.published(b"once")
    again(e)
    assert e.server.duplicates == 1
    assert e.came == [(packet_id, FIRST)]
    assert e.delivered == []
    # The application is done with it now, on the second connection: the client is told at once.
    assert e.acks.acknowledge(packet_id, 2, FIRST) == 0
    e.run()
    assert e.delivered == [packet_id]
    assert len(e.came) == 1


def test_acknowledgement_between_connections_answers_the_repetition() -> None:
    """Also when the repetition came on a connection before."""
    for connections in (1, 2):
        e = _Ends()
        packet_id = e.published(b"once")
        for _ in range(connections - 1):
            again(e)
        e.lose()
        # No connection: nothing to answer on, so it is noted for the next one.
        assert e.acks.acknowledge(packet_id, 2, FIRST) == 0
        assert e.server.out() == 0
        e.connect()
        assert e.delivered == [packet_id]
        assert len(e.came) == 1


def test_late_acknowledgement_does_not_meet_another_message_with_the_same_id() -> None:
    e = _Ends()
    packet_id = e.published(b"first")
    # Both ends lose the session; the new one uses the id again.
    e.client.lost()
    e.client = ClientSession(b"board", clean_start=False)
    e.client.on_delivered = e.delivered.append
    e.server.on_connect = lambda connect, packet: 0
    e.server.lost()
    e.connect()
    assert e.published(b"second") == packet_id
    assert e.came == [(packet_id, FIRST), (packet_id, SECOND)]
    assert e.acks.acknowledge(packet_id, 2, FIRST) == E_UNKNOWN_ID
    # Had it counted, this repetition would be answered although nobody has acknowledged the second message.
    e.server.on_connect = lambda connect, packet: SESSION_PRESENT
    again(e)
    assert e.delivered == []
    assert e.acks.acknowledge(packet_id, 2, SECOND) == 0
    e.run()
    assert e.delivered == [packet_id]
