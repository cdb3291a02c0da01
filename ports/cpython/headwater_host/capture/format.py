"""Byte layout of the capture log (docs/capture-log.md): names, header, columns; encode and validate a block.

Does no I/O. After ``parse_header`` and ``Block`` accept their input, no accessor fails.
"""

from __future__ import annotations

import re
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise, repeat
from typing import NamedTuple
from zlib import crc32

MAGIC = b"HWB1"
#: The version that is written, and those that are read.
VERSION = 2
VERSIONS = (1, 2)
HEADER_BYTES = 64
MAX_BODY = 64 << 20
MAX_PEER = 0xFFFF  # bytes of UTF-8
MAX_PEERS = 0xFFFF  # in one block
# A frame of this size fits into a block of its own with a peer of any length.
MAX_FRAME = MAX_BODY - (128 << 10)

RECEIVED, SENT = 0, 1
DIRECTIONS = {RECEIVED: "received", SENT: "sent"}
MQTT, FMQ, IBMMQ = 1, 2, 3
PROTOCOLS = {MQTT: "mqtt", FMQ: "fmq", IBMMQ: "ibmmq"}
#: Values of ``version`` in records of MQTT: the protocol level.
MQTT_3_1_1, MQTT_5 = 4, 5

#: Marks: what the receiver knew about a message when it arrived. Nothing; an original; a duplicate of the record that
#: the same peer sent at ``first_ns``; possibly a duplicate.
UNMARKED, ORIGINAL, DUPLICATE, UNCERTAIN = 0, 1, 2, 3
MARKS = {ORIGINAL: "original", DUPLICATE: "duplicate", UNCERTAIN: "uncertain"}

# name, array and memoryview type code, bytes per record
COLUMNS = (
    ("time_ns", "q", 8),
    ("connection", "Q", 8),
    ("length", "I", 4),
    ("peer", "H", 2),
    ("direction", "B", 1),
    ("protocol", "B", 1),
    ("version", "B", 1),
    ("mark", "B", 1),
)
# The columns of each version.
_COLUMNS = {1: COLUMNS[:-1], 2: COLUMNS}
# The columns of one record in a row: what a builder collects until the block is encoded.
ROW = struct.Struct("<" + "".join(code for _, code, _ in COLUMNS))

# magic, version, header length, body length, records, sequence, first_ns, last_ns, string table length, flags,
# CRC of the body, salt; followed by the CRC of these.
_HEADER = struct.Struct("<4sHHIIQqqIIIQ")
_CRC = struct.Struct("<I")
_LENGTH = struct.Struct("<H")
#: The time of the first receipt of a duplicate.
FIRST_NS = struct.Struct("<q")
_NAME = re.compile(r"segment-([0-9]{20})-([0-9a-f]{16})\.hwc")
_SEQUENCES = 1 << 64


class FormatError(ValueError):
    """The bytes do not follow the format. The text says how."""


class Record(NamedTuple):
    """A frame as received, with its receive time (ns since 1970), connection and peer.

    ``mark``: what the receiver knew about it; ``first_ns``: the receive time of a DUPLICATE's original, otherwise 0.
    """

    time_ns: int
    connection: int
    peer: str
    direction: int
    protocol: int
    version: int
    frame: bytes
    mark: int = UNMARKED
    first_ns: int = 0


class Header(NamedTuple):
    """The fields of a valid block header."""

    version: int
    body_length: int
    records: int
    sequence: int
    first_ns: int
    last_ns: int
    strings_length: int
    flags: int
    body_crc: int
    salt: int

    @property
    def known(self) -> bool:
        """True if this code can read the block's version."""
        return self.version in VERSIONS and not self.flags

    @property
    def block_length(self) -> int:
        """Bytes of the whole block."""
        return HEADER_BYTES + self.body_length


def padding(length: int) -> int:
    """Return the number of bytes from ``length`` to the next multiple of 8."""
    return -length % 8


def segment_name(sequence: int, salt: int) -> str:
    """Return the file name of the segment that begins with block ``sequence``."""
    return f"segment-{sequence:020d}-{salt:016x}.hwc"


def parse_segment_name(name: str) -> tuple[int, int] | None:
    """Return ``(sequence, salt)`` of a segment's file name, or None for another name."""
    found = _NAME.fullmatch(name)
    if found is None or int(found[1]) >= _SEQUENCES:
        return None
    return int(found[1]), int(found[2], 16)


def parse_header(data: bytes, salt: int | None = None) -> Header:
    """Parse the header in the first 64 bytes of ``data``.

    ``salt``: the salt that the block must have; None for any.

    Raises FormatError if the header is invalid. None of its fields, including the length, can be trusted then.
    """
    if len(data) < HEADER_BYTES:
        raise FormatError(f"{len(data)} bytes instead of a header of {HEADER_BYTES} bytes")
    if data[:4] != MAGIC:
        raise FormatError("no magic HWB1")
    if crc32(data[: _HEADER.size]) != _CRC.unpack_from(data, _HEADER.size)[0]:
        raise FormatError("header CRC is wrong")
    _, version, header_length, body_length, records, *rest = _HEADER.unpack_from(data)
    header = Header(version, body_length, records, *rest)
    if salt is not None and header.salt != salt:
        raise FormatError("header is of another segment: its salt is wrong")
    if header_length != HEADER_BYTES or body_length % 8 or body_length > MAX_BODY:
        raise FormatError(f"header with lengths {header_length} and {body_length}")
    if version in VERSIONS and not records:
        raise FormatError("header of a block without records")
    return header


def find_header(data: bytes, start: int, salt: int | None = None, least_sequence: int = 0) -> int:
    """Return the offset of the first valid header in ``data`` from ``start`` on, or -1.

    Headers with a sequence number below ``least_sequence`` are ignored.
    """
    while (start := data.find(MAGIC, start)) >= 0:
        try:
            header = parse_header(data[start : start + HEADER_BYTES], salt)
        except FormatError:
            pass
        else:
            if header.sequence >= least_sequence:
                break
        start += 1
    return start


def column(data: memoryview, code: str) -> memoryview:
    """Return little-endian numbers as a memoryview of type ``code``, without a copy on little-endian machines."""
    if sys.byteorder == "little":
        return data.cast(code)  # type: ignore[call-overload, no-any-return]  # a code that is not a literal
    numbers = array(code, bytes(data))
    numbers.byteswap()
    return memoryview(numbers)


class Block:
    """A valid block: columns as memoryviews of n numbers each, strings, frames.

    Raises FormatError if ``body`` is not the body of ``header``.
    """

    __slots__ = (
        "body",
        "connection",
        "direction",
        "first_ns",
        "frames_at",
        "header",
        "length",
        "mark",
        "peer",
        "peers",
        "protocol",
        "time_ns",
        "version",
    )

    header: Header
    body: bytes
    time_ns: memoryview
    connection: memoryview
    length: memoryview
    peer: memoryview
    direction: memoryview
    protocol: memoryview
    version: memoryview
    mark: memoryview
    first_ns: memoryview  # of the duplicates only, in their order
    peers: list[str]
    frames_at: int  # offset in body of the first frame

    def __init__(self, header: Header, body: bytes) -> None:
        if not header.known:
            raise FormatError(
                f"version {header.version} with flags {header.flags:#x} is unknown to this reader"
            )
        if crc32(body) != header.body_crc:
            raise FormatError("body CRC is wrong")
        # Only a faulty writer causes the errors below. They must not crash a reader either.
        columns = _COLUMNS[header.version]
        strings_at = sum(width for _, _, width in columns) * header.records
        strings_at += padding(strings_at)
        strings_end = strings_at + header.strings_length
        if len(body) != header.body_length or strings_end > len(body):
            raise FormatError(f"body of {len(body)} bytes is too short for its columns and strings")
        self.header = header
        self.body = body
        view = memoryview(body)
        self.mark = view[:0]
        at = 0
        for name, code, width in columns:
            end = at + width * header.records
            setattr(self, name, column(view[at:end], code))
            at = end
        frames_at = strings_end + FIRST_NS.size * bytes(self.mark).count(DUPLICATE)
        if frames_at > len(body):
            raise FormatError(f"body of {len(body)} bytes is too short for its duplicates")
        self.first_ns = column(view[strings_end:frames_at], "q")
        self.frames_at = frames_at
        if not self.mark:
            self.mark = memoryview(bytes(header.records))
        frames = sum(self.length)
        if frames_at + frames + padding(frames) != len(body):
            raise FormatError(f"body of {len(body)} bytes, but its parts have {frames_at + frames}")
        self.peers = _parse_strings(body[strings_at:strings_end])
        if max(self.peer) >= len(self.peers):
            raise FormatError(f"peer {max(self.peer)} of {len(self.peers)}")

    def frames(self) -> list[bytes]:
        """Return the frames as separate bytes objects."""
        body = self.body
        return [body[at:end] for at, end in pairwise(accumulate(self.length, initial=self.frames_at))]

    def records(self) -> Iterator[Record]:
        """Return the records in the order in which they were appended."""
        return map(
            Record,
            self.time_ns,
            self.connection,
            map(self.peers.__getitem__, self.peer),
            self.direction,
            self.protocol,
            self.version,
            self.frames(),
            self.mark,
            self._first_times(),
        )

    def _first_times(self) -> Iterator[int]:
        if not self.first_ns:
            return repeat(0)
        times = iter(self.first_ns)
        return (next(times) if mark == DUPLICATE else 0 for mark in self.mark)


def _parse_strings(data: bytes) -> list[str]:
    strings = []
    try:
        (count,) = _LENGTH.unpack_from(data)
        at = _LENGTH.size
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size
            strings.append(data[at : at + length].decode())
            at += length
    except (struct.error, UnicodeDecodeError) as error:
        raise FormatError(f"string table: {error}") from error
    if at + padding(at) != len(data):
        raise FormatError(f"string table of {len(data)} bytes, but its strings have {at}")
    return strings


def encode_strings(strings: Iterable[bytes]) -> bytes:
    """Encode the padded string table. The column ``peer`` refers to strings by their order."""
    parts = [b""]
    for string in strings:
        parts += (_LENGTH.pack(len(string)), string)
    parts[0] = _LENGTH.pack(len(parts) // 2)
    parts.append(bytes(padding(sum(map(len, parts)))))
    return b"".join(parts)


def encode_columns(rows: bytes | bytearray) -> bytearray:
    """Transpose records packed with ``ROW`` into padded columns."""
    count = len(rows) // ROW.size
    columns = bytearray(len(rows) + padding(len(rows)))
    at = byte = 0
    for _, _, width in COLUMNS:
        # One strided copy per byte of the row runs in C. Unpacking and packing each record is slower.
        end = at + width * count
        for start in range(at, at + width):
            columns[start:end:width] = rows[byte :: ROW.size]
            byte += 1
        at = end
    return columns


def encode_block(
    rows: bytes | bytearray,
    strings: Iterable[bytes],
    firsts: bytes | bytearray,
    frames: Iterable[bytes],
    sequence: int,
    salt: int,
) -> tuple[bytes, bytes]:
    """Encode the header and the body of a block.

    ``rows``: one or more records packed with ``ROW``. ``firsts``: a time packed with ``FIRST_NS`` for each duplicate.
    ``frames``: the frame of each record, with the length in its row.
    """
    columns = encode_columns(rows)
    table = encode_strings(strings)
    body = b"".join((columns, table, firsts, *frames))
    body += bytes(padding(len(body)))
    count = len(rows) // ROW.size
    times = column(memoryview(columns)[: 8 * count], "q")
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        HEADER_BYTES,
        len(body),
        count,
        sequence,
        min(times),
        max(times),
        len(table),
        0,
        crc32(body),
        salt,
    )
    return header + _CRC.pack(crc32(header)), body
