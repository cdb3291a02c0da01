"""``headwater capture ship``: sealed segments become the same log elsewhere, whatever interrupts it."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from headwater_host.capture import Record, verify
from headwater_host.capture import ship as shipping
from headwater_host.capture.filesystem import folder
from headwater_host.capture.lock import lock
from headwater_host.capture.log_id import log_id
from headwater_host.capture.manifest import list_log
from headwater_host.capture.readers import list_readers
from headwater_host.capture.retention import Limits, prune
from headwater_host.capture.ship import ShipError, ship
from tests.host.capture_logs import MANIFEST, read_log, reopen_last, segments, write_log, write_old_log
from tests.host.test_cli_capture import ENVIRONMENT, capture
from tests.object_store import Bucket
from tests.waiting import wait_until
from tools.capture_log import LogWriter

#: Everything that a reader has taken may be removed.
NOTHING = Limits(max_bytes=0)


def remove_all(directory: Path) -> None:
    prune(directory, NOTHING, lambda segment: 0.0)


def environment(monkeypatch: pytest.MonkeyPatch, bucket: Bucket) -> None:
    for name, value in bucket.options.items():
        monkeypatch.setenv(name, value)


def test_a_log_is_shipped_as_it_grows(tmp_path: Path) -> None:
    log, copy = tmp_path / "log", tmp_path / "nas" / "copy"
    written = write_log(log, [2, 3], [1])
    open_one = reopen_last(log)
    done = ship(log, copy)
    assert (done.shipped, done.before, done.removed) == ([segments(log)[0].name], 0, [])
    assert done.bytes == segments(log)[0].stat().st_size
    assert read_log(copy) == written[:5]
    assert log_id(copy) == log_id(log)
    assert list_readers(log) == {"ship": 2}
    written += write_log(log, [4], start=6)  # seals the open one
    assert ship(log, f"file://{copy}").shipped == [path.name for path in segments(log)[1:]]
    assert read_log(copy) == written
    assert (copy / MANIFEST).read_bytes() == (log / MANIFEST).read_bytes()
    assert not verify(copy).damaged
    before = {path.name: path.stat().st_mtime_ns for path in copy.iterdir()}
    done = ship(log, copy)
    assert (done.shipped, done.bytes, done.before) == ([], 0, 3)
    assert {path.name: path.stat().st_mtime_ns for path in copy.iterdir()} == before
    assert open_one.name in before


def test_a_copy_can_be_written_no_more_than_read(tmp_path: Path) -> None:
    """A copy is a log: a gateway that continues it gives it the same id, and ships no further."""
    log, copy = tmp_path / "log", tmp_path / "copy"
    write_log(log, [2])
    ship(log, copy)
    with LogWriter(copy):
        pass
    assert log_id(copy) == log_id(log)


def test_retention_keeps_what_is_not_shipped_and_the_copy_keeps_everything(tmp_path: Path) -> None:
    log, copy = tmp_path / "log", tmp_path / "copy"
    written = write_log(log, [2], [1], [3])
    ship(log, copy)
    remove_all(log)
    assert segments(log) == []
    written += write_log(log, [2], [2], start=6)
    remove_all(log)
    assert len(segments(log)) == 2
    assert len(ship(log, copy).shipped) == 2
    remove_all(log)
    assert segments(log) == []
    assert read_log(copy) == written
    assert not verify(copy).damaged
    # Losing the copy's manifest, or the reader's position, loses nothing.
    written += write_log(log, [1], start=10)
    (log / "readers" / "ship").unlink()
    (copy / MANIFEST).unlink()
    ship(log, copy)
    assert read_log(copy) == written
    assert not verify(copy).damaged


def test_a_log_that_began_before_it_was_shipped(tmp_path: Path) -> None:
    log, copy = tmp_path / "log", tmp_path / "copy"
    written = write_log(log, [2], [1], [3])
    segments(log)[0].unlink()
    ship(log, copy)
    assert read_log(copy) == written[2:]
    assert not verify(copy).damaged


def test_a_copy_whose_oldest_segment_was_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As by the lifecycle rule of a bucket, which leaves the segment in the copy's manifest."""
    log, copy = tmp_path / "log", tmp_path / "copy"
    written = write_log(log, [2], [1], [3])
    ship(log, copy)
    oldest = segments(copy)[0]
    oldest.unlink()
    assert capture("verify", copy) == 0
    assert capsys.readouterr().out.startswith("clean: 2 segments")
    assert read_log(copy) == written[2:]
    # The next run copies only what the log still has.
    remove_all(log)
    written += write_log(log, [4], start=6)
    assert len(ship(log, copy).shipped) == 1
    assert read_log(copy) == written[2:]
    assert not verify(copy).damaged


def test_a_log_of_an_earlier_version_keeps_its_id(tmp_path: Path) -> None:
    log, copy = tmp_path / "log", tmp_path / "copy"
    log.mkdir()
    written = write_old_log(log, 1)
    with LogWriter(log):
        pass
    (log / "log-id").unlink()
    ship(log, copy)
    assert read_log(copy) == written
    assert log_id(copy) == log_id(log)


def test_what_retention_removes_meanwhile_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, copy = tmp_path / "log", tmp_path / "copy"
    write_log(log, [2], [1], [3])
    names = [path.name for path in segments(log)]
    add = shipping._Copy.add

    def removing(self: Any, segment: Any, read_back: bool) -> int:
        if segment.name == names[1]:
            segment.path.unlink()
        return add(self, segment, read_back)

    monkeypatch.setattr(shipping._Copy, "add", removing)
    assert capture("ship", log, copy) == 1
    err = capsys.readouterr().err
    assert err == f"headwater: {names[1]} was removed before it was shipped\n"
    assert verify(copy).damaged
    assert "are gone" in str(verify(copy).problems[0])


def test_another_log_is_not_overwritten(tmp_path: Path) -> None:
    one, two, copy = tmp_path / "one", tmp_path / "two", tmp_path / "copy"
    write_log(one, [2])
    write_log(two, [2])
    ship(one, copy)
    before = sorted((path.name, path.read_bytes()) for path in copy.iterdir())
    with pytest.raises(
        ShipError, match=f"has another log, {log_id(one)}, not {log_id(two)}: choose an empty"
    ):
        ship(two, copy)
    assert sorted((path.name, path.read_bytes()) for path in copy.iterdir()) == before
    assert list_readers(two) == {}
    with pytest.raises(ShipError, match="is the log itself"):
        ship(one, f"file://{one}")
    with pytest.raises(ShipError, match="or a directory in it"):
        ship(one, one / "copy")


def test_one_process_ships_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    write_log(log, [2])
    held = lock(log / "ship-ship.lock", "")
    assert capture("ship", log, tmp_path / "copy") == 1
    assert "another process ships the log for the reader 'ship' (process" in capsys.readouterr().err
    assert capture("ship", log, tmp_path / "other", "--reader", "other") == 0
    os.close(held)
    assert capture("ship", log, tmp_path / "copy") == 0
    assert list_readers(log) == {"other": 1, "ship": 1}


def test_a_copy_that_differs_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, copy = tmp_path / "log", tmp_path / "copy"
    written = write_log(log, [2], [3])
    write = type(folder(copy)).write

    def damaging(self: Any, name: str, pieces: Iterable[bytes]) -> None:
        data = bytearray(b"".join(pieces))
        if name == segments(log)[1].name:
            data[70] ^= 1
        write(self, name, [bytes(data)])

    monkeypatch.setattr(type(folder(copy)), "write", damaging)
    with pytest.raises(ShipError, match="differs from segment-"):
        ship(log, copy)
    assert list_readers(log) == {"ship": 1}
    remove_all(log)
    monkeypatch.undo()
    ship(log, copy)
    assert read_log(copy) == written
    assert not verify(copy).damaged


def test_a_full_disk_ends_it_with_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    write_log(log, [2])

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert capture("ship", log, tmp_path / "copy") == 1
    assert (
        capsys.readouterr().err == f"headwater: cannot write {tmp_path / 'copy'}: No space left on device\n"
    )


def killed_ship(log: Path, copy: Path, step: int) -> bool:
    """Ship in another process, which is killed before one of its calls of the system; whether it was."""
    child = os.fork()
    if child == 0:
        left = step

        def call(function: Any) -> Any:
            def wrapped(*arguments: Any, **more: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments, **more)

            return wrapped

        try:
            for name in ("open", "rename", "replace", "fsync", "pread", "unlink", "mkdir", "write"):
                setattr(os, name, call(getattr(os, name)))
            ship(log, copy)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_killed_anywhere_it_loses_nothing(tmp_path: Path) -> None:
    """The process is killed before each call of the system in turn; retention then removes what it may."""
    written = write_log(tmp_path / "log", [2])
    ship(tmp_path / "log", tmp_path / "copy")
    written += write_log(tmp_path / "log", [1, 1], [3], start=2)
    killed, step = True, 0
    while killed:
        log, copy = tmp_path / f"log{step}", tmp_path / f"copy{step}"
        shutil.copytree(tmp_path / "log", log)
        shutil.copytree(tmp_path / "copy", copy)
        killed = killed_ship(log, copy, step)
        remove_all(log)
        sealed = {segment.name for segment in list_log(copy).segments if segment.entry is not None}
        assert not [one for one in verify(copy).problems if one.file in sealed]
        ship(log, copy)
        remove_all(log)
        assert segments(log) == []
        assert read_log(copy) == written
        assert not verify(copy).damaged
        step += 1
    assert step > 30


# ---- an object store -------------------------------------------------------------------------------------------------


def test_a_log_is_shipped_to_an_object_store(
    tmp_path: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, copy = tmp_path / "log", f"{bucket.uri}/plant/gateway-1"
    write_log(log, [2, 3], [1])
    options = [f"--storage={name}={value}" for name, value in bucket.options.items()]
    assert capture("ship", log, copy, "--json", *options) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["shipped"] == [path.name for path in segments(log)]
    assert (found["before"], found["removed"]) == (0, [])
    environment(monkeypatch, bucket)
    assert capture("ship", log, copy) == 0
    assert capsys.readouterr().out == "shipped 0 segments, 0 bytes; 2 were there\n"
    assert capture("verify", copy) == 0
    here = capsys.readouterr().out
    assert here.startswith("clean: 2 segments, ")
    assert capture("verify", log) == 0
    assert capsys.readouterr().out == here
    for command in ("ls", "cat", "stats"):
        assert capture(command, log) == 0
        here = capsys.readouterr().out
        assert capture(command, copy) == 0
        assert capsys.readouterr().out == here
    # A copy that has lost bytes is found by verify, and shipped again.
    place = folder(copy, bucket.storage)
    name = segments(log)[0].name
    place.write(name, [segments(log)[0].read_bytes()[:-1]])
    assert capture("verify", copy) == 1
    assert capture("ship", log, copy, "--check", "size") == 0
    capsys.readouterr()
    assert capture("verify", copy) == 0
    for command in ("prune", "repair", "readers"):
        with pytest.raises(SystemExit, match="2"):
            capture(command, copy)
        assert f"{copy}: this needs a directory of this machine" in capsys.readouterr().err


def test_killed_while_it_ships_to_an_object_store(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the copy, between copy and manifest, and between manifest and the reader's position."""
    log, copy = tmp_path / "log", f"{bucket.uri}/log"
    environment(monkeypatch, bucket)
    written: list[Record] = []
    for place in ("_Copy.add", "_Copy.finish", "_Copy.save"):
        written += write_log(log, [2], [1, 1], start=len(written))
        program = (
            "import os, signal, sys\n"
            "from headwater_host.capture import ship\n"
            "from headwater_host.cli.main import main\n"
            "calls = 0\n"
            "def kill(*_):\n"
            "    global calls\n"
            "    calls += 1\n"
            f"    if calls == {2 if place == '_Copy.save' else 1}: os.kill(os.getpid(), signal.SIGKILL)\n"
            f"ship.{place} = kill\n"
            "main(sys.argv[1:])\n"
        )
        words = ["capture", "ship", str(log), copy]
        done = subprocess.run(
            [sys.executable, "-c", program, *words], env=ENVIRONMENT | bucket.options, check=False
        )
        assert done.returncode == -signal.SIGKILL
        remove_all(log)
    assert capture("ship", log, copy) == 0
    remove_all(log)
    assert segments(log) == []
    assert capture("verify", copy) == 0
    from headwater_host.capture import CaptureReader

    assert list(CaptureReader(copy).records()) == written


def test_it_watches_until_a_signal(tmp_path: Path, bucket: Bucket) -> None:
    log, copy = tmp_path / "log", f"{bucket.uri}/log"
    write_log(log, [2])
    words = ["capture", "ship", str(log), copy, "--watch", "0.05"]
    with subprocess.Popen(
        [sys.executable, "-m", "headwater_host", *words],
        env=ENVIRONMENT | bucket.options,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for start in (2, 5):
            line = process.stdout.readline()
            assert line == f"shipped {segments(log)[-1].name}, {segments(log)[-1].stat().st_size} bytes\n"
            if start == 2:
                write_log(log, [3], start=start)
        wait_until(lambda: list_readers(log) == {"ship": 2})
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
