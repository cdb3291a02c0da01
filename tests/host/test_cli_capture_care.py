"""``headwater capture stats | prune | repair | readers``, and the progress of commands that take long."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headwater_host.capture.readers import list_readers, save_reader
from headwater_host.cli.main import main
from tests.host.capture_logs import MANIFEST, PEERS, record, reopen_last, segments, write_log
from tests.host.test_cli_capture import ENVIRONMENT, capture, damage
from tests.rows import each_row
from tools.capture_log import LogWriter


def test_stats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = write_log(tmp_path, [4, 3], [5])
    assert capture("stats", tmp_path, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["peers"]
    assert sum(row["records"] for row in rows) == 12
    assert sum(row["bytes"] for row in rows) == sum(len(one.frame) for one in written)
    first = next(row for row in rows if (row["peer"], row["protocol"]) == (PEERS[0], "mqtt"))
    mine = [one for one in written if (one.peer, one.protocol, one.direction) == (PEERS[0], 1, 0)]
    assert (first["direction"], first["records"]) == ("received", len(mine))
    span = (mine[-1].time_ns - mine[0].time_ns) / 1e9
    assert first["per_second"] == pytest.approx((len(mine) - 1) / span)
    assert capture("stats", tmp_path) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["peer", "protocol", "records", "bytes"]
    assert len(lines) == len(rows)
    damage(tmp_path, 1)
    assert capture("stats", tmp_path) == 1
    assert "bad: " in capsys.readouterr().err


def test_progress_is_shown(tmp_path: Path) -> None:
    """The command writes to a pipe that nobody reads before the progress is there."""
    log, pipe = tmp_path / "log", tmp_path / "pipe"
    with LogWriter(log, segment_bytes=1 << 20) as writer:
        for number in range(60):
            writer.append(*record(number, 50_000))
            writer.flush()
    os.mkfifo(pipe)
    assert len(segments(log)) == 3
    command = [sys.executable, "-m", "headwater_host", "capture", "export", str(log), "--pcap", str(pipe)]
    with (
        subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process,
        pipe.open("rb") as exported,
    ):
        assert process.stderr is not None
        line = process.stderr.readline().decode()
        assert len(exported.read()) > 3_000_000
    assert re.fullmatch(r"capture: exporting, segment 1 of 3: \d+ %, \d+ kB of 3.0. MB, .* left\n", line), (
        line
    )
    assert process.returncode == 0


@pytest.mark.parametrize("words", ["verify", "stats", "repair"])
def test_what_the_progress_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """With no delay, until the display's thread has run in the middle of a command."""
    monkeypatch.setattr("headwater_host.cli.capture._DELAY_S", 0.001)
    log = tmp_path / "log"
    write_log(log, [5_000] * 10, [5_000] * 10)
    lines = (log / MANIFEST).read_bytes().splitlines(keepends=True)
    what, number = {"verify": ("verifying", 2), "stats": ("counting", 2), "repair": ("repairing", 1)}[words]
    shown = rf"capture: {what}, segment [12] of {number}: \d+ %, .*B of .*B, .*B/s, .* left\n"
    deadline = time.monotonic() + 20
    while not re.search(shown, capsys.readouterr().err):
        assert time.monotonic() < deadline, "no progress is shown"
        if words == "repair":
            (log / MANIFEST).write_bytes(lines[0])
        assert capture(words, log) == 0


@pytest.mark.parametrize("text", ["65536", "64KiB", "64 KiB", "64k"])
def test_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    write_log(tmp_path, [100], [100_000], [1_000])
    assert capture("prune", tmp_path, "--max-bytes", text, "--json") == 0
    assert len(segments(tmp_path)) == 1


def test_prune_by_age_and_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = time.time_ns()
    for days in (40, 20, 1):
        with LogWriter(tmp_path) as writer:
            writer.append(now - days * 86_400_000_000_000, 1, "peer", 0, 1, 4, b"frame")
    files = segments(tmp_path)
    size = files[0].stat().st_size
    assert capture("prune", tmp_path, "--max-age", "30d", "--dry-run") == 0
    assert capsys.readouterr().out == (
        f"would remove {files[0].name}, {size} bytes\n"
        f"would remove 1 segments, {size} bytes; {2 * size} bytes are left\n"
    )
    assert segments(tmp_path) == files
    assert capture("prune", tmp_path, "--max-age", "30d") == 0
    assert segments(tmp_path) == files[1:]
    capsys.readouterr()
    assert capture("prune", tmp_path, "--max-bytes", size, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["removed"] == [{"file": files[1].name, "bytes": size, "readers": []}]
    assert (found["kept"], found["left_bytes"]) == ([], size)


def test_prune_keeps_what_a_reader_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(tmp_path, [1], [1])
    save_reader(tmp_path, "tables", 0)
    assert capture("prune", tmp_path, "--max-bytes", 1) == 1
    assert "for tables\n" in capsys.readouterr().out
    assert capture("readers", tmp_path) == 0
    assert capsys.readouterr().out == "tables needs block 0 and later ones\n"
    assert capture("readers", tmp_path, "--forget", "tables", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"readers": {}}
    assert list_readers(tmp_path) == {}
    save_reader(tmp_path, "tables", 0)
    assert capture("prune", tmp_path, "--max-bytes", 1, "--unread", "remove") == 0
    assert "which tables has not taken" in capsys.readouterr().out
    assert segments(tmp_path) == []


def test_repair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(tmp_path, [2], [1])
    assert capture("repair", tmp_path) == 0
    assert capsys.readouterr().out == "nothing to repair: all segments are sealed; `verify` checks them\n"
    path = reopen_last(tmp_path)
    path.write_bytes(path.read_bytes() + b"torn")
    assert capture("repair", tmp_path) == 0
    sealed, cut = capsys.readouterr().out.splitlines()
    assert sealed == f"sealed {path.name}"
    assert cut.startswith(f"cut torn: {path.name} at ")
    assert capture("verify", tmp_path) == 0
    write_log(tmp_path, [1, 1])
    reopen_last(tmp_path)
    file, _, _ = damage(tmp_path, 2)
    capsys.readouterr()
    assert capture("repair", tmp_path) == 1
    assert f"bad: {file} at " in capsys.readouterr().out


def test_repair_of_a_log_that_is_being_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with LogWriter(tmp_path):
        assert capture("repair", tmp_path) == 1
    assert "another writer has the capture log open" in capsys.readouterr().err


def test_export_to_standard_output(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "log", [1, 1])
    assert main(["capture", "export", "log", "--pcap", "file"]) == 0
    capfdbinary.readouterr()
    assert main(["capture", "export", "log", "--pcap", "-"]) == 0
    assert capfdbinary.readouterr() == ((tmp_path / "file").read_bytes(), b"2 records\n")
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "headwater_host", "capture", "export", "log", "--pcap", "-"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=ENVIRONMENT, check=False)
    assert (done.returncode, done.stderr) == (1, b"headwater: No space left on device\n")
    assert not Path("-").exists()


@each_row(
    "words, code, says",
    [
        ("prune {log}", 2, "--max-age or --max-bytes is needed"),
        ("prune {log} --max-age 30", 0, "removed 1 segments, 128 bytes; 0 bytes are left"),
        ("prune {log} --max-age 0", 2, "'0' is not a number of seconds above 0"),
        ("prune {log} --max-age 3x", 2, "'3x' is not a number of seconds"),
        ("prune {log} --max-age -1", 2, ""),
        ("prune {log} --max-age 99999999999d", 2, "is not a number of seconds"),
        ("prune {log} --max-bytes 0", 2, "'0' is not a number of bytes"),
        ("prune {log} --max-bytes 1GB", 2, "'1GB' is not a number of bytes"),
        ("prune {log} --max-bytes 1 --unread never", 2, "invalid choice"),
        ("prune {none} --max-bytes 1", 2, "No such file"),
        ("stats {none}", 2, "No such file"),
        ("repair {none}", 2, "No such file"),
        ("repair {empty}", 2, "no capture log in"),
        ("readers {empty}", 2, "no capture log in"),
        ("readers {log} --forget x", 1, "there is no reader 'x'"),
        ("readers {log} --forget ../x", 2, "is not the name of a reader"),
        ("export {log}", 2, "--pcap"),
        ("export {empty} --pcap {none}/file", 2, "no capture log in"),
        ("export {log} --pcap {none}/file", 2, "No such file"),
        ("export {log} --pcap /dev/full", 1, "cannot write /dev/full: No space left on device"),
        *(
            (
                f"{command} http://host/log",
                2,
                "http://host/log: this URI cannot be read; use a directory or s3://",
            )
            for command in ("ls", "verify", "cat", "stats", "export --pcap file", "ship {log}")
        ),
    ],
)
def test_wrong_words_end_with_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, code: int, says: str
) -> None:
    log, empty = tmp_path / "log", tmp_path / "empty"
    write_log(log, [1])
    empty.mkdir()
    given = words.format(log=log, empty=empty, none=tmp_path / "none").split()
    try:
        ended: object = main(["capture", *given])
    except SystemExit as end:
        ended = end.code
    out, err = capsys.readouterr()
    assert ended == code, err
    assert says in (err if code else out)
    assert sorted(path.name for path in empty.iterdir()) == []
