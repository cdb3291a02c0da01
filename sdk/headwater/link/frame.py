"""The frames of the serial link: payload and trailer, stuffed (``headwater.link.cobs``) and closed by a zero byte.

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

from headwater.link.cobs import DELIMITER, stuff, stuffed_size
from headwater.link.crc16 import INIT, crc16
from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

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
