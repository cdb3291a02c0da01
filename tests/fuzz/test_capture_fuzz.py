"""The capture log's reader on hostile bytes: arbitrary files, mutated logs, right CRCs over nonsense.

Seeds (``SEEDS``), each a way in which bytes have fooled readers of block formats:

- ``empty``, ``short``: nothing, and less than a header;
- ``zeros``: what some file systems leave behind after a power cut;
- ``magics``: only magics, so that the search for the next header tries every fourth byte;
- ``endless``: a right header whose body would be as long as a body may be;
- ``nested``: a block whose frame is a block;
- ``log``: a log as it should be.

What must hold for all bytes: reading ends, raises nothing, and accounts for every byte: each is in a block that was
returned, or in a problem that was reported, and in one of them only. A block that is returned is one that was written.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_host.capture import (
    Block,
    BlockInfo,
    CaptureReader,
    FormatError,
    Problem,
    Record,
    list_blocks,
    verify,
)
from headwater_host.capture.filesystem import LocalFile
from headwater_host.capture.format import HEADER_BYTES, MAX_BODY, parse_header, segment_name
from headwater_host.capture.manifest import NAME as MANIFEST
from headwater_host.capture.manifest import read_manifest
from headwater_host.capture.scan import Scan
from tests.host.capture_logs import is_subsequence, records, with_header
from tests.rows import each_row
from tools.capture_log import LogWriter, encode_records

SALT = 0xFEEDC0DEFEEDC0DE
NAME = segment_name(0, SALT)
RECORDS = records(6)
BLOCKS = [encode_records(RECORDS[at : at + 2], at // 2, SALT) for at in range(0, len(RECORDS), 2)]
NESTED = encode_records([RECORDS[0]._replace(frame=BLOCKS[1])], 0, SALT)
SEEDS = {
    "empty": b"",
    "short": BLOCKS[0][:63],
    "zeros": bytes(200),
    "magics": b"HWB1" * 100,
    "endless": with_header(BLOCKS[0], body_length=MAX_BODY),
    "nested": NESTED,
    "log": b"".join(BLOCKS),
}


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """A log with bytes changed, cut out, put in, doubled; and pieces of seeds between."""
    data = bytearray(draw(st.sampled_from(sorted(SEEDS.values()))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 150))
        match draw(st.integers(0, 4)):
            case 0:
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case 1:
                del data[at : at + length]
            case 2:
                data[at:at] = draw(st.binary(max_size=100))
            case 3:
                data[at:at] = data[at : at + length]
            case _:
                data[at:at] = draw(st.sampled_from(sorted(SEEDS.values())))[:length]
    return bytes(data)


@st.composite
def nonsense_under_right_crcs(draw: st.DrawFn) -> bytes:
    """A block with fields of the header and bytes of the body changed, and all CRCs made right."""
    data = bytearray(draw(st.sampled_from([*BLOCKS, NESTED])))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(4, len(data) - 1))
        if not 52 <= at < HEADER_BYTES:
            size = draw(st.sampled_from([1, 2, 4]))
            new = draw(st.sampled_from([0, 1, 7, 8, 0x7F, 0xFF, 1 << 16, (1 << 31), (1 << 32) - 1]))
            data[at : at + size] = (new & (1 << 8 * size) - 1).to_bytes(size, "little")
    struct.pack_into("<I", data, 48, zlib.crc32(data[HEADER_BYTES:]))
    struct.pack_into("<Q", data, 52, SALT)
    struct.pack_into("<I", data, 60, zlib.crc32(data[:60]))
    return bytes(data)


def check_scan(data: bytes, *, is_open: bool, salt: int | None = SALT) -> list[tuple[BlockInfo, Block]]:
    """Walk through ``data`` as a segment; every byte must be accounted for, once."""
    found = []
    with TemporaryDirectory() as place:
        path = Path(place) / NAME
        path.write_bytes(data)
        fd = os.open(path, os.O_RDONLY)
        try:
            at = 0
            for one in Scan(LocalFile(fd), NAME, salt, is_open=is_open, expected=0):
                if isinstance(one, Problem):
                    assert one.offset == at
                    assert one.length > 0 or one.kind == "gap"
                    assert one.kind in {"bad", "gap"} or (is_open and one.offset + one.length == len(data))
                    at += one.length
                else:
                    info, block = one
                    assert info.offset == at
                    assert block is not None
                    assert len(list(block.records())) == info.header.records
                    found.append((info, block))
                    at = info.end
            assert at == len(data)
        finally:
            os.close(fd)
    return found


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=400), is_open=st.booleans())
def test_arbitrary_bytes(data: bytes, is_open: bool) -> None:
    assert check_scan(data, is_open=is_open) == []


@each_row("seed", SEEDS)
@each_row("is_open", [True, False])
def test_seeds(seed: str, is_open: bool) -> None:
    blocks = check_scan(SEEDS[seed], is_open=is_open)
    assert len(blocks) == {"nested": 1, "log": 3}.get(seed, 0)


@settings(max_examples=400, deadline=None)
@given(data=mutations(), is_open=st.booleans())
def test_mutated_logs(data: bytes, is_open: bool) -> None:
    written = {bytes(block) for block in (*BLOCKS, NESTED)}
    for info, _ in check_scan(data, is_open=is_open):
        assert data[info.offset : info.end] in written


@settings(max_examples=400, deadline=None)
@given(data=nonsense_under_right_crcs(), is_open=st.booleans())
def test_nonsense_under_right_crcs(data: bytes, is_open: bool) -> None:
    check_scan(data + BLOCKS[2], is_open=is_open)
    try:
        block = Block(parse_header(data, SALT), data[HEADER_BYTES:])
    except FormatError:
        return
    # What is accepted is consistent: as many of everything, and writing it again gives the same records.
    again = list(block.records())
    assert len(again) == len(block.frames()) == block.header.records
    copy = encode_records(again, 0, SALT)
    assert list(Block(parse_header(copy), copy[HEADER_BYTES:]).records()) == again


@settings(max_examples=200, deadline=None)
@given(data=mutations(), manifest=st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_a_whole_log_with_anything_in_it_can_be_read_verified_and_continued(
    data: bytes, manifest: bytes
) -> None:
    with TemporaryDirectory() as place:
        directory = Path(place)
        (directory / NAME).write_bytes(data)
        (directory / MANIFEST).write_bytes(manifest)
        read_manifest(directory)
        before = list(CaptureReader(directory).records())
        verify(directory)
        list_blocks(directory)
        new = Record(5, 6, "new", 0, 1, 4, b"new")
        with LogWriter(directory) as writer:
            writer.append(*new)
        # Opening cuts what no reader returned, and nothing else.
        assert list(CaptureReader(directory).records()) == [*before, new]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_following_while_arbitrary_pieces_arrive(data: st.DataObject) -> None:
    """A reader that comes while bytes are still in the writing never returns what was not written."""
    whole = SEEDS["log"]
    reader = None
    read: list[Record] = []
    with TemporaryDirectory() as place:
        path = Path(place) / NAME
        for length in [*sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6))), len(whole)]:
            path.write_bytes(whole[:length])
            reader = reader or CaptureReader(place)
            read += reader.records()
            assert is_subsequence(read, RECORDS)
            assert reader.problems == []
    assert read == RECORDS


def problems_of(data: bytes) -> Iterator[Problem]:
    with TemporaryDirectory() as place:
        path = Path(place) / NAME
        path.write_bytes(data)
        with path.open("rb") as file:
            yield from (one for one in Scan(LocalFile(file.fileno()), NAME, SALT) if isinstance(one, Problem))


def test_a_large_file_of_magics_is_searched_in_reasonable_time() -> None:
    """One walk over the bytes, within the time a test may take; and one report, not one per magic."""
    assert len(list(problems_of(b"HWB1" * 500_000))) == 1
