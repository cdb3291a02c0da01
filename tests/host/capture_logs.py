"""Capture logs for the tests: records that can be told apart, logs of several segments made of them, and their
blocks changed."""

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from zlib import crc32

from vectors import load

from headwater_host.capture import CaptureReader, Problem, Record
from headwater_host.capture.format import DUPLICATE, HEADER_BYTES, parse_segment_name
from headwater_host.capture.scan import scanning
from tools.capture_log import LogWriter

MANIFEST = "manifest.jsonl"

#: Logs that earlier code wrote (tests/vectors/capture.json), by the version of their blocks.
WRITTEN = {log["block_version"]: log for log in load("capture")["logs"]}


def write_old_log(directory: Path, version: int) -> list[Record]:
    """Write the log of an earlier version into ``directory``; return its records."""
    log = WRITTEN[version]
    for name, content in log["files"].items():
        (directory / name).write_bytes(bytes.fromhex(content) if name.endswith(".hwc") else content.encode())
    return [Record(**{**fields, "frame": bytes.fromhex(fields["frame"])}) for fields in log["records"]]


PEERS = ("serial:/dev/ttyACM0", "mqtt:127.0.0.1:1883", "serial:/dev/ttyÜ")
BEGIN_NS = 1_790_000_000_000_000_000


def record(number: int, length: int | None = None) -> Record:
    """Record ``number``: the frame begins with the number, and every field depends on it."""
    frame = number.to_bytes(8, "big") + bytes(number % 13 if length is None else length - 8)
    mark = number % 4
    return Record(
        BEGIN_NS + number * 1000,
        (1_790_000_000_000 << 20) + number % 5,
        PEERS[number % len(PEERS)],
        number % 2,
        1 + number % 3,
        3 + number % 3,
        frame,
        mark,
        BEGIN_NS + number if mark == DUPLICATE else 0,
    )


def numbered(number: int) -> Record:
    """Most are small; some are large, so that a write takes long enough to be killed in its middle."""
    return record(number, 8 + number * 7919 % (10_000 if number % 8 else 1_000_000))


def records(count: int, start: int = 0) -> list[Record]:
    return [record(number) for number in range(start, start + count)]


def write_log(directory: Path, *segments: Iterable[int], start: int = 0) -> list[Record]:
    """A log with a sealed segment for each argument, which gives the number of records in each of its blocks."""
    written = []
    for blocks in segments:
        with LogWriter(directory) as writer:
            for count in blocks:
                for number in range(start, start + count):
                    written.append(record(number))
                    writer.append(*written[-1])
                start += count
                writer.flush()
    return written


def reopen_last(directory: Path) -> Path:
    """Take the last segment's line out of the manifest: as if its writer had been killed."""
    manifest = directory / MANIFEST
    lines = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(b"".join(lines[:-1]))
    return segments(directory)[-1]


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("segment-*.hwc"))


def read_log(directory: Path) -> list[Record]:
    return list(CaptureReader(directory).records())


def read_range(path: Path, start: int, end: int) -> tuple[list[Record], list[Problem]]:
    """The records and the problems of the blocks that begin in a range of a segment."""
    parsed = parse_segment_name(path.name)
    with scanning(path, parsed and parsed[1], start=start, end=end) as scan:
        found = list(scan)
    blocks = [one[1] for one in found if not isinstance(one, Problem)]
    problems = [one for one in found if isinstance(one, Problem)]
    return [record for block in blocks if block for record in block.records()], problems


def is_subsequence(some: Iterable[Record], of: Iterable[Record]) -> bool:
    """Whether ``some`` are records of ``of``, each at most once and in their order."""
    rest: Iterator[Record] = iter(of)
    return all(one in rest for one in some)


def continue_log(directory: Path, expected: list[Record]) -> str:
    """Open the log, append a record: the log must read as ``expected`` and that record. What opening reported."""
    with LogWriter(directory) as writer:
        recovery = str(writer.recovery)
        assert read_log(directory) == expected
        assert writer.append(*record(99)) == 1
    assert read_log(directory) == [*expected, record(99)]
    return recovery


def with_header(block: bytes, **changes: int) -> bytes:
    """The block with fields of its header changed, and the CRCs made right again."""
    names = "magic version header_length body_length records sequence first_ns last_ns strings flags crc salt"
    layout = struct.Struct("<4sHHIIQqqIIIQ")
    fields = dict(zip(names.split(), layout.unpack_from(block), strict=True))
    assert changes.keys() <= fields.keys()
    header = layout.pack(*(fields | {"crc": crc32(block[HEADER_BYTES:])} | changes).values())
    return header + struct.pack("<I", crc32(header)) + block[HEADER_BYTES:]


def with_body(block: bytes, at: int, new: bytes) -> bytes:
    """The block with ``new`` at offset ``at`` of its body, and the CRCs made right again."""
    at += HEADER_BYTES
    return with_header(block[:at] + new + block[at + len(new) :])
