"""Every MQTT decoder on arbitrary and on damaged bytes, and encoders and decoders as inverses of each other."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater import errors
from headwater.mqtt import packets
from headwater.mqtt import properties as props
from headwater.mqtt.properties import Packet5
from headwater.names5 import PROPERTIES
from headwater.wire import check_utf8, put_varint, varint_size
from tests.fuzz import mqtt_reference as reference
from tests.fuzz import target_packets
from tests.fuzz.packets import damaged, encoded, meanings, properties, sensible
from tests.fuzz.target_packets import judged

each_level = pytest.mark.parametrize("level", target_packets.PROTOCOLS)


@each_level
@given(st.data())
def test_any_bytes(level: int, data: st.DataObject) -> None:
    body = data.draw(st.binary(max_size=100))
    target_packets.packet(body, level)
    target_packets.packet(bytes([data.draw(st.integers(0, 255)), len(body)]) + body, level)


@pytest.mark.parametrize("text", ["", "30ffffffff", "30050000020100", "f0021800"])
@each_level
def test_some_bytes(level: int, text: str) -> None:
    target_packets.packet(bytes.fromhex(text), level)


@each_level
@given(st.data())
def test_damaged_packets(level: int, data: st.DataObject) -> None:
    """Any beginning of it is either not enough, or shows the same error already."""
    packet = data.draw(damaged(sensible(level)))
    whole = judged(packet, level)
    for n in range(len(packet)):
        assert judged(packet[:n], level) in ((0, 0), whole)


@each_level
@settings(max_examples=200)
@given(data=st.data(), short=st.integers(0, 40))
def test_packets_and_back(level: int, data: st.DataObject, short: int) -> None:
    m = data.draw(meanings(level))
    packet = encoded(m, level)
    assert reference.decode(packet, level) == (m, len(packet))
    assert judged(packet, level) == (len(packet), 0)
    for n in range(len(packet)):
        assert judged(packet[:n], level)[0] == 0, "an early answer"
    # A packet that does not fit is refused, and not a byte is written from the limit on.
    size = len(packet)
    buf = bytearray(b"\xa5" * (size + 10))
    limit = max(3, 3 + size - short)
    assert target_packets.encode(m, level, buf, 3, limit) == (3 + size if short == 0 else errors.E_TOO_LARGE)
    assert buf[:3] == b"\xa5" * 3
    assert buf[limit:] == b"\xa5" * (size + 10 - limit)
    assert len(buf) == size + 10
    if m[0] == reference.PUBLISH:
        block = (target_packets.encoded_properties(m[7], 1 << reference.PUBLISH),) if level == 5 else ()
        assert packets.publish_size(m[1].encode(), m[2], m[3], *block) == size


@settings(max_examples=300)
@given(st.integers(0, 15).flatmap(lambda where: st.tuples(st.just(where), properties(where))))
def test_properties_and_back(block: tuple[int, list[tuple[int, object]]]) -> None:
    where, found = block
    made = target_packets.encoded_properties(found, 1 << where)
    assert reference.properties(reference.Reader(made), where) == found
    target_packets.property_block(bytes([where]) + made)


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
    ((name, got),) = target_packets.properties(p, 1, len(block))
    first = got[0] if isinstance(got, tuple) else got
    assert (name, first.encode() if isinstance(first, str) else first) == (ident, value)


# -- what packets are made of ------------------------------------------------------------------------------------------


@given(st.binary(max_size=12) | st.text(max_size=6).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b"\xed\xa0\x80")
@example(b"\xf4\x90\x80\x80")
@example(b"\xf0\x8f\xbf\xbf")
def test_utf8_is_what_python_says(data: bytes) -> None:
    bad = check_utf8(b"\xff" + data + b"\x80", 1, 1 + len(data)) - 1
    try:
        data.decode("utf-8")
        expected = data.find(0)
    except UnicodeDecodeError as error:
        zero = data.find(0)
        expected = zero if 0 <= zero < error.start else error.start
    assert bad == expected if expected >= 0 else bad < 0


@given(st.integers(0, 268435455))
@example(127)
@example(128)
@example(16383)
@example(16384)
@example(2097151)
@example(2097152)
def test_varint_and_back(value: int) -> None:
    buf = bytearray(8)
    end = put_varint(buf, 1, value)
    assert end - 1 == varint_size(value)
    p = packets.Packet(b"\x30" + bytes(buf[1:end]))
    assert packets.decode_header(p, 0, end) == end + value


_level = st.sampled_from(["", "a", "b", "ab", "$S", "$share"])
_names = st.lists(_level, min_size=1, max_size=4).map("/".join)
_filters = st.lists(_level | st.just("+"), max_size=4).flatmap(
    lambda levels: st.sampled_from(["/".join(levels), "/".join([*levels, "#"])])
)
_any = st.text(st.sampled_from("a/+#$é\0"), max_size=6)


@settings(max_examples=300)
@given(_names | _any, _filters | _any)
@example("sport", "sport/#")
@example("/finance", "+/+")
@example("/finance", "+")
@example("$SYS", "#")
@example("$SYS", "$SYS/#")
def test_names_and_filters_are_the_specification_s(name: str, pattern: str) -> None:
    target_packets.topic(f"{name}\n{pattern}".encode())
