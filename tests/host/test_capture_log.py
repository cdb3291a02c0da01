"""Writing a capture log and reading it back: order, durability, segments, manifest, following, splitting."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_host.capture import (
    BlockInfo,
    CaptureLockedError,
    CaptureReader,
    CaptureWriteError,
    Problem,
    Record,
    list_blocks,
    verify,
)
from headwater_host.capture.format import MAX_FRAME
from tests.host.capture_logs import read_log, read_range, record, records, segments, write_log
from tests.rows import each_row
from tools.capture_log import LogWriter

MS = 10**6
DAY_NS = 86_400 * 10**9


def unexpected(problem: Problem) -> None:
    raise AssertionError(str(problem))


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(8, 120), min_size=1, max_size=60),
    block_bytes=st.integers(24, 600),
    segment_bytes=st.integers(1, 3000),
    flushes=st.sets(st.integers(0, 59)),
    reopens=st.sets(st.integers(0, 59), max_size=3),
    data=st.data(),
)
def test_what_is_written_is_read_in_order_and_whole_ranges_give_the_same(
    lengths: list[int],
    block_bytes: int,
    segment_bytes: int,
    flushes: set[int],
    reopens: set[int],
    data: st.DataObject,
) -> None:
    written = [record(number, length) for number, length in enumerate(lengths)]
    with TemporaryDirectory() as place:
        directory = Path(place)
        writer = LogWriter(directory, block_bytes=block_bytes, segment_bytes=segment_bytes)
        appended = 0
        for number, one in enumerate(written):
            if number in reopens:
                writer.close()
                writer = LogWriter(directory, block_bytes=block_bytes, segment_bytes=segment_bytes)
                appended = 0
            appended += 1
            assert writer.append(*one) == appended
            assert writer.durable + writer.pending == appended
            if number in flushes:
                assert writer.flush() == writer.durable == appended
        writer.close()

        reader = CaptureReader(directory)
        assert list(reader.records()) == written
        report = verify(directory)
        assert (reader.problems, reader.torn, report.problems, report.torn) == ([], None, [], [])
        assert sum(segment.records for segment in report.segments) == len(written)

        # Cut the blocks into ranges at any block boundary: the parts make the whole.
        infos = list_blocks(directory, on_problem=unexpected)
        assert [info.header.sequence for info in infos] == list(range(len(infos)))
        cuts = data.draw(st.sets(st.integers(0, len(infos))))
        parts: list[list[BlockInfo]] = []
        for number, info in enumerate(infos):
            if number in cuts or not parts or parts[-1][-1].file != info.file:
                parts.append([info])
            else:
                parts[-1].append(info)
        read: list[Record] = []
        for part in parts:
            first, last = part[0], part[-1]
            found, problems = read_range(directory / first.file, first.offset, last.end)
            assert problems == []
            read += found
        assert read == written


def test_what_is_durable_can_be_read_while_the_writer_goes_on(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as writer:
        for number in range(5):
            writer.append(*record(number))
            assert read_log(tmp_path) == records(writer.durable)
            writer.flush()
            assert read_log(tmp_path) == records(number + 1)


def test_segments_are_sealed_by_size_by_age_and_by_close(tmp_path: Path) -> None:
    def sealed() -> int:
        return sum(segment.sealed for segment in verify(tmp_path).segments)

    now = 0
    with LogWriter(tmp_path, segment_bytes=300, segment_age_ns=1000 * MS, clock=lambda: now) as writer:
        writer.append(*record(0, 100))
        writer.flush()
        writer.append(*record(1, 100))
        writer.flush()
        assert (len(segments(tmp_path)), sealed()) == (1, 0)
        writer.log.seal_if_due()  # by size
        assert (len(segments(tmp_path)), sealed()) == (1, 1)
        writer.append(*record(2, 100))
        writer.flush()
        now += 1000 * MS - 1
        writer.log.seal_if_due()
        assert sealed() == 1
        now += 1
        writer.log.seal_if_due()  # by age
        assert sealed() == 2
        for number in range(3, 6):  # by size, with the next block
            writer.append(*record(number, 100))
            writer.flush()
        assert (len(segments(tmp_path)), sealed()) == (4, 3)
    assert sealed() == 4
    assert [segment.blocks for segment in verify(tmp_path).segments] == [2, 1, 2, 1]


def test_the_manifest_says_what_the_format_page_says(tmp_path: Path) -> None:
    written = write_log(tmp_path, [2, 3], [1])
    lines = (tmp_path / "manifest.jsonl").read_text().splitlines()
    first, second = map(json.loads, lines)
    assert " " not in "".join(lines)
    names = [path.name for path in segments(tmp_path)]
    assert first == {
        "file": names[0],
        "bytes": (tmp_path / names[0]).stat().st_size,
        "blocks": 2,
        "records": 5,
        "first_ns": written[0].time_ns,
        "last_ns": written[4].time_ns,
        "first_sequence": 0,
        "next_sequence": 2,
    }
    assert (second["file"], second["first_sequence"], second["next_sequence"]) == (names[1], 2, 3)
    assert names[1].startswith(f"segment-{2:020d}-")


def test_two_writers_are_refused_in_one_process_and_in_two(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as writer:
        writer.append(*record(0))
        with pytest.raises(CaptureLockedError, match=f"process {os.getpid()}"):
            LogWriter(tmp_path)
        code = "import sys; from headwater_host.capture.block_log import BlockLog; BlockLog(sys.argv[1])"
        path = os.pathsep.join(filter(None, sys.path))
        other = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert other.returncode == 1
        assert f"another writer has the capture log open (process {os.getpid()})" in other.stderr
        assert writer.flush() == 1  # the first one was not disturbed
    with LogWriter(tmp_path) as writer:
        writer.append(*record(1))
    assert read_log(tmp_path) == records(2)


def test_a_closed_log_takes_nothing(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    writer.append(*record(0))
    writer.close()
    writer.close()
    writer.append(*record(1))
    with pytest.raises(CaptureWriteError, match="the log is closed"):
        writer.flush()
    assert read_log(tmp_path) == records(1)


def test_records_out_of_order_in_time_keep_their_order(tmp_path: Path) -> None:
    written = [record(number) for number in (5, 1, 9, 3)]
    with LogWriter(tmp_path) as writer:
        for one in written:
            writer.append(*one)
    assert read_log(tmp_path) == written
    (info,) = list_blocks(tmp_path)
    assert (info.header.first_ns, info.header.last_ns) == (record(1).time_ns, record(9).time_ns)


def test_a_record_over_the_limit_is_refused_and_the_rest_is_not_touched(tmp_path: Path) -> None:
    large = record(1)._replace(frame=bytes(MAX_FRAME))
    with LogWriter(tmp_path, block_bytes=1000) as writer:
        writer.append(*record(0))
        with pytest.raises(ValueError, match=f"frame of {MAX_FRAME + 1} bytes: at most {MAX_FRAME}"):
            writer.append(*large._replace(frame=bytes(MAX_FRAME + 1)))
        assert writer.append(*large) == 2  # larger than a block, within the limit
        assert writer.append(*record(2)) == 3
    assert read_log(tmp_path) == [record(0), large, record(2)]


@each_row("sizes", [{"block_bytes": 0}, {"segment_bytes": 0}, {"segment_age_ns": 0}])
def test_sizes_that_are_not_possible_are_refused(tmp_path: Path, sizes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"the limit is|at least 1"):
        LogWriter(tmp_path / "log", **sizes)
    assert not (tmp_path / "log").exists()


def test_the_directory_is_made_and_an_empty_log_can_be_read(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    with LogWriter(directory):
        assert read_log(directory) == []
    assert read_log(directory) == []
    assert segments(directory) == []
    assert verify(directory).segments == []


def test_no_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no capture log"):
        read_log(tmp_path)
    with pytest.raises(FileNotFoundError):
        verify(tmp_path / "nowhere")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        list_blocks(tmp_path / "file")
    with pytest.raises(OSError, match="file"):
        LogWriter(tmp_path / "file")


def test_following_goes_on_where_the_last_walk_ended(tmp_path: Path) -> None:
    reader = CaptureReader(tmp_path)
    seen: list[int] = []

    def follow() -> None:
        seen.extend(int.from_bytes(one.frame[:8], "big") for one in reader.records())

    def append(writer: LogWriter, numbers: Iterable[int]) -> None:
        for number in numbers:
            writer.append(*record(number))
        writer.flush()

    with LogWriter(tmp_path, segment_bytes=300) as writer:
        follow()
        for start in range(0, 40, 4):
            append(writer, range(start, start + 4))
            follow()
            assert seen == list(range(start + 4))
            follow()
    with LogWriter(tmp_path) as writer:
        append(writer, range(40, 44))
        follow()
    follow()
    assert seen == list(range(44))
    assert len(segments(tmp_path)) > 3
    assert reader.problems == []

    # A position taken from one reader serves another.
    taken = CaptureReader(tmp_path)
    blocks = taken.blocks()
    for _ in range(3):
        next(blocks)
    rest = CaptureReader(tmp_path, start=taken.position)
    assert list(rest.records()) == records(32, 12)
    assert rest.problems == []


def test_a_follower_stops_in_front_of_an_unfinished_block_and_takes_it_when_it_is_whole(
    tmp_path: Path,
) -> None:
    writer = LogWriter(tmp_path)
    writer.append(*record(0))
    writer.flush()
    (path,) = segments(tmp_path)
    whole_to = path.stat().st_size
    writer.append(*record(1))
    writer.flush()
    data = path.read_bytes()
    reader = CaptureReader(tmp_path)
    for length in range(whole_to, len(data)):
        path.write_bytes(data[:length])
        assert list(reader.records()) == (records(1) if length == whole_to else [])
        torn = reader.torn
        assert (torn is None) == (length == whole_to)
        assert torn is None or (torn.kind, torn.offset, torn.length) == ("torn", whole_to, length - whole_to)
    path.write_bytes(data)
    assert list(reader.records()) == records(1, 1)
    assert (reader.problems, reader.torn) == ([], None)
    writer.close()


def test_retention_of_the_oldest_segments_is_no_damage(tmp_path: Path) -> None:
    write_log(tmp_path, [2], [2], [2])
    segments(tmp_path)[0].unlink()
    assert read_log(tmp_path) == records(4, 2)
    assert verify(tmp_path).problems == []
    with LogWriter(tmp_path) as writer:
        assert str(writer.recovery) == ""
        writer.append(*record(6))
    assert [info.header.sequence for info in list_blocks(tmp_path)] == [1, 2, 3]
    for path in segments(tmp_path):
        path.unlink()
    assert verify(tmp_path).problems == []
    with LogWriter(tmp_path) as writer:  # the manifest still knows the number
        writer.append(*record(7))
    assert [info.header.sequence for info in list_blocks(tmp_path)] == [4]
