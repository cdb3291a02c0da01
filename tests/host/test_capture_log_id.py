"""The id of a capture log: made once, the same for ever, also for logs of earlier versions."""

import re
import shutil
from pathlib import Path

import pytest

from headwater_host.capture.log_id import NAME, LogIdError, log_id
from headwater_host.cli.main import main
from tests.host.capture_logs import (
    MANIFEST,
    WRITTEN,
    read_log,
    record,
    reopen_last,
    segments,
    write_log,
    write_old_log,
)
from tests.rows import each_row
from tools.capture_log import LogWriter


def test_a_log_keeps_its_id_and_copies_have_it(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "a") as writer:
        first = log_id(tmp_path / "a")
        writer.append(*record(1))
    assert re.fullmatch("[0-9a-f]{32}", first)
    write_log(tmp_path / "a", [1], [2])
    for path in segments(tmp_path / "a")[:2]:
        path.unlink()
    assert log_id(tmp_path / "a") == first
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    assert log_id(tmp_path / "copy") == first
    write_log(tmp_path / "b", [1])
    assert log_id(tmp_path / "b") != first


@each_row("version", sorted(WRITTEN))
def test_a_log_of_an_earlier_version_has_the_same_id_before_and_after_it_is_opened(
    tmp_path: Path, version: int
) -> None:
    write_old_log(tmp_path, version)
    before = log_id(tmp_path)
    assert not (tmp_path / NAME).exists()
    write_log(tmp_path, [1])
    assert (tmp_path / NAME).read_text() == f"{before}\n"
    for path in segments(tmp_path)[:-1]:
        path.unlink()
    assert log_id(tmp_path) == before
    (tmp_path / NAME).unlink()
    assert log_id(tmp_path) == before


def test_the_id_survives_the_first_segment_of_a_log_without_a_manifest(tmp_path: Path) -> None:
    write_log(tmp_path, [1])
    (tmp_path / NAME).unlink()
    path = reopen_last(tmp_path)
    path.write_bytes(path.read_bytes()[:10])
    before = log_id(tmp_path)
    with LogWriter(tmp_path):
        assert segments(tmp_path) == []
    assert log_id(tmp_path) == before
    assert (tmp_path / MANIFEST).read_bytes() == b""


def test_without_an_id(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no capture log in"):
        log_id(tmp_path)
    with LogWriter(tmp_path):
        pass
    (tmp_path / NAME).unlink()
    with pytest.raises(LogIdError, match="is empty and has no id yet"):
        log_id(tmp_path)


@each_row("content", [b"", b"0" * 32, b"g" * 32 + b"\n", b"0" * 31 + b"\n", b"0" * 32 + b"\n\n"])
def test_a_damaged_id_stops_readers_and_not_the_writer(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path, [1])
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(LogIdError, match="is damaged: restore"):
        log_id(tmp_path)
    write_log(tmp_path, [1])
    assert len(read_log(tmp_path)) == 2
    assert (tmp_path / NAME).read_bytes() == content
    assert main(["capture", "repair", str(tmp_path)]) == 1
    assert f"{NAME} is damaged" in capsys.readouterr().out
