# heap: 2M
"""The link between a client and a server is cut at every byte of every flow, in both directions.

Whatever was handed in at QoS 1 arrives, at QoS 2 exactly once, in order; nothing arrives in part; DUP is set on
repetitions and on nothing else; and ``on_delivered`` is called once for each message.
"""

import cuts
from cuts import (
    LARGE,
    Count,
    both_ways,
    check,
    cut_everywhere,
    keep_alive,
    once,
    payload,
    published_while_offline,
    send_all,
)
from pipe import Ends, Link, Random, Sink, Wire, packets

from headwater.connection import CLOSING, IDLE, ONLINE
from headwater.mqtt.server import ServerSession
from headwater.mqtt.session import ClientSession
from headwater.mqtt.streaming import stream_to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.mqtt.packets import Packet


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


def every_cut(
    flow: "Callable[[Ends], object]", make: "Callable[[list[Link]], Ends]" = ends, number: int = 0
) -> None:
    cuts.every_cut(flow, make, number)


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


def test_both_ways_at_once() -> None:
    every_cut(both_ways)


def test_both_ways_with_the_smallest_buffers() -> None:
    every_cut(both_ways, lambda links: ends(links, 32, 16, 2))


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
    stream_to(e.client, Sink(e.at_client))
    stream_to(e.server, Sink(e.at_server))
    return e


def test_large_messages_up_to_a_sink() -> None:
    every_cut(lambda e: send_all(e, e.from_client, Count(), (1, 2), LARGE), with_sinks)


def test_large_messages_down_to_a_sink() -> None:
    every_cut(lambda e: send_all(e, e.from_server, Count(), (2, 1), LARGE), with_sinks)


def test_a_sink_is_told_of_every_cut() -> None:
    for k in range(LARGE + 60):
        e = with_sinks([Link(Wire(chunk=7, cut=k))])
        begun = [0]
        sink = e.server.large.sink  # type: ignore[attr-defined]
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
