"""The host's receive buffer, outbox and table of open ids, each beside the plain thing it must be equal to."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.connection import DONE
from headwater.errors import E_TOO_LARGE, E_WINDOW
from headwater.mqtt import packets
from headwater.mqtt.packets import Packet
from headwater.mqtt.packets_server import decode_packet
from headwater_host.client.mqtt.session import HostClientSession, frame_start
from headwater_host.client.outbox import GrowingOutbox
from headwater_host.client.payload import payload_bytes
from headwater_host.client.rxbuf import GrowingRxBuf
from headwater_host.client.session_config import SessionConfig
from headwater_host.errors import ArgumentError
from headwater_host.topics import Topic, Wildcard, check_name, filter_bytes, topic_bytes
from tests.rows import each_row


@settings(max_examples=200, deadline=None)
@given(
    st.integers(16, 64),
    st.integers(0, 40),
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 100)), max_size=60),
)
def test_receive_buffer_keeps_what_is_unparsed(size: int, extra: int, steps: list[tuple[int, int]]) -> None:
    rx = GrowingRxBuf(size, 1000, extra)
    buf = rx.buf
    unparsed = bytearray()
    fill = random.Random(1)
    for read, parsed in steps:
        room = rx.window()
        assert room == len(rx.view) >= 1
        assert len(rx.buf) - rx.size == extra
        rx.buf[rx.size :] = b"x" * extra
        data = fill.randbytes(min(read, room))
        rx.view[: len(data)] = data
        rx.end += len(data)
        unparsed += data
        assert bytes(rx.buf[rx.start : rx.end]) == unparsed
        n = min(parsed, len(unparsed))
        rx.start += n
        del unparsed[:n]
    assert rx.buf is buf


def test_receive_buffer_grows_with_what_arrives_and_not_beyond_its_capacity() -> None:
    rx = GrowingRxBuf(64, 1000)
    while rx.window():
        assert rx.size <= max(64, 3 * (rx.end + 64))
        rx.end += min(10, rx.room)
    assert rx.capacity <= rx.end == rx.size <= 1000 + 64
    rx.clear()
    assert rx.window() == rx.size


def test_receive_buffer_gives_a_large_packets_memory_back() -> None:
    rx = GrowingRxBuf(1 << 16, 1 << 24)
    for _ in range(1 << 8):
        rx.end += rx.window()
    assert rx.size > 1 << 22
    rx.start = rx.end
    assert rx.window() == 1 << 16
    assert len(rx.buf) == 1 << 16


def test_receive_buffer_refuses_what_is_no_size() -> None:
    with pytest.raises(ValueError, match="at least 16 bytes"):
        GrowingRxBuf(15)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 8), st.lists(st.one_of(st.integers(1, 120), st.integers(-8, -1)), max_size=80))
def test_outbox_grows_and_keeps_every_packet(slots: int, steps: list[int]) -> None:
    box = GrowingOutbox(32, slots, limit=300)
    live: list[tuple[int, bytes]] = []
    done: set[int] = set()
    fill = random.Random(2)
    for step in steps:
        if step > 0:
            used = sum(len(data) for _, data in live)
            at = box.reserve(step)
            if at < 0:
                assert len(live) == slots or used + step > 300
                continue
            assert len(live) < slots
            data = fill.randbytes(step)
            packet_id = box.next + 1
            assert packet_id not in dict(live)
            box.buf[at : at + step] = data
            i = box.commit(step, 1)
            assert box.find(packet_id) == i
            live.append((packet_id, data))
        elif live:
            packet_id = live[-step % len(live)][0]
            i = box.find(packet_id)
            if i >= 0:
                box.set(i, DONE)
                done.add(packet_id)
            while live and live[0][0] in done:
                done.remove(live.pop(0)[0])
        assert box.count == len(live)
        i = box.head
        for packet_id, data in live:
            assert bytes(box.buf[box.at[i] : box.at[i] + box.size[i]]) == data
            assert (box.find(packet_id) < 0) == (packet_id in done)
            i = (i + 1) % slots
    assert len(box.buf) <= 300


def test_outbox_says_full_or_too_large() -> None:
    session = HostClientSession(SessionConfig(client_id=b"c", slots=2))
    session.outbox = GrowingOutbox(64, 2, limit=1000)
    assert session.offer(b"t", bytes(2000), 1, False) == E_TOO_LARGE
    assert session.offer(b"t", bytes(900), 1, False) == 1
    assert session.offer(b"t", bytes(900), 1, False) == E_WINDOW
    assert session.publish(b"t", b"", 1) == 2
    assert session.publish(b"t", b"", 1) == E_WINDOW
    # Larger than the outbox is now, and all slots are taken: it fits when they are not.
    session.outbox = GrowingOutbox(64, 1, limit=1000)
    assert session.publish(b"t", b"", 1) == 1
    assert session.offer(b"t", bytes(900), 1, False) == E_WINDOW
    assert session.offer(b"t", bytes(1000), 1, False) == E_TOO_LARGE


def sent(session: HostClientSession) -> bytes:
    """Everything that the session has to send now."""
    data = b""
    size = session.out()
    while size > 0:
        data += bytes(session.out_buf[session.out_at : session.out_at + size])
        session.sent(size)
        size = session.out()
    return data


def feed(session: HostClientSession, data: bytes) -> bytes:
    """Everything that the session answers to ``data``."""
    answers = b""
    at = 0
    while at < len(data) or session.stalled:
        n = min(session.rx.window(), len(data) - at)
        session.rx.view[:n] = data[at : at + n]
        at += n
        assert session.feed(n) == 0
        answers += sent(session)
    return answers


def test_as_many_qos2_messages_may_be_open_as_there_are_ids() -> None:
    session = HostClientSession(SessionConfig(client_id=b"c", clean_start=False))
    session.acks.automatic = False
    came: list[int] = []
    session.on_message = lambda p: came.append(p.packet_id)
    assert session.connect(0) == 0
    sent(session)
    feed(session, bytes.fromhex("20020100"))
    order = random.Random(3)
    ids = list(range(1, 65536))
    order.shuffle(ids)
    publish = [b"\x34\x05\0\x01t" + packet_id.to_bytes(2, "big") for packet_id in ids]
    assert feed(session, b"".join(publish)) == b""
    assert came == ids
    assert feed(session, b"".join(publish)) == b""
    assert session.duplicates == 65535
    order.shuffle(ids)
    for packet_id in ids[:1000]:
        assert session.acks.acknowledge(packet_id, 2, session.epoch) == 0
    assert len(sent(session)) == 4 * 1000
    release = [b"\x62\x02" + packet_id.to_bytes(2, "big") for packet_id in ids]
    assert len(feed(session, b"".join(release))) == 4 * 65535
    # Every id is free again.
    came.clear()
    assert feed(session, b"".join(publish)) == b""
    assert len(came) == 65535


@each_row("length", ["05", "8500", "858000", "85808000"], ids=["one byte", "two", "three", "four"])
@each_row("head, packet_id", [("30", ""), ("32", "8080"), ("3d", "0001")])
def test_a_frame_is_found_from_its_topic(length: str, head: str, packet_id: str) -> None:
    body = "0001" + "61" + packet_id + ("8080" if not packet_id else "")
    data = bytes.fromhex("c000" + head + length + body)
    p = Packet(data)
    assert decode_packet(p, 2, len(data)) == len(data)
    assert frame_start(p) == 2


@settings(max_examples=500, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=8),
        st.text(alphabet="aä€𝄞/+#\0\ud800", max_size=4).map(lambda s: s.encode("utf-8", "surrogatepass")),
    )
)
def test_the_fast_check_of_a_name_answers_as_the_cores(name: bytes) -> None:
    framed = b"xx" + name + b"y"
    assert check_name(framed, 2, 2 + len(name)) == packets.check_name(framed, 2, 2 + len(name))


@each_row(
    "pattern, topic, matches",
    [
        ("a/+/c", "a/b/c", True),
        ("a/#", "a", True),
        ("#", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
        ("+", "a/b", False),
        ("$share/readers/a/+", "a/b", True),
        ("ä/+", "ä/ö", True),
    ],
)
def test_topics_match_filters(pattern: str, topic: str, matches: bool) -> None:
    assert Topic(topic).matches(pattern) is matches
    assert Topic(topic).matches(Wildcard(pattern)) is matches


@each_row("name", ["", "a/+", "#", "a\0", "x" * 65536, "\ud800"])
def test_what_is_no_topic_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError):
        topic_bytes(name)


@each_row("name", ["", "a+", "#/a", "a\0", "x" * 65536, "\ud800"])
def test_what_is_no_filter_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError):
        filter_bytes(name)
    with pytest.raises(ArgumentError):
        Wildcard(name)


def test_what_may_be_a_payload() -> None:
    assert payload_bytes(None) == b""
    assert payload_bytes("ä") == "ä".encode()
    assert payload_bytes(12) == b"12"
    assert payload_bytes(1.5) == b"1.5"
    assert payload_bytes(bytearray(b"x")) == b"x"
    assert payload_bytes(memoryview(bytes(8)).cast("I")) == bytes(8)
    assert payload_bytes(memoryview(b"abcd")[::2]) == b"ac"
    for wrong in ({"a": 1}, [1], object()):
        with pytest.raises(ArgumentError, match="encode it first"):
            payload_bytes(wrong)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError):
        payload_bytes("\ud800")
