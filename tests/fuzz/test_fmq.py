"""FMQ under hypothesis: values and frames there and back, any bytes, any beginning of them, any limit."""

import struct
from decimal import Decimal
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from headwater.connection import ACCEPT
from headwater.errors import E_TOO_LARGE
from headwater.fmq import frames, frames_hub, numbers, spec
from headwater.fmq import values as core
from headwater.fmq.frames import Frame
from headwater.fmq.frames_hub import put_id
from headwater.fmq.ids import IdMaker, id_end
from headwater.fmq.session import ClientSession
from headwater.fmq.values import Value, put_int
from headwater.streaming import stream_to
from headwater.types import Bytes
from headwater_host.fmq.kinds import DateTime, Duration, Object, Pairs
from headwater_host.fmq.values import decode as host_decode
from headwater_host.fmq.values import encode as host_encode
from tests.fuzz import fmq_reference, target_fmq

integers = st.integers() | st.integers(-(1 << 70), 1 << 70) | st.sampled_from([-(1 << 63), (1 << 64) - 1])
decimals = st.builds(
    lambda unscaled, scale: Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale)),
    integers,
    st.integers(0, 300),
).map(lambda value: value if value else abs(value))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    integers,
    st.floats() | st.floats(width=32) | st.floats(width=16),
    st.text(max_size=20),
    decimals,
    integers.map(Duration),
    integers.map(DateTime),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(Object),
        st.dictionaries(st.text(max_size=4) | st.integers(2), inner, max_size=4),
        st.just(Pairs([([1], 2)])),
    ),
    max_leaves=20,
)
texts = st.text(max_size=300) | st.just("")
topics = st.text(min_size=1, max_size=20) | st.text("a/é", min_size=250, max_size=260)
names = topics | st.integers(0, (1 << 128) - 1)
idents = st.builds(
    lambda kind, process, thread, time: (kind, process, thread, time),
    st.integers(0, 15),
    st.integers(0, (1 << 24) - 1),
    st.integers(0, (1 << 20) - 1),
    st.integers(-(1 << 63), (1 << 64) - 1),
)


def written(ident: tuple[int, int, int, int]) -> bytes:
    buf = bytearray(40)
    time = bytes(buf[: put_int(buf, 0, 12, ident[3], spec.DATETIME)])
    end = put_id(buf, 0, 40, *ident[:3], time)
    assert end > 0
    return bytes(buf[:end])


@given(values)
def test_values_and_back(value: Any) -> None:
    data = host_encode(value)
    assert repr(host_decode(data, strict=True)) == repr(value)
    target_fmq.value(b"\x20" + data)


@given(st.binary(max_size=80), st.integers(0, 39))
def test_any_bytes_as_a_value(data: bytes, depth: int) -> None:
    target_fmq.value(bytes([depth]) + data)


@given(values, st.data())
def test_damaged_values(value: Any, data: st.DataObject) -> None:
    damaged = bytearray(host_encode(value))
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    target_fmq.value(b"\x20" + damaged)


@given(st.floats(allow_nan=False))
@example(5e-324)
@example(2.0**-24)
@example(65504.0)
@example(3.4028234663852886e38)
def test_the_narrowest_float(value: float) -> None:
    buf = bytearray(12)
    end = numbers.put_float(buf, 1, 12, value)
    assert bytes(buf[1:end]) == host_encode(value)
    v = Value(buf)
    assert core.read(v, 1, end) == end
    assert struct.pack("d", numbers.float_of(v)) == struct.pack("d", value)


@given(st.binary(max_size=80))
def test_any_bytes_as_a_frame(data: bytes) -> None:
    target_fmq.frame(data)


@given(st.integers(0, 255), idents, st.binary(max_size=60))
def test_any_body(head: int, ident: tuple[int, int, int, int], body: bytes) -> None:
    buf = bytearray(8)
    length = bytes(buf[: frames.put_length(buf, 0, len(body))])
    target_fmq.frame(bytes([head]) + written(ident) + length + body)


def _head(kind: int, flags: int) -> int:
    return kind << 4 | flags


_texts = st.lists(texts.map(str.encode), max_size=3)
_name = names.map(lambda name: name.encode() if isinstance(name, str) else name)
_text = texts.map(str.encode)
_number = st.integers(0, (1 << 70) - 1)
_rest = st.binary(max_size=40)
_wanted = (_name, _texts, _text, _text)
#: The first byte and fields of frames.
bodies = st.one_of(
    st.tuples(
        st.just(0x00),
        st.tuples(
            _text, st.none() | _text, st.none() | _text, _number, st.booleans(),
            _text, st.integers(0, 2), st.booleans(), _rest,
        ),
    ),
    st.tuples(st.just(0x20), st.tuples(_text, _number)),
    st.tuples(st.sampled_from([0x30, 0x31, 0x32, 0x3D]), st.tuples(_name, _texts, _rest)),
    st.tuples(st.just(0x80), st.tuples(*_wanted)),
    st.tuples(st.just(0x90), st.tuples(_number)),
    st.tuples(st.sampled_from([0xA0, 0xA1]), st.tuples(_number, _number)),
    st.tuples(st.sampled_from([0xA2, 0xA3]), st.tuples(*_wanted, _rest)),
    st.tuples(st.just(0xB0), st.tuples(_number, st.none() | _name, _texts, _rest)),
    st.tuples(st.just(0xF0), st.tuples(_text)),
    st.tuples(st.sampled_from([0x50, 0x60, 0x70, 0xC0, 0xE0]), st.just(())),
)  # fmt: skip


@given(idents, bodies, st.integers(0, 60))
def test_frames_and_back(ident: tuple[int, int, int, int], body: tuple[int, Any], short: int) -> None:
    head, fields = body
    name = written(ident)
    buf = bytearray(b"\xa5" * 4000)
    end = frames.encode_frame(buf, 3, 3900, head, name, fields)
    assert end > 0
    f = Frame(buf, 4000)
    assert frames_hub.decode_frame(f, 3, end) == end
    want = fmq_reference.decode(bytes(buf[3:end]), 4000)
    assert want is not None
    texts = [one.encode() if isinstance(one, str) else one for one in want[0][3]]
    texts = [[tag.encode() for tag in one] if isinstance(one, list) else one for one in texts]
    # A rest of nothing is none.
    assert list(fields) in (texts, [*texts, b""])
    # It keeps to its limit.
    limit = end - short
    buf = bytearray(b"\xa5" * 4000)
    if limit > 3:
        assert frames.encode_frame(buf, 3, limit, head, name, fields) == (end if short == 0 else E_TOO_LARGE)
        assert buf[:3] == b"\xa5" * 3
        assert buf[limit:] == b"\xa5" * (4000 - limit)


@given(
    idents, topics, st.lists(topics, max_size=3), st.binary(max_size=400), st.sampled_from([0x30, 0x32, 0x35])
)
def test_publish_is_the_frame_it_should_be(
    ident: tuple[int, int, int, int], topic: str, tags: list[str], payload: bytes, head: int
) -> None:
    encoded = [tag.encode() for tag in tags]
    name = written(ident)
    one, other = bytearray(3000), bytearray(3000)
    end = frames_hub.encode_publish(
        one, 0, 3000, head, name, topic.encode(), payload, frames.tag_list(encoded)
    )
    assert end == frames.encode_frame(other, 0, 3000, head, name, (topic.encode(), encoded, payload))
    assert one == other
    size = frames.message_size(topic.encode(), payload, frames.tag_list(encoded))
    assert end == 1 + len(name) + frames.length_size(size) + size


@given(idents)
def test_ids_and_back(ident: tuple[int, int, int, int]) -> None:
    data = written(ident)
    assert id_end(data, 0, len(data)) == len(data) <= 18
    meaning = fmq_reference.decode(b"\x50" + data, 0)
    assert meaning is not None
    assert meaning[0][2] == data


@given(st.lists(st.tuples(st.integers(0, 3000), st.booleans()), max_size=30), st.integers(0, 5000))
def test_ids_increase(steps: list[tuple[int, bool]], now: int) -> None:
    """Whatever the clock does, and the hub's time says."""
    maker = IdMaker(now_ms=now)
    last = 0
    for step, told in steps:
        now += step
        if told:
            assert maker.set_time(((1 << 60) + step * 7919).to_bytes(8, "little"), 0, 8, now) == 0
        ident = bytes(maker.next(spec.PUBLISH, now & 0x3FFFFFFF))
        made = int.from_bytes(ident[-8:], "little")
        assert made > last
        last = made


class _Sink:
    def __init__(self) -> None:
        self.got = b""
        self.ended = False

    def open(self, f: Frame, size: int) -> bool:
        return True

    def write(self, buf: Bytes, at: int, n: int) -> None:
        self.got += bytes(buf[at : at + n])

    def close(self, complete: bool) -> None:
        self.ended = complete


@given(
    st.integers(64, 104),
    st.lists(st.integers(1, 40), min_size=1, max_size=20),
    st.text(max_size=40),
    st.lists(st.text(max_size=5), max_size=3),
    st.integers(91, 600),
)
def test_large_messages_whatever_the_pieces(
    capacity: int, pieces: list[int], topic: str, tags: list[str], size: int
) -> None:
    payload = bytes(i & 255 for i in range(size))
    name = written((3, 1, 3, 1790000000123456789))
    made = bytearray(3000)
    fields = (topic.encode(), [tag.encode() for tag in tags], payload)
    data = bytes(made[: frames.encode_frame(made, 0, 3000, 0x34, name, fields)])
    sink = _Sink()
    session = ClientSession(b"board", rx_size=capacity)
    assert session.connect(0) == 0
    # The hub has accepted the connection.
    session.tx_end = 0
    session.event(ACCEPT)
    stream_to(session, sink)
    at = turn = 0
    while at < len(data):
        n = min(pieces[turn % len(pieces)], session.rx.window(), len(data) - at)
        turn += 1
        session.rx.view[:n] = data[at : at + n]
        assert session.feed(n) == 0
        at += n
    assert session.large_left == 0
    fits = len(data) - len(payload) <= session.rx.capacity
    assert session.skipped == (0 if fits else 1)
    assert (sink.got, sink.ended) == ((payload, True) if fits else (b"", False))
    assert bytes(session.tx[: session.tx_end]) == b"\x50" + name
