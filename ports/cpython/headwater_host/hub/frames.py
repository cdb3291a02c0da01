"""The frames that the hub sends, as bytes (docs/protocols/fmq.md, section 3)."""

from collections.abc import Sequence

from headwater.fmq import spec
from headwater_host.fmq import address
from headwater_host.fmq.address import Address
from headwater_host.fmq.kinds import DateTime
from headwater_host.fmq.values import encode

_NO_TAGS = b"\xd0"
_NONE = b"\0"
#: The head of a text whose length is in one byte.
_SHORT = spec.STRING << 4 | 1


def framed(head: int, ident: bytes, body: bytes) -> bytes:
    """Return a frame with a body."""
    n = len(body)
    if n < 16:
        return b"%c%b%c%b" % (head, ident, n, body)
    rest = n >> 4
    size = (rest.bit_length() + 7) // 8
    return b"%c%b%c%b%b" % (head, ident, size << 4 | n & 15, rest.to_bytes(size, "little"), body)


def bare(kind: int, ident: bytes) -> bytes:
    """Return a frame without a body: PUBREC, PUBREL, PUBCOMP, PINGREQ."""
    return b"%c%b" % (kind << 4, ident)


def ack(ident: bytes) -> bytes:
    """Return an ACK: success."""
    return b"%c%b\0" % (spec.ACK << 4, ident)


def refusal(ident: bytes, reason: int, text: str = "") -> bytes:
    """Return an ACK with a reason code and a text."""
    return framed(spec.ACK << 4, ident, encode(reason) + (encode(text) if text else b""))


def accepted(ident: bytes, process: int, present: bool, time_ns: int) -> bytes:
    """Return the ACK to AUTH."""
    body = encode(0) + encode(process) + encode(present) + encode(DateTime(time_ns))
    return framed(spec.ACK << 4, ident, body)


def subscribed(ident: bytes, number: int) -> bytes:
    """Return the ACK to SUBSCRIBE."""
    return framed(spec.ACK << 4, ident, encode(0) + encode(number))


def elected(ident: bytes, leader: tuple[Address, int] | None) -> bytes:
    """Return the ACK to ELECT: None agrees with the candidate."""
    if leader is None:
        return framed(spec.ACK << 4, ident, _NONE)
    return framed(spec.ACK << 4, ident, address.encode(leader[0]) + encode(leader[1]))


def message(topic: "str | None", tags: Sequence[str], payload: bytes) -> bytes:
    """Return the body of a PUBLISH."""
    if topic is None:
        name = _NONE
    elif 0 < len(data := topic.encode()) < 256:
        name = b"%c%c%b" % (_SHORT, len(data), data)
    else:
        name = encode(topic)
    return b"%b%b%b" % (name, encode(tags) if tags else _NO_TAGS, payload)


def publish(ident: bytes, body: bytes, qos: int = 0, dup: bool = False, retain: bool = False) -> bytes:
    """Return a PUBLISH."""
    return framed(spec.PUBLISH << 4 | dup << 3 | qos << 1 | retain, ident, body)


def response(ident: bytes, correlation: bytes, body: bytes) -> bytes:
    """Return a CONSUMERESP."""
    return framed(spec.CONSUMERESP << 4, ident, correlation + body)
