"""Payloads cut into segments on a computer, and put together again by the rules of ``logical``."""

import io
import os
import sqlite3
from itertools import product
from typing import Any

import pytest

from headwater.ibmmq.segments import GroupIds
from headwater_host.mq.reassembly.assembler import Assembler
from headwater_host.mq.reassembly.outcomes import Whole, WholeGroup
from headwater_host.mq.segments import PayloadError, segments
from tests.rows import each_row

DATA = os.urandom(1000)


def ids() -> GroupIds:
    return GroupIds(b"host", os.urandom(8))


def put_together(payloads: list[bytes], groups: bool = False) -> list[Any]:
    """What comes out, with the payloads in reverse order and each of them twice."""
    found: list[Any] = []
    assembler = Assembler(sqlite3.connect(":memory:"), groups=groups)
    for payload in [payload for payload in reversed(payloads) for _ in range(2)]:
        for outcome in assembler.add("t", payload, 0.0):
            if isinstance(outcome, WholeGroup):
                found.append([message.read() for message in outcome.messages()])
            else:
                assert isinstance(outcome, Whole), outcome
                found.append(outcome.read())
    assert not list(assembler.expire(1e9))
    return found


@each_row("size, n", product([16, 48, 496, 512], [17, 512, 513, 992, 1000]))
def test_a_payload_in_segments_comes_together(size: int, n: int) -> None:
    for payload in (DATA[:n], io.BytesIO(DATA[:n])):
        made = list(segments(payload, ids=ids(), piece=size))
        if len(made) == 1:
            assert made[0][72:] == DATA[:n]
            continue
        assert put_together(made) == [DATA[:n]]
        assert {len(one) for one in made[:-1]} == {72 + size}


def test_several_payloads_are_a_group() -> None:
    payloads: tuple[bytes | io.BytesIO, ...] = (DATA, b"", DATA[:5], io.BytesIO(DATA[7:]))
    made = list(segments(*payloads, ids=ids(), piece=64, big=False, ccsid=500, format=b"MQSTR"))
    assert put_together(made, groups=True) == [[DATA, b"", DATA[:5], DATA[7:]]]


def test_a_payload_is_as_long_as_its_bytes() -> None:
    made = list(segments(memoryview(DATA).cast("I"), ids=ids(), piece=64))
    assert put_together(made) == [DATA]


def test_a_file_is_read_as_it_goes_on() -> None:
    file = io.BytesIO(bytes(10000))
    made = segments(file, ids=ids(), piece=16)
    next(made)
    assert file.tell() == 16


def test_a_file_has_the_length_that_was_said() -> None:
    # No empty segment at its end, then.
    assert len(list(segments(io.BytesIO(DATA[:512]), ids=ids(), piece=64, length=512))) == 8
    for length, says in ((511, "it is longer than its length"), (513, "it ends before its length")):
        made = segments(io.BytesIO(DATA[:512]), ids=ids(), piece=64, length=length)
        assert len([next(made) for _ in range(7)]) == 7
        with pytest.raises(PayloadError, match=f"payload 1 cannot be sent: {says}"):
            list(made)
    with pytest.raises(PayloadError, match="it is too large for one message"):
        next(segments(io.BytesIO(), ids=ids(), piece=64, length=1 << 30))
    with pytest.raises(ValueError, match="length needs exactly one payload"):
        list(segments(DATA, DATA, ids=ids(), length=len(DATA)))


def test_a_stream_may_give_a_few_bytes_at_a_time() -> None:
    class Few(io.BytesIO):
        reads = 0

        def readinto(self, buf: Any) -> int:
            Few.reads += 1
            return super().readinto(memoryview(buf)[:100])

    assert put_together(list(segments(Few(DATA), ids=ids(), piece=496))) == [DATA]
    # As many as there are, and not 16 at a time.
    assert Few.reads < 15


@each_row("size", [-16, 0, 15, 100])
def test_a_piece_is_a_multiple_of_16(size: int) -> None:
    with pytest.raises(ValueError, match="multiple of 16"):
        list(segments(DATA, ids=ids(), piece=size))


def test_a_source_that_is_none_or_has_nothing_for_now() -> None:
    class Slow(io.RawIOBase):
        def readinto(self, buf: Any) -> None:
            return None

    with pytest.raises(BlockingIOError, match="payload 1"):
        list(segments(Slow(), ids=ids()))
    with pytest.raises(ValueError, match="payload 2 cannot be sent: it is neither bytes nor"):
        list(segments(DATA, 5, ids=ids()))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="format"):
        list(segments(DATA, ids=ids(), format=b"TOO LONG A NAME"))
