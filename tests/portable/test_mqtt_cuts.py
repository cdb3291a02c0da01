"""The link between a client and a server is cut at every byte of every flow, in both directions.

Whatever was handed in at QoS 1 arrives, at QoS 2 exactly once, in order; nothing arrives in part; DUP is set on
repetitions and on nothing else; and ``on_delivered`` is called once for each message.
"""

import sys

from pipe import Ends, Inbox, Link, Outgoing, Random, Sink, Wire, packets

from headwater.mqtt.server import ServerSession
from headwater.mqtt.session import ClientSession
from headwater.mqtt.transitions import CLOSING, IDLE, ONLINE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.mqtt.decode import Packet

# (take, chunk, room) of both directions: nothing in the way; pieces; and a transport that is nearly always full.
FAULTS = ((0, 0, 0), (5, 3, 0), (2, 0, 6))
LARGE = 130


def ends(links: "list[Link]", rx_size: int = 64, tx_size: int = 64, window: int = 4) -> Ends:
    """A client whose session the server keeps, both small."""
    return Ends(
        ClientSession(
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
            receive_window=4,
        ),
        ServerSession(rx_size, tx_size, 512, slots=6, window=window, receive_window=6),
        links,
    )


def check_way(published: Outgoing, inbox: Inbox, wires: "list[Wire]", lossless: bool) -> None:
    """One direction: what was published, what arrived, and the wire of each connection."""
    for qos in (0, 1, 2):
        sent = published.payloads(qos)
        got = inbox.payloads(qos)
        if qos == 2 or lossless:
            assert got == sent, (qos, sent, got)
            continue
        first = []
        for payload in got:
            if payload not in first:
                first.append(payload)
        if qos == 1:
            assert first == sent, (sent, got)
        else:
            assert got == [payload for payload in sent if payload in got], (sent, got)
    seen = []
    for topic, payload, qos, retain, dup, packet_id in inbox.got:
        assert topic == b"t" and retain == (payload[0] & 1 == 1), (topic, retain)
        assert (packet_id != 0) == (qos != 0)
        if payload in seen:
            assert dup, "a repetition without DUP"
        seen.append(payload)
    assert sorted(published.delivered) == sorted([p for p, qos in published.published if qos])
    assert not published.pending
    check_dup(wires)


def check_dup(wires: "list[Wire]") -> None:
    """On the wire, DUP is on what was sent before, and on nothing else."""
    seen: list[bytes] = []
    partial = False
    for wire in wires:
        log = wire.log
        # What was offered to a full transport may have left it in part, for all the session knows.
        partial = partial or wire.room > 0
        here = []
        for head, at, end in packets(log):
            if head >> 4 != 3 or head & 6 == 0:
                continue
            # Behind two bytes of header (three from 128 bytes on), topic "t" and packet id: the payload.
            payload = bytes(log[at + (8 if end > at + 129 else 7) : end])
            whole = len(payload) >= 2 and len(payload) == payload[1]
            if not whole:
                partial = True
                continue
            assert payload not in here, "sent twice over one connection"
            here.append(payload)
            if payload in seen:
                assert head & 8, "sent again without DUP"
            elif head & 8:
                # Only if a part of it had left before, and what it was cannot be seen any more.
                assert partial, "DUP on a message that was never sent"
        seen += here


def check(e: Ends, lossless: bool) -> None:
    e.quiet()
    check_way(e.from_client, e.at_server, [link.up for link in e.links], lossless)
    check_way(e.from_server, e.at_client, [link.down for link in e.links], lossless)
    for end in (e.client, e.server):
        assert end.strays == 0 or not lossless


def payload(n: int, size: int = 2) -> bytes:
    """A payload that nothing else has: its number (odd ones go out with RETAIN), its size, and filling."""
    return bytes([n, size]) + bytes([n]) * (size - 2)


class Count:
    """Hands out numbers."""

    def __init__(self) -> None:
        self.n = 0

    def next(self) -> int:
        self.n += 1
        return self.n


def send_all(e: Ends, end: Outgoing, count: Count, levels: "tuple[int, ...]", size: int = 2) -> None:
    for qos in levels:
        n = count.next()
        end.publish(b"t", payload(n, size), qos, n & 1 == 1)


def cut_everywhere(run: "Callable[[list[Link]], Ends]", number: int = 0) -> "list[Ends]":
    """Run without a fault, and then with a connection cut behind each byte of either direction; the runs without one.

    ``run`` gets the links to use; ``number`` is which of its connections is the one to be cut.
    """
    whole = []
    for f in range(len(FAULTS)):
        take, chunk, room = FAULTS[f]
        fair = run([Link(Wire(take, chunk, room), Wire(take, chunk, room))])
        whole.append(fair)
        link = fair.links[number]
        # MicroPython meets every byte without other faults, and samples with them.
        step = 5 if f and sys.implementation.name == "micropython" else 1
        for k in range(f, len(link.up.log) + 1, step):
            run([Link(Wire(take, chunk, room, k), Wire(take, chunk, room))])
        for k in range(f, len(link.down.log) + 1, step):
            run([Link(Wire(take, chunk, room), Wire(take, chunk, room, k))])
    return whole


def once(flow: "Callable[[Ends], object]", e: Ends) -> Ends:
    e.connect()
    flow(e)
    e.run()
    check(e, False)
    return e


def every_cut(
    flow: "Callable[[Ends], object]", make: "Callable[[list[Link]], Ends]" = ends, number: int = 0
) -> None:
    for e in cut_everywhere(lambda links: once(flow, make(links)), number):
        check(e, True)


# -- flows -------------------------------------------------------------------------------------------------------------


def test_connect() -> None:
    every_cut(lambda e: None)


def test_one_message_up_at_qos_1() -> None:
    every_cut(lambda e: send_all(e, e.from_client, Count(), (1,)))


def test_one_message_up_at_qos_2() -> None:
    every_cut(lambda e: send_all(e, e.from_client, Count(), (2,)))


def test_one_message_down_at_qos_1() -> None:
    every_cut(lambda e: send_all(e, e.from_server, Count(), (1,)))


def test_one_message_down_at_qos_2() -> None:
    every_cut(lambda e: send_all(e, e.from_server, Count(), (2,)))


def test_several_in_flight_up() -> None:
    every_cut(lambda e: send_all(e, e.from_client, Count(), (1, 2, 0, 1, 2, 0, 2, 1)))


def test_several_in_flight_down() -> None:
    every_cut(lambda e: send_all(e, e.from_server, Count(), (2, 0, 1, 2, 1, 2, 0, 1)))


def test_a_window_of_one() -> None:
    every_cut(
        lambda e: send_all(e, e.from_client, Count(), (2, 1, 2, 1)), lambda links: ends(links, window=1)
    )


def both_ways(e: Ends) -> None:
    up = Count()
    down = Count()
    for qos in (1, 2, 0):
        send_all(e, e.from_client, up, (qos,))
        send_all(e, e.from_server, down, (2 - qos,))
        e.step()
    send_all(e, e.from_server, down, (2, 1))


def test_both_ways_at_once() -> None:
    every_cut(both_ways)


def test_both_ways_with_the_smallest_buffers() -> None:
    every_cut(both_ways, lambda links: ends(links, 32, 16, 2))


def published_while_offline(e: Ends) -> None:
    e.lose()
    count = Count()
    send_all(e, e.from_client, count, (2, 1))
    send_all(e, e.from_server, count, (1, 2))
    e.open()


def test_messages_published_while_offline() -> None:
    # The first connection breaks by itself; the second is cut at every byte.
    every_cut(published_while_offline, lambda links: ends([Link()] + links), 1)


def test_cut_twice() -> None:
    """The second connection as well is cut somewhere, at a place that changes from run to run."""
    random = Random(1)
    for k in range(60):
        up, down = Link(Wire(cut=k)), Link(down=Wire(cut=k))
        for first in (up, down):
            links = [first]
            for _ in range(3):
                cut = random.below(60)
                links.append(Link(Wire(3, 2, 0, cut)) if random.below(2) else Link(down=Wire(3, 2, 0, cut)))
            once(both_ways, ends(links))


# -- messages larger than the buffer -----------------------------------------------------------------------------------


def with_sinks(links: "list[Link]") -> Ends:
    e = ends(links)
    e.client.sink = Sink(e.at_client)
    e.server.sink = Sink(e.at_server)
    return e


def test_large_messages_up_to_a_sink() -> None:
    every_cut(lambda e: send_all(e, e.from_client, Count(), (1, 2), LARGE), with_sinks)


def test_large_messages_down_to_a_sink() -> None:
    every_cut(lambda e: send_all(e, e.from_server, Count(), (2, 1), LARGE), with_sinks)


def test_a_sink_is_told_of_every_cut() -> None:
    for k in range(LARGE + 60):
        e = with_sinks([Link(Wire(chunk=7, cut=k))])
        begun = [0]
        sink = e.server.sink
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
    e = ends(links)
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

    def run(links: "list[Link]") -> Ends:
        e = ends(links)
        asked: dict[int, int] = {}
        answers: list[tuple[int, int]] = []
        filters: list[bytes] = []

        def ask(session_present: bool) -> None:
            asked.clear()
            for topic_filter, qos in ((b"a/+", 1), (b"b/#", 2)):
                asked[e.client.subscribe(topic_filter, qos)] = qos
            asked[e.client.unsubscribe(b"c")] = 0

        def answer(packet_id: int, code: int) -> None:
            assert code == asked.pop(packet_id)
            answers.append((packet_id, code))

        e.client.on_online = ask
        e.client.on_answer = answer

        def granted(p: "Packet", qos: int) -> int:
            filters.append(p.topic_bytes())
            return qos

        e.server.on_subscribe = granted
        e.server.on_unsubscribe = lambda p: filters.append(p.topic_bytes())
        e.connect()
        e.run()
        assert not asked and [code for _, code in answers[-3:]] == [1, 2, 0], answers
        assert filters[-3:] == [b"a/+", b"b/#", b"c"]
        e.quiet()
        return e

    cut_everywhere(run)


def keep_alive(e: Ends) -> None:
    """40 seconds of silence: a ping every 7.5 of them."""
    for _ in range(80):
        e.now += 500
        assert e.client.poll(e.now) == 0
        assert e.server.poll(e.now) == 0
        e.run()


def test_keep_alive() -> None:
    every_cut(keep_alive)
    e = ends([])
    e.connect()
    keep_alive(e)
    assert [head for head, _, _ in packets(e.link().up.log)] == [0x10] + 5 * [0xC0]
    assert [head for head, _, _ in packets(e.link().down.log)] == [0x20] + 5 * [0xD0]


def test_disconnect() -> None:
    def run(links: "list[Link]") -> Ends:
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
