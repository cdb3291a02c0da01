"""Retention: what is removed, in which order, what readers keep, and what a clock that is set must not remove."""

import random
from functools import partial
from pathlib import Path

import pytest

from headwater_host.capture import CaptureReader, verify
from headwater_host.capture.manifest import Segment, list_log
from headwater_host.capture.readers import list_readers, remove_reader, save_reader
from headwater_host.capture.retention import AGES, Limits, SegmentAges, prune
from headwater_host.gateway.retention import Retention
from tests.host.capture_logs import reopen_last, segments, write_log
from tests.host.set_clocks import DAY, SECOND, SetClocks


def never_old(segment: Segment) -> float:
    return 0.0


def age_in(ages: dict[Path, float], segment: Segment) -> float:
    return ages[segment.path]


def sizes(directory: Path) -> list[int]:
    return [path.stat().st_size for path in segments(directory)]


def test_the_oldest_segments_go_until_the_size_fits(tmp_path: Path) -> None:
    written = write_log(tmp_path, [2], [3], [1], [4])
    before = segments(tmp_path)
    limit = sum(sizes(tmp_path)[2:])
    removal = prune(tmp_path, Limits(max_bytes=limit), never_old)
    assert [due.segment.path for due in removal.removed] == before[:2]
    assert (removal.left, removal.kept) == (limit, [])
    assert segments(tmp_path) == before[2:]
    reader = CaptureReader(tmp_path)
    assert list(reader.records()) == written[5:]
    assert (reader.problems, verify(tmp_path).problems) == ([], [])
    # Nothing more is due, and the next segment continues the numbers.
    assert prune(tmp_path, Limits(max_bytes=limit), never_old).removed == []
    number = list_log(tmp_path).segments[-1].entry
    write_log(tmp_path, [1], start=10)
    assert number is not None
    assert list_log(tmp_path).segments[-1].first_sequence == number.next_sequence


def test_a_log_of_which_everything_is_due_keeps_its_numbers(tmp_path: Path) -> None:
    write_log(tmp_path, [2], [3])
    assert len(prune(tmp_path, Limits(max_age=1.0), lambda segment: 2.0).removed) == 2
    assert segments(tmp_path) == []
    assert verify(tmp_path).problems == []
    write_log(tmp_path, [1])
    assert list_log(tmp_path).segments[0].first_sequence == 2


def test_only_sealed_segments_go(tmp_path: Path) -> None:
    write_log(tmp_path, [2], [3])
    last = reopen_last(tmp_path)
    removal = prune(tmp_path, Limits(max_bytes=1), never_old)
    assert len(removal.removed) == 1
    assert segments(tmp_path) == [last]


def test_age_ends_at_the_first_segment_that_is_young_enough(tmp_path: Path) -> None:
    write_log(tmp_path, [1], [1], [1])
    ages = dict(zip(segments(tmp_path), (50.0, 5.0, 70.0), strict=True))
    removal = prune(tmp_path, Limits(max_age=10.0), lambda segment: ages[segment.path])
    # The third is old by its own age, but a gap in the middle would look like damage.
    assert [due.segment.path for due in removal.removed] == list(ages)[:1]
    assert verify(tmp_path).problems == []


def test_nothing_is_removed_that_a_reader_has_not_taken(tmp_path: Path) -> None:
    write_log(tmp_path, [2], [3, 1], [1])
    save_reader(tmp_path, "fast", 4)
    save_reader(tmp_path, "tables", 2)  # one block of the second segment, which has the blocks 1 and 2
    removal = prune(tmp_path, Limits(max_bytes=1), never_old, dry_run=True)
    assert len(segments(tmp_path)) == 3
    assert [due.readers for due in removal.removed] == [()]
    assert [due.readers for due in removal.kept] == [("tables",), ("tables",)]
    everything = sum(sizes(tmp_path))
    assert removal.left == everything - removal.removed_bytes
    prune(tmp_path, Limits(max_bytes=1), never_old)
    assert len(segments(tmp_path)) == 2
    removal = prune(tmp_path, Limits(max_bytes=1, unread="remove"), never_old)
    assert [due.readers for due in removal.removed] == [("tables",), ("tables",)]
    assert segments(tmp_path) == []


def test_a_reader_whose_file_is_damaged_keeps_everything(tmp_path: Path) -> None:
    write_log(tmp_path, [2], [3])
    for damage in (b"", b"x", b"-1", b"1.5", b"9" * 30, b"\xff"):
        save_reader(tmp_path, "tables", 2)
        (tmp_path / "readers" / "tables").write_bytes(damage)
        assert list_readers(tmp_path) == {"tables": None}
        assert prune(tmp_path, Limits(max_bytes=1), never_old).removed == []
    assert remove_reader(tmp_path, "tables")
    assert not remove_reader(tmp_path, "tables")
    assert len(prune(tmp_path, Limits(max_bytes=1), never_old).removed) == 2


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a b", "x.part", "a" * 65, "\0"])
def test_names_of_readers(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a reader"):
        save_reader(tmp_path, name, 1)
    with pytest.raises(ValueError, match="is not the name of a reader"):
        remove_reader(tmp_path, name)
    for sequence in (-1, 1 << 64):
        with pytest.raises(ValueError, match="is not a sequence number"):
            save_reader(tmp_path, "good", sequence)
    assert list_readers(tmp_path) == {}


def test_a_clock_that_is_set_removes_nothing(tmp_path: Path) -> None:
    write_log(tmp_path, [1], [1])
    clocks = SetClocks()
    retention = Retention(tmp_path, Limits(max_age=30 * DAY / SECOND), dict, clocks=clocks)
    retention.run()
    for step in (400 * DAY, -800 * DAY, 5000 * DAY):
        clocks.step(step)
        retention.run()
        assert len(segments(tmp_path)) == 2
    clocks.reboot(100 * DAY)  # not synchronized: nobody knows how long it was off
    retention = Retention(tmp_path, Limits(max_age=30 * DAY / SECOND), dict, clocks=clocks)
    retention.run()
    assert len(segments(tmp_path)) == 2
    clocks.go(29 * DAY)
    retention.run()
    assert len(segments(tmp_path)) == 2
    clocks.go(2 * DAY)
    retention.run()
    assert segments(tmp_path) == []
    assert retention.status()["removed_segments"] == 2


def test_ages_survive_a_restart_and_start_again_when_their_file_is_damaged(tmp_path: Path) -> None:
    write_log(tmp_path, [1])
    clocks = SetClocks()
    listing = list_log(tmp_path)
    (segment,) = listing.segments
    ages = SegmentAges(tmp_path, clocks)
    ages.look(listing)
    clocks.go(DAY)
    again = SegmentAges(tmp_path, clocks)
    assert again.age(segment) == pytest.approx(86400)
    kept = (tmp_path / AGES).read_bytes()
    for damage in (
        b"",
        b"[]",
        b"{}",
        b'{"age": 1, "sealed": {}}',
        kept[:-2],
        kept.replace(b'"sealed"', b'"x"'),
    ):
        (tmp_path / AGES).write_bytes(damage)
        found = SegmentAges(tmp_path, clocks)
        assert "is damaged" in found.problem
        found.look(listing)
        assert found.age(segment) == 0
        assert SegmentAges(tmp_path, clocks).problem == ""


def test_what_is_left_is_whole_wherever_a_run_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(Exception):
        pass

    unlink = Path.unlink
    for survivors in range(4):
        directory = tmp_path / str(survivors)
        written = write_log(directory, [1], [2], [1], [1])
        left = [survivors]

        def killed(path: Path, *, missing_ok: bool = False, left: list[int] = left) -> None:
            if not left[0]:
                raise KilledError
            left[0] -= 1
            unlink(path, missing_ok=missing_ok)

        monkeypatch.setattr(Path, "unlink", killed)
        with pytest.raises(KilledError):
            prune(directory, Limits(max_age=1.0), lambda segment: 2.0)
        monkeypatch.setattr(Path, "unlink", unlink)
        assert len(segments(directory)) == 4 - survivors
        assert verify(directory).problems == []
        assert list(CaptureReader(directory).records()) == written[[0, 1, 3, 4][survivors] :]


def test_random_logs_against_a_model(tmp_path: Path) -> None:
    """What is removed is the longest prefix of sealed segments that is due and taken."""
    rng = random.Random(5)
    for number in range(60):
        directory = tmp_path / str(number)
        write_log(directory, *([1] * rng.randint(1, 3) for _ in range(rng.randint(1, 6))))
        listing = list_log(directory)
        ages = {segment.path: float(rng.randint(0, 20)) for segment in listing.segments}
        readers = {name: rng.randint(0, 12) for name in "abc"[: rng.randint(0, 3)]}
        for name, sequence in readers.items():
            save_reader(directory, name, sequence)
        limits = Limits(
            rng.choice([None, 10.0]), rng.choice([None, rng.randint(1, sum(sizes(directory)))]), "keep"
        )
        expected = []
        left = sum(sizes(directory))
        for segment, size in zip(listing.segments, sizes(directory), strict=True):
            assert segment.entry is not None
            due = (limits.max_age is not None and ages[segment.path] > 10) or (
                limits.max_bytes is not None and left > limits.max_bytes
            )
            if not due or any(needed < segment.entry.next_sequence for needed in readers.values()):
                break
            expected.append(segment.path)
            left -= size
        removal = prune(directory, limits, partial(age_in, ages))
        assert [due.segment.path for due in removal.removed] == expected
        assert removal.left == left == sum(sizes(directory))
        assert verify(directory).problems == []
