"""Capture logs that earlier code wrote: read, verified and continued, without changing their segments."""

from pathlib import Path

import pytest

from headwater_host.capture import list_blocks, verify
from headwater_host.capture.block_log import BlockLog
from headwater_host.capture.connection_ids import ConnectionIds
from headwater_host.capture.format import DUPLICATE, UNMARKED, VERSION, VERSIONS
from tests.host.capture_logs import WRITTEN, read_log, records, segments, write_old_log
from tools.capture_log import LogWriter


def test_there_is_a_log_of_each_version() -> None:
    assert tuple(WRITTEN) == VERSIONS
    assert VERSIONS[-1] == VERSION


@pytest.mark.parametrize("version", VERSIONS)
def test_an_old_log_is_read_and_continued(tmp_path: Path, version: int) -> None:
    written = write_old_log(tmp_path, version)
    before = {path: path.read_bytes() for path in segments(tmp_path)}
    blocks = list_blocks(tmp_path)
    assert [info.header.version for info in blocks] == [version] * 2
    assert read_log(tmp_path) == written
    assert verify(tmp_path).problems == []
    more = records(4)
    with LogWriter(tmp_path) as writer:
        assert str(writer.recovery) == ""
        for one in more:
            writer.append(*one)
    assert read_log(tmp_path) == [*written, *more]
    report = verify(tmp_path)
    assert (report.damaged, [segment.sealed for segment in report.segments]) == (False, [True, True])
    assert [info.header.version for info in list_blocks(tmp_path)] == [version, version, VERSION]
    assert {path: path.read_bytes() for path in before} == before


def test_only_version_2_has_marks(tmp_path: Path) -> None:
    for version in VERSIONS:
        directory = tmp_path / str(version)
        directory.mkdir()
        marks = {record.mark for record in write_old_log(directory, version)}
        assert marks == ({UNMARKED} if version == 1 else {0, 1, DUPLICATE, 3})


def test_connection_ids_continue_after_an_old_file(tmp_path: Path) -> None:
    write_old_log(tmp_path, 2)
    BlockLog(tmp_path).close()
    assert ConnectionIds(tmp_path, clock=lambda: 0).next() >= WRITTEN[2]["next_connection"]
