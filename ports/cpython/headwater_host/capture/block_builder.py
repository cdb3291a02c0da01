"""Collect the records of a block and encode it."""

from __future__ import annotations

import struct

from headwater_host.capture.format import (
    COLUMNS,
    DUPLICATE,
    FIRST_NS,
    MAX_FRAME,
    MAX_PEER,
    MAX_PEERS,
    ROW,
    UNMARKED,
    encode_block,
)

#: The default of ``BlockBuilder.limit``, and its maximum.
BLOCK_BYTES = 1 << 20
MAX_BLOCK_BYTES = 32 << 20

_pack = ROW.pack
_pack_first = FIRST_NS.pack
# Bytes of a record without its frame; of a block without its records: the number of strings, and three paddings.
_PER_RECORD = ROW.size
_PER_BLOCK = 2 + 3 * 7
_LIMITS = {"q": (-(1 << 63), (1 << 63) - 1), "Q": (0, (1 << 64) - 1), "H": (0, 0xFFFF), "B": (0, 0xFF)}


class BlockFull(Exception):  # noqa: N818  # not an error: the record goes into the next block
    """The record does not fit into this block. It was not added."""


class BlockBuilder:
    """Collects the records of one block. ``limit``: target for the length of its body, in bytes.

    ``count`` records are in it, about ``size`` bytes of body.
    """

    __slots__ = ("_firsts", "_frames", "_limit", "_peers", "_rows", "_strings", "count", "size")

    def __init__(self, limit: int) -> None:
        if not _PER_BLOCK < limit <= MAX_BLOCK_BYTES:
            raise ValueError(f"a block of {limit} bytes: the limit is {_PER_BLOCK + 1} to {MAX_BLOCK_BYTES}")
        self._limit = limit
        self._rows = bytearray()
        self._frames: list[bytes] = []
        self._peers: dict[str, int] = {}
        self._strings: list[bytes] = []
        self._firsts = bytearray()
        self.count = 0
        self.size = _PER_BLOCK

    def append(
        self,
        time_ns: int,
        connection: int,
        peer: str,
        direction: int,
        protocol: int,
        version: int,
        frame: bytes | bytearray | memoryview,
        mark: int = UNMARKED,
        first_ns: int = 0,
    ) -> None:
        """Add a record. A frame that is not bytes is copied; ``first_ns`` is used only with DUPLICATE.

        Raises ValueError or TypeError, with the field and its limit, if the record cannot be stored; BlockFull if the
        block has no room. The record is not added then.
        """
        if type(frame) is not bytes:
            frame = bytes(memoryview(frame))
        size = self.size + len(frame) + _PER_RECORD
        if mark == DUPLICATE:
            size += FIRST_NS.size
        if size > self._limit:
            if len(frame) > MAX_FRAME:
                raise ValueError(f"frame of {len(frame)} bytes: at most {MAX_FRAME} fit into a block")
            if self.count:
                raise BlockFull
        index = self._peers.get(peer)
        string = None
        if index is None:
            string = self._new_peer(peer, size)
            index = len(self._strings)
        try:
            first = _pack_first(first_ns) if mark == DUPLICATE else b""
            self._rows += _pack(time_ns, connection, len(frame), index, direction, protocol, version, mark)
        except struct.error:
            raise _blame(time_ns, connection, direction, protocol, version, mark, first_ns) from None
        self._firsts += first
        if string is not None:
            self._peers[peer] = index
            self._strings.append(string)
            size += 2 + len(string)
        self._frames.append(frame)
        self.size = size
        self.count += 1

    def _new_peer(self, peer: str, size: int) -> bytes:
        """Return the entry of a new peer for the string table."""
        if not isinstance(peer, str):
            raise TypeError(f"peer is text, not {type(peer).__name__}")
        try:
            string = peer.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"peer {peer!r} cannot be stored as UTF-8: {error.reason}") from None
        if len(string) > MAX_PEER:
            raise ValueError(f"peer of {len(string)} bytes: at most {MAX_PEER} can be stored")
        if self.count and (len(self._strings) == MAX_PEERS or size + 2 + len(string) > self._limit):
            raise BlockFull
        return string

    def encode(self, sequence: int, salt: int) -> tuple[bytes, bytes]:
        """Encode the header and the body of the block, which must contain a record."""
        return encode_block(self._rows, self._strings, self._firsts, self._frames, sequence, salt)


class ClosedBuilder(BlockBuilder):
    """The builder of a closed writer: refuses every record, with the reason."""

    __slots__ = ("_reason",)

    def __init__(self, reason: str = "the capture log is closed") -> None:
        super().__init__(MAX_BLOCK_BYTES)
        self._reason = reason

    def append(self, *_: object) -> None:
        """Raises ValueError."""
        raise ValueError(self._reason)


def _blame(*values: object) -> Exception:
    """Return the error for the number that cannot be packed."""
    numbers = [(name, code) for name, code, _ in COLUMNS if name not in {"length", "peer"}]
    for (name, code), value in zip([*numbers, ("first_ns", "q")], values, strict=True):
        if not isinstance(value, int):
            return TypeError(f"{name} is an integer, not {type(value).__name__}")
        low, high = _LIMITS[code]
        if not low <= value <= high:
            return ValueError(f"{name} {value}: must be {low} to {high}")
    raise AssertionError(f"{values} can be packed")
