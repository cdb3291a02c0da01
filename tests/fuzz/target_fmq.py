"""Targets: FMQ's values, against the host's; its frames, against a reference.

A value's input is its bytes, in front of which is how deep it may be. A frame's input is its bytes.
"""

from decimal import Decimal
from typing import Any

from headwater import errors
from headwater.fmq import frames, frames_hub, ids, numbers, spec
from headwater.fmq import values as core
from headwater.fmq.frames import Frame
from headwater.fmq.names import REASONS
from headwater.fmq.values import Value, put_int
from headwater_host.fmq import values as host
from headwater_host.fmq.kinds import DateTime, Duration, Object, Pairs
from tests.fuzz import fmq_reference as reference
from tests.fuzz.guarded import Guarded

BEFORE, BEHIND = b"\xd5\x30", b"\x00\xffa"
LIMIT = 300


def _guarded(data: bytes) -> Guarded:
    buf = Guarded(BEFORE + data + BEHIND)
    buf.start = len(BEFORE)
    buf.end = buf.start + len(data)
    return buf


# -- values ------------------------------------------------------------------------------------------------------------


def _said(v: Value, at: int, end: int) -> tuple[Any, int]:
    """The value at ``at``, from what the cursor says of it, as the host has it."""
    at = core.read(v, at, end)
    assert at > 0
    kind = v.kind
    if kind >= spec.LIST:
        found = []
        for _ in range(v.count * 2 if kind == spec.MAP else v.count):
            one, at = _said(v, at, end)
            found.append(one)
        if kind == spec.OBJECT:
            return Object(found), at
        return (Pairs(zip(found[::2], found[1::2], strict=True)) if kind == spec.MAP else found), at
    if kind == spec.NONE:
        return None, at
    if kind == spec.BOOL:
        return v.low == 1, at
    if kind == spec.STRING:
        return bytes(v.buf[v.at : v.end]).decode(), at
    if kind == spec.FLOAT:
        return numbers.float_of(v), at
    number = core.number(v)
    if kind == spec.DECIMAL:
        assert numbers.precision(v) >= 0
        return (number, numbers.scale(v)), at
    if kind == spec.DURATION:
        return Duration(number), at
    return (DateTime(number) if kind == spec.DATETIME else number), at


def _alike(ours: Any, theirs: Any) -> bool:
    """Whether the core's value is the host's: a decimal is its parts there, a map always pairs."""
    if isinstance(theirs, Decimal):
        sign, digits, exponent = theirs.as_tuple()
        unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
        return bool(ours == (unscaled, -int(exponent)))
    if isinstance(theirs, dict):
        theirs = Pairs(theirs.items())
    if isinstance(theirs, (list, tuple)):
        return (
            isinstance(ours, (list, tuple))
            and len(ours) == len(theirs)
            and all(map(_alike, ours, theirs))
            and isinstance(ours, Object) == isinstance(theirs, Object)
        )
    return type(ours) is type(theirs) and repr(ours) == repr(theirs)


def value(data: bytes) -> None:
    """A value in front of something else."""
    depth = data[0] % 40 if data else 0
    data = data[1:]
    buf = _guarded(data)
    start, end = buf.start, buf.end
    v = Value(buf, depth)
    got = numbers.check(v, start, end)
    wrong = None
    theirs, stop = None, 0
    try:
        theirs, stop = host.decode_at(bytes(data), 0, len(data), depth=depth)
    except host.MalformedValueError as error:
        wrong = error
    if wrong is not None:
        if (got, v.bad_at - start) != (wrong.code, wrong.offset):
            # The one thing that the host has no value for, and goes on no further: a decimal with too large a scale.
            assert wrong.code == spec.E_FORM and data[wrong.offset] >> 4 in (7, 8)
        assert got > 0 or got in REASONS
        return
    assert got - start == stop
    kind = core.KINDS[data[0] >> 4]
    assert v.kind == kind
    ours, at = _said(Value(buf), start, got)
    assert at == got
    assert _alike(ours, theirs), (ours, theirs)
    # Cut short, it is none.
    for n in {stop // 2, stop - 1}:
        assert numbers.check(Value(_guarded(data[:n]), depth), start, start + n) == errors.E_FIELD
    # Written again it is no longer, and means the same. Only a decimal's precision may have been too small: above 255
    # digits the right one takes a byte more.
    again = host.encode(theirs, depth=depth)
    assert len(again) <= stop + _decimals(theirs)
    assert repr(host.decode(again, depth=depth, strict=True)) == repr(theirs)
    _written_by_the_core(theirs, again)


def _decimals(value: Any) -> int:
    """How many decimals there are in a value."""
    if isinstance(value, dict):
        return sum(_decimals(key) + _decimals(one) for key, one in value.items())
    if isinstance(value, list | tuple):
        return sum(map(_decimals, value))
    return isinstance(value, Decimal)


def _written_by_the_core(value: Any, want: bytes) -> None:
    """Numbers, as the core writes them where there is just room, and too little."""
    n = len(want)
    buf = bytearray(n + 4)
    tag = {int: spec.INT, Duration: spec.DURATION, DateTime: spec.DATETIME}.get(type(value))
    for limit in (n + 2, n + 1):
        if tag is not None:
            end = put_int(buf, 2, limit, value if tag == spec.INT else value.nanoseconds, tag)
        elif isinstance(value, float):
            end = numbers.put_float(buf, 2, limit, value)
        else:
            return
        if limit == n + 2:
            assert end == limit
            assert buf[2:end] == want
        else:
            assert end == errors.E_TOO_LARGE
    assert buf[n + 2 :] == bytes(2)


# -- frames ------------------------------------------------------------------------------------------------------------


def _verdict(data: bytes) -> tuple[reference.Meaning, int] | int:
    """What the reference makes of ``data``: -1 for malformed, 0 for not all there."""
    try:
        return reference.decode(data, LIMIT) or 0
    except reference.MalformedError:
        return -1


def _field(f: Frame, k: int, want: Any) -> None:
    """Field ``k`` says what it should."""
    data = bytes(f.buf[f.at[k] : f.at[k + 1]])
    if isinstance(want, bytes):
        assert data == want
    elif isinstance(want, tuple) or (isinstance(want, list) and want and isinstance(want[0], tuple)):
        found = []
        while data:
            size = data[0] & 15 or 16
            ip = int.from_bytes(data[1 : size + 1], "little")
            found.append((data[0] >> 4, ip, data[size + 1] | data[size + 2] << 8))
            data = data[size + 3 :]
        assert found == (want if isinstance(want, list) else [want])
    else:
        assert repr(host.decode(data)) == repr(want)


def frame(data: bytes) -> None:
    """The frame at the beginning of ``data``."""
    want = _verdict(data)
    buf = _guarded(data)
    start, end = buf.start, buf.end
    f = Frame(buf, LIMIT)
    got = frames_hub.decode_frame(f, start, end)
    scanned = Frame(buf, LIMIT)
    short = frames.scan(scanned, start, end)
    if got < 0:
        assert got in REASONS and errors.blame(got) in (errors.PEER, errors.ROOM)
        assert start <= f.bad_at <= end
        assert want == -1 or (want == 0 and _verdict(data + bytes(64)) == -1), (want, REASONS[got])
        assert short == 0
    elif got == 0:
        assert want == 0 == short, want
    else:
        assert isinstance(want, tuple), want
        assert got - start == want[1]
        _agrees(f, want[0])
        _and_back(f, want[0])
        assert short in (0, got)
        if short:
            _agrees(scanned, want[0])
            fields = ("topic_at", "topic_end", "tags_at", "payload_at", "body", "end", "id_at", "id_end")
            assert [getattr(f, name) for name in fields] == [getattr(scanned, name) for name in fields]
    # Whatever of it came first was either not enough, or showed the same error.
    for n in {len(data) // 2, len(data) - 1} - {-1}:
        early = frames_hub.decode_frame(Frame(_guarded(data[:n]), LIMIT), start, start + n)
        assert early in (0, got), (n, early, got)


def _agrees(f: Frame, want: reference.Meaning) -> None:
    kind, flags, ident, fields = want
    assert (f.head, bytes(f.buf[f.id_at : f.id_end])) == (kind << 4 | flags, ident)
    assert ids.id_end(ident, 0, len(ident)) == len(ident)
    assert f.asked() == ident[0] >> 4
    assert f.count == len(fields)
    for k, field in enumerate(fields):
        _field(f, k, field)
    if kind in (spec.PUBLISH, spec.CONSUMERESP):
        topic, tags, payload = fields[-3:]
        assert f.has_topic() == isinstance(topic, str)
        if isinstance(topic, str):
            assert f.topic_text() == topic and f.topic_is(topic.encode())
        assert f.payload_bytes() == payload
        assert host.decode_at(bytes(f.buf[f.tags_at : f.payload_at]), 0, f.payload_at - f.tags_at)[0] == tags
    elif kind == spec.ACK:
        assert f.code == (fields[0] if fields and isinstance(fields[0], int) else 0)


def _and_back(f: Frame, want: reference.Meaning) -> None:
    """Written again it is no longer than it was, and means the same."""
    kind, flags, ident, fields = want
    made: list[Any] = []
    for k, field in enumerate(fields):
        if isinstance(field, str):
            made.append(field.encode())
        elif isinstance(field, list) and all(isinstance(one, str) for one in field):
            made.append([one.encode() for one in field])
        elif isinstance(field, (tuple, list, DateTime)):
            made.append(bytes(f.buf[f.at[k] : f.at[k + 1]]))
        else:
            made.append(field)
    size = f.end - f.id_at + 1
    out = bytearray(size)
    end = frames.encode_frame(out, 0, size, kind << 4 | flags, ident, made)
    assert 0 < end <= size
    assert repr(reference.decode(bytes(out[:end]), LIMIT)) == repr((want, end))
    assert frames.encode_frame(out, 0, end - 1, kind << 4 | flags, ident, made) == errors.E_TOO_LARGE
