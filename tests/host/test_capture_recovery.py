"""What a writer finds when it opens a capture log: torn tails, removed segments, manifests that are not complete."""

import json
from pathlib import Path

from headwater_host.capture import CaptureReader, list_blocks, verify
from headwater_host.capture.format import HEADER_BYTES, parse_segment_name, segment_name
from tests.host.capture_logs import (
    MANIFEST,
    continue_log,
    read_log,
    record,
    records,
    reopen_last,
    segments,
    with_header,
    write_log,
)
from tests.rows import each_row
from tools.capture_log import LogWriter


@each_row("length", [1, 63, 64, 4096, 3 << 20])
def test_zeros_behind_the_last_block_are_cut(tmp_path: Path, length: int) -> None:
    written = write_log(tmp_path, [2])
    path = reopen_last(tmp_path)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + bytes(length))
    recovery = continue_log(tmp_path, written)
    assert f"cut torn: {path.name} at {size}, {length} bytes" in recovery
    assert path.stat().st_size == size
    assert not list(tmp_path.glob("*.cut"))


def test_a_whole_last_block_with_a_wrong_body_is_cut_and_kept_aside(tmp_path: Path) -> None:
    """It may be an unfinished write, or a block that was durable and went bad: only a person can tell."""
    written = write_log(tmp_path, [2, 1])
    path = reopen_last(tmp_path)
    data = path.read_bytes()
    last = list_blocks(tmp_path)[-1]
    torn = data[:-8] + b"torn off"
    path.write_bytes(torn)
    recovery = continue_log(tmp_path, written[:2])
    saved = tmp_path / f"{path.name}.cut"
    assert saved.read_bytes() == torn[last.offset :]
    assert f"kept what was cut in {saved}" in recovery
    assert path.read_bytes() == data[: last.offset]
    assert verify(tmp_path).problems == []


def test_what_was_read_in_front_of_a_torn_tail_is_there_without_it(tmp_path: Path) -> None:
    """A header that says too much has the block behind it to the end in its body, once the tail is cut."""
    written = write_log(tmp_path, [1, 1])
    path = reopen_last(tmp_path)
    data = path.read_bytes()
    second = list_blocks(tmp_path)[1]
    first = with_header(data[: second.offset], body_length=len(data) - HEADER_BYTES, crc=0)
    path.write_bytes(first + data[second.offset :] + b"torn off")
    assert list(CaptureReader(tmp_path).records()) == written[1:]
    assert f"cut torn: {path.name} at {len(data)}, 8 bytes" in continue_log(tmp_path, written[1:])


def test_a_segment_of_which_nothing_is_left_is_removed(tmp_path: Path) -> None:
    written = write_log(tmp_path, [2], [1])
    path = reopen_last(tmp_path)
    data = path.read_bytes()
    for rest in (b"", data[:30], data[:-1]):
        path.write_bytes(rest)
        with LogWriter(tmp_path):
            assert not path.exists()
    assert continue_log(tmp_path, written[:2]) == ""
    assert [info.header.sequence for info in list_blocks(tmp_path)] == [0, 1]


def test_a_follower_in_a_removed_segment_goes_on_in_its_successor(tmp_path: Path) -> None:
    """The successor has the same number, and a salt that is lower or greater: many times, to meet both."""
    write_log(tmp_path, [1])
    for number in range(1, 21):
        reader = CaptureReader(tmp_path)
        assert len(list(reader.records())) == number
        data = segments(tmp_path)[0].read_bytes()
        torn = tmp_path / segment_name(number, number << 59 & (1 << 64) - 1)
        torn.write_bytes(data[:-1])
        assert list(reader.records()) == []
        assert reader.position is not None
        assert reader.position.file == torn.name
        with LogWriter(tmp_path) as writer:
            writer.append(*record(number))
        assert list(reader.records()) == [record(number)]
        assert reader.problems == []


def test_a_segment_is_never_continued_by_another_writer(tmp_path: Path) -> None:
    """Blocks that a reader saw may be gone after a power cut: no others may come to their offsets."""
    write_log(tmp_path, [1])
    path = reopen_last(tmp_path)
    size = path.stat().st_size
    continue_log(tmp_path, records(1))
    assert path.stat().st_size == size
    assert len(segments(tmp_path)) == 2


def test_a_manifest_that_is_lost_is_made_again(tmp_path: Path) -> None:
    written = write_log(tmp_path, [2, 1], [1], [1, 1])
    manifest = tmp_path / MANIFEST
    before = manifest.read_bytes()
    manifest.unlink()
    assert read_log(tmp_path) == written
    assert [problem.kind for problem in verify(tmp_path).problems] == ["manifest", "manifest"]
    with LogWriter(tmp_path) as writer:
        assert writer.recovery.sealed == segments(tmp_path)
        assert len(writer.recovery.problems) == 2
    assert manifest.read_bytes() == before
    assert verify(tmp_path).problems == []


def test_a_manifest_cut_anywhere_is_completed(tmp_path: Path) -> None:
    """As after a crash while a segment was sealed."""
    written = write_log(tmp_path, [1], [1])
    manifest = tmp_path / MANIFEST
    before = manifest.read_bytes()
    for length in range(before.index(b"\n") + 1, len(before)):
        manifest.write_bytes(before[:length])
        assert read_log(tmp_path) == written
        report = verify(tmp_path)
        assert report.problems == []
        assert len(report.torn) == (not before[:length].endswith(b"\n"))
        with LogWriter(tmp_path) as writer:
            assert len(writer.recovery.cut) == len(report.torn)
        assert manifest.read_bytes() == before


def test_a_torn_line_behind_a_complete_manifest_is_cut(tmp_path: Path) -> None:
    write_log(tmp_path, [1])
    manifest = tmp_path / MANIFEST
    before = manifest.read_bytes()
    for torn in (b"\0" * 100, b'{"file":', before[:-1]):
        manifest.write_bytes(before + torn)
        with LogWriter(tmp_path) as writer:
            assert [problem[:4] for problem in writer.recovery.cut] == [
                ("torn", MANIFEST, len(before), len(torn))
            ]
        assert manifest.read_bytes() == before


@each_row(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b"nonsense",
        b"\xff\xfe",
        b"[" * 100_000,
        json.dumps({"file": "../../etc/passwd"}).encode(),
        b'{"file":5,"bytes":1,"blocks":1,"records":1,"first_ns":1,"last_ns":1,"first_sequence":1,"next_sequence":2}',
        b'{"file":"segment-00000000000000000001-0000000000000000.hwc","bytes":-1,"blocks":1,"records":1,'
        b'"first_ns":1,"last_ns":1,"first_sequence":1,"next_sequence":2}',
        b'{"file":"segment-00000000000000000001-0000000000000000.hwc","bytes":true,"blocks":1,"records":1,'
        b'"first_ns":1,"last_ns":1,"first_sequence":1,"next_sequence":2}',
        b'{"file":"segment-00000000000000000001-0000000000000000.hwc","bytes":1,"blocks":1,"records":1,'
        b'"first_ns":1,"last_ns":1,"first_sequence":2,"next_sequence":2}',
    ],
)
def test_a_bad_line_in_the_manifest_is_reported_and_hurts_nothing(tmp_path: Path, line: bytes) -> None:
    written = write_log(tmp_path, [1], [1])
    manifest = tmp_path / MANIFEST
    good = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(good[0] + line + b"\n" + good[1])
    assert read_log(tmp_path) == written
    (problem,) = verify(tmp_path).problems
    assert problem[:4] == ("manifest", MANIFEST, len(good[0]), len(line) + 1)
    continue_log(tmp_path, written)
    manifest.write_bytes(good[0] + good[1] + good[1])
    assert "second line" in verify(tmp_path).problems[0].reason


def test_files_that_are_no_segments_are_left_alone(tmp_path: Path) -> None:
    written = write_log(tmp_path, [1])
    names = [
        "segment-1.hwc",
        "segment-x.hwc",
        "segment-00000000000000000009-0000000000000000.hwc.cut",
        "notes.txt",
    ]
    for name in names:
        assert parse_segment_name(name) is None
        (tmp_path / name).write_bytes(b"something")
    assert continue_log(tmp_path, written) == ""
    assert all((tmp_path / name).read_bytes() == b"something" for name in names)
    assert verify(tmp_path).problems == []
