"""Handlers of an application that raise inside a session: what they did not take comes again."""

from pipe import Ends, Sink, again, small_ends

from headwater.connection import IDLE, ONLINE
from headwater.mqtt.manual_ack import ManualAck
from headwater.streaming import stream_to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet
    from headwater.types import Bytes

LARGE = 150


class OopsError(Exception):
    """What a handler raises."""


def run_raising(e: Ends) -> int:
    """As ``Ends.run``, but handlers may raise: how often they did."""
    raised = 0
    moved = 1
    while moved:
        try:
            # Feeding goes on behind the message whose handler raised.
            assert e.client.feed(0) == 0
            moved = e.step()
            assert moved >= 0, moved
        except OopsError:
            raised += 1
    return raised


class Raises:
    """Raises for the payloads it was given, the first time they come."""

    def __init__(self, e: Ends, payloads: "tuple[bytes, ...]"):
        self._inbox = e.at_client
        self._payloads = list(payloads)
        e.client.on_message = self.message

    def message(self, p: "Packet") -> None:
        payload = p.payload_bytes()
        if payload in self._payloads:
            self._payloads.remove(payload)
            raise OopsError
        self._inbox.message(p)


def test_a_message_whose_handler_raised_is_not_acknowledged_and_comes_again() -> None:
    for qos in (1, 2):
        e = small_ends()
        Raises(e, (b"two",))
        for payload in (b"one", b"two", b"three"):
            e.from_server.publish(b"t", payload, qos)
        assert run_raising(e) == 1
        assert e.at_client.payloads(qos) == [b"one", b"three"]
        assert e.from_server.delivered == [b"one", b"three"]
        again(e)
        assert e.at_client.payloads(qos) == [b"one", b"three", b"two"]
        e.quiet()


def test_a_message_received_again_before_its_handler_raised_comes_again() -> None:
    """The handler reconnects and raises. Its message must not be acknowledged on the new connection either."""
    for by_application in (False, True):
        e = small_ends()
        if by_application:
            ManualAck(e.client, automatic=True)
        times = [0]

        def restart(p: "Packet", e: Ends = e, times: "list[int]" = times) -> None:
            times[0] += 1
            if times[0] == 1:
                e.lose()
                e.open()
                e.run()
                raise OopsError
            e.at_client.message(p)

        e.client.on_message = restart
        e.from_server.publish(b"t", b"one", 2)
        assert run_raising(e) == 1
        assert (e.client.duplicates, e.server.outbox.count) == (1, 1), by_application
        again(e)
        assert e.at_client.payloads(2) == [b"one"], by_application
        e.quiet()


def test_qos_0_goes_on_behind_a_message_whose_handler_raised() -> None:
    e = small_ends()
    Raises(e, (b"one", b"two"))
    for payload in (b"one", b"two", b"three"):
        e.from_server.publish(b"t", payload, 0)
    assert run_raising(e) == 2
    assert e.at_client.payloads(0) == [b"three"]
    e.quiet()


def test_on_delivered_may_raise() -> None:
    e = small_ends()
    done: list[int] = []

    def delivered(packet_id: int) -> None:
        done.append(packet_id)
        raise OopsError

    e.client.on_delivered = delivered
    for qos in (1, 2, 1):
        e.client.publish(b"t", b"x", qos)
    assert run_raising(e) == 3
    assert sorted(done) == [1, 2, 3]
    assert e.client.outbox.count == 0 and e.client.in_flight == 0


def test_on_delivered_may_raise_when_the_server_has_lost_the_session() -> None:
    """PUBREC has come, PUBCOMP has not, and the next CONNACK says that the session is gone: two are delivered then."""
    e = small_ends()
    ManualAck(e.server)
    ids = [e.client.publish(b"t", bytes([n]), 2) for n in (1, 2)]
    e.run()
    for packet_id in ids:
        assert e.server.acks.acknowledge(packet_id, 2, e.server.epoch) == 0
    # PUBREC reaches the client; its PUBREL does not reach the server.
    link = e.link()
    link.up.cut = len(link.up.log)
    e.reconnect = False
    e.run()
    e.reconnect = True
    third = e.client.publish(b"t", b"third", 1)
    e.lose()
    done: list[int] = []

    def delivered(packet_id: int) -> None:
        done.append(packet_id)
        if packet_id == ids[0]:
            raise OopsError

    e.client.on_delivered = delivered
    e.server.on_connect = lambda connect, packet: 0
    e.server.acks.automatic = True
    e.open()
    assert run_raising(e) == 1
    assert e.client.state == ONLINE
    e.run()
    assert sorted(done) == sorted(ids + [third])
    assert e.client.outbox.count == 0 and e.client.in_flight == 0


def test_a_sink_may_raise_anywhere() -> None:
    for where in ("open", "write", "close"):
        for qos in (1, 2):
            e = small_ends()
            sink = RaisingSink(e, where)
            stream_to(e.client, sink)
            large = bytes([7]) * LARGE
            e.from_server.publish(b"t", large, qos)
            e.from_server.publish(b"t", b"behind", 2)
            assert run_raising(e) == 1, (where, qos)
            assert [m[1] for m in e.at_client.got] == [b"behind"]
            assert e.from_server.delivered == [b"behind"], (where, qos)
            again(e)
            assert sorted(m[1] for m in e.at_client.got) == sorted([large, b"behind"]), (where, qos)
            assert e.client.skipped == 0
            e.quiet()


class RaisingSink(Sink):
    """Raises once, in one of its methods."""

    def __init__(self, e: Ends, where: str):
        super().__init__(e.at_client)
        self._where = where

    def _maybe(self, where: str) -> None:
        if self._where == where:
            self._where = ""
            raise OopsError

    def open(self, p: "Packet", size: int) -> bool:
        self._maybe("open")
        return super().open(p, size)

    def write(self, buf: "Bytes", at: int, n: int) -> None:
        super().write(buf, at, n)
        self._maybe("write")

    def close(self, complete: bool) -> None:
        if self._where == "close":
            # The message is not there for the application: forget what was gathered.
            super().close(True)
            self._inbox.got.pop()
        else:
            super().close(complete)
        self._maybe("close")


def test_a_sink_that_raises_when_told_of_a_cut() -> None:
    e = small_ends()

    class Angry(Sink):
        def close(self, complete: bool) -> None:
            super().close(complete)
            if not complete:
                raise OopsError

    stream_to(e.client, Angry(e.at_client))
    large = bytes([7]) * LARGE
    e.from_server.publish(b"t", large, 2)
    e.link().down.chunk = 40
    e.step()
    for end in (e.client, e.server):
        try:
            end.lost()
        except OopsError:
            pass
        assert end.state == IDLE
    e.connect()
    assert e.at_client.payloads(2) == [large]
    e.quiet()
