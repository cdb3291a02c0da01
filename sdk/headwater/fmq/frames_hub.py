"""Whole frames and the parts of message ids, for hubs and tools; no client imports it.

The functions follow the conventions of ``headwater.fmq.frames`` and ``headwater.fmq.ids``.
"""

from headwater.errors import E_ARGUMENT, E_TOO_LARGE
from headwater.fmq.frames import (
    NO_TAGS,
    Frame,
    decode_fields,
    decode_header,
    length_size,
    message_size,
    put_head,
    put_message,
)
from headwater.fmq.ids import MORE, put_little
from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

_ID_SIZE = const(18)


def decode_frame(f: Frame, at: int, end: int) -> int:
    """Decode the frame at ``at``. Return the offset after it, MORE or an error."""
    stop = decode_header(f, at, end)
    if stop <= 0:
        return stop
    if stop > end:
        return MORE
    bad = decode_fields(f)
    return bad if bad else stop


def encode_publish(
    buf: bytearray,
    at: int,
    limit: int,
    head: int,
    ident: "Bytes",
    topic: "Bytes",
    payload: "Bytes",
    tags: "Bytes" = NO_TAGS,
) -> int:
    """Encode a PUBLISH; ``head`` is the first byte: 0x30 and DUP, QoS, RETAIN."""
    n = message_size(topic, payload, tags)
    if at + 1 + len(ident) + length_size(n) + n > limit:
        return E_TOO_LARGE
    return put_message(buf, put_head(buf, at, head, ident), topic, payload, tags)


def thread_at(buf: "Bytes", at: int) -> int:
    """Return the offset of the thread number; the process number is before it, from ``at + 1`` on."""
    return at + 1 + (buf[at] & 15)


def time_at(buf: "Bytes", at: int) -> int:
    """Return the offset of the DateTime of the id at ``at``."""
    at += 1 + (buf[at] & 15)
    return at + 1 + (buf[at] >> 4)


def put_id(buf: bytearray, at: int, limit: int, kind: int, process: int, thread: int, time: "Bytes") -> int:
    """Write an id; ``time`` is an encoded DateTime.

    Returns the offset after it, E_TOO_LARGE, or E_ARGUMENT if it takes more than 18 bytes.
    """
    start = at
    at = put_little(buf, at + 1, limit, process)
    i = put_little(buf, at + 1, limit, thread >> 4)
    if at < 0 or i < 0:
        return E_TOO_LARGE
    buf[start] = kind << 4 | at - start - 1
    buf[at] = i - at - 1 << 4 | thread & 15
    at = i + len(time)
    if at - start > _ID_SIZE:
        return E_ARGUMENT
    if at > limit:
        return E_TOO_LARGE
    buf[i:at] = time
    return at
