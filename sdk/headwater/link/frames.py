"""Frames of the serial link: checksum, byte stuffing, fields.

A frame is a payload and a trailer, stuffed and closed by a zero byte. The fields are in the trailer, so a payload is
stuffed and its checksum started once, when it is written, and a retransmission costs a new trailer only. Offsets from
the end of the frame:

    -9  version (bits 7-6), type (5-3), channel (2-0)
    -8  sequence    number of this frame, for DATA and FIN
    -7  ack         sequence number that the sender of this frame expects next
    -6  credit      number of frames from ack on that it has room for
    -5  key         2 bytes, big-endian: stream and sending end; in HELLO the sender's session number
    -3  length      of the payload: detects bytes lost in an overrun
    -2  checksum    CRC-16 of everything before it, big-endian

    HELLO  opens a stream. Payload: the receiver's session number (2 bytes, 0 if unknown) and the largest payload that
           the sender accepts (1 byte); credit is its window. Ignore further bytes: later versions may add some
    DATA   a piece of the stream
    FIN    the end of the stream
    ACK    acknowledgement
    NAK    acknowledgement; a frame from ack on is missing: retransmit from there
    ASK    acknowledgement; requests an ACK
    RESET  there is no stream with this key (the key of the frame that is answered)
"""

from array import array

from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes


# CRC-16/IBM-3740 (CRC-16/CCITT-FALSE): polynomial 0x1021, initial value 0xFFFF, not reflected, check 0x29B1.
#
# It detects every error of up to three bits and every burst of up to 16 bits, and misses one in 65536 other errors. It
# needs 24 bits at most, so it allocates nothing on a 32-bit board. The checksum of a message followed by its checksum,
# high byte first, is 0.

#: The initial value.
INIT = const(0xFFFF)


def _table() -> "array[int]":
    table = array("H", bytes(512))
    for byte in range(256):
        value = byte << 8
        for _ in range(8):
            value = value << 1 ^ (0x1021 if value & 0x8000 else 0)
        table[byte] = value & 0xFFFF
    return table


_TABLE = _table()


def crc16(buf: "Bytes", at: int, end: int, crc: int) -> int:
    """Return the checksum of ``buf[at:end]``, started with ``INIT`` or continued from ``crc``."""
    table = _TABLE
    while at < end:
        crc = (crc << 8 & 0xFF00) ^ table[crc >> 8 ^ buf[at]]
        at += 1
    return crc


# Byte stuffing as in COBS (Cheshire and Baker, 1999) for six bytes at once: stuffed data contains none of ``SPECIALS``.
#
# A code precedes each run of other bytes. It encodes the length of the run (0 to 33) and the special that follows the
# run and is omitted:
#
#     code = 20 + 7 * length + kind        kind: 0 = none, k = SPECIALS[k]
#
# Every special is less than 20, so no code is one. Codes are 21 to 251; a run of 33 has kind 0. Stuffing adds at most
# one byte in 33.
#
# 0x00 ends a frame. 0x03 (ctrl-C) must be able to interrupt a program on a board with one line. 0x04 (ctrl-D) would
# reset a board at its prompt, 0x0D enter a line there. 0x11 and 0x13 are removed by software flow control.

#: The end of a frame.
DELIMITER = const(0)
#: The specials by kind; kind 0 is none.
SPECIALS = b"\xff\x00\x03\x04\x0d\x11\x13"

_BASE = const(20)
_KINDS = const(7)
_RUN = const(33)
_FULL = const(251)
#: The kind of each byte below ``_BASE``.
_KIND = b"\x01\x00\x00\x02\x03\x00\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x05\x00\x06"


def stuffed_size(n: int) -> int:
    """Return the maximum size of ``n`` bytes stuffed in one call."""
    return n + (n + _RUN - 1) // _RUN


def stuff(src: "Bytes", at: int, n: int, out: bytearray, to: int) -> int:
    """Stuff ``src[at:at+n]`` into ``out`` at ``to``. Return the offset after it.

    Consecutive pieces decode as if they had been stuffed in one call.
    """
    n += at
    code_at = to
    code = _BASE
    to += 1
    while at < n:
        byte = src[at]
        at += 1
        if byte >= _BASE or _KIND[byte] == 0:
            out[to] = byte
            to += 1
            code += _KINDS
            if code < _FULL:
                continue
        else:
            code += _KIND[byte]
        out[code_at] = code
        code_at = to
        code = _BASE
        to += 1
    if code == _BASE:
        return code_at
    out[code_at] = code
    return to


class Unstuffer:
    """Assembles frames of up to ``capacity`` bytes in ``buf`` from the bytes of a line.

    After ``take``, ``size`` is the length of the frame that ended; 0 if none ended; -1 if a damaged one ended: too
    long, truncated, or with an invalid code. A damaged frame is skipped up to the next delimiter.
    """

    def __init__(self, capacity: int):
        self.buf = bytearray(capacity)
        self.capacity = capacity
        self.reset()

    def reset(self) -> None:
        """Discard a partial frame."""
        self.size = 0
        self._n = 0
        self._left = 0
        self._kind = 0

    def take(self, src: "Bytes", at: int, end: int) -> int:
        """Take ``src[at:end]`` up to the first delimiter. Return the offset after it."""
        buf = self.buf
        n = self._n
        left = self._left
        self.size = 0
        while at < end:
            byte = src[at]
            at += 1
            if left > 0 and byte:
                buf[n] = byte
                n += 1
                left -= 1
            elif byte == DELIMITER:
                self.size = -1 if left else n
                n = left = self._kind = 0
                break
            elif left == 0:
                if not _BASE < byte <= _FULL:
                    left = -1
                    continue
                byte -= _BASE
                left = byte // _KINDS
                self._kind = byte - left * _KINDS
                if n + left + (self._kind > 0) > self.capacity:
                    left = -1
                    continue
            if left == 0 and self._kind:
                buf[n] = SPECIALS[self._kind]
                self._kind = 0
                n += 1
        self._n = n
        self._left = left
        return at


VERSION = const(1)

HELLO = const(0)
DATA = const(1)
FIN = const(2)
ACK = const(3)
NAK = const(4)
ASK = const(5)
RESET = const(6)

#: Channels are numbered 0 to 7.
CHANNELS = const(8)
#: The maximum payload, and the size of the trailer.
PAYLOAD = const(240)
TRAILER = const(9)
_CHECKED = const(7)
#: The maximum window: with sequence numbers of eight bits, later frames must differ from earlier ones.
WINDOW = const(64)

#: Counters wrap at 2**29, so that sums stay small integers on a 32-bit board.
COUNT_MASK = const(0x1FFFFFFF)

# Results of ``check_frame``.
OK = const(0)
DAMAGED = const(1)
FOREIGN = const(2)


def frame_size(n: int) -> int:
    """Return the maximum size of a frame with ``n`` bytes of payload, with a delimiter on either side."""
    return stuffed_size(n) + stuffed_size(TRAILER) + 2


def fill_trailer(trailer: bytearray, kind: int, seq: int, ack: int, credit: int, key: int, n: int) -> None:
    """Write all fields except the checksum; ``kind`` is type * 8 + channel, ``trailer`` has ``TRAILER`` bytes."""
    trailer[0] = VERSION << 6 | kind
    trailer[1] = seq
    trailer[2] = ack
    trailer[3] = credit
    trailer[4] = key >> 8
    trailer[5] = key & 0xFF
    trailer[6] = n


def close_frame(trailer: bytearray, crc: int, out: bytearray, to: int) -> int:
    """Stuff the trailer after the payload with the checksum ``crc``, and close the frame.

    Return the offset after it.
    """
    crc = crc16(trailer, 0, _CHECKED, crc)
    trailer[_CHECKED] = crc >> 8
    trailer[_CHECKED + 1] = crc & 0xFF
    to = stuff(trailer, 0, TRAILER, out, to)
    out[to] = DELIMITER
    return to + 1


def check_frame(buf: "Bytes", n: int) -> int:
    """Check the frame ``buf[:n]``: OK, DAMAGED, or FOREIGN (intact, but of an unknown version or type)."""
    if n < TRAILER or buf[n - 3] != n - TRAILER or crc16(buf, 0, n, INIT):
        return DAMAGED
    first = buf[n - TRAILER]
    return OK if first >> 6 == VERSION and first >> 3 & 7 <= RESET else FOREIGN
