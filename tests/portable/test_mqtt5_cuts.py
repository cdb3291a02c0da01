# heap: 1024K
"""The link between two sessions of MQTT 5.0 is cut at every byte: what holds at 3.1.1 holds there."""

import sys

from cuts import (
    LARGE,
    Count,
    both_ways,
    every_cut,
    keep_alive,
    once,
    payload,
    published_while_offline,
    send_all,
)
from pipe import Link, Random, Sink, Wire
from sessions import server5, session5
from states5 import Ends5, as5, text_in

from headwater.connection import CLOSING, IDLE, ONLINE
from headwater.mqtt import spec5
from headwater.mqtt.properties import Properties
from headwater.mqtt.streaming import stream_to
from headwater.mqtt.topic_aliases import IncomingAliases, OutgoingAliases

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet


def ends(
    links: "list[Link]", rx_size: int = 64, tx_size: int = 64, window: int = 4, aliases: bool = False
) -> Ends5:
    """A client whose session the server keeps, both small; with topic aliases both ways."""
    return Ends5(
        session5(
            b"c",
            10,
            False,
            None,
            None,
            rx_size,
            tx_size,
            outbox_size=512,
            slots=6,
            window=window,
            receive_window=6,
            aliases_in=IncomingAliases(2, 8) if aliases else None,
            aliases_out=OutgoingAliases(3) if aliases else None,
        ),
        server5(
            rx_size,
            tx_size,
            512,
            slots=6,
            window=window,
            receive_window=6,
            aliases_in=IncomingAliases(2, 8) if aliases else None,
            aliases_out=OutgoingAliases(3) if aliases else None,
        ),
        links,
    )


def test_connect() -> None:
    every_cut(lambda e: None, ends)


def test_one_message_at_qos_1() -> None:
    every_cut(lambda e: send_all(e, e.from_client, Count(), (1,)), ends)
    every_cut(lambda e: send_all(e, e.from_server, Count(), (1,)), ends)


def test_one_message_at_qos_2() -> None:
    every_cut(lambda e: send_all(e, e.from_client, Count(), (2,)), ends)
    every_cut(lambda e: send_all(e, e.from_server, Count(), (2,)), ends)


def test_several_in_flight_up() -> None:
    every_cut(lambda e: send_all(e, e.from_client, Count(), (1, 2, 0, 1, 2, 0, 2, 1)), ends)


def test_several_in_flight_down() -> None:
    every_cut(lambda e: send_all(e, e.from_server, Count(), (2, 0, 1, 2, 1, 2, 0, 1)), ends)


def test_both_ways_at_once() -> None:
    every_cut(both_ways, ends)


def test_both_ways_with_small_buffers() -> None:
    every_cut(both_ways, lambda links: ends(links, 40, 40, 2))


def test_messages_published_while_offline() -> None:
    every_cut(published_while_offline, lambda links: ends([Link()] + links), 1)


def test_cut_twice() -> None:
    random = Random(5)
    for k in range(50):
        up, down = Link(Wire(cut=k)), Link(down=Wire(cut=k))
        for first in (up, down):
            links = [first]
            for _ in range(3):
                cut = random.below(90)
                links.append(Link(Wire(3, 2, 0, cut)) if random.below(2) else Link(down=Wire(3, 2, 0, cut)))
            once(both_ways, ends(links))


def with_sinks(links: "list[Link]") -> Ends5:
    e = ends(links)
    stream_to(e.client, Sink(e.at_client))
    stream_to(e.server, Sink(e.at_server))
    return e


def test_large_messages_up() -> None:
    every_cut(lambda e: send_all(e, e.from_client, Count(), (1, 2), LARGE), with_sinks)


def test_large_messages_down() -> None:
    every_cut(lambda e: send_all(e, e.from_server, Count(), (2, 1), LARGE), with_sinks)


def test_keep_alive() -> None:
    every_cut(keep_alive, ends)


# -- aliases -----------------------------------------------------------------------------------------------------------


def aliased(links: "list[Link]") -> Ends5:
    return ends(links, aliases=True)


def test_aliases_do_not_outlive_their_connection() -> None:
    """Messages at every QoS under topics that have aliases, three of them where the other end takes two."""

    def flow(e: Ends5) -> None:
        n = 0
        for topic in (b"one", b"two", b"three", b"one", b"two", b"three"):
            for qos in (0, 1):
                e.from_client.publish(topic, payload(n), qos)
                e.from_server.publish(topic, payload(n), qos)
                n += 1
            e.step()

    for f in ((0, 0, 0), (5, 3, 0)):
        fair = [Link(Wire(*f), Wire(*f))]
        whole = aliased(fair)
        whole.connect()
        flow(whole)
        whole.run()
        whole.quiet()
        expected = [m[:2] for m in whole.at_server.got]
        assert sorted(expected) == sorted([m[:2] for m in whole.at_client.got]) and len(expected) == 12
        for up in (True, False):
            log = fair[0].up.log if up else fair[0].down.log
            # As in `cut_everywhere`: every byte without other faults, and samples with them.
            step = 5 if f[0] and sys.implementation.name == "micropython" else 1
            for k in range(0, len(log) + 1, step):
                cut = Wire(f[0], f[1], 0, k)
                e = aliased([Link(cut, Wire(*f)) if up else Link(Wire(*f), cut)])
                e.connect()
                flow(e)
                e.run()
                e.quiet()
                for got in (e.at_server.got, e.at_client.got):
                    # What arrives arrives under its own topic, at QoS 1 all of it.
                    for topic, data, _, _, _, _ in got:
                        assert (topic, data) in expected, (k, topic, data)
                    kept = [m[:2] for m in expected if m[1][0] % 2]
                    assert sorted([m for m in kept if m in [g[:2] for g in got]]) == sorted(kept), k


# -- properties --------------------------------------------------------------------------------------------------------


class Tagged:
    """Publishes with a user property, and checks that every message that arrives has its own."""

    def __init__(self, e: Ends5) -> None:
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
    def run(link: Link) -> Ends5:
        e = ends([link])
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
            e = ends([Link(Wire(chunk=chunk))])
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


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_subscribe_and_unsubscribe() -> None:
    def run(links: "list[Link]") -> Ends5:
        e = ends(links)
        asked: dict[int, int] = {}
        answers: list[int] = []

        def ask(session_present: bool) -> None:
            asked.clear()
            asked[e.client.subscribe(b"a/+", 1 | spec5.NO_LOCAL)] = 1
            asked[e.client.subscribe(b"b/#", 2)] = spec5.NOT_AUTHORIZED
            asked[e.client.unsubscribe(b"c")] = spec5.NO_SUBSCRIPTION_EXISTED

        def answer(packet_id: int, code: int) -> None:
            assert code == asked.pop(packet_id)
            answers.append(code)

        e.client.on_online = ask
        e.client.on_answer = answer
        e.server.on_subscribe = lambda p, options: spec5.NOT_AUTHORIZED if options & 3 == 2 else options & 3
        e.server.on_unsubscribe = lambda p: spec5.NO_SUBSCRIPTION_EXISTED
        e.connect()
        e.run()
        assert not asked and answers[-3:] == [1, spec5.NOT_AUTHORIZED, spec5.NO_SUBSCRIPTION_EXISTED]
        e.quiet()
        return e

    whole = run([Link()])
    for k in range(len(whole.links[0].up.log)):
        run([Link(Wire(cut=k))])
    for k in range(len(whole.links[0].down.log)):
        run([Link(down=Wire(cut=k))])


def test_disconnect() -> None:
    def run(links: "list[Link]") -> Ends5:
        e = ends(links)
        e.reconnect = False
        e.connect()
        if e.client.state == ONLINE:
            e.from_client.publish(b"t", b"last", 1)
            e.run()
            assert e.client.disconnect() == 0
            e.run()
        return e

    whole = run([Link()])
    assert whole.client.state == whole.server.state == CLOSING
    assert whole.server.graceful
    for k in range(len(whole.links[0].up.log)):
        e = run([Link(Wire(cut=k))])
        e.lose()
        assert not e.server.graceful
        assert e.client.state == e.server.state == IDLE
