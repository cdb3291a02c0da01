"""Read and write integers and strings in place.

Nothing in this module allocates.
"""

import builtins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

    def const(value: int) -> int:
        """Return ``value``; MicroPython's compiler folds it into the code."""
        ...
else:
    try:
        from micropython import const
    except ImportError:

        def const(value):
            """Return ``value``."""
            return value


#: Exceptions when an object that is not bytes-like is used as such; MicroPython has no BufferError.
NOT_BYTES: "tuple[type[Exception], ...]" = (TypeError, ValueError, LookupError, NotImplementedError)
if hasattr(builtins, "BufferError"):
    NOT_BYTES += (BufferError,)

#: Milliseconds are compared modulo 2**30: MicroPython's ticks wrap there on a 32-bit board.
TICKS_MASK = const(0x3FFFFFFF)


# A constant, because a tuple in an expression is created each time.
_BYTES = (bytes, bytearray, memoryview)


def is_bytes(value: object) -> bool:
    """Return whether the encoders can write ``value``."""
    return isinstance(value, _BYTES)


def get_u16(buf: "Bytes", at: int) -> int:
    """Return the big-endian 16-bit integer at ``at``."""
    return buf[at] << 8 | buf[at + 1]


def put_u16(buf: bytearray, at: int, value: int) -> int:
    """Write a big-endian 16-bit integer at ``at``. Return the offset after it."""
    buf[at] = value >> 8
    buf[at + 1] = value & 0xFF
    return at + 2


def put_block(buf: bytearray, at: int, data: "Bytes") -> int:
    """Write the 16-bit length of ``data``, then ``data`` (MQTT 3.1.1, 1.5.3). Return the offset after it."""
    n = len(data)
    buf[at] = n >> 8
    buf[at + 1] = n & 0xFF
    at += 2
    buf[at : at + n] = data
    return at + n


def varint_size(value: int) -> int:
    """Return the size of ``value`` (0 to 268,435,455) as MQTT's variable byte integer, in bytes."""
    return 1 if value < 128 else 2 if value < 16384 else 3 if value < 2097152 else 4


def put_varint(buf: bytearray, at: int, value: int) -> int:
    """Write ``value`` as a variable byte integer (MQTT 3.1.1, 2.2.3). Return the offset after it."""
    while value > 127:
        buf[at] = value & 127 | 128
        value >>= 7
        at += 1
    buf[at] = value
    return at + 1


def check_utf8(buf: "Bytes", at: int, end: int) -> int:
    """Check UTF-8 in ``buf[at:end]`` (MQTT 3.1.1, 1.5.3). Return the offset of the first error or U+0000, or -1.

    Surrogates, overlong forms and code points above U+10FFFF are ill-formed (RFC 3629).
    """
    while at < end:
        if 0 < buf[at] < 128:
            at += 1
            continue
        n = _character(buf, at, end)
        if n == 0:
            return at
        at += n
    return -1


def _character(buf: "Bytes", at: int, end: int) -> int:
    """Return the size of the non-ASCII character at ``at`` in bytes; 0 if it is ill-formed or U+0000."""
    c = buf[at]
    more = 1 if c < 0xE0 else 2 if c < 0xF0 else 3
    if not 0xC2 <= c < 0xF5 or at + more >= end:
        return 0
    c &= 63 >> more
    for i in range(at + 1, at + more + 1):
        if buf[i] & 0xC0 != 0x80:
            return 0
        c = c << 6 | buf[i] & 63
    # An overlong form has only zeros in the bits that its size adds; the surrogates start at 27 << 11.
    return 0 if c >> 5 * more + 1 == 0 or c >> 11 == 27 or c > 0x10FFFF else more + 1


class Message:
    """Accessors of a cursor over a packet or frame in ``buf``; the decoder sets the offsets."""

    buf: "Bytes"
    head: int
    end: int
    topic_at: int
    topic_end: int
    payload_at: int

    def kind(self) -> int:
        """Return the type of the packet or frame, 0 to 15."""
        return self.head >> 4

    def qos(self) -> int:
        """Return PUBLISH's QoS: 0, 1 or 2."""
        return self.head >> 1 & 3

    def dup(self) -> bool:
        """Return PUBLISH's DUP: True if it may be a redelivery."""
        return self.head & 8 != 0

    def retain(self) -> bool:
        """Return PUBLISH's RETAIN: True if the server has stored it, or must store it."""
        return self.head & 1 != 0

    def topic_is(self, name: "Bytes") -> bool:
        """Return whether the topic is ``name``, byte by byte. Allocates nothing."""
        at = self.topic_at
        n = len(name)
        if self.topic_end - at != n:
            return False
        buf = self.buf
        for i in range(n):
            if buf[at + i] != name[i]:
                return False
        return True

    def topic_bytes(self) -> bytes:
        """Return a copy of the topic: allocates."""
        return bytes(self.buf[self.topic_at : self.topic_end])

    def topic_text(self) -> str:
        """Return the topic as text: allocates."""
        return str(self.buf[self.topic_at : self.topic_end], "utf-8")

    def payload_bytes(self) -> bytes:
        """Return a copy of the payload: allocates."""
        return bytes(self.buf[self.payload_at : self.end])
