# heap: 512K
"""MQTT 5.0: topic aliases, of either direction; and the largest packet."""

from pipe import Link, Outgoing, Wire, drain, feed, packets, receive
from sessions import server5, session5
from states5 import Ends5, client5, connack5, made

from headwater import errors
from headwater.connection import ERROR, ONLINE
from headwater.mqtt import spec5
from headwater.mqtt.topic_aliases import IncomingAliases, OutgoingAliases
from headwater.streaming import stream_to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet


def published(e: Ends5, up: bool = True) -> "list[bytes]":
    """The PUBLISH packets that left, without their payload's last two bytes."""
    log = e.link().up.log if up else e.link().down.log
    return [bytes(log[at + 2 : end - 2]) for head, at, end in packets(log) if head >> 4 == 3]


def test_aliases_are_assigned_as_far_as_the_other_end_takes_them() -> None:
    for ours, theirs, given in ((8, 0, 0), (8, 2, 2), (1, 9, 1), (0, 9, 0)):
        e = Ends5(
            session5(b"c", 0, False, aliases_out=OutgoingAliases(ours) if ours else None),
            server5(aliases_in=IncomingAliases(theirs, 9) if theirs else None),
        )
        e.connect()
        for n in range(3):
            for topic in (b"one", b"two", b"three"):
                assert e.from_client.publish(topic, bytes([n, n]), 0) == 0
                e.run()
        assert [m[0] for m in e.at_server.got] == [b"one", b"two", b"three"] * 3
        bare = [p for p in published(e) if p[:2] == b"\x00\x00"]
        assert len(bare) == 2 * given, (ours, theirs)
        assert len([p for p in published(e) if b"\x23" in p]) == 3 * given


def test_an_alias_on_the_wire() -> None:
    e = Ends5(
        session5(b"c", 0, False, aliases_out=OutgoingAliases(2)),
        server5(aliases_in=IncomingAliases(9, 9)),
    )
    e.connect()
    block = made((spec5.PAYLOAD_FORMAT_INDICATOR, 1))
    for properties in (b"\x00", block, block, b"\x00"):
        assert e.client.publish(b"top", b"xx", 0, False, properties) == 0
        e.run()
    assert published(e) == [
        b"\x00\x03top\x03\x23\x00\x01",
        b"\x00\x00\x05\x23\x00\x01\x01\x01",
        b"\x00\x00\x05\x23\x00\x01\x01\x01",
        b"\x00\x00\x03\x23\x00\x01",
    ]
    # A block whose length grows by a byte with the alias; and a payload that makes the packet's do so.
    for size in (100, 117, 118, 119, 120, 121, 122, 123, 200):
        e.at_server.got.clear()
        block = made((spec5.CORRELATION_DATA, bytes(size)))
        assert e.client.publish(b"top", b"xx", 0, True, block) == 0
        e.server.on_message = lambda p, e=e, size=size: e.at_server.message(p)
        e.run()
        assert [m[:4] for m in e.at_server.got] == [(b"top", b"xx", 0, True)], size


def test_what_is_kept_carries_its_topic() -> None:
    e = Ends5(
        session5(b"c", 0, False, aliases_out=OutgoingAliases(2)),
        server5(aliases_in=IncomingAliases(9, 9)),
    )
    e.connect()
    for qos in (0, 1, 2, 0):
        e.from_client.publish(b"top", b"xx", qos)
        e.run()
    assert [p[:5] == b"\x00\x03top" for p in published(e)] == [True, True, True, False]
    # A number is the connection's: the next one begins with the topic.
    e.lose()
    e.connect()
    e.from_client.publish(b"top", b"xx", 0)
    e.run()
    assert published(e) == [b"\x00\x03top\x03\x23\x00\x01"]


def test_a_topic_that_can_change_gets_no_alias() -> None:
    e = Ends5(
        session5(b"c", 0, False, aliases_out=OutgoingAliases(2)),
        server5(aliases_in=IncomingAliases(9, 9)),
    )
    e.connect()
    topic = bytearray(b"a")
    for c in b"ab":
        topic[0] = c
        assert e.client.publish(topic, b"xx", 0) == 0
        e.run()
    assert [m[0] for m in e.at_server.got] == [b"a", b"b"]
    assert published(e) == [b"\x00\x01a\x00", b"\x00\x01b\x00"]
    for bad in (b"", b"#", 5, None):
        assert e.client.publish(bad, b"xx", 0) < 0  # type: ignore[arg-type]
    assert e.client.publish(b"x", 5, 0) == errors.E_ARGUMENT  # type: ignore[arg-type]
    e.run()
    # A number that was chosen and not sent is another topic's.
    assert e.client.publish(b"y", b"xx", 0) == 0
    e.run()
    assert published(e)[-1] == b"\x00\x01y\x03\x23\x00\x01"


def test_an_alias_is_known_only_when_its_packet_left() -> None:
    e = Ends5(
        session5(b"c", 0, False, tx_size=48, aliases_out=OutgoingAliases(2)),
        server5(aliases_in=IncomingAliases(9, 9)),
    )
    e.connect()
    assert e.client.publish(b"a", bytes(30), 0) == 0
    assert e.client.publish(b"b", bytes(30), 0) == errors.E_AGAIN
    e.run()
    assert e.client.publish(b"b", bytes(30), 0) == 0
    e.run()
    assert [m[0] for m in e.at_server.got] == [b"a", b"b"]


def test_the_maximum_packet_size_counts_the_alias() -> None:
    c = client5(
        connack5((spec5.MAXIMUM_PACKET_SIZE, 20), (spec5.TOPIC_ALIAS_MAXIMUM, 1)),
        aliases_out=OutgoingAliases(1),
    )
    # Two of header, two of length, topic, alias and its length, payload.
    assert c.publish(b"topic", bytes(8), 0) == errors.E_TOO_LARGE
    assert c.publish(b"topic", bytes(7), 0) == 0
    assert c.publish(b"topic", bytes(13), 0) == errors.E_TOO_LARGE
    assert c.publish(b"topic", bytes(12), 0) == 0
    assert [end - at for _, at, end in packets(drain(c))] == [20, 20]


def test_aliases_that_were_not_agreed_on() -> None:
    """By either end: an alias that was offered but stands for no topic is a Protocol Error (3.3.2.3.4)."""
    for count, said, reason in (
        (0, b"\x30\x07\x00\x01t\x03\x23\x00\x01", spec5.TOPIC_ALIAS_INVALID),
        (0, b"\x30\x06\x00\x00\x03\x23\x00\x01", spec5.TOPIC_ALIAS_INVALID),
        (2, b"\x30\x07\x00\x01t\x03\x23\x00\x03", spec5.TOPIC_ALIAS_INVALID),
        (2, b"\x30\x06\x00\x00\x03\x23\x00\x03", spec5.TOPIC_ALIAS_INVALID),
        (2, b"\x30\x06\x00\x00\x03\x23\x00\x02", spec5.PROTOCOL_ERROR),
        (2, b"\x30\x07\x00\x01t\x03\x23\x00\x00", spec5.PROTOCOL_ERROR),
    ):
        e = Ends5(
            session5(b"c", 0, False),
            server5(aliases_in=IncomingAliases(count, 4) if count else None),
        )
        e.connect()
        c = client5(aliases_in=IncomingAliases(count, 4) if count else None)
        for end in (c, e.server):
            assert feed(end, said) < 0
            assert drain(end) == bytes([0xE0, 1, reason])
            assert end.state == ERROR


def test_an_alias_can_be_given_again() -> None:
    c = client5(aliases_in=IncomingAliases(2, 4))
    got: list[bytes] = []
    c.on_message = lambda p: got.append(p.topic_bytes() + b"=" + p.payload_bytes())
    assert feed(c, b"\x30\x08\x00\x01a\x03\x23\x00\x021") == 0
    assert feed(c, b"\x32\x09\x00\x00\x00\x01\x03\x23\x00\x022") == 0
    assert feed(c, b"\x30\x0a\x00\x03bcd\x03\x23\x00\x023") == 0
    assert feed(c, b"\x34\x09\x00\x00\x00\x02\x03\x23\x00\x024") == 0
    assert got == [b"a=1", b"a=2", b"bcd=3", b"bcd=4"]
    assert drain(c) == b"\x40\x02\x00\x01\x50\x02\x00\x02"
    # As accessors that compare, and as text.
    assert c.packet.topic_is(b"bcd") and c.packet.topic_text() == "bcd"


def test_a_topic_that_is_too_long_to_be_kept() -> None:
    """Its message is delivered, but it cannot be called by its number; another topic under that number can."""
    c = client5(aliases_in=IncomingAliases(1, 4))
    got: list[bytes] = []
    c.on_message = lambda p: got.append(p.topic_bytes())
    assert feed(c, b"\x30\x0b\x00\x05abcde\x03\x23\x00\x01") == 0
    assert feed(c, b"\x30\x07\x00\x01a\x03\x23\x00\x01\x30\x06\x00\x00\x03\x23\x00\x01") == 0
    assert got == [b"abcde", b"a", b"a"]
    assert feed(c, b"\x30\x0b\x00\x05abcde\x03\x23\x00\x01") == 0
    assert feed(c, b"\x30\x06\x00\x00\x03\x23\x00\x01") == errors.E_RX_TOO_LARGE
    c.connect(0)
    drain(c)
    assert feed(c, connack5()) == 0 and c.state == ONLINE
    assert feed(c, b"\x30\x06\x00\x00\x03\x23\x00\x01") == errors.E_ALIAS


def test_large_messages_with_an_alias() -> None:
    e = Ends5(
        session5(b"c", 0, False, rx_size=64, aliases_in=IncomingAliases(2, 8)),
        server5(aliases_out=OutgoingAliases(2)),
        [Link(down=Wire(chunk=5))],
    )
    topics: list[bytes] = []

    class Sink:
        def open(self, p: "Packet", size: int) -> bool:
            topics.append(p.topic_bytes() + b"%d" % size)
            return True

        def write(self, buf: object, at: int, n: int) -> None:
            pass

        def close(self, complete: bool) -> None:
            assert complete

    stream_to(e.client, Sink())
    e.connect()
    out = Outgoing(e.server)
    for size in (100, 200, 3, 100):
        assert out.publish(b"large", bytes(size), 0) == 0
        e.run()
    assert topics == [b"large100", b"large200", b"large100"]
    assert [m[0] for m in e.at_client.got] == [b"large"]


# -- maximum packet size, ours -----------------------------------------------------------------------------------------


def test_our_maximum_packet_size_is_kept_to() -> None:
    e = Ends5(session5(b"c", 0, False, rx_size=64, max_packet=100), server5())
    e.connect()
    assert e.server.publish(b"t", bytes(94), 0) == 0
    assert e.server.publish(b"t", bytes(95), 0) == errors.E_TOO_LARGE
    assert e.server.publish(b"t", bytes(93), 1) == errors.E_TOO_LARGE
    e.run()
    assert e.client.skipped == 1
    wire = Wire()
    wire.log += b"\x30\x63\x00\x01t\x00" + bytes(95)
    assert receive(e.client, wire) == errors.E_RX_TOO_LARGE
    assert drain(e.client) == bytes([0xE0, 1, spec5.PACKET_TOO_LARGE])
