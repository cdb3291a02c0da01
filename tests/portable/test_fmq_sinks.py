# heap: 1M
"""Messages larger than the buffer of FMQ's session: through a sink, or past it."""

from fmq_hub import Pair, consumed, pair
from pipe import receive, send

from headwater.errors import E_RX_TOO_LARGE
from headwater.fmq import spec
from headwater.fmq.calls import call
from headwater.fmq.manual_ack import acknowledge
from headwater.fmq.queues import consume, register
from headwater.streaming import stream_to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headwater.fmq.frames import Frame
    from headwater.types import Bytes


class Sink:
    def __init__(self, p: Pair):
        self.p = p
        self.got: list[tuple[bytes, int, int]] = []
        self.cut = 0
        self.takes = True
        self._payload = bytearray()
        self._source = 0

    def open(self, f: "Frame", size: int) -> bool:
        self._payload = bytearray()
        self._source = self.p.client.source
        return self.takes

    def write(self, buf: "Bytes", at: int, n: int) -> None:
        self._payload += bytes(buf[at : at + n])

    def close(self, complete: bool) -> None:
        if complete:
            self.got.append((bytes(self._payload), self._source, self.p.client.receipt))
        else:
            self.cut += 1


LARGE = bytes([i & 255 for i in range(700)])


def test_large_messages_pass_through_a_sink() -> None:
    p, number, sid = consumed()
    sink = Sink(p)
    stream_to(p.client, sink)
    consume(p.client, number, 2, True)
    for qos in (0, 1, 2):
        p.hub.publish(b"t", LARGE, qos)
    p.run()
    p.hub.give(sid, None, LARGE)
    p.run()
    assert sink.got == [(LARGE, 0, sink.got[0][2])] * 2 + [(LARGE, 0, sink.got[2][2]), (LARGE, number, 0)]
    made = call(p.client, b"sum")
    p.run()
    p.hub.result(p.hub.calls[0][0], LARGE)
    p.run()
    assert sink.got[-1][:2] == (LARGE, made)
    assert p.client.skipped == 0 and p.at.got == []
    p.quiet()


def test_large_messages_are_skipped() -> None:
    p, number, sid = consumed()
    p.client.auto_ack = False
    consume(p.client, number, 2, True)
    for qos in (0, 1, 2):
        p.hub.publish(b"t", LARGE, qos)
    p.run()
    p.hub.give(sid, None, LARGE)
    p.hub.publish(b"t", b"behind")
    p.run()
    assert p.client.skipped == 4 and len(p.hub.delivered) == 3
    assert [m[1] for m in p.at.got] == [b"behind"]
    p.quiet()


def test_a_topic_that_does_not_fit_is_skipped() -> None:
    p = pair()
    sink = Sink(p)
    stream_to(p.client, sink)
    p.hub.publish(b"t" * 300, b"x", 1)
    p.hub.publish(b"t", b"behind")
    p.run()
    assert p.client.skipped == 1 and sink.got == [] and p.at.payloads(0) == [b"behind"]
    p.quiet()


def test_the_application_acknowledges_what_a_sink_took() -> None:
    p = pair()
    p.client.auto_ack = False
    sink = Sink(p)
    stream_to(p.client, sink)
    p.hub.publish(b"t", LARGE, 1)
    p.hub.publish(b"t", LARGE, 2)
    p.run()
    assert len(p.hub.delivered) == 0
    for _, _, receipt in sink.got:
        assert acknowledge(p.client, receipt) == 0
    p.run()
    assert len(p.hub.delivered) == 2
    p.quiet()


def test_a_sink_is_told_of_a_lost_connection() -> None:
    p = pair()
    sink = Sink(p)
    stream_to(p.client, sink)
    p.hub.publish(b"t", LARGE, 2)
    hub: Any = p.hub
    client: Any = p.client
    send(hub, p.link().down)
    receive(client, p.link().down)
    p.lose()
    assert sink.cut == 1
    p.connect()
    assert [one[0] for one in sink.got] == [LARGE]
    p.quiet()


def test_a_sink_that_raises() -> None:
    p = pair()
    sink = Sink(p)
    stream_to(p.client, sink)

    def write(buf: "Bytes", at: int, n: int) -> None:
        raise ValueError

    sink.write = write  # type: ignore[method-assign]
    p.hub.publish(b"t", LARGE, 1)
    p.hub.publish(b"t", b"behind")
    try:
        p.run()
        raise AssertionError("it was caught")
    except ValueError:
        pass
    assert p.client.feed(0) == 0 and p.run() == 0
    assert sink.cut == 1 and sink.got == [] and p.hub.delivered == []
    assert p.at.payloads(0) == [b"behind"]
    sink = Sink(p)
    stream_to(p.client, sink)
    p.lose()
    p.connect()
    assert sink.got == [(LARGE, 0, 0)]
    p.quiet()


def test_a_sink_may_fill_the_transmit_buffer() -> None:
    # How much room is left behind what fits is another each time.
    for tx_size in range(100, 120):
        p = pair(tx_size=tx_size)
        sink = Sink(p)
        stream_to(p.client, sink)
        write = sink.write

        def fill(buf: "Bytes", at: int, n: int) -> None:
            write(buf, at, n)  # noqa: B023
            while p.client.publish(b"t", b"") == 0:  # noqa: B023
                pass

        sink.write = fill  # type: ignore[method-assign]
        p.hub.publish(b"t", LARGE, 1)
        p.hub.publish(b"t", LARGE, 2)
        # As long as the hub's turn lasts, nothing leaves between the pieces.
        p.step_down()
        assert p.run() == 0
        assert [one[0] for one in sink.got] == [LARGE, LARGE] and len(p.hub.delivered) == 2
        p.quiet()


def test_a_request_s_answer_must_fit() -> None:
    p = pair()
    number = register(p.client, b"t")
    p.step_up()
    p.hub._out = bytearray()
    p.hub.say(spec.ACK << 4, p.hub.log[-1][2], 0x80, b"why " * 100)
    assert p.run() == E_RX_TOO_LARGE
    assert p.at.answers == [] and number > 0
    # The hub is told that its frame is too large.
    assert p.hub.refused == [(p.hub.log[-1][2], 0x95)]


def test_a_body_above_the_limit_ends_the_connection() -> None:
    p = pair(max_body=500)
    p.hub.publish(b"t", LARGE)
    assert p.run() == E_RX_TOO_LARGE
