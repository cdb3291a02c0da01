"""The serial link's framing again, from docs/serial-link.md and in another way: what the real one is held against."""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass

SPECIALS = bytes([0x00, 0x03, 0x04, 0x0D, 0x11, 0x13])
_OTHERS = re.compile(b"[^" + re.escape(SPECIALS) + b"]{0,33}", re.DOTALL)


def crc(data: bytes) -> int:
    """CRC-16/IBM-3740 by division, bit by bit."""
    remainder = 0xFFFF
    for bit in "".join(f"{byte:08b}" for byte in data):
        carry = remainder >> 15 ^ int(bit)
        remainder = (remainder << 1 & 0xFFFF) ^ (0x1021 * carry)
    return remainder


def stuff(data: bytes) -> bytes:
    """Stuffed in one go; a run of 33 is not ended by a special."""
    out = b""
    at = 0
    while at < len(data):
        run = _OTHERS.match(data, at)
        assert run is not None
        literals = run.group()
        at += len(literals)
        kind = 0
        if len(literals) < 33 and at < len(data):
            kind = SPECIALS.index(data[at]) + 1
            at += 1
        out += bytes([20 + 7 * len(literals) + kind]) + literals
    return out


def unstuff(line: bytes) -> bytes | None:
    """What was stuffed, None when nothing can have been; ``line`` holds no delimiter."""
    out = b""
    while line:
        code = line[0] - 20
        if not 0 < code <= 231:
            return None
        length, kind = divmod(code, 7)
        if len(line) <= length:
            return None
        out += line[1 : 1 + length] + (SPECIALS[kind - 1 : kind] if kind else b"")
        line = line[1 + length :]
    return out


@dataclass(frozen=True)
class Frame:
    """A frame's fields, in the order of the trailer, and its payload."""

    kind: int
    channel: int
    seq: int
    ack: int
    credit: int
    key: int
    payload: bytes
    version: int = 1


def pack(frame: Frame) -> bytes:
    """The frame with its checksum, not stuffed."""
    kind, channel, seq, ack, credit, key, payload, version = astuple(frame)
    body: bytes = payload + bytes([version << 6 | kind << 3 | channel, seq, ack, credit])
    body += key.to_bytes(2, "big") + bytes([len(payload)])
    return body + crc(body).to_bytes(2, "big")


def encode(frame: Frame) -> bytes:
    """The frame on the line: payload and trailer are stuffed apart, a delimiter follows."""
    body = pack(frame)
    n = len(frame.payload)
    return stuff(body[:n]) + stuff(body[n:]) + b"\0"


def parse(body: bytes) -> Frame | None:
    """The frame that an unstuffed body is, of any version; None when it is damaged."""
    n = len(body) - 9
    if n < 0 or body[n + 6] != n or crc(body[:-2]) != int.from_bytes(body[-2:], "big"):
        return None
    first, seq, ack, credit = body[n : n + 4]
    key = int.from_bytes(body[n + 4 : n + 6], "big")
    return Frame(first >> 3 & 7, first & 7, seq, ack, credit, key, body[:n], first >> 6)
