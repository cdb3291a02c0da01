"""Cuts the link between a client and a server at every byte, and looks at what became of the messages."""

from pipe import Ends, Inbox, Link, Outgoing, Sink, Wire, cut_everywhere, packets
from rows import each
from sessions import server5, session5, session31

from headwater.mqtt.server import ServerSession
from headwater.mqtt.server31 import ServerSession31
from headwater.mqtt.session import ClientSession
from headwater.mqtt.topic_aliases import IncomingAliases, OutgoingAliases
from headwater.streaming import stream_to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LARGE = 130
#: By protocol level: what makes a client's session, and a server's.
SESSIONS = {3: (session31, ServerSession31), 4: (ClientSession, ServerSession), 5: (session5, server5)}


def ends(
    level: int,
    links: "list[Link] | tuple[Link, ...]" = (),
    size: "tuple[int, int]" = (64, 64),
    window: int = 4,
    sinks: bool = False,
    aliases: bool = False,
) -> Ends:
    """A client whose session the server keeps, both small."""

    def options(receive_window: int) -> "dict[str, Any]":
        made: dict[str, Any] = {"rx_size": size[0], "tx_size": size[1], "outbox_size": 512, "slots": 6}
        made.update(window=window, receive_window=receive_window)
        if aliases:
            made.update(aliases_in=IncomingAliases(2, 8), aliases_out=OutgoingAliases(3))
        return made

    client, server = SESSIONS[level]
    e = Ends(client(b"c", 10, False, **options(4)), server(**options(6)), links)
    if level == 3:
        # No earlier life whose ids are to be released.
        e.client.outbox.settle()
    if sinks:
        stream_to(e.client, Sink(e.at_client))
        stream_to(e.server, Sink(e.at_server))
    return e


def check_way(published: Outgoing, inbox: Inbox, wires: "list[Wire]", lossless: bool, block: int) -> None:
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
    check_dup(wires, block)


def check_dup(wires: "list[Wire]", block: int) -> None:
    """On the wire, DUP is on what was sent before, and on nothing else. A PUBLISH has ``block`` bytes of properties."""
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
            payload = bytes(log[at + block + (8 if end > at + 129 else 7) : end])
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
    block = 1 if e.client.v5 else 0
    check_way(e.from_client, e.at_server, [link.up for link in e.links], lossless, block)
    check_way(e.from_server, e.at_client, [link.down for link in e.links], lossless, block)
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


def once(flow: "Callable[[Ends], object]", e: Ends) -> Ends:
    e.connect()
    flow(e)
    e.run()
    check(e, False)
    return e


def every_cut(
    flow: "Callable[[Ends], object]", levels: "tuple[int, ...]" = (3, 4, 5), number: int = 0, **options: "Any"
) -> None:
    """Run a flow at each protocol level, with every cut; the links before ``number`` have no fault."""

    def run(level: int) -> None:
        def flow_once(links: "list[Link]") -> Ends:
            return once(flow, ends(level, [Link() for _ in range(number)] + links, **options))

        for e in cut_everywhere(flow_once, number):
            check(e, True)

    each(levels, run)


# -- flows -----------------------------------------------------------------------------------------------------------


def both_ways(e: Ends) -> None:
    up = Count()
    down = Count()
    for qos in (1, 2, 0):
        send_all(e, e.from_client, up, (qos,))
        send_all(e, e.from_server, down, (2 - qos,))
        e.step()
    send_all(e, e.from_server, down, (2, 1))


def published_while_offline(e: Ends) -> None:
    e.lose()
    count = Count()
    send_all(e, e.from_client, count, (2, 1))
    send_all(e, e.from_server, count, (1, 2))
    e.open()


def keep_alive(e: Ends) -> None:
    """40 seconds of silence: a ping every 7.5 of them."""
    for _ in range(80):
        e.now += 500
        assert e.client.poll(e.now) == 0
        assert e.server.poll(e.now) == 0
        e.run()
