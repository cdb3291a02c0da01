"""Properties of the serial link: framing against the reference, hostile frames, and arbitrary schedules of faults."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.link.frames import (
    DAMAGED,
    FOREIGN,
    INIT,
    OK,
    PAYLOAD,
    SPECIALS,
    TRAILER,
    Unstuffer,
    check_frame,
    crc16,
    frame_size,
    stuff,
    stuffed_size,
)
from headwater.link.link import CLOSING, ENDED, IDLE, UP, Link
from tests.fuzz import link_reference as reference

sys.path.insert(0, str(Path(__file__).parents[1] / "portable"))

from line import Bench

#: Bytes in which what matters to the stuffing is frequent.
specials = st.lists(
    st.one_of(st.sampled_from(SPECIALS[1:]), st.integers(0, 255), st.sampled_from([20, 21, 251, 252]))
).map(bytes)
runs = st.lists(st.integers(30, 70).map(lambda n: b"r" * n), max_size=5).map(b"\3".join)
data = st.one_of(st.binary(max_size=240), specials, runs)

frames = st.builds(
    reference.Frame,
    kind=st.integers(0, 7),
    channel=st.integers(0, 7),
    seq=st.integers(0, 255),
    ack=st.integers(0, 255),
    credit=st.integers(0, 255),
    key=st.integers(0, 0xFFFF),
    payload=st.binary(max_size=PAYLOAD),
    version=st.sampled_from([1, 1, 1, 0, 2, 3]),
)


def stuffed(pieces: list[bytes]) -> bytes:
    out = bytearray(sum(stuffed_size(len(piece)) for piece in pieces) + 1)
    end = 0
    for piece in pieces:
        end = stuff(piece, 0, len(piece), out, end)
    return bytes(out[:end])


def unstuffed(line: bytes, cuts: list[int], capacity: int = PAYLOAD + TRAILER) -> list[bytes | None]:
    """The frames of a line fed in pieces; None for a damaged one."""
    rx = Unstuffer(capacity)
    found: list[bytes | None] = []
    edges = sorted({0, len(line), *(cut % (len(line) + 1) for cut in cuts)})
    for at, end in pairwise(edges):
        while at < end:
            at = rx.take(line, at, end)
            if rx.size:
                found.append(bytes(rx.buf[: rx.size]) if rx.size > 0 else None)
    return found


@given(data)
def test_checksum_is_that_of_the_reference(message: bytes) -> None:
    assert crc16(message, 0, len(message), INIT) == reference.crc(message)


@given(data)
def test_stuffing_is_that_of_the_reference(message: bytes) -> None:
    line = stuffed([message])
    assert line == reference.stuff(message)
    assert not set(line) & set(SPECIALS[1:])
    assert len(line) <= stuffed_size(len(message))


@given(st.lists(data, max_size=4), st.lists(st.integers(0, 300)))
def test_joined_pieces_come_out_as_one(pieces: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(pieces)
    expected: list[bytes | None] = [whole] if whole else []
    assert unstuffed(stuffed(pieces) + b"\0", cuts, max(1, len(whole))) == expected


@given(st.one_of(st.binary(max_size=600), specials), st.lists(st.integers(0, 600)))
def test_any_bytes_are_unstuffed_as_by_the_reference(line: bytes, cuts: list[int]) -> None:
    expected: list[bytes | None] = []
    for part in line.split(b"\0")[:-1]:
        if part:
            body = reference.unstuff(part)
            expected.append(body if body is not None and len(body) <= PAYLOAD + TRAILER else None)
    assert unstuffed(line, cuts) == expected


@given(frames)
def test_frames_are_those_of_the_reference(frame: reference.Frame) -> None:
    body = reference.pack(frame)
    known = frame.version == 1 and frame.kind <= 6
    assert check_frame(body, len(body)) == (OK if known else FOREIGN)
    assert len(reference.encode(frame)) < frame_size(len(frame.payload))
    assert reference.parse(body) == frame


@given(st.one_of(st.binary(max_size=260), frames.map(reference.pack)), st.data())
def test_any_body_is_judged_as_by_the_reference(body: bytes, draw: Any) -> None:
    if body:
        at = draw.draw(st.integers(0, len(body) - 1))
        body = body[:at] + bytes([draw.draw(st.integers(0, 255))]) + body[at + 1 :]
    assert (check_frame(body, len(body)) == DAMAGED) == (reference.parse(body) is None)


def sound(link: Link) -> None:
    """What holds of a link whatever came in."""
    for channel in link.channels:
        sender = channel.sender
        assert IDLE <= channel.state <= ENDED
        assert 0 <= sender._sent <= sender.queued <= sender.window
        assert 0 <= sender.flight <= sender.queued
        assert 0 <= channel._ring.any() <= channel._capacity
        assert 0 < channel.session <= 0xFFFF
        for i in range(sender.window):
            assert sender.end[i] <= (i + 1) * sender.slot - (stuffed_size(TRAILER) + 1)
    assert 0 <= link.out_at <= link.out_end <= len(link.out_buf)


@st.composite
def hostile(draw: Any, link: Link) -> bytes:
    """A frame for the state that the link is in: right in some fields and arbitrary in the others."""
    channel = draw(st.sampled_from(link.channels))
    frame = draw(frames)
    keys = [channel._key_in, channel._key_out, channel.session, channel.peer, frame.key]
    seq = draw(st.sampled_from([channel._expected, channel._expected + 1, frame.seq])) & 0xFF
    ack = draw(st.sampled_from([channel.sender.una, channel.sender.una + 1, frame.ack])) & 0xFF
    named = channel.session.to_bytes(2, "big") + b"\xf0"
    fields = reference.Frame(
        kind=draw(st.sampled_from([frame.kind, 0, 1, 2])),
        channel=channel.number,
        seq=seq,
        ack=ack,
        credit=frame.credit,
        key=draw(st.sampled_from(keys)) & 0xFFFF,
        payload=draw(st.sampled_from([frame.payload, named])),
    )
    return reference.encode(fields)


@settings(max_examples=300)
@given(st.data())
def test_a_hostile_peer_breaks_nothing(draw: Any) -> None:
    link = Link(
        draw.draw(st.integers(1, 0xFFFF)), 2, draw.draw(st.integers(1, 9)), draw.draw(st.integers(1, PAYLOAD))
    )
    buf = bytearray(100)
    now = 0
    for channel in link.channels:
        channel.open()
    for _ in range(draw.draw(st.integers(1, 40))):
        step = draw.draw(st.integers(0, 6))
        channel = draw.draw(st.sampled_from(link.channels))
        if step <= 2:
            line = draw.draw(hostile(link)) if step else draw.draw(st.binary(max_size=80))
            link.feed(line, 0, len(line), now)
        elif step == 3:
            now += draw.draw(st.integers(0, 12000))
            link.poll(now)
            assert 0 <= link.due() <= link.keep_ms
        elif step == 4 and channel.state == UP:
            channel.write(bytes(500), 0, draw.draw(st.integers(0, 500)))
        elif step == 5 and channel.state not in (IDLE, CLOSING):
            channel.readinto(buf, draw.draw(st.integers(1, 100)))
        elif step == 6:
            draw.draw(st.sampled_from([channel.open, channel.close]))()
        for _ in range(draw.draw(st.integers(0, 3))):
            n = link.out()
            if n:
                link.sent(draw.draw(st.integers(1, n)))
        sound(link)


rates = st.fixed_dictionaries(
    {name: st.sampled_from([0, 0, 50, 150, 400]) for name in ("lose", "flip", "drop", "twice", "noise")}
)
steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["run", "cut ab", "cut ba", "cut", "reset a", "reset b", "close a", "close b", "still", "ragged"]
        ),
        st.integers(0, 3000),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 1 << 20),
    rates,
    steps,
    st.integers(1, 9),
    st.sampled_from([1, 20, 60, 240]),
    st.sampled_from([5, 40, 115]),
)
def test_streams_are_whole_after_any_faults(
    seed: int, faults: dict[str, int], schedule: list[tuple[str, int]], window: int, payload: int, rate: int
) -> None:
    bench = Bench(seed, size=400, rate=rate, faults=faults, window=window, payload=payload)
    for number, (what, length) in enumerate(schedule):
        action, _, who = what.partition(" ")
        end = bench.b if who == "b" else bench.a
        if action == "cut":
            bench.ab.cut = who in ("", "ab")
            bench.ba.cut = who in ("", "ba")
        elif action == "reset":
            end.start(25000 + number)
        elif action == "close":
            end.channel.close()
            end.open()
        elif action == "still":
            end.reading = False
        elif action == "ragged":
            bench.ragged = True
        bench.run(length)
        bench.ab.cut = bench.ba.cut = False
        bench.a.reading = bench.b.reading = True
        bench.reopen()
    bench.ab.heal()
    bench.ba.heal()
    begin = bench.now
    while not bench.delivered():
        bench.reopen()
        bench.turn()
        assert bench.now - begin < 120000, bench.report()
    sound(bench.a.link)
    sound(bench.b.link)
