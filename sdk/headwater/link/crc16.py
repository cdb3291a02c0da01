"""CRC-16/IBM-3740 (also known as CRC-16/CCITT-FALSE): polynomial 0x1021, initial value 0xFFFF, nothing reflected,
check 0x29B1.

It finds every error of up to three bits, and every burst of up to 16 bits, in a frame of the link; of all other
damage it misses one in 65536. It never needs more than 24 bits, so it allocates nothing on a 32-bit board. A message
followed by its checksum, high byte first, has the checksum 0.
"""

from array import array

from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

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
