# heap: 1M
"""The shared vectors of FMQ's frames: both ways, whole, byte by byte, with bytes behind, without room."""

import vectors
from fmq_frames import encoded, quickly, said

from headwater import errors
from headwater.errors import E_ARGUMENT, E_TOO_LARGE
from headwater.fmq import frames, frames_hub, spec
from headwater.fmq.frames import Frame
from headwater.fmq.names import REASONS, TYPES
from headwater.reasons import reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Row = dict[str, Any]

LIMIT = 16 << 20
# A frame that may follow another one.
BEHIND = b"\xe0\x31\x01\x03\xb1\x05\x00"
#: What is wrong with a frame, as opposed to when it comes.
MALFORMED = (
    errors.E_LENGTH,
    errors.E_TYPE,
    errors.E_FLAGS,
    errors.E_RX_QOS,
    errors.E_SIZE,
    errors.E_FIELD,
    errors.E_UTF8,
    errors.E_CODE,
    errors.E_RX_TOO_LARGE,
    spec.E_FORM,
    spec.E_ID,
)


def rows(section: str) -> "Iterator[tuple[Row, bytes]]":
    for row in vectors.rows("fmq", section):
        yield row, vectors.unhex(row["hex"])


def outcome(f: Frame, at: int, end: int) -> "tuple[str, int]":
    """What the decoder says of ``buf[at:end]``: ("ok", length), (reason, offset in the frame), or ("more", 0)."""
    stop = frames_hub.decode_frame(f, at, end)
    if stop > 0:
        return "ok", stop - at
    return (reason(stop, REASONS), f.bad_at - at) if stop else ("more", 0)


def agrees(f: Frame, row: "Row") -> None:
    found = said(f)
    for name, value in row.items():
        if name not in ("name", "hex"):
            assert found[name] == value, (row["name"], name, found)


def test_rows_are_complete() -> None:
    names = set()
    kinds = set()
    answered = set()
    for row, data in rows("frames"):
        assert row["name"] not in names, row["name"]
        names.add(row["name"])
        kinds.add(row["type"])
        if row["type"] == spec.ACK:
            answered.add(int(row["id"][0], 16))
        assert data
    assert kinds == set(range(16)) - {4} and len(TYPES) == 16
    assert answered >= {spec.AUTH, spec.SLAVEOF, spec.PUBLISH, spec.SUBSCRIBE, spec.CONSUME, spec.ELECT}
    missing = {REASONS[code][0] for code in MALFORMED} - {
        row["reason"] for row, _ in rows("malformed_frames")
    }
    assert not missing, missing


def test_decode() -> None:
    for row, data in rows("frames"):
        f = Frame(data, LIMIT)
        assert outcome(f, 0, len(data)) == ("ok", len(data)), (row["name"], f.bad_at)
        agrees(f, row)


def test_malformed() -> None:
    for row, data in rows("malformed_frames"):
        assert outcome(Frame(data, LIMIT), 0, len(data)) == (row["reason"], row["offset"]), row


def test_byte_by_byte() -> None:
    for section in ("frames", "malformed_frames"):
        for row, data in rows(section):
            if len(data) > 1000:
                continue
            f = Frame(data, LIMIT)
            final = outcome(f, 0, len(data))
            for n in range(len(data)):
                got = outcome(f, 0, n)
                # An error may show before the frame is whole, and then stays what it is.
                assert got == ("more", 0) or (got == final and "reason" in row), (row, n, got)


def test_with_bytes_behind_and_before() -> None:
    for section in ("frames", "malformed_frames"):
        for row, data in rows(section):
            want = outcome(Frame(data, LIMIT), 0, len(data))
            for behind in (b"\x00", b"\xff\xff", BEHIND):
                whole = b"\x55\xaa\x30" + data + behind
                f = Frame(whole, LIMIT)
                assert outcome(f, 3, len(whole)) == want, row
                if section == "frames":
                    agrees(f, row)


def test_a_cursor_is_reusable() -> None:
    """What a frame before has left in the cursor does not show in the next."""
    buf = bytearray(1000)
    f = Frame(buf, LIMIT)
    for section in ("malformed_frames", "frames", "malformed_frames"):
        for row, data in rows(section):
            if len(data) > len(buf):
                continue
            buf[: len(data)] = data
            got = outcome(f, 0, len(data))
            if section == "frames":
                agrees(f, row)
            else:
                assert got == (row["reason"], row["offset"]), row


def test_the_scan_agrees_with_the_decoder() -> None:
    """``message`` takes only what ``frame`` takes, and says the same of it; and it takes what most messages are."""
    names = []
    for section in ("frames", "malformed_frames"):
        for row, data in rows(section):
            for behind in (b"", b"\x00", BEHIND, b"aa" + b"\xd0" * 20):
                whole = b"\x55" + data + behind
                f = Frame(whole, LIMIT)
                stop = frames.scan(f, 1, len(whole))
                if stop == 0:
                    continue
                assert section == "frames" and stop == 1 + len(data), row
                names.append(row["name"])
                agrees(f, row)
                other = Frame(whole, LIMIT)
                assert frames_hub.decode_frame(other, 1, len(whole)) == stop
                for k in range(f.count + 1):
                    assert f.at[k] == other.at[k], (row, k)
                for name in (
                    "count",
                    "topic_at",
                    "topic_end",
                    "tags_at",
                    "payload_at",
                    "body",
                    "end",
                    "code",
                ):
                    assert getattr(f, name) == getattr(other, name), (row, name)
                if f.end > f.body:
                    assert frames.scan(Frame(whole, f.end - f.body - 1), 1, len(whole)) == 0
                for n in range(len(data)):
                    assert frames.scan(f, 1, 1 + n) == 0, (row, n)
    for name in ("publish qos0", "publish of 15 bytes", "publish of 16 bytes", "publish of 4095 bytes"):
        assert names.count(name) == 4, name
    for name in ("consumeresp to a subscription", "ack publish", "pubrec", "pubrel", "pubcomp", "pingreq"):
        assert names.count(name) == 4, name


def test_the_limit_is_that_of_the_body() -> None:
    """It is refused before the body is there, and by no other limit."""
    for row, data in rows("frames"):
        size = len(row["body"]) // 2
        header = len(data) - size
        assert outcome(Frame(data, size), 0, len(data)) == ("ok", len(data)), row
        if size:
            f = Frame(data, size - 1)
            want = ("body_too_large", 1 + len(row["id"]) // 2)
            assert outcome(f, 0, header) == want and outcome(f, 0, len(data)) == want, row


def test_longer_body_lengths_are_read() -> None:
    start = b"\x30\x31\x01\x03\xb1\x05"
    for length in (b"\x14\x00", b"\x24\x00\x00", b"\x44\x00\x00\x00\x00"):
        data = start + length + b"\x11\x01a\xd0"
        f = Frame(data, 15)
        assert outcome(f, 0, len(data)) == ("ok", len(data))
        assert f.topic_text() == "a"


def test_encode() -> None:
    short = 0
    for row, want in rows("frames"):
        n = len(want)
        for write in (encoded, quickly):
            buf = bytearray(b"\x55" * (n + 8))
            end = write(row, buf, 3, n + 3)
            if write is quickly:
                if end == 0:
                    continue
                short += 1
            assert end == n + 3, (row["name"], end)
            assert buf[3:end] == want, (row["name"], buf[3:end])
            assert buf[:3] == b"\x55" * 3 and buf[end:] == b"\x55" * 5 and len(buf) == n + 8, row["name"]
    assert short > 10


def test_encode_without_room() -> None:
    for row, want in rows("frames"):
        n = len(want)
        if n > 350:
            continue
        for write in (encoded, quickly):
            buf = bytearray(b"\x55" * (n + 8))
            for limit in range(3, n + 3):
                end = write(row, buf, 3, limit)
                if end == 0:
                    break
                assert end == E_TOO_LARGE, (row["name"], limit, end)
                assert buf[limit:] == b"\x55" * (n + 8 - limit), (row["name"], limit)


def test_wrong_arguments() -> None:
    buf = bytearray(100)
    ident = b"\x31\x01\x03\xb1\x05"
    wrong: list[tuple[int, list[Any]]] = [
        (spec.PUBLISH << 4, [b"a", []]),
        (spec.PUBLISH << 4, [b"a", [], b"", b""]),
        (spec.REGISTER << 4, [b"a", -1]),
        (spec.REGISTER << 4, []),
        (spec.PUBREC << 4, [b"a"]),
        (spec.SLAVEOF << 4 | spec.REG, [b"a"]),
        (spec.UNSUBSCRIBE << 4, []),
        (spec.ACK << 4, [0x87, b"text", b"more"]),
    ]
    for head, fields in wrong:
        assert frames.encode_frame(buf, 0, 100, head, ident, fields) == E_ARGUMENT, (head, fields)
    assert frames.encode_frame(buf, 0, 100, spec.REGISTER << 4, ident, [1.5]) == E_ARGUMENT  # type: ignore[list-item]
    assert frames.encode_frame(buf, 0, 100, spec.REGISTER << 4, ident, [[1]]) == E_ARGUMENT  # type: ignore[list-item]
    assert buf[:1] != b"\x31" and len(buf) == 100


def test_sizes() -> None:
    for n in (0, 1, 15, 16, 4095, 4096, 1048575, 1048576, 268435455, 268435456):
        buf = bytearray(8)
        end = frames.put_length(buf, 0, n)
        assert end == frames.length_size(n), n
        f = Frame(b"\x30\x31\x01\x03\xb1\x05" + buf[:end], n)
        assert frames.decode_header(f, 0, 6 + end) == 6 + end + n, n
    for topic in (b"", b"a", b"a" * 255, b"a" * 256):
        n = frames.message_size(topic, b"12345")
        buf = bytearray(n + 10)
        assert frames.put_message(buf, 0, topic, b"12345", frames.NO_TAGS) == n + frames.length_size(n)
