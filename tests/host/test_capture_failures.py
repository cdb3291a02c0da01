"""Writing that fails: a file system that takes no more, a disk that reports errors, a process that is killed."""

import errno
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headwater_host.capture import CaptureReader, CaptureWriteError, Record, list_blocks, verify
from tests.host.capture_logs import numbered, read_log, record, records, segments
from tools.capture_log import LogWriter

KILLS = 32


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """The kernel lets no file of this process grow beyond ``size``: a write in part, then none, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_when_the_disk_takes_no_more_records_are_kept_and_written_later(tmp_path: Path) -> None:
    with LogWriter(tmp_path, block_bytes=2000) as writer:
        for number in range(10):
            writer.append(*record(number))
        assert writer.flush() == 10
        (path,) = segments(tmp_path)
        size = path.stat().st_size
        # The first limits fall into header and body of the next block.
        for room in (0, 1, 63, 64, 65, 200):
            with file_size_limit(size + room):
                writer.append(*record(10 + writer.pending))
                with pytest.raises(CaptureWriteError, match="records are not written, but kept") as caught:
                    writer.flush()
                assert caught.value.errno == errno.EFBIG
                assert str(path) in str(caught.value)
                with pytest.raises(CaptureWriteError):
                    writer.flush()
            assert (writer.durable, writer.pending) == (10, writer.pending)
            assert path.stat().st_size == size  # nothing of the block stays
            assert read_log(tmp_path) == records(10)
        with file_size_limit(size + 10):
            taken = 10 + writer.pending
            # Memory is bounded: a record for which the block has no room is refused, those before it are kept.
            refused = 0
            for _ in range(100):
                try:
                    writer.append(*record(taken))
                    taken += 1
                except CaptureWriteError:
                    refused += 1
            assert 20 < taken < 100
            assert refused
            assert writer.pending == taken - 10
        assert writer.flush() == taken
        assert len(segments(tmp_path)) == 1
    assert read_log(tmp_path) == records(taken)
    assert verify(tmp_path).problems == []


def test_no_room_for_a_new_segment_or_for_the_manifest(tmp_path: Path) -> None:
    with LogWriter(tmp_path, segment_bytes=1) as writer:
        with file_size_limit(0):
            writer.append(*record(0))
            with pytest.raises(CaptureWriteError):
                writer.flush()
            with pytest.raises(CaptureWriteError):
                writer.flush()
        assert writer.flush() == 1
        writer.append(*record(1))
        manifest = tmp_path / "manifest.jsonl"
        with file_size_limit(20):
            with pytest.raises(CaptureWriteError):
                writer.flush()
            with pytest.raises(CaptureWriteError, match="not sealed"):
                writer.log.seal_if_due()
        assert manifest.stat().st_size == 0
        assert writer.flush() == 2
    assert [segment.sealed for segment in verify(tmp_path).segments] == [True, True]
    assert read_log(tmp_path) == records(2)
    assert verify(tmp_path).problems == []


def test_a_writer_that_cannot_write_at_the_end_says_so_and_lets_go(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    writer.append(*record(0))
    writer.flush()
    writer.append(*record(1))
    with file_size_limit(0), pytest.raises(CaptureWriteError, match="1 records are not written"):
        writer.close()
    writer.close()
    with LogWriter(tmp_path) as again:
        assert str(again.recovery) == ""
        again.append(*record(2))
    assert read_log(tmp_path) == [record(0), record(2)]


class Datasync:
    """A real fdatasync, unless told to fail. No disk here can be made to: this is the only place for a stand-in."""

    def __init__(self) -> None:
        self.fails = False

    def __call__(self, fd: int) -> None:
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fdatasync(fd)


def test_after_a_failed_datasync_the_block_goes_to_another_segment(tmp_path: Path) -> None:
    """A reader may have seen it: no other bytes may ever come to where it stood."""
    datasync = Datasync()
    with LogWriter(tmp_path, datasync=datasync) as writer:
        writer.append(*record(0))
        writer.flush()
        (first,) = segments(tmp_path)
        before = first.read_bytes()
        datasync.fails = True
        writer.append(*record(1))
        for _ in range(3):
            with pytest.raises(
                CaptureWriteError, match="1 records are not written, but kept: Input/output error"
            ):
                writer.flush()
            assert (writer.durable, writer.pending) == (1, 1)
            assert read_log(tmp_path) == records(1)
        datasync.fails = False
        writer.append(*record(2))
        assert writer.flush() == 3
        assert first.read_bytes() == before
    assert read_log(tmp_path) == records(3)
    assert len(segments(tmp_path)) == 2
    assert [info.header.sequence for info in list_blocks(tmp_path)] == [0, 1]
    assert verify(tmp_path).problems == []


def test_a_follower_that_saw_a_block_that_did_not_stay_reads_on_behind_it(tmp_path: Path) -> None:
    reader = CaptureReader(tmp_path)
    seen: list[Record] = []

    def look_then_fail(fd: int) -> None:
        seen.extend(reader.records())
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with LogWriter(tmp_path) as writer:
        writer.append(*record(0))
        writer.flush()
        writer.log._datasync = look_then_fail
        writer.append(*record(1))
        with pytest.raises(CaptureWriteError):
            writer.flush()
        writer.log._datasync = os.fdatasync
        writer.append(*record(2))
        writer.flush()
        seen.extend(reader.records())
    # At least once, the one that did not stay: never in part, and what comes after it is not missed.
    assert seen == [record(0), record(1), record(1), record(2)]


# ---- kill -9 ---------------------------------------------------------------------------------------------------------

# Appends records from the number given on, flushes now and then, and prints up to which record the log is durable.
WRITER = """
import random, sys
from tools.capture_log import LogWriter
from tests.host.capture_logs import numbered
directory, start, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
with LogWriter(directory, block_bytes=6_000_000, segment_bytes=9_000_000) as writer:
    print(f"open {writer.recovery.cut}", flush=True)
    number, durable = start, 0
    while True:
        writer.append(*numbered(number))
        number += 1
        if chance.random() < 0.02:
            writer.flush()
        if writer.durable != durable:
            durable = writer.durable
            print(f"durable {start + durable}", flush=True)
"""


def wait_for_growth(directory: Path) -> None:
    """Returns within microseconds of the first bytes of a block coming to the newest segment, or of another segment."""
    newest, names = segments(directory)[-1], os.listdir(directory)  # noqa: PTH208 - fast
    before, deadline = os.stat(newest).st_size, time.monotonic() + 200  # noqa: PTH116 - fast
    while os.stat(newest).st_size == before and os.listdir(directory) == names:  # noqa: PTH116, PTH208 - fast
        assert time.monotonic() < deadline


def test_what_was_reported_durable_survives_kill_9_and_nothing_torn_is_read(tmp_path: Path) -> None:
    chance = random.Random("capture: kill -9")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    checked = torn = 0
    start = 0
    reader = CaptureReader(tmp_path)  # follows the log over all the crashes
    for seed in range(KILLS):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(start), str(seed)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        # After so many reports; then, every other time, at the moment when a block begins to come to its file.
        lines = [child.stdout.readline() for _ in range(chance.randrange(1, 5))]
        if seed % 2:
            wait_for_growth(tmp_path)
        else:
            for _ in range(chance.randrange(100_000)):
                pass
        child.send_signal(signal.SIGKILL)
        lines += child.stdout.readlines()
        child.stdout.close()
        assert child.wait() == -signal.SIGKILL
        durable = [
            int(line.split()[1]) for line in lines if line.startswith("durable") and line.endswith("\n")
        ]

        for found in reader.records():
            assert found == numbered(checked)
            checked += 1
        assert checked >= max(durable, default=start)
        assert reader.problems == []
        torn += reader.torn is not None
        start = checked
    report = verify(tmp_path)
    assert report.problems == []
    with LogWriter(tmp_path) as writer:
        assert len(writer.recovery.cut) == len(report.torn)
        writer.append(*record(start))
    report = verify(tmp_path)
    assert (report.problems, report.torn) == ([], [])
    assert sum(segment.records for segment in report.segments) == start + 1
    print(f"{KILLS} kills, {torn} torn tails, {start} records")
