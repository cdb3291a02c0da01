"""MurmurHash3 x64 128 with seed 0 (Austin Appleby, public domain), which hashes names in FMQ.

It allocates: on a board, hash topics and field names once.
"""

from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

_C1 = 0x87C37B91114253D5
_C2 = 0x4CF5AD432745937F
_MASK = 0xFFFFFFFFFFFFFFFF
_BLOCK = const(16)


def _rotated(x: int, n: int) -> int:
    return (x << n | x >> 64 - n) & _MASK


def _mixed_1(k: int) -> int:
    return _rotated(k * _C1 & _MASK, 31) * _C2 & _MASK


def _mixed_2(k: int) -> int:
    return _rotated(k * _C2 & _MASK, 33) * _C1 & _MASK


def _final(h: int) -> int:
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCD & _MASK
    h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return h ^ h >> 33


def _word(data: "Bytes", at: int, end: int) -> int:
    """Return the little-endian word at ``at``, up to eight bytes."""
    word = 0
    for i in range(min(end, at + 8) - 1, at - 1, -1):
        word = word << 8 | data[i]
    return word


def murmur3(data: "Bytes") -> int:
    """Return the hash of ``data`` as FMQ's number: ``h1 << 64 | h2``."""
    n = len(data)
    h1 = h2 = at = 0
    while n - at >= _BLOCK:
        h1 ^= _mixed_1(_word(data, at, n))
        h1 = (_rotated(h1, 27) + h2) * 5 + 0x52DCE729 & _MASK
        h2 ^= _mixed_2(_word(data, at + 8, n))
        h2 = (_rotated(h2, 31) + h1) * 5 + 0x38495AB5 & _MASK
        at += _BLOCK
    h2 ^= _mixed_2(_word(data, at + 8, n)) ^ n
    h1 ^= _mixed_1(_word(data, at, n)) ^ n
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    h1 = _final(h1)
    h2 = _final(h2)
    h1 = h1 + h2 & _MASK
    return h1 << 64 | h2 + h1 & _MASK
