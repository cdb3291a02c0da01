"""MurmurHash3 x64 128 with seed 0: by mmh3 (``headwater[fmq]``) if it is installed, otherwise by the core."""

from collections.abc import Callable

from headwater.fmq.murmur3 import murmur3

_hash: Callable[[bytes], int] = murmur3
try:
    import mmh3
except ImportError:
    pass
else:

    def _mmh3(data: bytes) -> int:
        first, second = mmh3.hash64(data, 0, True, signed=False)
        return first << 64 | second

    _hash = _mmh3


def hash_of(name: str) -> int:
    """Return the hash of a topic or field name, an unsigned number of 128 bits."""
    return _hash(name.encode())
