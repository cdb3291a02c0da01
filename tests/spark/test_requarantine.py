"""What is in quarantine is decoded again, and goes into the tables once if it is good now."""

from pathlib import Path
from typing import Any

import pytest

from headwater_host.cli.main import main
from headwater_spark import delta, mqtt
from headwater_spark.batches import Batches
from headwater_spark.growth import grow, requarantine
from headwater_spark.tables import FRAMES, MESSAGES, QUARANTINE, TABLES, TELEMETRY
from tests.spark.logs import InProcess, Rec, damage, publish, reading, rows, write_log

DAY = 86_400_000


class NewError(Exception):
    pass


def strict(payload: bytes) -> dict[str, Any]:
    raise NewError("not yet")


def mended(payload: bytes) -> dict[str, Any]:
    return {"size": len(payload)}


def log_of(directory: Path) -> Path:
    """Two dates; messages for a decoder, with a redelivery, malformed frames, and a damaged block."""
    first = [
        Rec(publish("raw/a", b"abc"), at=1),
        Rec(publish("hw/b1", reading("b1", 1, 1, load=1)), at=2),
        Rec(b"\x30\x07\x00\x05a", at=3),
        Rec(publish("hw/b1", reading("b1", 1, 1, load=2)), at=4),
    ]
    second = [
        Rec(publish("raw/b", b"abcd"), at=DAY),
        # Version 5 was recorded for frames of 3.1.1.
        Rec(publish("hw/b1", reading("b1", 1, 2, load=3)), at=DAY + 1, version=5),
        Rec(publish("hw/b1", reading("b1", 1, 1, load=1)), at=DAY + 2),
        Rec(publish("hw/b2", {"board": "b2", "boot": 1, "seq": -1, "n": 9}), at=DAY + 3),
    ]
    log = write_log(directory, [first, second, [Rec(publish("x", "1"), at=DAY + 9)]])
    (segment,) = log.glob("*.hwc")
    damage(segment, 2, 70)
    return log


def state(out: Path) -> list[Any]:
    return [rows(out, table) for table in TABLES]


def places(out: Path, *, reason: str = "") -> list[Any]:
    found = rows(out, QUARANTINE, "reason", "bytes")
    return [row for row in found if not reason or row[0] == reason]


def test_a_mended_decoder_takes_messages_out_of_quarantine(tmp_path: Path) -> None:
    out = tmp_path / "out"
    grow(InProcess(), [log_of(tmp_path / "log")], out, decoders={"raw/+": strict})
    assert len(places(out, reason="decoder_failed")) == 2
    before = state(out)
    # As bad as before: nothing changes.
    versions = [delta.live(out, table).version for table in TABLES]
    same = requarantine(InProcess(), out, decoders={"raw/+": strict})
    assert (same.taken, same.rows["quarantine"]) == (5, 5)
    assert state(out) == before
    assert [delta.live(out, table).version for table in TABLES] == versions
    result = requarantine(InProcess(), out, decoders={"raw/+": mended})
    assert result.taken == 5
    assert result.rows["messages"] == 2
    assert not places(out, reason="decoder_failed")
    left = ["bad_block", "bad_identity", "field_beyond_packet", "identity_conflict", "truncated"]
    assert [row[0] for row in places(out)] == left
    raw = [row for row in rows(out, MESSAGES, "topic", "payload", "copies") if row[0].startswith("raw")]
    assert raw == [("raw/a", b"abc", 1), ("raw/b", b"abcd", 1)]
    assert [
        row for row in rows(out, TELEMETRY, "topic", "metric", "value_double") if row[0].startswith("raw")
    ] == [
        ("raw/a", "size", 3.0),
        ("raw/b", "size", 4.0),
    ]
    assert rows(out, FRAMES) == before[0]
    # Again: nothing is left to take, and nothing doubles.
    after = state(out)
    assert requarantine(InProcess(), out, decoders={"raw/+": mended}).rows["messages"] == 0
    assert state(out) == after
    # The tables grow on.
    assert grow(InProcess(), [tmp_path / "log"], out, decoders={"raw/+": mended}).plan.records == 0


def test_frames_of_a_mended_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded by a version that refuses QoS 0, then by one that does not; duplicates of stored messages count."""
    out = tmp_path / "out"
    right = mqtt.decode

    def wrong(data: Any, starts: Any, level: int = 4) -> mqtt.Packets:
        found = right(data, starts, level)
        found.error[found.publish] = 1
        found.publish[:] = False
        return found

    log = write_log(
        tmp_path / "log",
        [[Rec(publish("hw/b1", reading("b1", 1, seq % 3, x=seq % 3)), at=seq) for seq in range(6)]],
    )
    with monkeypatch.context() as patch:
        patch.setattr(mqtt, "decode", wrong)
        patch.setattr("headwater_spark.task.MQTT_REASONS", {1: ("refused", "by mistake")})
        grow(InProcess(), [log], out)
    assert rows(out, QUARANTINE, "reason") == ["refused"] * 6
    requarantine(InProcess(), out)
    assert rows(out, MESSAGES, "seq", "copies") == [(0, 2), (1, 2), (2, 2)]
    assert rows(out, QUARANTINE) == []
    again = write_log(tmp_path / "more", [[Rec(publish("hw/b1", reading("b1", 1, 0, x=0)), at=9)]])
    grow(InProcess(), [log, again], out)
    assert rows(out, MESSAGES, "seq", "copies") == [(0, 3), (1, 2), (2, 2)]


@pytest.mark.parametrize("where", ["files", "first commit", "last commit"])
def test_an_interrupted_batch_is_completed(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, out = tmp_path / "plain", tmp_path / "out"
    log = log_of(tmp_path / "log")
    for one in (plain, out):
        grow(InProcess(), [log], one, decoders={"raw/+": strict})
    requarantine(InProcess(), plain, decoders={"raw/+": mended})

    class CrashError(Exception):
        pass

    commit, list_files = delta.Tables.commit, Batches.list_files

    def crashing(self: delta.Tables, table: Any, *rest: Any, **more: Any) -> None:
        if table.name == ("messages" if where == "first commit" else "quarantine"):
            raise CrashError
        commit(self, table, *rest, **more)

    def never(*_: Any) -> Any:
        raise CrashError

    with monkeypatch.context() as patch:
        if where == "files":
            patch.setattr(Batches, "list_files", never)
        else:
            patch.setattr(delta.Tables, "commit", crashing)
        with pytest.raises(CrashError):
            requarantine(InProcess(), out, decoders={"raw/+": mended})
    assert Batches.list_files is list_files
    # Any run completes it; without its list of files, nothing changes.
    assert grow(InProcess(), [log], out).completed == [2]
    if where == "files":
        assert len(places(out)) == 7
        requarantine(InProcess(), out, decoders={"raw/+": mended})
    assert state(out) == state(plain)


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages of a decoder stay until there is one for the same filter."""
    out = tmp_path / "out"
    grow(InProcess(), [log_of(tmp_path / "log")], out, decoders={"raw/+": strict})
    (tmp_path / "sizes.py").write_text("def decode(payload):\n    return {'size': len(payload)}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for options, text in (
        ([], "3 frames decoded again: 0 new messages, 3 still in quarantine"),
        (
            ["--decoder", "other=sizes:decode"],
            "3 frames decoded again: 0 new messages, 3 still in quarantine",
        ),
        (
            ["--decoder", "raw/+=sizes:decode"],
            "5 frames decoded again: 2 new messages, 3 still in quarantine",
        ),
    ):
        assert main(["pipeline", "requarantine", "--out", str(out), *options]) == 0
        assert text in capsys.readouterr().out
    assert main(["pipeline", "requarantine", "--out", str(tmp_path / "none")]) == 1
    assert "has no tables" in capsys.readouterr().err


def test_tables_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no tables"):
        requarantine(InProcess(), tmp_path / "out")
