"""Positions: a log that is read in pieces, while it grows, is sealed, torn and pruned, gives what one reading gives."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_host.capture import Problem
from headwater_host.capture.format import parse_header
from headwater_host.capture.manifest import list_log
from headwater_spark.plan import plan
from headwater_spark.positions import Limits, Position, advance
from tests.rows import each_row
from tests.spark.test_plan import DAMAGED, Damaged, log_of, read_all, records, segments
from tools.capture_log import LogWriter

_NAME = "segment-00000000000000000000-0000000000000000.hwc"


def pieces(directory: Path, limits: Limits) -> tuple[list[object], list[Problem], int]:
    """What is read from the start to the end, piece by piece; and the number of pieces."""
    at: Position | None = None
    count = 0
    found: list[object] = []
    problems: list[Problem] = []
    while True:
        reach = advance(list_log(directory), at, limits)
        if reach.end is None or reach.end == at:
            return found, problems, count
        log = plan(directory, 1 << 30, 1, start=at, upto=reach.end)
        assert log.end == reach.end
        rows, inside = read_all(log)
        found += (row[:-1] for row in rows)
        problems += [*log.problems, *inside]
        at = Position.from_json(reach.end._asdict())
        count += 1


@each_row("limits", [Limits(1), Limits(None, 1), Limits(1000), Limits(1 << 20, 25), Limits()])
def test_pieces_are_the_whole(tmp_path: Path, limits: Limits) -> None:
    log_of(tmp_path, 5, 1, 9, 2, 30, 4, 4, segment_blocks=3)
    found, problems, count = pieces(tmp_path, limits)
    assert found == [row[:-1] for row in read_all(plan(tmp_path, 1 << 30, 1))[0]]
    assert problems == []
    if 1 in limits:
        assert count == 7
    if limits == Limits():
        assert count == 1


@settings(max_examples=60, deadline=None)
@given(DAMAGED, st.integers(1, 3000))
def test_damage_is_found_once(tmp_path_factory: pytest.TempPathFactory, damaged: Damaged, size: int) -> None:
    directory = tmp_path_factory.mktemp("log")
    damaged.write(directory)
    whole = plan(directory, 1 << 30, 1)
    rows, inside = read_all(whole)
    found, problems, _ = pieces(directory, Limits(size))
    assert found == [row[:-1] for row in rows]
    assert sorted(problems) == sorted([*whole.problems, *inside])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.integers(0, 300)), min_size=1, max_size=12))
def test_a_log_that_grows(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, bool, int]]
) -> None:
    """Blocks are appended and segments sealed between two readings; a torn tail is never read."""
    directory = tmp_path_factory.mktemp("log")
    at: Position | None = None
    number = 0
    found: list[object] = []
    writer = LogWriter(directory)
    try:
        for count, seal, torn in steps:
            for rec in records(count, number):
                writer.append(rec.at, rec.connection, rec.peer, 0, 1, 4, rec.frame)
            number += count
            writer.flush()
            if seal:
                writer.close()
                writer = LogWriter(directory)
            tails: list[tuple[Path, int]] = []
            for segment in list_log(directory).segments:
                if not segment.is_open:
                    continue
                data = segment.path.read_bytes()
                tails.append((segment.path, len(data)))
                with segment.path.open("ab") as file:
                    file.write(data[: min(torn, parse_header(data).block_length - 1)])
            log = plan(directory, 1 << 30, 1, start=at)
            for path, size in tails:
                os.truncate(path, size)
            rows, problems = read_all(log)
            assert problems == []
            assert {problem.kind for problem in log.problems} <= {"torn"}
            found += rows
            at = log.end
    finally:
        writer.close()
    times = [row[0] for row in found]  # type: ignore[index]
    assert times == list(range(number))


def test_an_unfinished_block_is_read_when_it_is_complete(tmp_path: Path) -> None:
    log_of(tmp_path, 5, 5)
    (tmp_path / "manifest.jsonl").unlink()
    (path,) = segments(tmp_path)
    data = path.read_bytes()
    second = data.index(b"HWB1", 4)
    at: Position | None = None
    counts = []
    for cut in (second + 10, second + 100, len(data) - 1, len(data)):
        path.write_bytes(data[:cut])
        log = plan(tmp_path, 1 << 30, 1, start=at)
        counts.append(len(read_all(log)[0]))
        at = log.end
    path.write_bytes(data[:-20] + bytes(20))  # all of its length, and not its bytes
    assert plan(tmp_path, 1 << 30, 1).end == Position(path.name, second, 1)
    assert counts == [5, 0, 0, 5]


def test_headers_are_read_once_to_find_a_torn_tail(tmp_path: Path) -> None:
    """The blocks before a torn tail still count, and the log is split at them."""
    log_of(tmp_path, 5, 5, 5)
    (tmp_path / "manifest.jsonl").unlink()
    (path,) = segments(tmp_path)
    with path.open("ab") as file:
        file.write(b"HWB1 torn")
    log = plan(tmp_path, 1, 1)
    assert (log.blocks, log.records, len(log.partitions)) == (3, 15, 3)


def test_segments_that_were_removed_unread_are_a_problem(tmp_path: Path) -> None:
    log_of(tmp_path, *[5] * 9, segment_blocks=3)
    first, second, third = segments(tmp_path)
    inside = advance(list_log(tmp_path), None, Limits(None, 5)).end
    first_end = advance(list_log(tmp_path), None, Limits(None, 15)).end
    second_end = advance(list_log(tmp_path), None, Limits(None, 30)).end
    end = plan(tmp_path, 1 << 30, 1).end
    first.unlink()
    assert plan(tmp_path, 1 << 30, 1).problems == []  # a reader that begins has missed nothing
    assert plan(tmp_path, 1 << 30, 1, start=first_end).removed is None
    log = plan(tmp_path, 1 << 30, 1, start=inside)
    assert log.removed is not None
    assert inside is not None
    assert log.removed[:3] == ("missing", first.name, inside.offset)
    assert log.removed.reason == "blocks 1 to 2 were removed before they were read"
    assert log.problems == [log.removed]
    rows, problems = read_all(log)
    assert (len(rows), problems) == (30, [])
    # A piece that was planned and is gone, in part and completely.
    second.unlink()
    assert "1 to 5" in str(plan(tmp_path, 1 << 30, 1, start=inside, upto=second_end).removed)
    log = plan(tmp_path, 1 << 30, 1, start=inside, upto=end)
    assert ("1 to 5" in str(log.removed), log.records) == (True, 15)
    third.unlink()
    assert "6 to 8" in str(plan(tmp_path, 1 << 30, 1, start=second_end, upto=end).removed)


def test_a_segment_in_which_nothing_was_left_is_replaced(tmp_path: Path) -> None:
    """A reader saw a block that a power cut took; the next writer begins a segment with the same number."""
    log_of(tmp_path, 5)
    (tmp_path / "manifest.jsonl").unlink()
    (path,) = segments(tmp_path)
    seen = plan(tmp_path, 1 << 30, 1)
    os.truncate(path, 100)
    log_of(tmp_path, 2, 3)
    log = plan(tmp_path, 1 << 30, 1, start=seen.end)
    assert (log.records, log.problems) == (5, [])
    assert len(read_all(log)[0]) == 5
    # The piece that was planned with the lost block has nothing, and the next one has all of the new segment.
    again = plan(tmp_path, 1 << 30, 1, upto=seen.end)
    assert (again.records, again.problems) == (0, [])


def test_rows_are_counted_from_the_middle_of_a_segment(tmp_path: Path) -> None:
    log_of(tmp_path, *[10] * 9, segment_blocks=3)
    at: Position | None = None
    ends: list[int] = []
    while len(ends) < 3:
        at = advance(list_log(tmp_path), at, Limits(1 << 20, 40)).end
        assert at is not None
        ends.append(at.sequence)
    assert ends == [4, 8, 9]


def test_a_plan_does_not_end_before_it_starts(tmp_path: Path) -> None:
    """A stream that restarts behind another run; also where a segment was replaced."""
    log_of(tmp_path, *[10] * 4, segment_blocks=2)
    early = advance(list_log(tmp_path), None, Limits(None, 10)).end
    middle = advance(list_log(tmp_path), None, Limits(None, 20)).end
    end = plan(tmp_path, 1 << 30, 1).end
    assert early is not None
    assert middle is not None
    for start in (middle, end):
        log = plan(tmp_path, 1 << 30, 1, start=start, upto=early)
        assert (log.end, log.partitions, log.problems) == (start, [], [])
    replaced = Position(_NAME, 50, 1)
    for start, upto in ((replaced, middle), (middle, replaced)):
        assert plan(tmp_path, 1 << 30, 1, start=start, upto=upto).end == middle


def test_pieces_end_at_a_target(tmp_path: Path) -> None:
    log_of(tmp_path, 5, 5, 5, 5, segment_blocks=3)
    target = plan(tmp_path, 1 << 30, 1).end
    inside = advance(list_log(tmp_path), None, Limits(None, 10)).end
    log_of(tmp_path, 5)
    listing = list_log(tmp_path)
    assert advance(listing, None, Limits(), target).end == target
    assert advance(listing, None, Limits(), inside).end == inside
    assert advance(listing, target, Limits(), inside).end == target
    assert advance(listing, target, Limits(), target).end == target
    near = advance(listing, None, Limits(None, 5), inside).end
    assert near is not None
    assert near.sequence == 1


@each_row(
    "text", [{}, {"file": "x", "offset": 0, "sequence": 0}, {"file": _NAME, "offset": "0", "sequence": 0}, 7]
)
def test_a_position_that_is_none(text: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="is not a position in a log"):
        Position.from_json(text)
