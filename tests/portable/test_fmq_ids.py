# heap: 512K
"""FMQ's message ids: the shared vectors both ways, and who makes ids on a board with and without a clock."""

import vectors

from headwater.errors import E_ARGUMENT, E_TOO_LARGE
from headwater.fmq import spec
from headwater.fmq.frames_hub import put_id, thread_at, time_at
from headwater.fmq.ids import IdMaker, id_end, same
from headwater.fmq.values import Value, number, put_int, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

MS = 1000000
NOW = 1790000000123456789


def little(data: "Bytes") -> int:
    value = 0
    for byte in reversed(list(data)):
        value = value << 8 | byte
    return value


def time_of(ident: "Bytes", at: int = 0) -> int:
    v = Value(ident)
    assert read(v, time_at(ident, at), len(ident)) > 0
    return number(v)


def encoded_time(time: int) -> bytes:
    buf = bytearray(12)
    return bytes(buf[: put_int(buf, 0, 12, time, spec.DATETIME)])


def eight(time: int) -> bytes:
    return bytes([time >> 8 * i & 255 for i in range(8)])


def test_read() -> None:
    for row in vectors.rows("fmq", "message_ids"):
        ident = vectors.unhex(row["hex"])
        for before, behind in ((b"", b""), (b"\xff\x30", b"\x00\xff"), (b"\x00", b"\x31" * 20)):
            data = before + ident + behind
            at = len(before)
            end = at + len(ident)
            assert id_end(data, at, len(data)) == end, row
            assert id_end(data, at, end) == end, row
            for n in range(at, end):
                assert id_end(data, at, n) == 0, (row, n)
            assert data[at] >> 4 == row["type"]
            t = thread_at(data, at)
            assert little(data[at + 1 : t]) == row["process"], row
            time = time_at(data, at)
            assert little(data[t + 1 : time]) << 4 | data[t] & 15 == row["thread"], row
            assert time_of(data[:end], at) == int(row["time_ns"]), row


def test_malformed() -> None:
    for row in vectors.rows("fmq", "malformed_message_ids"):
        data = vectors.unhex(row["hex"])
        for behind in (b"", b"\x00" * 20):
            whole = data + behind
            assert id_end(whole, 0, len(whole)) == spec.E_ID, row
        for n in range(len(data)):
            assert id_end(data, 0, n) in (0, spec.E_ID), (row, n)


def test_write() -> None:
    for row in vectors.rows("fmq", "message_ids"):
        want = vectors.unhex(row["hex"])
        n = len(want)
        buf = bytearray(b"\x55" * 24)
        arguments = (row["type"], row["process"], row["thread"], encoded_time(int(row["time_ns"])))
        assert put_id(buf, 2, 2 + n, *arguments) == 2 + n, row
        assert buf[2 : 2 + n] == want and buf[2 + n :] == b"\x55" * (22 - n), row
        for limit in range(2, 2 + n):
            assert put_id(buf, 2, limit, *arguments) == E_TOO_LARGE, (row, limit)


def test_an_id_of_more_than_18_bytes_is_not_written() -> None:
    buf = bytearray(40)
    assert put_id(buf, 0, 40, 3, 1 << 56, 0, encoded_time(NOW)) == E_ARGUMENT
    assert put_id(buf, 0, 40, 3, 1 << 40, 16, encoded_time(NOW)) == 18
    assert put_id(buf, 0, 40, 3, 1 << 40, 1 << 12, encoded_time(NOW)) == E_ARGUMENT


def test_same() -> None:
    a = b"\x00\x31\x01\x03\xb1\x05\x00"
    assert same(a, 1, 6, b"\x31\x01\x03\xb1\x05", 0)
    assert same(a, 1, 6, a, 1)
    for i in range(5):
        other = bytearray(a[1:6])
        other[i] ^= 0x80
        assert not same(a, 1, 6, other, 0), i
    assert not same(a, 1, 6, a[1:5], 0)


def test_ids_increase_by_a_nanosecond_while_the_clock_stands() -> None:
    maker = IdMaker(3, now_ms=500)
    assert maker.set_process(b"\x2c\x01", 0, 2) == 0
    assert maker.set_time(eight(NOW), 0, 8, 500) == 0
    for k in range(1, 600):
        assert time_of(maker.next(spec.PUBLISH, 500)) == NOW + k
    ident = maker.ident
    assert bytes(ident[:4]) == b"\x32\x2c\x01\x03"
    assert id_end(ident, 0, len(ident)) == len(ident) == 13


def test_ids_follow_the_clock_and_do_not_run_away_from_it() -> None:
    maker = IdMaker()
    assert maker.set_time(eight(NOW), 0, 8, 7) == 0
    last = NOW
    ms = 7
    for step in (0, 0, 1, 0, 0, 0, 2, 1000, 0, 1001, 5000, 0, 86400000, 1, 0x1FFFFFFF):
        ms += step
        time = time_of(maker.next(spec.PUBLISH, ms & 0x3FFFFFFF))
        assert time > last
        # Behind the clock by nothing, before it by what was added since it moved.
        assert 0 <= time - NOW - (ms - 7) * MS < 5, (step, time)
        last = time


def test_many_ids_within_a_millisecond() -> None:
    """More than a million nanoseconds were never added in a test; a clock that moves by less than was is waited for."""
    maker = IdMaker()
    assert maker.set_time(eight(NOW), 0, 8, 0) == 0
    maker._more = 1500000
    start = time_of(maker.next(spec.PUBLISH, 0))
    assert time_of(maker.next(spec.PUBLISH, 1)) == start + 1
    assert time_of(maker.next(spec.PUBLISH, 2)) == start + 1 + 2 * MS - 1500002


def test_a_clock_that_goes_back_does_not_take_ids_back() -> None:
    maker = IdMaker(now_ms=1000)
    assert maker.set_time(eight(NOW), 0, 8, 1000) == 0
    a = time_of(maker.next(spec.PUBLISH, 1000))
    assert time_of(maker.next(spec.PUBLISH, 10)) == a + 1
    # The hub's clock is behind: ids go on from where they were.
    assert maker.set_time(eight(NOW - 5), 0, 8, 1000) == 0
    assert time_of(maker.next(spec.PUBLISH, 1000)) == a + 2
    assert maker.set_time(eight(NOW + MS), 0, 8, 1000) == 0
    assert time_of(maker.next(spec.PUBLISH, 1000)) == NOW + MS + 1


def test_without_a_clock_a_boot_counter_keeps_ids_apart() -> None:
    last = 0
    for boot in (0, 1, 2, 65535):
        maker = IdMaker(boot=boot)
        first = time_of(maker.next(spec.AUTH, 0))
        assert first == (1 << 56) + (boot << 44) + 1
        assert first > last
        # Four hours of work.
        last = time_of(maker.next(spec.AUTH, 4 * 3600 * 1000))
        assert last < NOW
        assert maker.set_time(eight(NOW), 0, 8, 4 * 3600 * 1000) == 0
        assert time_of(maker.next(spec.AUTH, 4 * 3600 * 1000)) == NOW + 1


def test_the_process_number() -> None:
    maker = IdMaker(4096)
    assert bytes(maker.next(spec.AUTH, 0)[:4]) == b"\x00\x20\x00\x01"
    time = time_of(maker.ident)
    # As it stands in an ACK, in a longer form.
    assert maker.set_process(b"\xff\x70\x11\x01\x00\x00\xff", 1, 6) == 0
    ident = maker.next(spec.CONSUME, 0)
    assert bytes(ident[:7]) == b"\xa3\x70\x11\x01\x20\x00\x01"
    assert time_of(ident) == time + 1 and len(ident) == 16
    assert maker.set_process(b"\x00", 0, 1) == 0
    assert bytes(maker.next(spec.AUTH, 0)[:4]) == b"\x00\x20\x00\x01"
    # 18 bytes is the most.
    assert maker.set_process(b"\x01" * 5, 0, 5) == 0
    assert len(maker.ident) == 18
    assert maker.set_process(b"\x01" * 6, 0, 6) == E_ARGUMENT
    assert maker.set_process(b"\x01" * 16, 0, 16) == E_ARGUMENT
    assert time_of(maker.next(spec.PUBLISH, 0)) == time + 3


def test_wrong_times_are_refused() -> None:
    maker = IdMaker()
    assert maker.set_time(b"\x01" * 7, 0, 7, 0) == E_ARGUMENT
    assert maker.set_time(b"\x01" * 9, 0, 9, 0) == E_ARGUMENT
