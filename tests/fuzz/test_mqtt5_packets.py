"""Every MQTT 5.0 decoder on arbitrary and on damaged bytes, and encoders and decoders as inverses of each other."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwater import errors
from headwater.mqtt import packets, packets_server, spec, spec5
from headwater.mqtt import properties as props
from headwater.mqtt.properties import Packet5
from headwater.names5 import PROPERTIES, code_name
from headwater.reasons import REASONS
from headwater.types import Bytes
from headwater.wire import get_u16
from tests.fuzz import packets5
from tests.fuzz.guarded import Guarded
from tests.fuzz.packets import Sample, names, payloads
from tests.fuzz.packets5 import Property, broken, sensible


def decoded(data: bytes, before: bytes = b"", behind: bytes = b"") -> tuple[int, int, Packet5]:
    """(the outcome, the offending offset, the cursor) for a packet between other bytes, none of which may be read."""
    buf = Guarded(before + data + behind)
    buf.start = len(before)
    buf.end = len(before) + len(data)
    p = Packet5(buf)
    got = packets_server.decode_packet(p, buf.start, buf.end)
    if got < 0:
        assert errors.blame(got) == errors.PEER and got in REASONS
        assert buf.start <= p.bad_at <= buf.end
        return got, p.bad_at - buf.start, p
    if got > 0:
        assert buf.start + 2 <= got <= buf.end
        walk(p)
        return got - buf.start, 0, p
    return 0, 0, p


def read(buf: Bytes, at: int, end: int) -> list[Property]:
    """A checked block's properties; nothing outside of it is read."""
    found: list[Property] = []
    while at < end:
        ident = buf[at]
        kind = props.kind_of(ident)
        value: int | bytes
        second = b""
        if kind < props.BINARY:
            value = props.number(buf, at + 1, ident)
        else:
            i = at + 3 + get_u16(buf, at + 1)
            value = bytes(buf[at + 3 : i])
            if kind == props.PAIR:
                second = bytes(buf[i + 2 : i + 2 + get_u16(buf, i)])
                str(second, "utf-8")
            if kind != props.BINARY:
                str(value, "utf-8")
        assert ident in PROPERTIES
        found.append((ident, value, second))
        at = props.skip(buf, at)
    assert at == end
    return found


def walk(p: Packet5) -> None:
    """No accessor fails behind a decoder that was content, nor reads outside of the packet."""
    kind = p.kind()
    if kind == spec.CONNECT:
        c = packets_server.Connect((spec5.PROTOCOL,))
        assert packets_server.decode_connect(p, c) == 0
        read(p.buf, c.props_at, c.props_end)
        read(p.buf, c.will_props_at, c.will_props_end)
        return
    if kind in (spec.PINGREQ, spec.PINGRESP):
        return
    assert p.body <= p.props_at <= p.props_end <= p.end
    found = read(p.buf, p.props_at, p.props_end)
    for ident in PROPERTIES:
        here = [one for one in found if one[0] == ident]
        at = props.find(p.buf, p.props_at, p.props_end, ident)
        assert (at >= 0) == bool(here)
        if props.allowed(ident) >> kind & 1 and not (props.many(ident) and kind != spec.PUBLISH):
            assert props.has(p, ident) == bool(here) or ident == 38
    if kind == spec.PUBLISH:
        assert str(p.topic_bytes(), "utf-8") == p.topic_text()
        p.payload_bytes()
        assert p.topic_text() or any(one[0] == 35 for one in found)
        assert p.qos() < 3 and (p.packet_id > 0) == (p.qos() > 0)
    elif kind in (spec.SUBSCRIBE, spec.UNSUBSCRIBE):
        count = 0
        while (options := packets_server.next_filter(p)) >= 0:
            assert options & 0xC3 < 3 and options >> 4 < 3
            str(p.topic_bytes(), "utf-8")
            count += 1
        assert count == p.code > 0
    elif kind in (spec.SUBACK, spec.UNSUBACK):
        assert p.end > p.payload_at
        assert all(code_name(code, kind) != "unknown" for code in p.buf[p.payload_at : p.end])
    else:
        assert code_name(p.code, kind) != "unknown"


@given(st.binary(max_size=64), st.binary(max_size=8), st.binary(max_size=8))
@example(b"\x30\x05\x00\x00\x02\x01\x00", b"", b"")
@example(b"\xf0\x02\x18\x00", b"", b"")
def test_any_bytes(data: bytes, before: bytes, behind: bytes) -> None:
    decoded(data, before, behind)


@given(st.integers(0, 255), st.binary(max_size=100))
def test_any_body(head: int, body: bytes) -> None:
    decoded(bytes([head, len(body)]) + body, b"\x00", b"\x00")


@given(broken, st.binary(max_size=5))
def test_damaged_packets(data: bytes, behind: bytes) -> None:
    length, bad_at, _ = decoded(data, b"\x00", behind)
    # Any beginning of it is either not enough, or shows the same error already.
    for n in range(len(data)):
        got, at, _ = decoded(data[:n])
        if got:
            assert (got, at) == (length, bad_at) or 0 < got == length <= n


@given(sensible)
def test_whole_packets_are_read_to_their_end(packet: Sample) -> None:
    data = packet.encoded
    assert decoded(data, b"\xff", b"\xff")[0] == len(data)
    for n in range(len(data)):
        assert decoded(data[:n])[0] == 0, "an early answer"


@given(sensible, st.integers(0, 40))
def test_encoders_keep_to_their_limit(packet: Sample, short: int) -> None:
    """A packet that does not fit is refused, and not a byte is written from the limit on."""
    size = len(packet.encoded)
    buf = bytearray(b"\xa5" * (size + 10))
    limit = max(3, 3 + size - short)
    end = packet.encode(buf, 3, limit)
    assert end == (3 + size if short == 0 else errors.E_TOO_LARGE)
    assert buf[:3] == b"\xa5" * 3
    assert buf[limit:] == b"\xa5" * (size + 10 - limit)
    assert len(buf) == size + 10


@given(st.data(), names, payloads, st.integers(0, 2), st.booleans(), st.integers(1, 65535))
def test_publish_and_back(
    data: st.DataObject, topic: str, payload: bytes, qos: int, retain: bool, packet_id: int
) -> None:
    found = data.draw(packets5.lists(spec.PUBLISH))
    made = packets5.block(found)
    buf = bytearray(3000)
    name = topic.encode()
    packet_id = packet_id if qos else 0
    end = packets.encode_publish(buf, 0, len(buf), name, payload, 0x30 | qos << 1 | retain, packet_id, made)
    assert end == packets.publish_size(name, payload, qos, made)
    got, _, p = decoded(bytes(buf[:end]))
    assert got == end
    assert (p.topic_text(), p.payload_bytes(), p.qos(), p.retain()) == (topic, payload, qos, retain)
    assert p.packet_id == packet_id
    assert read(p.buf, p.props_at, p.props_end) == found


@pytest.mark.parametrize("kind", [0, *(kind for kind in range(1, 16) if kind not in (12, 13))])
@given(st.data())
def test_properties_and_back(kind: int, data: st.DataObject) -> None:
    found = data.draw(packets5.lists(kind))
    made = bytes(packets5.block(found))
    buf = Guarded(b"\xff" + made + b"\xff")
    buf.start, buf.end = 1, 1 + len(made)
    p = Packet5(buf)
    assert props.check(p, 1, buf.end, 1 << kind) == buf.end
    assert read(buf, p.props_at, p.props_end) == found


@given(
    st.sampled_from(sorted(PROPERTIES)),
    st.integers() | st.binary(max_size=9) | st.text(max_size=4) | st.none(),
)
def test_any_value_is_written_right_or_refused(ident: int, value: object) -> None:
    made = props.Properties(20)
    bad = made.add(ident, value, b"v")  # type: ignore[arg-type]
    assert bad in (0, errors.E_ARGUMENT)
    block = bytes(made.block)
    if bad:
        assert block == b"\x00"
        return
    p = Packet5(block)
    assert props.check(p, 0, len(block), props.allowed(ident)) in (len(block), errors.E_VALUE)
    (got,) = read(block, 1, len(block))
    assert got[:2] == (ident, value)
