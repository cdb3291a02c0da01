"""The frames of the serial link: payload and trailer, stuffed and closed by a zero byte.

The fields stand behind the payload: so a payload is stuffed, and its checksum begun, once, when it is handed in, and
a repetition costs no more than a new trailer. Offsets from the end of the frame:

    -9  version (bits 7-6), type (5-3), channel (2-0)
    -8  sequence    of this frame, if it is DATA or FIN
    -7  ack         sequence of the frame that its sender expects next
    -6  credit      how many frames from ack on its sender has room for
    -5  key         2 bytes, high one first: which stream, and from which end; in HELLO the sender's session number
    -3  length      of the payload: a line that was overrun loses bytes, and this shows it for certain
    -2  checksum    CRC-16 of everything before it, high byte first

    HELLO  opens a stream; its payload is the other end's session number (2 bytes, 0 when not known) and the largest
           payload that its sender takes (1 byte); credit is its window. Later versions may add bytes: ignore them
    DATA   a piece of the stream
    FIN    the stream ends here
    ACK    nothing but the fields
    NAK    the same, and: a frame from ack on was missed, send again from there
    ASK    the same, and: answer with ACK
    RESET  there is no stream with this key (the key is the one of the frame that is answered)
"""

from array import array

from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes


# CRC-16/IBM-3740 (also known as CRC-16/CCITT-FALSE): polynomial 0x1021, initial value 0xFFFF, nothing reflected,
# check 0x29B1.
#
# It finds every error of up to three bits, and every burst of up to 16 bits, in a frame of the link; of all other
# damage it misses one in 65536. It never needs more than 24 bits, so it allocates nothing on a 32-bit board. A message
# followed by its checksum, high byte first, has the checksum 0.

#: The value to begin with.
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
    """The checksum of ``buf[at:end]``, begun with ``INIT`` or continued from the checksum of what stands before."""
    table = _TABLE
    while at < end:
        crc = (crc << 8 & 0xFF00) ^ table[crc >> 8 ^ buf[at]]
        at += 1
    return crc


# Byte stuffing in the manner of COBS, for six bytes at once: what is stuffed has none of ``SPECIALS``.
#
# Consistent overhead byte stuffing (Cheshire and Baker, 1999) replaces each zero by the distance to the next one. Here
# the code that stands before a run of other bytes says two things: how long the run is (0 to 33), and which of the
# specials, if any, follows it and is left out:
#
#     code = 20 + 7 * length + kind        kind: 0 = none, k = SPECIALS[k]
#
# Every special is less than 20, so no code is one. Codes are 21 to 251; a run of 33 is always of kind 0. The cost is
# one byte for 33 at most: a special costs nothing, as its place is taken by the next code.
#
# Why these six: 0x00 ends a frame. 0x03 (ctrl-C) must be able to interrupt a program on a board whose only line is this
# one. 0x04 (ctrl-D) would reset a board that is at its prompt, 0x0D would enter a line there. 0x11 and 0x13 are
# swallowed by a line with software flow control.

#: What ends a frame.
DELIMITER = const(0)
#: By kind; kind 0 stands for none.
SPECIALS = b"\xff\x00\x03\x04\x0d\x11\x13"

_BASE = const(20)
_KINDS = const(7)
_RUN = const(33)
_FULL = const(251)
#: The kind of each byte below ``_BASE``.
_KIND = b"\x01\x00\x00\x02\x03\x00\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x05\x00\x06"


def stuffed_size(n: int) -> int:
    """The most that ``n`` bytes can become, stuffed in one go."""
    return n + (n + _RUN - 1) // _RUN


def stuff(src: "Bytes", at: int, n: int, out: bytearray, to: int) -> int:
    """Stuff ``src[at:at+n]`` into ``out`` from ``to`` on; returns the offset behind it.

    What is stuffed piece by piece, one behind the other, reads as if it had been stuffed in one go.
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
    """Takes the bytes of a line and puts frames together, up to ``capacity`` bytes each, in ``buf``.

    After ``take``, ``size`` is the length of the frame that ended, 0 when none did, -1 when one ended that was
    damaged: too long, cut off, or with a byte where no code can be. What is damaged is skipped up to the next
    delimiter.
    """

    def __init__(self, capacity: int):
        self.buf = bytearray(capacity)
        self.capacity = capacity
        self.reset()

    def reset(self) -> None:
        """Forget a frame of which only a part has come."""
        self.size = 0
        self._n = 0
        self._left = 0
        self._kind = 0

    def take(self, src: "Bytes", at: int, end: int) -> int:
        """Take ``src[at:end]`` up to the first delimiter; returns the offset behind what was taken."""
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
#: The largest payload, and the bytes behind it.
PAYLOAD = const(240)
TRAILER = const(9)
_CHECKED = const(7)
#: The largest window: sequence numbers have eight bits, and what is ahead must be told from what is behind.
WINDOW = const(64)

#: Counters go on modulo 2**29, so that no sum leaves the small integers of a 32-bit board.
COUNT_MASK = const(0x1FFFFFFF)

# What is wrong with a frame.
OK = const(0)
DAMAGED = const(1)
FOREIGN = const(2)


def frame_size(n: int) -> int:
    """The most that a frame with ``n`` bytes of payload takes on the line, with a delimiter on either side."""
    return stuffed_size(n) + stuffed_size(TRAILER) + 2


def fill_trailer(trailer: bytearray, kind: int, seq: int, ack: int, credit: int, key: int, n: int) -> None:
    """Write all fields but the checksum; ``kind`` is type * 8 + channel, ``trailer`` has ``TRAILER`` bytes."""
    trailer[0] = VERSION << 6 | kind
    trailer[1] = seq
    trailer[2] = ack
    trailer[3] = credit
    trailer[4] = key >> 8
    trailer[5] = key & 0xFF
    trailer[6] = n


def close_frame(trailer: bytearray, crc: int, out: bytearray, to: int) -> int:
    """Stuff the trailer behind the payload, whose checksum is ``crc``, and close the frame; the offset behind it."""
    crc = crc16(trailer, 0, _CHECKED, crc)
    trailer[_CHECKED] = crc >> 8
    trailer[_CHECKED + 1] = crc & 0xFF
    to = stuff(trailer, 0, TRAILER, out, to)
    out[to] = DELIMITER
    return to + 1


def check_frame(buf: "Bytes", n: int) -> int:
    """Whether ``buf[:n]`` is a frame: OK, DAMAGED, or FOREIGN: whole, but of a version or type not known here."""
    if n < TRAILER or buf[n - 3] != n - TRAILER or crc16(buf, 0, n, INIT):
        return DAMAGED
    first = buf[n - TRAILER]
    return OK if first >> 6 == VERSION and first >> 3 & 7 <= RESET else FOREIGN
