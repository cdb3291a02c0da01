"""Partitions of a log: every block is read once, and what is damaged is found once, however the log is cut."""

import os
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_host.capture import CaptureReader, Problem
from headwater_host.capture.manifest import read_manifest
from headwater_spark.columns import BATCH_BYTES, Batch, read
from headwater_spark.plan import OFFSET_BITS, Plan, Span, plan
from headwater_spark.positions import Position
from tests.rows import each_row
from tests.spark.logs import Rec, damage, publish, write_log
from tools.capture_log import LogWriter

SIZES = (1, 100, 300, 700, 1000, 5000, 1 << 30)


def records(count: int, start: int = 0) -> list[Rec]:
    return [
        Rec(
            publish("t", f"{k}", qos=k % 2),
            at=k,
            connection=k % 3,
            peer=f"peer{k % 4}",
            version=3 + k % 3,
            mark=k % 5 % 4,
            first=k // 2,
        )
        for k in range(start, start + count)
    ]


def log_of(directory: Path, *blocks: int, segment_blocks: int = 10**9) -> Path:
    written: list[list[Rec]] = []
    for count in blocks:
        written.append(records(count, sum(len(block) for block in written)))
    return write_log(directory, written, segment_blocks=segment_blocks)


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("segment-*.hwc"))


class Damaged(NamedTuple):
    """A log: frames of each block, blocks of a segment, and bits that are flipped at places of its segments."""

    blocks: list[int]
    segment_blocks: int
    flips: list[tuple[int, int]]

    def write(self, directory: Path) -> None:
        log_of(directory, *self.blocks, segment_blocks=self.segment_blocks)
        files = segments(directory)
        for where, bits in self.flips:
            path = files[where % len(files)]
            data = bytearray(path.read_bytes())
            data[where % len(data)] ^= bits
            path.write_bytes(data)


DAMAGED = st.builds(
    Damaged,
    st.lists(st.integers(1, 12), min_size=1, max_size=8),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), max_size=4),
)


def read_all(log: Plan, batch_rows: int = 7) -> tuple[list[tuple[object, ...]], list[Problem]]:
    """Records as (time, connection, peer, direction, protocol, version, frame, file, position), and problems."""
    found: list[tuple[object, ...]] = []
    problems: list[Problem] = []
    for part in log.partitions:
        for item in read(part, batch_rows):
            if isinstance(item, Problem):
                problems.append(item)
                continue
            assert 0 < len(item) <= batch_rows
            found += rows_of(item)
    return found, problems


def rows_of(batch: Batch) -> list[tuple[object, ...]]:
    frames = batch.frames().to_pylist()
    return [
        (
            int(batch.time_ns[i]),
            int(batch.connection[i]),
            batch.peers[batch.peer[i]],
            int(batch.direction[i]),
            int(batch.protocol[i]),
            int(batch.version[i]),
            frames[i],
            int(batch.mark[i]),
            int(batch.first_ns[i]),
            batch.files[batch.file[i]],
            int(batch.position[i]),
        )
        for i in range(len(batch))
    ]


def by_the_reader(directory: Path) -> tuple[list[tuple[object, ...]], list[Problem]]:
    """The same, as the host's reader has it; without file and position."""
    reader = CaptureReader(directory)
    return [tuple(record) for record in reader.records()], reader.problems


def check(directory: Path, size: int) -> list[Problem]:
    """Cut the log and hold what is in the parts against the whole; returns what is wrong with it."""
    log = plan(directory, size, 1)
    for part in log.partitions:
        assert part
        for before, after in pairwise(part):
            assert (before.number, before.end) < (after.number, after.end)
    found, problems = read_all(log)
    expected, expected_problems = by_the_reader(directory)
    assert [row[:-2] for row in found] == expected
    positions = [row[-1] for row in found]
    assert positions == sorted(set(positions))  # type: ignore[type-var]
    everything = {*problems, *(problem for problem in log.problems if problem.kind != "torn")}
    assert everything == set(expected_problems)
    assert len(problems) == len(set(problems))
    return sorted(everything)


@each_row("size", SIZES)
@each_row("segment_blocks", [1, 3, 100])
def test_every_record_is_read_once(tmp_path: Path, size: int, segment_blocks: int) -> None:
    log_of(tmp_path, 5, 1, 9, 2, 30, 4, 4, segment_blocks=segment_blocks)
    assert check(tmp_path, size) == []


def test_partitions_are_of_about_the_size_that_was_asked_for(tmp_path: Path) -> None:
    log_of(tmp_path, *[10] * 40, segment_blocks=7)
    total = sum(path.stat().st_size for path in segments(tmp_path))
    log = plan(tmp_path, total // 8, 1)
    sizes = [sum(r.end - r.start for r in part) for part in log.partitions]
    assert sum(sizes) == total == log.bytes
    block = total / 40
    assert all(abs(size - total / len(sizes)) <= block for size in sizes)
    assert len(sizes) in (8, 9)
    assert (log.blocks, log.records, log.segments) == (40, 400, 6)


@each_row("least", [1, 2, 3, 5, 8])
def test_the_number_of_partitions_is_a_multiple(tmp_path: Path, least: int) -> None:
    log_of(tmp_path, *[5] * 64)
    for size in (1000, 3000, 1 << 30):
        assert len(plan(tmp_path, size, least).partitions) % least == 0


def test_partitions_are_not_too_small_for_a_task(tmp_path: Path) -> None:
    log_of(tmp_path, *[5] * 64)
    size = segments(tmp_path)[0].stat().st_size
    assert len(plan(tmp_path, 1 << 30, 8, size // 3).partitions) == 3
    assert len(plan(tmp_path, 1 << 30, 8, size * 2).partitions) == 1
    assert len(plan(tmp_path, 1, 8, size).partitions) == 64


def test_blocks_are_not_cut(tmp_path: Path) -> None:
    log_of(tmp_path, 5, 5, 5)
    log = plan(tmp_path, 1, 100)
    assert [len(part) for part in log.partitions] == [1, 1, 1]


def test_a_log_without_blocks_has_no_partitions(tmp_path: Path) -> None:
    with LogWriter(tmp_path):
        pass
    log = plan(tmp_path, 1000, 4)
    assert (log.partitions, log.records, log.problems) == ([], 0, [])


def test_no_log(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no capture log in"):
        plan(tmp_path, 1000, 1)
    with pytest.raises(FileNotFoundError):
        plan(tmp_path / "missing", 1000, 1)


@each_row("size", SIZES)
def test_a_damaged_body_is_found_and_passed_over(tmp_path: Path, size: int) -> None:
    log_of(tmp_path, 5, 5, 5, 5, 5)
    (path,) = segments(tmp_path)
    starts = damage(path, 2, 70)
    (problem,) = check(tmp_path, size)
    assert (problem.offset, problem.length) == (starts[2], starts[3] - starts[2])


@each_row("size", SIZES)
@each_row("block", [0, 1, 2, 4])
def test_a_damaged_header_is_found_and_passed_over(tmp_path: Path, size: int, block: int) -> None:
    log_of(tmp_path, 5, 5, 5, 5, 5, segment_blocks=3)
    starts = damage(segments(tmp_path)[block // 3], block % 3, 12)
    problems = check(tmp_path, size)
    assert [problem.offset for problem in problems if problem.length] == [starts[block % 3]]


@each_row("size", SIZES)
def test_a_lost_block_and_a_lost_segment_are_reported(tmp_path: Path, size: int) -> None:
    log_of(tmp_path, 5, 5, 5, 5, 5, 5, segment_blocks=2)
    path = segments(tmp_path)[0]
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"HWB1", 4)])
    segments(tmp_path)[1].unlink()
    log = plan(tmp_path, size, 1)
    found, problems = read_all(log)
    assert len(found) == 15
    assert {problem.kind for problem in log.problems} == {"bad", "missing"}
    assert [problem.kind for problem in problems] == ["gap"]


@each_row("size", [1, 1 << 30])
@each_row("cut", [1, 63, 64, 100, 200])
def test_the_torn_tail_of_an_open_segment_is_left_alone(tmp_path: Path, size: int, cut: int) -> None:
    log_of(tmp_path, 5, 5, 5)
    (tmp_path / "manifest.jsonl").unlink()
    (path,) = segments(tmp_path)
    os.truncate(path, path.stat().st_size - cut)
    log = plan(tmp_path, size, 1)
    found, problems = read_all(log)
    assert len(found) == 10
    assert problems == []
    (torn,) = log.problems
    assert (torn.kind, torn.offset + torn.length) == ("torn", path.stat().st_size)


@each_row("size", [1, 1 << 30])
def test_an_unfinished_body_at_the_end_of_an_open_segment_is_torn(tmp_path: Path, size: int) -> None:
    """The file has its length, and not yet its bytes."""
    log_of(tmp_path, 5, 5, 5)
    (tmp_path / "manifest.jsonl").unlink()
    (path,) = segments(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:-100] + bytes(100))
    log = plan(tmp_path, size, 1)
    found, problems = read_all(log)
    assert len(found) == 10
    assert problems == []
    assert [problem.kind for problem in log.problems] == ["torn"]


def test_a_plan_does_not_see_what_comes_later(tmp_path: Path) -> None:
    with LogWriter(tmp_path) as writer:
        for rec in records(5):
            writer.append(rec.at, rec.connection, rec.peer, 0, 1, 4, rec.frame)
        writer.flush()
        log = plan(tmp_path, 1 << 30, 1)
        writer.append(9, 1, "p", 0, 1, 4, b"later")
        writer.flush()
        assert len(read_all(log)[0]) == 5
        assert len(read_all(plan(tmp_path, 1 << 30, 1))[0]) == 6


def test_a_segment_that_is_gone_since_it_was_planned_is_an_error(tmp_path: Path) -> None:
    log_of(tmp_path, 5)
    log = plan(tmp_path, 1 << 30, 1)
    segments(tmp_path)[0].unlink()
    with pytest.raises(FileNotFoundError):
        read_all(log)


@settings(max_examples=40, deadline=None)
@given(DAMAGED, st.integers(1, 3000))
def test_however_it_is_damaged_and_cut(
    tmp_path_factory: pytest.TempPathFactory, damaged: Damaged, size: int
) -> None:
    directory = tmp_path_factory.mktemp("log")
    damaged.write(directory)
    check(directory, size)


def test_small_blocks_are_joined_and_large_ones_split(tmp_path: Path) -> None:
    log_of(tmp_path, *[3] * 20, 50, segment_blocks=8)
    log = plan(tmp_path, 1 << 30, 1)
    batches = [item for item in read(log.partitions[0], 16) if isinstance(item, Batch)]
    assert sum(map(len, batches)) == 110
    assert all(8 <= len(batch) <= 16 for batch in batches)
    joined = [row for batch in batches for row in rows_of(batch)]
    assert [row[:-2] for row in joined] == by_the_reader(tmp_path)[0]


def test_a_batch_of_large_frames_has_fewer_rows(tmp_path: Path) -> None:
    frame = bytes(BATCH_BYTES // 4)
    write_log(tmp_path, [[Rec(frame, at=k)] for k in range(10)])
    batches = [
        item for item in read(plan(tmp_path, 1 << 30, 1).partitions[0], 1000) if isinstance(item, Batch)
    ]
    assert [len(batch) for batch in batches] == [4, 4, 2]


def test_a_position_is_that_of_the_record_in_the_log(tmp_path: Path) -> None:
    log_of(tmp_path, 3, 2, 1, segment_blocks=2)
    paths = segments(tmp_path)
    for row in read_all(plan(tmp_path, 1, 1))[0]:
        assert isinstance(row[-1], int)
        number, offset = divmod(row[-1], 1 << OFFSET_BITS)
        data = paths[number].read_bytes()
        assert int(np.frombuffer(data, "<i8", 1, offset)[0]) == row[0]


def test_a_span_reads_what_it_holds_and_little_more(tmp_path: Path) -> None:
    log_of(tmp_path, *[10] * 12, segment_blocks=3)
    everything, _ = read_all(plan(tmp_path, 1 << 30, 1))
    times = sorted(int(str(row[0])) for row in everything)
    edges = [
        times[0] - 1,
        times[0],
        times[1],
        times[30],
        times[31],
        times[59],
        times[60],
        times[-1],
        times[-1] + 1,
    ]
    for since in (*edges, -(1 << 63)):
        for until in (*edges, 1 << 63):
            for size in (300, 1 << 30):
                span = Span(since, until)
                log = plan(tmp_path, size, 2, span=span)
                found = [
                    rows
                    for part in log.partitions
                    for item in read(part, 7)
                    if isinstance(item, Batch)
                    for rows in rows_of(item.within(span))
                ]
                wanted = [row for row in everything if since <= int(str(row[0])) < until]
                assert [row[:-1] for row in found] == [row[:-1] for row in wanted]
                # Whole blocks, of which only those at the ends have other records.
                assert len(wanted) <= log.records <= len(wanted) + 18
                assert log.problems == []
    half = plan(tmp_path, 1 << 30, 1, span=Span(times[30], times[60]))
    assert (half.segments, half.blocks, half.records) == (1, 3, 30)
    assert half.bytes * 3 < plan(tmp_path, 1 << 30, 1).bytes


def test_segments_outside_of_a_span_are_not_opened(tmp_path: Path) -> None:
    log_of(tmp_path, *[10] * 9, segment_blocks=3)
    everything, _ = read_all(plan(tmp_path, 1 << 30, 1))
    first, _, last = segments(tmp_path)
    middle = Span(int(str(everything[30][0])), int(str(everything[60][0])))
    for path in (first, last):
        path.write_bytes(b"damaged")
    found, problems = read_all(plan(tmp_path, 1 << 30, 1, span=middle))
    assert [row[:-1] for row in found] == [row[:-1] for row in everything[30:60]]
    assert problems == []


def test_damage_within_a_span_is_reported(tmp_path: Path) -> None:
    log_of(tmp_path, *[10] * 6)
    everything, _ = read_all(plan(tmp_path, 1 << 30, 1))
    damage(segments(tmp_path)[0], 2, 70)
    span = Span(int(str(everything[10][0])), int(str(everything[40][0])))
    found, problems = read_all(plan(tmp_path, 1 << 30, 1, span=span))
    assert found == [*everything[10:20], *everything[30:40]]
    assert [problem.kind for problem in problems] == ["bad"]


def test_plans_that_continue_each_other_are_the_whole_log(tmp_path: Path) -> None:
    """Each plan ends in the middle of a segment, at its end, or where nothing is new; a plan up to a position gives
    the same records again although the log has grown."""
    log = tmp_path / "log"
    taken: list[tuple[object, ...]] = []
    plans: list[tuple[Plan, list[tuple[object, ...]]]] = []
    start = None
    for step in range(6):
        if step != 3:
            with LogWriter(log) as writer:
                for k in range(2):
                    for rec in records(5, 10 * step + 5 * k):
                        writer.append(rec.at, *rec[2:7], rec.frame, rec.mark, rec.first)
                    writer.flush()
                    if k == 0 and step % 2 == 0:
                        # Plan while the segment is open.
                        made = plan(log, 300, 1, start=start)
                        rows = [row[:-1] for row in read_all(made)[0]]
                        plans.append((made, rows))
                        taken += rows
                        start = made.end
        made = plan(log, 300, 1, start=start)
        rows = [row[:-1] for row in read_all(made)[0]]
        plans.append((made, rows))
        taken += rows
        start = made.end
    assert taken == [row[:-1] for row in read_all(plan(log, 300, 1))[0]]
    assert plan(log, 300, 1, start=start).partitions == []
    before = None
    for made, rows in plans:
        again, problems = read_all(plan(log, 1 << 30, 1, start=before, upto=made.end))
        assert [row[:-1] for row in again] == rows
        assert not problems
        before = made.end


def test_a_plan_after_unread_segments_were_removed_names_the_gap(tmp_path: Path) -> None:
    log = log_of(tmp_path / "log", *[3] * 6, segment_blocks=1)
    files = segments(log)
    start = plan_end_of(log, files[1])
    for file in files[:4]:
        file.unlink()
    found = plan(log, 1 << 30, 1, start=start)
    rows, problems = read_all(found)
    assert (len(rows), problems) == (6, [])
    assert found.removed is not None
    assert found.problems == [found.removed]
    assert found.removed.reason == "blocks 2 to 3 were removed before they were read"


def plan_end_of(log: Path, file: Path) -> Position:
    """The position at the end of a sealed segment."""
    (entry,) = [entry for entry in read_manifest(log).entries.values() if entry.file == file.name]
    return Position(entry.file, entry.bytes, entry.next_sequence)


def test_a_plan_starts_over_in_a_segment_that_replaced_an_empty_one(tmp_path: Path) -> None:
    """Nothing was left of a segment after a crash: the next one has its number and another salt."""
    log = log_of(tmp_path / "log", 3, segment_blocks=1)
    log_of(log, 4)
    (_, last) = segments(log)
    number = last.name.split("-")[1]
    start = Position(f"segment-{number}-ffffffffffffffff.hwc", 0, int(number))
    rows, problems = read_all(plan(log, 1 << 30, 1, start=start))
    assert (len(rows), problems) == (4, [])
