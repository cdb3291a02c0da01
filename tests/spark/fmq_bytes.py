"""FMQ written out by hand, from the specification: for logs and for what no encoder would write."""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

NOW_NS = 1_790_000_000_123_456_789


class Nanoseconds(NamedTuple):
    """A duration (tag 9) or a time (tag 11)."""

    tag: int
    ns: int


class Decimal(NamedTuple):
    """``unscaled / 10**scale``."""

    unscaled: int
    scale: int


def little(n: int) -> bytes:
    return n.to_bytes((n.bit_length() + 7) // 8, "little")


def integer(n: int, tag: int = 3) -> bytes:
    """Int, or whatever is written as one; BigInt beyond its range."""
    if -(1 << 63) <= n < 1 << 64:
        body = little(n if n >= 0 else ~n) or b"\0"
        return bytes([tag << 4 | (n < 0) << 3 | len(body) & 7]) + body
    big = {3: 6, 7: 8, 9: 10, 11: 12}[tag]
    size = (n.bit_length() + 7) // 8 if n > 0 else (n + 1).bit_length() // 8 + 1
    head = little(size)
    return bytes([big << 4 | (n < 0) << 3 | len(head)]) + head + n.to_bytes(size, "big", signed=n < 0)


def counted(tag: int, n: int) -> bytes:
    size = little(n)
    return bytes([tag << 4 | len(size)]) + size


def value(x: Any) -> bytes:
    if x is None:
        return b"\0"
    if isinstance(x, bool):
        return bytes([0x20 | x])
    if isinstance(x, Nanoseconds):
        return integer(x.ns, x.tag)
    if isinstance(x, Decimal):
        precision, scale = little(len(str(abs(x.unscaled)))), little(x.scale)
        return integer(x.unscaled, 7) + bytes([len(precision) << 4 | len(scale)]) + precision + scale
    if isinstance(x, int):
        return integer(x)
    if isinstance(x, float):
        return b"\x48" + struct.pack("<d", x)
    if isinstance(x, str):
        text = x.encode("utf-8", "surrogatepass")
        return counted(1, len(text)) + text
    if isinstance(x, dict):
        return counted(14, len(x)) + b"".join(value(key) + value(item) for key, item in x.items())
    assert isinstance(x, list)
    return counted(13, len(x)) + b"".join(map(value, x))


def message_id(time_ns: int = NOW_NS, process: int = 1, thread: int = 3, kind: int = 3) -> bytes:
    p, t = little(process), little(thread >> 4)
    return bytes([kind << 4 | len(p)]) + p + bytes([len(t) << 4 | thread & 15]) + t + integer(time_ns, 11)


def spoiled(data: bytes) -> Iterator[bytes]:
    """``data`` with each bit turned over, each byte left out, each byte doubled."""
    for at in range(len(data)):
        before, byte, behind = data[:at], data[at], data[at + 1 :]
        for bit in range(8):
            yield before + bytes([byte ^ 1 << bit]) + behind
        yield before + behind
        yield before + bytes([byte, byte]) + behind


def frame(head: int, ident: bytes, body: bytes | None = b"") -> bytes:
    """A frame; ``body`` is None for a type that has none."""
    if body is None:
        return bytes([head]) + ident
    more = little(len(body) >> 4)
    return bytes([head]) + ident + bytes([len(more) << 4 | len(body) & 15]) + more + body


def fmq_publish(
    topic: str | int,
    payload: bytes | str | dict[str, Any] = b"",
    ident: bytes | None = None,
    *,
    qos: int = 0,
    dup: bool = False,
    retain: bool = False,
    tags: tuple[str, ...] = (),
) -> bytes:
    if isinstance(payload, dict):
        payload = value(payload)
    if isinstance(payload, str):
        payload = payload.encode()
    head = 0x30 | dup << 3 | qos << 1 | retain
    return frame(head, ident or message_id(), value(topic) + value(list(tags)) + payload)


def consumeresp(
    ident: bytes,
    payload: bytes,
    correlation: bytes,
    topic: str | int | None = None,
    tags: tuple[str, ...] = (),
) -> bytes:
    return frame(0xB0, ident, correlation + value(topic) + value(list(tags)) + payload)
