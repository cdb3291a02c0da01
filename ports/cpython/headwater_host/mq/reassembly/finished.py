"""Records of finished messages, which identify duplicates.

A record has the flags, the length and a checksum of each piece: 12 bytes for each.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable
from hashlib import blake2b

from headwater_host.mq.fields import IN_GROUP, Fault
from headwater_host.mq.reassembly import logical

#: MsgSeqNumber, flags, Encoding, CodedCharSetId, length; then offset and checksum of each piece.
_HEAD = struct.Struct("<IIiiI")
_PIECE = struct.Struct("<I8s")


def _checksum(data: bytes | memoryview) -> bytes:
    return blake2b(data, digest_size=8).digest()


def packed(message: logical.Message, pieces: Iterable[tuple[int, bytes]]) -> bytes:
    """Encode the record of a complete message. ``pieces`` are (Offset, bytes), in order."""
    flags = message.flags & 0xFFFFFFFF
    found = bytearray(_HEAD.pack(message.seq, flags, message.encoding, message.ccsid, message.end))
    for at, data in pieces:
        found += _PIECE.pack(at, _checksum(data))
    return bytes(found)


class Finished:
    """The record of a message that was handed out."""

    __slots__ = ("_count", "_data", "ccsid", "encoding", "flags", "length", "seq")

    def __init__(self, data: bytes):
        self._data = data
        self._count = (len(data) - _HEAD.size) // _PIECE.size
        self.seq, self.flags, self.encoding, self.ccsid, self.length = _HEAD.unpack_from(data)

    @classmethod
    def of(cls, data: object) -> Finished | None:
        """Decode a record, or return None if it is damaged."""
        if not isinstance(data, bytes) or len(data) < _HEAD.size or (len(data) - _HEAD.size) % _PIECE.size:
            return None
        return cls(data)

    @property
    def grouped(self) -> bool:
        """True if the message is in a group."""
        return bool(self.flags & IN_GROUP)

    def meet(
        self, offset: int, flags: int, encoding: int, ccsid: int, data: memoryview
    ) -> tuple[Fault | None, int]:
        """Compare a later segment: return its contradiction, and its first byte that cannot be compared, or -1.

        Part of a piece cannot be compared with the checksum of the whole.
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
