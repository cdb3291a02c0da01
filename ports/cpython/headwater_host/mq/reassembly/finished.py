"""What is remembered of a message that was handed out: enough to tell its duplicates from what contradicts it.

That is its flags and length, and a checksum of each of its pieces, packed into bytes: 12 for each piece.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable
from hashlib import blake2b

from headwater_host.mq.fields import IN_GROUP, Fault
from headwater_host.mq.reassembly import logical

#: MsgSeqNumber, flags, Encoding, CodedCharSetId, length; then of each piece where it starts, and its checksum.
_HEAD = struct.Struct("<IIiiI")
_PIECE = struct.Struct("<I8s")


def _checksum(data: bytes | memoryview) -> bytes:
    return blake2b(data, digest_size=8).digest()


def packed(message: logical.Message, pieces: Iterable[tuple[int, bytes]]) -> bytes:
    """What to remember of a whole message. ``pieces``: (Offset, bytes) of all there is of it, in order."""
    flags = message.flags & 0xFFFFFFFF
    found = bytearray(_HEAD.pack(message.seq, flags, message.encoding, message.ccsid, message.end))
    for at, data in pieces:
        found += _PIECE.pack(at, _checksum(data))
    return bytes(found)


class Finished:
    """A message that was handed out, as ``packed`` has it."""

    __slots__ = ("_count", "_data", "ccsid", "encoding", "flags", "length", "seq")

    def __init__(self, data: bytes):
        self._data = data
        self._count = (len(data) - _HEAD.size) // _PIECE.size
        self.seq, self.flags, self.encoding, self.ccsid, self.length = _HEAD.unpack_from(data)

    @classmethod
    def of(cls, data: object) -> Finished | None:
        """None when these bytes, from a store, are not what was written."""
        if not isinstance(data, bytes) or len(data) < _HEAD.size or (len(data) - _HEAD.size) % _PIECE.size:
            return None
        return cls(data)

    @property
    def grouped(self) -> bool:
        """Whether it is in a group."""
        return bool(self.flags & IN_GROUP)

    def meet(
        self, offset: int, flags: int, encoding: int, ccsid: int, data: memoryview
    ) -> tuple[Fault | None, int]:
        """A segment comes behind it: what it contradicts; and its first byte that cannot be compared, or -1.

        There is a checksum of each piece, so that a part of one cannot be compared.
        """
        known = logical.Message(self.seq)
        known.flags, known.encoding, known.ccsid = self.flags, self.encoding, self.ccsid
        known.end = known.reach = self.length
        fault = known.meet(offset, len(data), flags, encoding, ccsid)
        if fault is not None:
            return fault, -1
        stop, unknown = offset + len(data), -1
        first = bisect_right(range(self._count), offset, key=self._start) - 1
        for k in range(max(first, 0), self._count):
            begin, end = self._start(k), self._start(k + 1)
            if begin >= stop:
                break
            if begin < offset or end > stop:
                unknown = max(begin, offset) if unknown < 0 else unknown
            elif _checksum(data[begin - offset : end - offset]) != self._piece(k)[1]:
                return Fault("overlap", self.seq, begin), -1
        return None, unknown

    def _piece(self, k: int) -> tuple[int, bytes]:
        found: tuple[int, bytes] = _PIECE.unpack_from(self._data, _HEAD.size + k * _PIECE.size)
        return found

    def _start(self, k: int) -> int:
        return self._piece(k)[0] if k < self._count else self.length
