"""The capture log's bytes: one block put together by hand, every round trip, and every way a block can be wrong."""

import struct
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_host.capture.block_builder import MAX_BLOCK_BYTES, BlockBuilder, BlockFull
from headwater_host.capture.format import (
    DUPLICATE,
    HEADER_BYTES,
    MAX_BODY,
    MAX_FRAME,
    MAX_PEERS,
    Block,
    FormatError,
    Record,
    find_header,
    parse_header,
    parse_segment_name,
    segment_name,
)
from tests.host.capture_logs import records, with_body, with_header
from tests.rows import each_row
from tools.capture_log import encode_records

SALT = 0x0123456789ABCDEF

# docs/capture-log.md, by hand: two records of 3 and 2 bytes, two peers; the second is a duplicate.
BY_HAND_BODY = bytes.fromhex(
    "0a00000000000000 0900000000000000"  # time_ns 10, 9
    "0700000000000000 ffffffffffffffff"  # connection 7, 2**64 - 1
    "03000000 02000000"  # length
    "0000 0100"  # peer
    "00 01"  # direction
    "01 02"  # protocol
    "04 00"  # version
    "00 02"  # mark
    "00000000"  # padding of the columns: 52 bytes
    "0200 0100 61 0200 c3a9 000000000000 00"  # "a", "é": 9 bytes and padding
    "0800000000000000"  # first_ns of the duplicate
    "100200 e000 000000"  # frames and padding
)
BY_HAND_HEADER = struct.pack(
    "<4sHHIIQqqIIIQ", b"HWB1", 2, 64, len(BY_HAND_BODY), 2, 5, 9, 10, 16, 0, crc32(BY_HAND_BODY), SALT
)
BY_HAND = BY_HAND_HEADER + struct.pack("<I", crc32(BY_HAND_HEADER)) + BY_HAND_BODY
BY_HAND_RECORDS = [
    Record(10, 7, "a", 0, 1, 4, b"\x10\x02\x00"),
    Record(9, 2**64 - 1, "é", 1, 2, 0, b"\xe0\x00", DUPLICATE, 8),
]

a_record = st.builds(
    lambda first_ns, *fields: Record._make([*fields, first_ns if fields[-1] == DUPLICATE else 0]),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(0, (1 << 64) - 1),
    st.sampled_from(["", "a", "serial:/dev/ttyÜ", "mqtt:[::1]:1883"]) | st.text(max_size=5),
    st.integers(0, 255),
    st.integers(0, 255),
    st.integers(0, 255),
    st.binary(max_size=20),
    st.sampled_from([0, 1, DUPLICATE, DUPLICATE, 3, 255]),
)


def block_of(data: bytes) -> Block:
    return Block(parse_header(data), data[HEADER_BYTES:])


def test_a_block_put_together_by_hand_is_what_is_written_and_read() -> None:
    assert len(BY_HAND_BODY) % 8 == 0
    assert encode_records(BY_HAND_RECORDS, 5, SALT) == BY_HAND
    block = block_of(BY_HAND)
    assert list(block.records()) == BY_HAND_RECORDS
    assert (block.header.sequence, block.header.first_ns, block.header.last_ns) == (5, 9, 10)
    assert block.header.block_length == len(BY_HAND)
    assert block.peers == ["a", "é"]
    assert (block.time_ns.format, block.connection.tolist()) == ("q", [7, 2**64 - 1])


@given(st.lists(a_record, min_size=1, max_size=30), st.integers(0, (1 << 64) - 1))
def test_every_block_comes_back_as_it_was(some: list[Record], sequence: int) -> None:
    data = encode_records(some, sequence, SALT)
    assert len(data) % 8 == 0
    block = block_of(data)
    assert list(block.records()) == some
    assert block.header.sequence == sequence
    times = [one.time_ns for one in some]
    assert (block.header.first_ns, block.header.last_ns) == (min(times), max(times))


@given(st.lists(a_record, min_size=1, max_size=3), st.data())
def test_no_change_of_a_byte_is_read(some: list[Record], data: st.DataObject) -> None:
    good = encode_records(some, 0, SALT)
    at = data.draw(st.integers(0, len(good) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda value: value != good[at]))
    with pytest.raises(FormatError):
        block_of(good[:at] + bytes([value]) + good[at + 1 :])


@each_row(
    "changes, reason",
    [
        ({"header_length": 72}, "lengths 72"),
        ({"body_length": 4}, "and 4"),
        ({"body_length": MAX_BODY + 8}, "and 67108872"),
        ({"records": 0}, "without records"),
        ({"salt": SALT + 1}, "another segment"),
    ],
)
def test_a_header_that_cannot_be_trusted_is_not_right(changes: dict[str, int], reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        parse_header(with_header(BY_HAND, **changes), SALT)


@each_row("length", range(HEADER_BYTES))
def test_a_short_header_is_not_right(length: int) -> None:
    with pytest.raises(FormatError, match=f"^{length} bytes"):
        parse_header(BY_HAND[:length])


@each_row(
    "block, reason",
    [
        (with_header(BY_HAND, version=3), "version 3 with flags 0x0 is unknown"),
        (with_header(BY_HAND, version=0), "version 0 with flags 0x0 is unknown"),
        (with_header(BY_HAND, flags=1), "version 2 with flags 0x1 is unknown"),
        (with_header(BY_HAND, version=1), "its parts have"),
        (with_body(BY_HAND, 50, b"\x02"), "its parts have"),
        (with_body(BY_HAND, 51, b"\x00"), "its parts have"),
        (with_header(BY_HAND, crc=1), "body CRC"),
        (with_header(BY_HAND, records=4), "too short"),
        (with_header(BY_HAND, records=0xFFFFFFFF), "too short"),
        (with_header(BY_HAND, records=1), "string table|its parts"),
        (with_header(BY_HAND, strings=0xFFFFFFFF), "too short"),
        (with_header(BY_HAND, strings=24), "its parts"),
        (with_header(BY_HAND, body_length=len(BY_HAND_BODY) + 8), "too short"),
        (with_body(BY_HAND, 32, b"\xff\xff\xff\xff"), "its parts"),
        (with_body(BY_HAND, 40, b"\x02"), "peer 2 of 2"),
        (with_body(BY_HAND, 56, b"\x00"), "string table"),
        (with_body(BY_HAND, 56, b"\xff"), "string table"),
        (with_body(BY_HAND, 58, b"\xff"), "string table"),
        (with_body(BY_HAND, 63, b"\xff"), "string table"),
    ],
    ids=lambda row: row[1],
)
def test_a_body_that_contradicts_itself_is_refused(block: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        block_of(block)


def test_a_header_is_found_at_any_alignment_and_only_with_the_salt() -> None:
    for before in range(20):
        data = b"HWB1"[: before % 5] + bytes(before) + BY_HAND
        assert find_header(data, 0, SALT) == len(data) - len(BY_HAND)
        assert find_header(data, 0) == len(data) - len(BY_HAND)
        assert find_header(data, 0, SALT ^ 1) == -1
        assert find_header(data[: len(data) - len(BY_HAND) + HEADER_BYTES - 1], 0, SALT) == -1


def test_segment_names() -> None:
    name = "segment-00000000000000000042-0123456789abcdef.hwc"
    assert segment_name(42, SALT) == name
    assert parse_segment_name(name) == (42, SALT)
    for other in (
        "segment-42.hwc",
        name + ".cut",
        "x" + name,
        name.upper(),
        name.replace("0", "٠"),
        name + "\n",
    ):
        assert parse_segment_name(other) is None
    assert parse_segment_name("segment-99999999999999999999-0123456789abcdef.hwc") is None


@each_row(
    "changes, reason",
    [
        ({"time_ns": 1 << 63}, "time_ns 9223372036854775808: must be -9223372036854775808 to"),
        ({"connection": -1}, "connection -1: must be 0 to 18446744073709551615"),
        ({"direction": 256}, "direction 256: must be 0 to 255"),
        ({"protocol": -1}, "protocol -1: must be 0 to 255"),
        ({"version": 1 << 70}, "version 1180591620717411303424"),
        ({"time_ns": 1.5}, "time_ns is an integer, not float"),
        ({"connection": None}, "connection is an integer, not NoneType"),
        ({"peer": "\ud800"}, "cannot be stored as UTF-8"),
        ({"peer": "é" * 0x8000}, "peer of 65536 bytes: at most 65535"),
        ({"peer": b"a"}, "peer is text, not bytes"),
        ({"mark": 256}, "mark 256: must be 0 to 255"),
        ({"mark": DUPLICATE, "first_ns": 1 << 63}, "first_ns 9223372036854775808: must be"),
        ({"mark": DUPLICATE, "first_ns": None}, "first_ns is an integer, not NoneType"),
        ({"frame": "text"}, "bytes-like"),
        ({"frame": 5}, "bytes-like"),
        ({"frame": bytes(MAX_FRAME + 1)}, f"frame of {MAX_FRAME + 1} bytes: at most {MAX_FRAME}"),
    ],
)
def test_a_record_that_cannot_be_stored_is_refused_and_leaves_nothing(
    changes: dict[str, object], reason: str
) -> None:
    builder = BlockBuilder(1 << 20)
    good = records(2)
    builder.append(*good[0])
    before = builder.size
    with pytest.raises((ValueError, TypeError), match=reason):
        builder.append(*(good[0]._asdict() | {"peer": "new"} | changes).values())
    assert (builder.count, builder.size) == (1, before)
    builder.append(*good[1])
    assert list(block_of(b"".join(builder.encode(0, SALT))).records()) == good
    assert block_of(b"".join(builder.encode(0, SALT))).peers == [one.peer for one in good]


@each_row("kind", [bytes, bytearray, memoryview])
def test_a_frame_is_taken_as_it_is_now(kind: type) -> None:
    buffer = bytearray(b"\xe0\x00")
    builder = BlockBuilder(1 << 10)
    builder.append(1, 2, "a", 0, 1, 4, kind(buffer))
    buffer[:] = b"xx"
    assert block_of(b"".join(builder.encode(0, SALT))).frames() == [b"\xe0\x00"]


def test_the_greatest_frame_with_the_longest_peer_makes_a_block() -> None:
    some = [Record(1, 2, "a" * 0xFFFF, 0, 1, 4, bytes(MAX_FRAME))]
    data = encode_records(some, 0, SALT)
    assert len(data) <= HEADER_BYTES + MAX_BODY
    assert list(block_of(data).records()) == some


def test_a_block_keeps_to_its_limit_and_to_the_number_of_peers() -> None:
    builder = BlockBuilder(200)
    for _ in range(4):
        builder.append(1, 2, "a", 0, 1, 4, b"12345678")
    with pytest.raises(BlockFull):
        builder.append(1, 2, "a", 0, 1, 4, b"12345678901234567890")
    builder.append(1, 2, "a", 0, 1, 4, b"12345678")
    assert len(builder.encode(0, SALT)[1]) <= 200
    # A record that is larger than the limit has a block for itself; another peer's name may be what is too much.
    builder = BlockBuilder(200)
    builder.append(1, 2, "a", 0, 1, 4, bytes(500))
    with pytest.raises(BlockFull):
        builder.append(1, 2, "a", 0, 1, 4, b"")
    builder = BlockBuilder(200)
    builder.append(1, 2, "a", 0, 1, 4, bytes(100))
    with pytest.raises(BlockFull):
        builder.append(1, 2, "b" * 100, 0, 1, 4, b"")
    builder = BlockBuilder(MAX_BLOCK_BYTES)
    for number in range(MAX_PEERS):
        builder.append(1, 2, str(number), 0, 1, 4, b"")
    with pytest.raises(BlockFull):
        builder.append(1, 2, "one more", 0, 1, 4, b"")
    builder.append(1, 2, "65534", 0, 1, 4, b"")
    block = block_of(b"".join(builder.encode(0, SALT)))
    assert block.peers == list(map(str, range(MAX_PEERS)))
    assert block.peer[-1] == MAX_PEERS - 1


def test_a_block_size_that_is_not_possible_is_refused() -> None:
    for limit in (0, -1, MAX_BLOCK_BYTES + 1):
        with pytest.raises(ValueError, match=f"{limit} bytes: the limit is"):
            BlockBuilder(limit)
