"""The serial link's framing on the shared vectors: whole, byte by byte, and with bytes before and behind."""

import vectors

from headwater.link.frames import (
    DAMAGED,
    DELIMITER,
    FOREIGN,
    INIT,
    OK,
    PAYLOAD,
    RESET,
    SPECIALS,
    TRAILER,
    Unstuffer,
    check_frame,
    close_frame,
    crc16,
    fill_trailer,
    frame_size,
    stuff,
    stuffed_size,
)
from headwater.link.link import Link

_VECTORS = vectors.load("link")
_TYPES = ("HELLO", "DATA", "FIN", "ACK", "NAK", "ASK", "RESET")


def _rows(section: str):  # type: ignore[no-untyped-def]  # rows of a vector file
    rows = _VECTORS[section]
    assert rows
    return rows


def _frames_of(line: bytes, cuts: "list[int]") -> "list[bytes | None]":
    """What an Unstuffer makes of the line, fed in pieces; None for a damaged frame."""
    found: list[bytes | None] = []
    rx = Unstuffer(PAYLOAD + TRAILER)
    begin = 0
    for end in cuts + [len(line)]:
        at = begin
        while at < end:
            at = rx.take(line, at, end)
            if rx.size:
                found.append(bytes(rx.buf[: rx.size]) if rx.size > 0 else None)
        begin = end
    return found


def _in_all_ways(line: bytes, expected: "list[bytes | None]", name: str) -> None:
    n = len(line)
    assert _frames_of(line, []) == expected, name
    assert _frames_of(line, list(range(1, n))) == expected, name
    good = stuffed(b"good") + b"\0"
    assert _frames_of(good + line + good, [len(good)]) == [b"good"] + expected + [b"good"], name
    for cut in range(1, n):
        assert _frames_of(line, [cut]) == expected, (name, cut)


def stuffed(data: bytes) -> bytes:
    """What ``stuff`` makes of data, checked to stay within the size it promises."""
    out = bytearray(b"\xee" * (stuffed_size(len(data)) + 3))
    end = stuff(b"xy" + data + b"z", 2, len(data), out, 1)
    assert 1 <= end <= 1 + stuffed_size(len(data))
    assert (out[0], out[-1]) == (0xEE, 0xEE)
    return bytes(out[1:end])


def test_checksum() -> None:
    for row in _rows("crc"):
        data = vectors.unhex(row["hex"])
        assert crc16(data, 0, len(data), INIT) == row["crc"], row["name"]
        for cut in range(len(data)):
            begun = crc16(data, 0, cut, INIT)
            assert crc16(data, cut, len(data), begun) == row["crc"], row["name"]


def test_stuffing() -> None:
    for row in _rows("stuffing"):
        data = vectors.unhex(row["hex"])
        line = stuffed(data)
        assert line == vectors.unhex(row["stuffed"]), row["name"]
        for byte in SPECIALS[1:]:
            assert byte not in line, row["name"]
        _in_all_ways(line + b"\0", [data] if data else [], row["name"])


def test_pieces_stuffed_one_by_one() -> None:
    for row in _rows("joined"):
        pieces = [vectors.unhex(piece) for piece in row["pieces"]]
        line = b"".join([stuffed(piece) for piece in pieces])
        assert line == vectors.unhex(row["stuffed"]), row["name"]
        _in_all_ways(line + b"\0", [b"".join(pieces)], row["name"])


def test_what_no_frame_can_be() -> None:
    for row in _rows("damaged"):
        _in_all_ways(vectors.unhex(row["line"]), [None], row["name"])


def test_a_frame_of_exactly_the_capacity() -> None:
    for data in (b"x" * 249, b"\0" * 249, b"x" * 248 + b"\3"):
        assert _frames_of(stuffed(data) + b"\0", []) == [data]
        assert _frames_of(stuffed(data + b"y") + b"\0", []) == [None]
        assert _frames_of(stuffed(data + b"\0") + b"\0", []) == [None]


def test_frames_are_built() -> None:
    for row in _rows("frames"):
        payload = vectors.unhex(row["payload"])
        n = len(payload)
        trailer = bytearray(TRAILER)
        kind = _TYPES.index(row["type"]) << 3 | row["channel"]
        fill_trailer(trailer, kind, row["seq"], row["ack"], row["credit"], row["key"], n)
        out = bytearray(frame_size(n))
        end = close_frame(trailer, crc16(payload, 0, n, INIT), out, stuff(payload, 0, n, out, 0))
        assert bytes(out[:end]) == vectors.unhex(row["line"]), row["name"]
        assert end < frame_size(n)


def test_frames_are_read() -> None:
    for row in _rows("frames"):
        payload = vectors.unhex(row["payload"])
        line = vectors.unhex(row["line"])
        for byte in SPECIALS[2:]:
            assert byte not in line, row["name"]
        assert line.count(b"\0") == 1
        assert line[-1] == DELIMITER
        (body,) = _frames_of(line, [])
        assert body is not None
        n = len(payload)
        _in_all_ways(line, [body], row["name"])
        assert check_frame(body, len(body)) == OK
        assert body[:n] == payload
        fields = (
            1 << 6 | _TYPES.index(row["type"]) << 3 | row["channel"],
            row["seq"],
            row["ack"],
            row["credit"],
        )
        assert tuple(body[n : n + 4]) == fields
        assert body[n + 4] << 8 | body[n + 5] == row["key"]
        assert body[n + 6] == n
        for i in range(len(body)):
            for bit in range(8):
                bad = bytearray(body)
                bad[i] ^= 1 << bit
                assert check_frame(bad, len(bad)) == DAMAGED, (row["name"], i, bit)
        for short in range(len(body)):
            assert check_frame(body, short) == DAMAGED


def test_bad_frames() -> None:
    for row in _rows("bad_frames"):
        line = vectors.unhex(row["line"])
        (body,) = _frames_of(line, [])
        assert body is not None, row["name"]
        verdict = check_frame(body, len(body))
        if row["error"] == "damaged":
            assert verdict == DAMAGED, row["name"]
        else:
            # A channel that is not there, or a HELLO that says nothing: only the link can tell.
            assert verdict in (OK, FOREIGN), row["name"]
        link = Link(77)
        link.channels[0].open()
        while link.out():
            link.sent(link.out())
        link.feed(line, 0, len(line), 1)
        assert (link.damaged, link.foreign) == ((1, 0) if row["error"] == "damaged" else (0, 1)), row["name"]
        assert link.out() == 0, row["name"]


def test_types_fill_the_field() -> None:
    assert len(_TYPES) == RESET + 1 <= 8
