# heap: 1M
"""The link between an FMQ client and a hub is cut at every byte of every flow, in both directions.

Whatever was handed in at QoS 1 and 2 is stored once, in order; what the hub pushes at QoS 2 comes once, at QoS 1 and
from a consumer at least once, in order; and ``on_delivered`` is called once for each message. The hub itself checks
that what comes again has DUP and the id it had, and that every frame is one.
"""

from fmq_hub import Pair, small
from pipe import Link, Random, Wire, cut_everywhere

from headwater.connection import CLOSING, ONLINE
from headwater.fmq.calls import call
from headwater.fmq.queues import consume, register
from headwater.streaming import stream_to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from headwater.fmq.frames import Frame
    from headwater.types import Bytes

LARGE = 150


class Flow(Pair):
    """A pair that knows what it has sent each way: payloads by QoS, and of QoS 3, what is given to consumers."""

    def __init__(self, links: "list[Link]", **options: "Any"):
        super().__init__(small(**options), links)
        self.up: list[tuple[bytes, int]] = []
        self.down: list[tuple[bytes, int]] = []
        self._count = 0

    def payload(self, size: int) -> bytes:
        self._count += 1
        return bytes([self._count]) * size

    def say(self, levels: "tuple[int, ...]", size: int = 2) -> None:
        for qos in levels:
            payload = self.payload(size)
            if self.client.publish(b"t", payload, qos, qos == 1) >= 0:
                self.up.append((payload, qos))

    def hear(self, levels: "tuple[int, ...]", size: int = 2) -> None:
        for qos in levels:
            payload = self.payload(size)
            self.hub.publish(b"t", payload, qos)
            self.down.append((payload, qos))

    def check(self) -> None:
        self.quiet()
        for qos in (1, 2):
            assert [m[1] for m in self.hub.stored if m[2] == qos] == [p for p, q in self.up if q == qos]
        stored = [m[1] for m in self.hub.stored if m[2] == 0]
        assert stored == [p for p, q in self.up if q == 0 and p in stored]
        assert len(self.at.delivered) == len([p for p, q in self.up if q])
        for kind in (0, 1, 2, "c"):
            got = self.at.payloads(kind)
            sent = [p for p, q in self.down if q == kind]
            if kind == 2:
                assert got == sent
            elif kind == 0:
                assert got == [p for p in sent if p in got]
            else:
                assert firsts(got) == sent, (got, sent)


def firsts(payloads: "list[bytes]") -> "list[bytes]":
    found: list[bytes] = []
    for payload in payloads:
        if payload not in found:
            found.append(payload)
    return found


def every_cut(flow: "Callable[[Flow], object]", number: int = 0, **options: "Any") -> None:
    """Run without a fault, and then with a connection cut behind each byte of either direction."""

    def once(links: "list[Link]") -> Flow:
        e = Flow(links, **options)
        e.open()
        assert e.run() == 0
        flow(e)
        assert e.run() == 0
        e.check()
        return e

    cut_everywhere(lambda links: once([Link() for _ in range(number)] + links), number)


def test_several_in_flight_up() -> None:
    every_cut(lambda e: e.say((1, 2, 0, 1, 2, 0, 2, 1)))


def test_a_window_of_one() -> None:
    every_cut(lambda e: e.say((2, 1, 2)), window=1)


def test_several_in_flight_down() -> None:
    every_cut(lambda e: e.hear((2, 0, 1, 2, 1, 2, 0, 1)))


def test_both_ways_at_once() -> None:
    def both(e: Flow) -> None:
        for qos in (1, 2, 0):
            e.say((qos,))
            e.hear((2 - qos,))
            e.step()
        e.hear((2, 1))

    every_cut(both)
    every_cut(both, rx_size=64, tx_size=64, window=2)


def test_messages_published_while_offline() -> None:
    # The first connection breaks by itself; the second is cut at every byte.
    def offline(e: Flow) -> None:
        e.lose()
        e.say((2, 1))
        e.hear((1, 2))
        e.open()

    every_cut(offline, 1)


def test_cut_twice() -> None:
    """The second connection as well is cut somewhere, at a place that changes from run to run."""
    random = Random(1)
    for k in range(60):
        for first in (Link(Wire(cut=k)), Link(down=Wire(cut=k))):
            links = [first]
            for _ in range(3):
                cut = random.below(90)
                links.append(Link(Wire(3, 2, 0, cut)) if random.below(2) else Link(down=Wire(3, 2, 0, cut)))
            e = Flow(links)
            e.open()
            assert e.run() == 0
            e.say((1, 2, 2))
            e.hear((2, 1, 2))
            assert e.run() == 0
            e.check()


# -- consumers ---------------------------------------------------------------------------------------------------------


def consuming(e: Flow) -> None:
    """An application that subscribes, consumes, and does so again whenever it has to."""
    client = e.client
    number = [0]

    def begin() -> None:
        number[0] = client.subscribe(b"jobs", group=b"g")

    def online(present: bool) -> None:
        # Whether its request had been answered is known, if it was.
        if consume(client, number[0], 2, True) < 0:
            begin()

    def answer(n: int, code: int) -> None:
        assert code == 0
        if n == number[0]:
            assert consume(client, n, 2, True) > 0

    client.on_online = online
    client.on_answer = answer
    begin()


def test_consumed_messages() -> None:
    def flow(e: Flow) -> None:
        consuming(e)
        assert e.run() == 0
        (sid,) = e.hub.subscriptions
        for _ in range(3):
            payload = e.payload(3)
            e.hub.give(sid, b"jobs", payload)
            e.down.append((payload, "c"))  # type: ignore[arg-type]

    every_cut(flow)


# -- requests and calls ------------------------------------------------------------------------------------------------


def test_requests_are_answered_or_end_with_their_connection() -> None:
    def flow(e: Flow) -> None:
        done: list[int] = []
        asked: list[int] = []

        def ask(present: bool) -> None:
            asked.append(register(e.client, b"topic", 3))
            assert asked[-1] > 0

        def answer(n: int, code: int) -> None:
            assert n == asked[-1] and code == 0
            done.append(n)

        e.client.on_online = ask
        e.client.on_answer = answer
        ask(True)
        assert e.run() == 0
        assert done[-1:] == asked[-1:] and len(done) <= len(asked)
        assert e.hub.topics == {b"topic": 3}

    every_cut(flow)


def test_calls_have_one_result_or_end_with_their_connection() -> None:
    def flow(e: Flow) -> None:
        asked: list[int] = []

        def ask(present: bool) -> None:
            asked.append(call(e.client, b"sum", b"1 2"))

        e.client.on_online = ask
        ask(True)
        answered = 0
        while True:
            assert e.run() == 0
            if answered == len(e.hub.calls):
                break
            answered = len(e.hub.calls)
            e.hub.result(e.hub.calls[-1][0], b"3")
        assert e.at.results[-1] == (asked[-1], b"3")
        assert len(e.at.results) <= len(asked)

    every_cut(flow)


# -- large messages, and the end ---------------------------------------------------------------------------------------


class Sink:
    def __init__(self, e: Flow):
        self._e = e
        self._payload = bytearray()
        self._kind = -1

    def open(self, f: "Frame", size: int) -> bool:
        assert self._kind == -1, "open twice"
        self._kind = f.qos()
        self._payload = bytearray()
        return True

    def write(self, buf: "Bytes", at: int, n: int) -> None:
        self._payload += bytes(buf[at : at + n])

    def close(self, complete: bool) -> None:
        assert self._kind >= 0, "closed twice"
        if complete:
            assert len(self._payload) == LARGE
            self._e.at.got.append((b"t", bytes(self._payload), self._kind, False, 0))
        self._kind = -1


def test_large_messages_to_a_sink() -> None:
    def flow(e: Flow) -> None:
        stream_to(e.client, Sink(e))
        e.hear((2, 1), LARGE)
        e.hear((2,))

    every_cut(flow)


def test_large_messages_skipped() -> None:
    def flow(e: Flow) -> None:
        for qos in (1, 2):
            e.hub.publish(b"t", bytes(LARGE), qos)
        e.hear((2,))
        assert e.run() == 0
        assert e.client.skipped >= 2 and len(e.hub.delivered) == 3

    every_cut(flow)


def test_disconnect() -> None:
    for k in range(60):
        e = Flow([Link(Wire(cut=k))])
        e.reconnect = False
        e.open()
        e.run()
        if e.client.state == ONLINE:
            assert e.client.disconnect() == 0
            e.run()
            assert e.client.state == CLOSING
        # The last byte that was sent is the last of its good-bye, if it came to that.
        assert e.hub.ended == (e.client.state == CLOSING and k >= len(e.link().up.log))
