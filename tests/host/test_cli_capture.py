"""``headwater capture ls | verify | cat``: what they print and how they end, on whole, torn and damaged logs."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headwater_host.capture import list_blocks
from headwater_host.cli.capture import format_time
from headwater_host.cli.main import main
from tests.host.capture_logs import PEERS, record, records, reopen_last, segments, write_log
from tools.capture_log import LogWriter

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def capture(*words: object) -> int:
    return main(["capture", *map(str, words)])


def damage(directory: Path, block: int) -> tuple[str, int, int]:
    """Change a byte in a block's body; the block's file, offset and length."""
    info = list_blocks(directory)[block]
    path = directory / info.file
    data = bytearray(path.read_bytes())
    data[info.offset + 70] ^= 1
    path.write_bytes(data)
    return info.file, info.offset, info.length


def test_ls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(tmp_path, [2, 3], [1])
    reopen_last(tmp_path)
    assert capture("ls", tmp_path) == 0
    head, first, second, total = capsys.readouterr().out.splitlines()
    names = [path.name for path in segments(tmp_path)]
    sizes = [path.stat().st_size for path in segments(tmp_path)]
    assert head.split() == ["segment", "state", "blocks", "records", "bytes", "first", "last"]
    times = [format_time(record(number).time_ns) for number in (0, 4, 5)]
    assert first.split() == [names[0], "sealed", "2", "5", str(sizes[0]), times[0], times[1]]
    assert second.split() == [names[1], "open", "1", "1", str(sizes[1]), times[2], times[2]]
    assert total.split() == ["total", "3", "6", str(sum(sizes))]
    assert capture("ls", tmp_path, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["total"] == {"segments": 2, "blocks": 3, "records": 6, "bytes": sum(sizes)}
    assert found["segments"][0] == {
        "file": names[0],
        "bytes": sizes[0],
        "blocks": 2,
        "records": 5,
        "first_ns": record(0).time_ns,
        "last_ns": record(4).time_ns,
        "sealed": True,
        "first": times[0],
        "last": times[1],
    }


def test_ls_of_an_empty_log_and_of_a_damaged_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with LogWriter(tmp_path):
        pass
    assert capture("ls", tmp_path) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["total", "0", "0", "0"]
    write_log(tmp_path, [1])
    path = segments(tmp_path)[0]
    path.write_bytes(b"x" + path.read_bytes()[1:])
    assert capture("ls", tmp_path) == 0
    out, err = capsys.readouterr()
    assert "1 problems in headers; see capture verify" in err
    assert out.splitlines()[1].split()[-2:] == ["-", "-"]


def test_verify_of_a_clean_log_and_of_a_torn_tail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(tmp_path, [2], [1])
    assert capture("verify", tmp_path) == 0
    size = sum(path.stat().st_size for path in segments(tmp_path))
    counts = f"2 segments, {size} bytes, 2 blocks, 3 records (1 mqtt, 1 fmq, 1 ibmmq)"
    assert capsys.readouterr().out == f"clean: {counts}; 0 problems\n"
    path = reopen_last(tmp_path)
    end = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"torn")
    assert capture("verify", tmp_path) == 0
    torn, summary = capsys.readouterr().out.splitlines()
    assert torn.startswith(f"torn: {path.name} at {end}, 4 bytes: ")
    assert summary.startswith("clean: 2 segments")
    assert capture("verify", tmp_path, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["damaged"], found["problems"]) == (False, [])
    assert (found["torn"][0]["offset"], found["torn"][0]["length"]) == (end, 4)


def test_verify_of_a_damaged_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(tmp_path, [2, 1, 1], [1])
    places = [damage(tmp_path, 1), damage(tmp_path, 3)]
    assert capture("verify", tmp_path) == 1
    *problems, summary = capsys.readouterr().out.splitlines()
    assert len(problems) == 2
    for problem, (file, offset, length) in zip(problems, places, strict=True):
        assert problem.startswith(f"bad: {file} at {offset}, {length} bytes: ")
    assert summary.startswith("damaged: 2 segments")
    assert summary.endswith("2 blocks, 3 records (2 mqtt, 1 fmq); 2 problems")
    assert capture("verify", tmp_path, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["damaged"] is True
    assert [(one["file"], one["offset"], one["length"]) for one in found["problems"]] == places


def test_cat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = write_log(tmp_path, [2, 3], [2])
    assert capture("cat", tmp_path) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = [json.loads(line) for line in out.splitlines()]
    assert len(lines) == 7
    assert lines[1] == {
        "time": format_time(written[1].time_ns),
        "time_ns": written[1].time_ns,
        "connection": written[1].connection,
        "peer": PEERS[1],
        "direction": "sent",
        "protocol": "fmq",
        "version": 4,
        "frame": written[1].frame.hex(),
        "mark": "original",
    }
    assert [line.get("mark") for line in lines[:4]] == [None, "original", "duplicate", "uncertain"]
    assert [line.get("first_ns") for line in lines[:4]] == [None, None, written[2].first_ns, None]
    assert [bytes.fromhex(line["frame"]) for line in lines] == [one.frame for one in written]


def test_cat_says_what_frames_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ident = "310103b015cd4e2b845bd718"
    publish = bytes.fromhex(
        f"3a{ident}1202110c706c616e742f312f74656d70d1021103726177110763656c7369757332312e35"
    )
    records = [
        (2, 0, publish),
        (2, 0, bytes.fromhex(f"b0{ident}0531070001d0")),
        (2, 0, bytes.fromhex(f"b0{ident}0431 0700d0")),
        (2, 0, bytes.fromhex(f"30{ident}07610105d04142 43")),
        (2, 0, bytes.fromhex(f"e0{ident}023187")),
        (2, 0, publish[:-1]),
        (2, 0, publish + b"x"),
        (1, 4, b"\x32\x06\x00\x01a\x00\x07x"),
        (1, 5, b"\x30\x05\x00\x01a\x00x"),
        (1, 5, b"\x30\x0c\x00\x01a\x07\x26\x00\x01k\x00\x01vx"),
        (1, 5, b"\x30\x06\x00\x01a\x02\x01\x02"),
        (1, 4, b"\xc0\x00\xc0\x00"),
        (1, 4, b""),
        (1, 9, b"\xc0\x00"),
        (3, 0, b"whatever"),
    ]
    with LogWriter(tmp_path) as writer:
        for number, (protocol, version, frame) in enumerate(records):
            writer.append(number, 1, "a", 0, protocol, version, frame)
    assert capture("cat", tmp_path, "--decode") == 0
    found = [json.loads(line)["packet"] for line in capsys.readouterr().out.splitlines()]
    known = {"type": 3, "process": 1, "thread": 3, "time_ns": 1790000000123456789, "hex": ident}
    assert found[0] == {
        "type": "PUBLISH",
        "flags": 10,
        "id": known,
        "dup": True,
        "qos": 1,
        "retain": False,
        "topic": "plant/1/temp",
        "tags": ["raw", "celsius"],
        "payload": b"21.5".hex(),
    }
    assert found[1] == {"error": {"reason": "bad_value", "offset": 17}}
    assert found[2] == {
        "type": "CONSUMERESP",
        "flags": 0,
        "id": known,
        "topic": None,
        "tags": [],
        "payload": "",
    }
    assert found[3]["topic"] == f"#{5:032x}"
    assert found[4] == {"type": "ACK", "flags": 0, "id": known, "body": "3187"}
    assert found[5] == {"error": {"reason": "truncated", "offset": len(publish) - 1}}
    assert found[6] == {"error": {"reason": "bad_body_length", "offset": len(publish)}}
    assert (found[7]["type"], found[7]["topic"], found[7]["packet_id"]) == ("PUBLISH", "a", 7)
    assert (found[8]["type"], found[8]["payload"]) == ("PUBLISH", b"x".hex())
    assert (found[9]["properties"], found[9]["payload"]) == ({"user_property": [["k", "v"]]}, b"x".hex())
    assert found[10:] == [
        {"error": {"reason": "bad_property_value", "offset": 7}},
        {"error": {"reason": "bad_packet_length", "offset": 2}},
        {"error": {"reason": "truncated", "offset": 0}},
        None,
        None,
    ]
    assert capture("verify", tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["protocols"] == {"mqtt": 7, "fmq": 7, "ibmmq": 1}


def test_cat_of_some_records(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    written = write_log(tmp_path, [2, 3], [4])

    def frames(*options: object) -> list[bytes]:
        assert capture("cat", tmp_path, *options) == 0
        out, err = capsysbinary.readouterr()
        assert err == b""
        return [bytes.fromhex(json.loads(line)["frame"]) for line in out.splitlines()]

    for limit in (0, 1, 3, 9, 10):
        assert frames("--limit", limit) == [one.frame for one in written[:limit]]
    for peer in (*PEERS, "nobody"):
        wanted = [one.frame for one in written if one.peer == peer]
        assert frames("--peer", peer) == wanted
        assert frames("--peer", peer, "--limit", 2) == wanted[:2]
    assert capture("cat", tmp_path, "--raw", "--limit", 6) == 0
    assert capsysbinary.readouterr().out == b"".join(one.frame for one in written[:6])


def test_cat_of_a_damaged_and_of_a_torn_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(tmp_path, [1, 1, 1])
    file, offset, length = damage(tmp_path, 1)
    assert capture("cat", tmp_path) == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert f"bad: {file} at {offset}, {length} bytes" in err
    segments(tmp_path)[0].unlink()
    (tmp_path / "manifest.jsonl").unlink()
    write_log(tmp_path, [1])
    path = reopen_last(tmp_path)
    path.write_bytes(path.read_bytes() + b"torn")
    assert capture("cat", tmp_path) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert "torn: " in err


def test_values_without_a_name_and_times_beyond_the_calendar(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LogWriter(tmp_path) as writer:
        writer.append((1 << 63) - 1, 1, "a\nb", 7, 9, 0, b"")
        writer.append(-1, 1, "a", 0, 1, 0, b"")
        writer.append(-(1 << 63), 1, "a", 0, 1, 0, b"")
    assert capture("cat", tmp_path) == 0
    first, second, third = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["direction"], first["protocol"], first["peer"], first["frame"]) == (7, 9, "a\nb", "")
    assert first["time"] == "2262-04-11T23:47:16.854775807Z"
    assert second["time"] == "1969-12-31T23:59:59.999999999Z"
    assert third["time_ns"] == -(1 << 63)
    assert format_time(10**30) is None
    assert format_time(None) is None


@pytest.mark.parametrize("command", ["ls", "verify", "cat"])
def test_a_directory_that_is_no_log_is_an_error(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(b"")
    for place, reason in (
        ("nowhere", "No such file or directory"),
        ("file", "Not a directory"),
        ("", "no capture log"),
    ):
        assert capture(command, tmp_path / place) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("headwater: ")
        assert reason in err
        assert str(tmp_path) in err
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "words", [[], ["nothing"], ["cat"], ["cat", ".", "--limit", "-1"], ["cat", ".", "--limit", "many"]]
)
def test_wrong_words_are_an_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        capture(*words)
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("headwater capture")
    assert err.endswith("--help)\n")
    assert len(err.splitlines()) == 1


def command(*words: object) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "headwater_host", "capture", *map(str, words)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_reader_that_has_seen_enough_ends_following(tmp_path: Path) -> None:
    write_log(tmp_path, [1])
    with command("cat", tmp_path, "--follow") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


@pytest.mark.parametrize("raw", [[], ["--raw"]])
def test_a_pipe_that_is_closed_early_is_no_error(tmp_path: Path, raw: list[str]) -> None:
    write_log(tmp_path, [5000])
    with command("cat", tmp_path, *raw) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_cat_follows_a_log_that_is_being_written_until_it_is_interrupted(tmp_path: Path) -> None:
    with (
        LogWriter(tmp_path, segment_bytes=200) as writer,
        command("cat", tmp_path, "--follow") as process,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        for one in records(6):
            writer.append(*one)
            writer.flush()
            line = json.loads(process.stdout.readline())
            assert bytes.fromhex(line["frame"]) == one.frame
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b""
        assert process.wait() == 130


def test_cat_follow_ends_at_its_limit(tmp_path: Path) -> None:
    write_log(tmp_path, [3])
    with command("cat", tmp_path, "--follow", "--limit", 2) as process:
        out, err = process.communicate(timeout=200)
    assert len(out.splitlines()) == 2
    assert (err, process.returncode) == (b"", 0)
