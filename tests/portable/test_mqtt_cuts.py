# heap: 2M
"""The link between a client and a server is cut at every byte of every flow, in both directions, at every version.

Whatever was handed in at QoS 1 arrives, at QoS 2 exactly once, in order; nothing arrives in part; DUP is set on
repetitions and on nothing else; and ``on_delivered`` is called once for each message.
"""

import sys

from cuts import (
    LARGE,
    Count,
    both_ways,
    check,
    ends,
    every_cut,
    keep_alive,
    once,
    payload,
    published_while_offline,
    send_all,
)  # fmt: skip
from pipe import Ends, Link, Random, Sink, Wire, cut_everywhere, packets
from rows import each
from states5 import as5, text_in

from headwater.connection import CLOSING, IDLE, ONLINE
from headwater.mqtt import spec5
from headwater.mqtt.properties import Properties
from headwater.streaming import stream_to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet

# -- flows -------------------------------------------------------------------------------------------------------------


def test_several_in_flight_up() -> None:
    every_cut(lambda e: send_all(e, e.from_client, Count(), (1, 2, 0, 1, 2, 0, 2, 1)))


def test_several_in_flight_down() -> None:
    every_cut(lambda e: send_all(e, e.from_server, Count(), (2, 0, 1, 2, 1, 2, 0, 1)))


def test_a_window_of_one() -> None:
    every_cut(lambda e: send_all(e, e.from_client, Count(), (2, 1, 2, 1)), (4,), window=1)


def test_both_ways_at_once() -> None:
    every_cut(both_ways)


def test_both_ways_with_the_smallest_buffers() -> None:
    every_cut(both_ways, (4,), size=(32, 16), window=2)
    every_cut(both_ways, (5,), size=(40, 40), window=2)


def test_messages_published_while_offline() -> None:
    # The first connection breaks by itself; the second is cut at every byte.
    every_cut(published_while_offline, number=1)


def test_cut_twice() -> None:
    """The second connection as well is cut somewhere, at a place that changes from run to run."""

    def run(level: int) -> None:
        random = Random(level)
        for k in range(60):
            for first in (Link(Wire(cut=k)), Link(down=Wire(cut=k))):
                links = [first]
                for _ in range(3):
                    cut = random.below(90 if level == 5 else 60)
                    wire = Wire(3, 2, 0, cut)
                    links.append(Link(wire) if random.below(2) else Link(down=wire))
                once(both_ways, ends(level, links))

    each((4, 5), run)


# -- messages larger than the buffer -----------------------------------------------------------------------------------


def test_large_messages_up_to_a_sink() -> None:
    every_cut(lambda e: send_all(e, e.from_client, Count(), (1, 2), LARGE), (4, 5), sinks=True)


def test_large_messages_down_to_a_sink() -> None:
    every_cut(lambda e: send_all(e, e.from_server, Count(), (2, 1), LARGE), sinks=True)


def test_a_sink_is_told_of_every_cut() -> None:
    for k in range(LARGE + 60):
        e = ends(4, [Link(Wire(chunk=7, cut=k))], sinks=True)
        begun = [0]
        sink = e.server.stream.sink  # type: ignore[union-attr]
        assert isinstance(sink, Sink)

        def on_cut(link: Link, sink: Sink = sink, begun: "list[int]" = begun) -> None:
            assert sink.idle(), "a message is still open when its connection is gone"
            begun[0] = sink.cut

        e.on_cut = on_cut
        e.connect()
        send_all(e, e.from_client, Count(), (2,), LARGE)
        e.run()
        check(e, False)
        # CONNECT has 15 bytes, then 3 of fixed header, 3 of topic and 2 of packet id, and then the payload.
        inside = 15 + 3 + 3 + 2 <= k < 15 + 3 + 3 + 2 + LARGE
        assert begun[0] == sink.cut == (1 if inside else 0), (k, sink.cut)


def skipped(levels: "tuple[int, ...]", up: bool) -> None:
    """Large messages without a sink: acknowledged, counted, not delivered; and what is around them arrives."""
    for e in cut_everywhere(lambda links: skipped_once(links, levels, up)):
        assert (e.server if up else e.client).skipped == len(levels)


def skipped_once(links: "list[Link]", levels: "tuple[int, ...]", up: bool) -> Ends:
    e = ends(4, links)
    source = e.from_client if up else e.from_server
    e.connect()
    source.publish(b"t", b"before", 2)
    for qos in levels:
        source.publish(b"t", payload(qos, LARGE), qos)
    source.publish(b"t", b"behind", 2)
    e.run()
    e.quiet()
    inbox = e.at_server if up else e.at_client
    assert inbox.payloads(2) == [b"before", b"behind"]
    assert inbox.payloads(1) == []
    assert len(source.delivered) == 2 + len(levels)
    assert (e.server if up else e.client).skipped >= len(levels)
    return e


def test_large_messages_up_skipped() -> None:
    skipped((1, 2), True)


def test_large_messages_down_skipped() -> None:
    skipped((2, 1), False)


# -- requests, keep-alive, disconnect ----------------------------------------------------------------------------------


def test_subscribe_and_unsubscribe() -> None:
    """Requests do not outlive a connection: the application asks again when it is online, and is answered once."""

    def run(links: "list[Link]", level: int) -> Ends:
        e = ends(level, links)
        asked: dict[int, int] = {}
        answers: list[int] = []
        filters: list[bytes] = []
        five = level == 5
        codes = [1, spec5.NOT_AUTHORIZED, spec5.NO_SUBSCRIPTION_EXISTED] if five else [1, 2, 0]

        def ask(session_present: bool) -> None:
            asked.clear()
            asked[e.client.subscribe(b"a/+", 1 | (spec5.NO_LOCAL if five else 0))] = codes[0]
            asked[e.client.subscribe(b"b/#", 2)] = codes[1]
            asked[e.client.unsubscribe(b"c")] = codes[2]

        def answer(packet_id: int, code: int) -> None:
            assert code == asked.pop(packet_id)
            answers.append(code)

        def seen(p: "Packet", code: int) -> int:
            filters.append(p.topic_bytes())
            return code

        e.client.on_online = ask
        e.client.on_answer = answer
        e.server.on_subscribe = lambda p, options: seen(p, codes[(options & 3) - 1])
        e.server.on_unsubscribe = lambda p: seen(p, codes[2])
        e.connect()
        e.run()
        assert not asked and answers[-3:] == codes, answers
        assert filters[-3:] == [b"a/+", b"b/#", b"c"]
        e.quiet()
        return e

    each((4, 5), lambda level: cut_everywhere(lambda links: run(links, level)))


def test_keep_alive() -> None:
    every_cut(keep_alive, (4, 5))
    e = ends(4)
    e.connect()
    keep_alive(e)
    assert [head for head, _, _ in packets(e.link().up.log)] == [0x10] + 5 * [0xC0]
    assert [head for head, _, _ in packets(e.link().down.log)] == [0x20] + 5 * [0xD0]


def test_disconnect() -> None:
    def run(link: Link, level: int) -> Ends:
        e = ends(level, [link])
        e.reconnect = False
        e.connect()
        if e.client.state == ONLINE:
            e.from_client.publish(b"t", b"last", 1)
            e.run()
            assert e.client.disconnect() == 0
            e.run()
        return e

    for level in (4, 5):
        whole = run(Link(), level)
        assert whole.client.state == whole.server.state == CLOSING
        assert whole.server.graceful
        for k in range(len(whole.links[0].up.log)):
            e = run(Link(Wire(cut=k)), level)
            e.lose()
            assert not e.server.graceful
            assert e.client.state == e.server.state == IDLE


# -- aliases -----------------------------------------------------------------------------------------------------------


def test_aliases_do_not_outlive_their_connection() -> None:
    """Messages at every QoS under topics that have aliases, three of them where the other end takes two."""

    def run(links: "list[Link]") -> Ends:
        e = ends(5, links, aliases=True)
        e.connect()
        n = 0
        for topic in (b"one", b"two", b"three", b"one", b"two", b"three"):
            for qos in (0, 1):
                e.from_client.publish(topic, payload(n), qos)
                e.from_server.publish(topic, payload(n), qos)
                n += 1
            e.step()
        e.run()
        e.quiet()
        return e

    for f in ((0, 0, 0), (5, 3, 0)):
        fair = [Link(Wire(*f), Wire(*f))]
        whole = run(fair)
        expected = [m[:2] for m in whole.at_server.got]
        assert sorted(expected) == sorted([m[:2] for m in whole.at_client.got]) and len(expected) == 12
        for up in (True, False):
            log = fair[0].up.log if up else fair[0].down.log
            # As in `cut_everywhere`: every byte without other faults, and samples with them.
            step = 5 if f[0] and sys.implementation.name == "micropython" else 1
            for k in range(0, len(log) + 1, step):
                cut = Wire(f[0], f[1], 0, k)
                e = run([Link(cut, Wire(*f)) if up else Link(Wire(*f), cut)])
                for got in (e.at_server.got, e.at_client.got):
                    # What arrives arrives under its own topic, at QoS 1 all of it.
                    for topic, data, _, _, _, _ in got:
                        assert (topic, data) in expected, (k, topic, data)
                    kept = [m[:2] for m in expected if m[1][0] % 2]
                    assert sorted([m for m in kept if m in [g[:2] for g in got]]) == sorted(kept), k


# -- properties --------------------------------------------------------------------------------------------------------


class Tagged:
    """Publishes with a user property, and checks that every message that arrives has its own."""

    def __init__(self, e: Ends) -> None:
        self.block = Properties(60)
        self.e = e
        self.seen: list[bytes] = []
        e.server.on_message = self.message

    def message(self, p: "Packet") -> None:
        tag = text_in(p, spec5.CORRELATION_DATA)
        assert tag == p.payload_bytes()
        if tag not in self.seen:
            self.seen.append(tag)

    def publish(self, n: int, qos: int) -> None:
        tag = bytes([n, n])
        self.block.clear()
        assert self.block.add(spec5.CORRELATION_DATA, tag) == 0
        assert self.block.add(spec5.USER_PROPERTY, b"k" * n, b"v") == 0
        assert self.e.client.publish(b"t", tag, qos, False, self.block.block) > 0


def test_messages_keep_their_properties() -> None:
    def run(link: Link) -> Ends:
        e = ends(5, [link])
        t = Tagged(e)
        for n in range(1, 6):
            t.publish(n, 1 + n % 2)
        e.client.on_delivered = None
        e.connect()
        e.run()
        assert t.seen == [bytes([n, n]) for n in range(1, 6)], t.seen
        return e

    whole = run(Link())
    for k in range(len(whole.links[0].up.log)):
        run(Link(Wire(cut=k)))
    for k in range(len(whole.links[0].down.log)):
        run(Link(down=Wire(cut=k)))


def test_large_messages_with_properties() -> None:
    """In the sink's ``open`` the properties are there; what does not fit with them is skipped, and acknowledged."""
    for size, fits in ((4, True), (20, True), (42, True), (43, False), (100, False), (300, False)):
        for chunk in (0, 1, 7):
            e = ends(5, [Link(Wire(chunk=chunk))])
            sizes: list[int] = []

            class Look(Sink):
                def open(self, p: "Packet", size: int, sizes: "list[int]" = sizes) -> bool:
                    sizes.append(as5(p).props_end - as5(p).props_at)
                    return Sink.open(self, p, size)

            stream_to(e.server, Look(e.at_server))
            e.connect()
            block = Properties(size + 10)
            assert block.add(spec5.USER_PROPERTY, b"", b"x" * size) == 0
            e.client.on_delivered = None
            for qos in (1, 2):
                assert e.client.publish(b"t", payload(qos, LARGE), qos, False, block.block) > 0
                e.run()
            e.quiet()
            assert [m[1] for m in e.at_server.got] == ([payload(1, LARGE), payload(2, LARGE)] if fits else [])
            assert sizes == ([size + 5] * 2 if fits else [])
            assert e.server.skipped == (0 if fits else 2)
