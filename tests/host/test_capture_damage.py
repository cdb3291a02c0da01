"""Damaged capture logs: no wrong record is ever returned, nothing is lost silently, and the log can be continued.

Every truncation and every changed byte of small logs; blocks and segments taken away, doubled, swapped.
"""

import errno
import os
from pathlib import Path

import pytest

from headwater_host.capture import CaptureReader, Problem, Record, list_blocks, verify
from headwater_host.capture.scan import _WINDOW
from tests.host.capture_logs import (
    MANIFEST,
    continue_log,
    is_subsequence,
    read_log,
    read_range,
    record,
    reopen_last,
    segments,
    with_body,
    with_header,
    write_log,
)
from tests.rows import each_row
from tools.capture_log import LogWriter, encode_records

# ---- truncation ------------------------------------------------------------------------------------------------------


def small_log(directory: Path) -> tuple[list[Record], Path, list[int]]:
    """Two segments; the records, the second segment and the offsets at which its three blocks end."""
    written = write_log(directory, [2], [2, 1, 2])
    path = segments(directory)[1]
    return written, path, [info.end for info in list_blocks(directory) if info.file == path.name]


def test_an_open_segment_cut_anywhere_gives_its_whole_blocks_and_can_be_continued(tmp_path: Path) -> None:
    written, path, ends = small_log(tmp_path / "whole")
    reopen_last(tmp_path / "whole")
    manifest = (tmp_path / "whole" / MANIFEST).read_bytes()
    data = path.read_bytes()
    for length in range(len(data) + 1):
        directory = tmp_path / str(length)
        directory.mkdir()
        (directory / MANIFEST).write_bytes(manifest)
        first = segments(tmp_path / "whole")[0]
        (directory / first.name).write_bytes(first.read_bytes())
        (directory / path.name).write_bytes(data[:length])
        whole = sum(end <= length for end in ends)
        expected = written[: (2, 4, 5, 7)[whole]]
        begin = (0, *ends)[whole]

        reader = CaptureReader(directory)
        assert list(reader.records()) == expected
        assert reader.problems == []
        torn = reader.torn
        if length == begin:
            assert torn is None
        else:
            assert torn is not None
            assert torn[:4] == ("torn", path.name, begin, length - begin)
        report = verify(directory)
        assert (report.damaged, report.torn) == (False, [] if torn is None else [torn])

        recovery = continue_log(directory, expected)
        assert recovery == ("" if torn is None else f"cut {torn}")
        report = verify(directory)
        assert (report.problems, report.torn) == ([], [])
        assert [info.header.sequence for info in list_blocks(directory)] == list(range(1 + whole + 1))
        assert not list(directory.glob("*.cut"))


def test_a_sealed_segment_cut_anywhere_is_damage(tmp_path: Path) -> None:
    written, path, ends = small_log(tmp_path)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        whole = sum(end <= length for end in ends)
        begin = (0, *ends)[whole]
        reader = CaptureReader(tmp_path)
        assert list(reader.records()) == written[: (2, 4, 5, 7)[whole]]
        assert reader.torn is None
        # All bytes up to the size in the manifest are accounted for.
        assert sum(problem.length for problem in reader.problems) == len(data) - begin
        assert reader.problems[0].offset == begin
        report = verify(tmp_path)
        assert report.problems == reader.problems
        assert report.torn == []


# ---- changed bytes ---------------------------------------------------------------------------------------------------


@each_row("state", ["sealed", "open"])
def test_every_changed_byte_is_reported_and_never_read(tmp_path: Path, state: str) -> None:
    written = write_log(tmp_path, [2, 1], [1, 2])
    if state == "open":
        reopen_last(tmp_path)
    last = list_blocks(tmp_path)[-1]
    for path in [*segments(tmp_path), tmp_path / MANIFEST]:
        data = path.read_bytes()
        for at in range(len(data)):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
            report = verify(tmp_path)
            assert report.problems or report.torn, (path, at)
            reader = CaptureReader(tmp_path)
            found = list(reader.records())
            assert is_subsequence(found, written)
            if path.name == MANIFEST:
                assert found == written
                continue
            problems = reader.problems + [torn for torn in (reader.torn,) if torn is not None]
            (problem,) = problems
            assert problem.file == path.name
            assert problem.offset <= at < problem.offset + problem.length
            # One block, and no more than that, is not read.
            assert len(list_lost(found, written)) <= 2
            is_tail = path.name == last.file and at >= last.offset
            assert problem.kind == ("torn" if is_tail and state == "open" else "bad")
        path.write_bytes(data)
    assert read_log(tmp_path) == written


def list_lost(found: list[Record], written: list[Record]) -> list[Record]:
    return [one for one in written if one not in found]


# ---- blocks and segments that are not where they should be -----------------------------------------------------------


def test_a_bad_block_in_the_middle_is_passed_over_and_reported(tmp_path: Path) -> None:
    written = write_log(tmp_path, [2, 3, 2])
    path = segments(tmp_path)[0]
    _, bad, _ = list_blocks(tmp_path)
    data = bytearray(path.read_bytes())
    for at, reason in (
        (bad.offset + 100, "body CRC"),
        (bad.offset + 20, "header CRC"),
        (bad.offset, "magic"),
    ):
        damaged = data.copy()
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        reader = CaptureReader(tmp_path)
        assert list(reader.records()) == written[:2] + written[5:]
        (problem,) = reader.problems
        assert problem[:4] == ("bad", path.name, bad.offset, bad.length)
        assert reason in problem.reason
        if reason != "body CRC":
            assert "block 2 follows instead of block 1" in problem.reason
        assert str(bad.offset) in str(problem)
        assert str(bad.length) in str(problem)
        # The writer leaves it where it is.
        reopen_last(tmp_path)
        with LogWriter(tmp_path) as writer:
            assert writer.recovery.problems == [problem]
        assert path.read_bytes() == damaged
        assert [segment.blocks for segment in verify(tmp_path).segments] == [2]


def test_blocks_and_segments_that_are_missing_doubled_or_swapped_are_reported(tmp_path: Path) -> None:
    written = write_log(tmp_path, [1, 1, 1, 1])
    path = segments(tmp_path)[0]
    data = path.read_bytes()
    blocks = [data[info.offset : info.end] for info in list_blocks(tmp_path)]

    def read(*order: int) -> tuple[list[Record], list[Problem]]:
        path.write_bytes(b"".join(blocks[number] for number in order))
        reader = CaptureReader(tmp_path)
        found = list(reader.records())
        assert found == [written[number] for number in order]
        gaps = [problem for problem in reader.problems if problem.kind == "gap"]
        assert verify(tmp_path).damaged
        return found, gaps

    _, (gap,) = read(0, 2, 3)
    assert (gap.offset, gap.length) == (len(blocks[0]), 0)
    assert gap.reason == "block 2 follows instead of block 1"
    _, (gap,) = read(1, 2, 3)
    assert gap.reason == "block 1 follows instead of block 0"
    _, (gap,) = read(0, 1, 1, 2, 3)
    assert gap.reason == "block 1 follows instead of block 2"
    _, gaps = read(0, 2, 1, 3)
    assert [gap.reason[:7] for gap in gaps] == ["block 2", "block 1", "block 3"]
    assert read(0, 1, 2)[1] == []  # the manifest knows that the end is missing


def test_a_segment_that_is_missing_between_others_or_at_the_end_is_reported(tmp_path: Path) -> None:
    write_log(tmp_path, [1], [1], [1])
    paths = segments(tmp_path)
    data = paths[1].read_bytes()
    paths[1].unlink()
    reader = CaptureReader(tmp_path)
    assert list(reader.records()) == [record(0), record(2)]
    assert [problem.kind for problem in reader.problems] == ["gap"]
    report = verify(tmp_path)
    assert report.problems[0][:4] == ("missing", paths[1].name, 0, len(data))
    with LogWriter(tmp_path) as writer:
        assert [problem.kind for problem in writer.recovery.problems] == ["missing"]
    paths[1].write_bytes(data)
    paths[2].unlink()
    assert [problem.kind for problem in verify(tmp_path).problems] == ["missing"]


def test_bytes_between_blocks_and_shifted_blocks_are_passed_over(tmp_path: Path) -> None:
    written = write_log(tmp_path, [1, 1])
    path = segments(tmp_path)[0]
    data = path.read_bytes()
    at = list_blocks(tmp_path)[1].offset
    for junk in (b"x", b"HWB1", bytes(64), b"HWB1" * 100, os.urandom(300_000)):
        path.write_bytes(data[:at] + junk + data[at:])
        reader = CaptureReader(tmp_path)
        assert list(reader.records()) == written
        assert [problem[:4] for problem in reader.problems] == [("bad", path.name, at, len(junk))]
    # Wherever the next header stands in the pieces that are searched.
    for length in range(_WINDOW - 140, _WINDOW + 10, 3):
        path.write_bytes(data[:at] + bytes(length) + data[at:])
        assert read_log(tmp_path) == written
    # A block that has lost bytes, so that the next begins before its end.
    for missing in range(1, at - 64):
        path.write_bytes(data[: at - missing] + data[at:])
        reader = CaptureReader(tmp_path)
        assert list(reader.records()) == written[1:]
        assert reader.problems[0][:4] == ("bad", path.name, 0, at - missing)


def test_a_copy_of_the_segment_inside_a_frame_is_not_read_when_the_block_is_damaged(tmp_path: Path) -> None:
    """The log itself went over MQTT, through this gateway, while it was written: numbers and salt are right."""
    with LogWriter(tmp_path) as writer:
        writer.append(*record(0))
        writer.flush()
        (path,) = segments(tmp_path)
        writer.append(*record(1)._replace(frame=path.read_bytes()))
        writer.flush()
        writer.append(*record(2))
    _, info, _ = list_blocks(tmp_path)
    data = path.read_bytes()
    for at in (info.offset, info.offset + 70):
        path.write_bytes(data[:at] + b"x" + data[at + 1 :])
        reader = CaptureReader(tmp_path)
        assert list(reader.records()) == [record(0), record(2)]
        assert [problem[:4] for problem in reader.problems] == [("bad", path.name, info.offset, info.length)]


def test_a_block_inside_a_frame_or_of_another_segment_is_never_taken_for_a_block(tmp_path: Path) -> None:
    """A frame may hold a capture log, its block numbers may fit, and the disk may give back blocks of a removed log."""
    forged = b"".join(encode_records([record(500 + number)], number, 7) for number in range(4))
    with LogWriter(tmp_path) as writer:
        for number in range(3):
            writer.append(*record(number)._replace(frame=forged))
            writer.flush()
    path = segments(tmp_path)[0]
    written = read_log(tmp_path)
    data = path.read_bytes()
    first, second, third = list_blocks(tmp_path)
    for info, left in ((first, written[1:]), (second, [written[0], written[2]]), (third, written[:2])):
        path.write_bytes(data[: info.offset] + b"x" + data[info.offset + 1 :])
        reader = CaptureReader(tmp_path)
        assert list(reader.records()) == left
        assert [problem[:4] for problem in reader.problems] == [("bad", path.name, info.offset, info.length)]
    # As a torn tail: its first page never came to the disk, the others did.
    reopen_last(tmp_path)
    tail = bytes(512) + data[third.offset + 512 :]
    path.write_bytes(data[: third.offset] + tail)
    recovery = continue_log(tmp_path, written[:2])
    assert f"{path.name} at {third.offset}, {third.length} bytes" in recovery
    assert (tmp_path / f"{path.name}.cut").read_bytes() == tail
    # Blocks of another log behind the last one.
    path.write_bytes(data + forged)
    assert list(CaptureReader(tmp_path).records()) == [*written, record(99)]


def test_a_block_of_a_later_version_is_reported_and_never_cut(tmp_path: Path) -> None:
    written = write_log(tmp_path, [1, 1])
    path = reopen_last(tmp_path)
    last = list_blocks(tmp_path)[-1]
    data = path.read_bytes()
    for changes in ({"version": 3}, {"flags": 1}):
        newer = data[: last.offset] + with_header(data[last.offset :], **changes)
        path.write_bytes(newer)
        reader = CaptureReader(tmp_path)
        assert list(reader.records()) == written[:1]
        assert [problem.kind for problem in reader.problems] == ["bad"]
        assert "unknown to this reader" in reader.problems[0].reason
        assert list_blocks(tmp_path) == list_blocks(tmp_path)[:1]
        with LogWriter(tmp_path) as writer:
            assert writer.recovery.cut == []
            writer.append(*record(2))
        assert path.read_bytes() == newer
        assert [info.header.sequence for info in list_blocks(tmp_path)] == [0, 2]
        segments(tmp_path)[1].unlink()
        (tmp_path / MANIFEST).unlink()


def test_a_body_that_contradicts_itself_under_a_right_crc_is_a_bad_block(tmp_path: Path) -> None:
    written = write_log(tmp_path, [1, 1, 1])
    path = segments(tmp_path)[0]
    _, info, _ = list_blocks(tmp_path)
    data = path.read_bytes()
    block = data[info.offset : info.end]
    wrong = (
        with_body(block, 16, b"\xff"),  # length
        with_body(block, 20, b"\xff"),  # peer
        with_header(block, records=2),
    )
    for replacement in wrong:
        path.write_bytes(data[: info.offset] + replacement + data[info.end :])
        reader = CaptureReader(tmp_path)
        assert list(reader.records()) == [written[0], written[2]]
        assert [problem[:4] for problem in reader.problems] == [("bad", path.name, info.offset, info.length)]
    # Times in the header that the records do not have: who reads by time would miss them.
    path.write_bytes(data[: info.offset] + with_header(block, first_ns=5) + data[info.end :])
    assert read_log(tmp_path) == written
    (problem,) = verify(tmp_path).problems
    assert "header says times" in problem.reason


def test_a_range_with_damage_is_read_and_reported(tmp_path: Path) -> None:
    written = write_log(tmp_path, [1, 1, 1, 1])
    path = segments(tmp_path)[0]
    infos = list_blocks(tmp_path)
    data = bytearray(path.read_bytes())
    data[infos[1].offset + 70] ^= 1
    data[infos[2].offset + 5] ^= 1
    path.write_bytes(data)
    for first in range(4):
        for last in range(first, 4):
            read, problems = read_range(path, infos[first].offset, infos[last].end)
            assert read == [written[number] for number in (0, 3) if first <= number <= last]
            assert [problem[2:4] for problem in problems] == [
                (infos[number].offset, infos[number].length) for number in (1, 2) if first <= number <= last
            ]
    read, (short,) = read_range(path, infos[3].offset, 10_000)
    assert (read, short.reason) == ([written[3]], "the file ends before the range does")
    # A segment under another name has a salt that nobody knows.
    path.rename(tmp_path / "copy.bin")
    read, problems = read_range(tmp_path / "copy.bin", 0, len(data))
    assert (read, len(problems)) == ([written[0], written[3]], 2)


def test_what_the_disk_cannot_read_is_a_bad_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad sector is the one fault that needs help here: pread fails as it would."""
    written = write_log(tmp_path, [20, 20, 20], [1])
    path = segments(tmp_path)[0]
    _, info, last = list_blocks(tmp_path)[:3]
    real = os.pread
    broken = range(0)

    def pread(fd: int, length: int, at: int) -> bytes:
        same = os.path.samestat(os.fstat(fd), path.stat())
        if same and at < broken.stop and at + length > broken.start:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, length, at)

    monkeypatch.setattr(os, "pread", pread)
    broken = range(info.offset + 200, info.offset + 201)
    reader = CaptureReader(tmp_path)
    found = list(reader.records())
    assert is_subsequence(found, written)
    assert found[-1] == written[-1]
    assert info.offset in [problem.offset for problem in reader.problems]
    # At the end of an open segment it is not cut: what cannot be read cannot be kept elsewhere.
    monkeypatch.undo()
    segments(tmp_path)[1].unlink()
    (tmp_path / MANIFEST).unlink()
    monkeypatch.setattr(os, "pread", pread)
    broken = range(last.offset, last.end)
    before = path.read_bytes()
    with LogWriter(tmp_path) as writer:
        assert writer.recovery.cut == []
        assert "it is left there" in str(writer.recovery)
        writer.append(*record(99))
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*.cut"))
    assert read_log(tmp_path) == [*written[:60], record(99)]
