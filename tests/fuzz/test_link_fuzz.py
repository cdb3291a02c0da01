"""Properties of the serial link: framing against the reference, hostile frames, and arbitrary schedules of faults."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.link.frames import (
    FOREIGN,
    OK,
    PAYLOAD,
    SPECIALS,
    Unstuffer,
    check_frame,
    frame_size,
    stuff,
    stuffed_size,
)
from tests.fuzz import link_reference as reference
from tests.fuzz import target_link

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


def unstuffed(line: bytes, cuts: list[int], capacity: int) -> list[bytes | None]:
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


@given(st.lists(data, max_size=4), st.lists(st.integers(0, 300)))
def test_joined_pieces_come_out_as_one(pieces: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(pieces)
    expected: list[bytes | None] = [whole] if whole else []
    assert unstuffed(stuffed(pieces) + b"\0", cuts, max(1, len(whole))) == expected


@given(
    st.integers(0, 255),
    st.one_of(data, st.binary(max_size=600), frames.map(reference.encode), frames.map(reference.pack)),
    st.data(),
)
def test_any_line_is_read_as_by_the_reference(cut: int, line: bytes, draw: Any) -> None:
    target_link.frames(bytes([cut]) + line)
    if line:
        at = draw.draw(st.integers(0, len(line) - 1))
        target_link.frames(bytes([cut]) + line[:at] + draw.draw(st.binary(max_size=1)) + line[at + 1 :])


@given(frames)
def test_frames_are_those_of_the_reference(frame: reference.Frame) -> None:
    body = reference.pack(frame)
    known = frame.version == 1 and frame.kind <= 6
    assert check_frame(body, len(body)) == (OK if known else FOREIGN)
    assert len(reference.encode(frame)) < frame_size(len(frame.payload))
    assert reference.parse(body) == frame


@settings(max_examples=300)
@given(st.binary(min_size=100, max_size=800))
def test_a_hostile_peer_breaks_nothing(script: bytes) -> None:
    target_link.link_session(script)


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
    target_link.sound(bench.a.link)
    target_link.sound(bench.b.link)
