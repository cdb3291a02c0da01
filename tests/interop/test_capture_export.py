"""``headwater capture export``: tshark decodes what a log contains, with times and peers."""

import json
import subprocess
from pathlib import Path

import pytest

from headwater_host.capture import Record
from headwater_host.cli.main import main
from tools import toolchain
from tools.capture_log import LogWriter

BEGIN = 1_790_000_000_123_456_789
CONNECT = bytes.fromhex("101000044d5154540402003c0004626f6172")
CONNECT_5 = bytes.fromhex("101100044d5154540502003c000004626f6172")


def publish(topic: str, payload: bytes, properties: bytes = b"") -> bytes:
    body = len(topic).to_bytes(2, "big") + topic.encode() + properties + payload
    head = (
        bytes([0x30, len(body) & 127 | 128, len(body) >> 7]) if len(body) > 127 else bytes([0x30, len(body)])
    )
    return head + body


@pytest.mark.needs_tshark
def test_tshark_reads_an_exported_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, out = tmp_path / "log", tmp_path / "log.pcapng"
    large = bytes(100_000)
    records = [
        Record(BEGIN, 1, "serial:/dev/ttyÄ", 0, 1, 4, CONNECT),
        Record(BEGIN + 1, 1, "serial:/dev/ttyÄ", 1, 1, 4, bytes.fromhex("20020000")),
        Record(BEGIN + 1_000_000_001, 1, "serial:/dev/ttyÄ", 0, 1, 4, publish("plant/1", b"21.5")),
        Record(BEGIN + 2_000_000_000, 2, "mqtt:127.0.0.1:1883", 0, 1, 5, CONNECT_5),
        Record(BEGIN + 3_000_000_000, 2, "mqtt:127.0.0.1:1883", 0, 1, 5, publish("plant/2", b"x", b"\2\1\1")),
        Record(BEGIN + 4_000_000_000, 1, "serial:/dev/ttyÄ", 0, 1, 4, publish("plant/3", b"after")),
    ]
    with LogWriter(log) as writer:
        for record in records:
            writer.append(*record)
    assert main(["capture", "export", str(log), "--pcap", str(out)]) == 0
    assert capsys.readouterr().out == f"6 records in {out}\n"
    tshark = toolchain.find("tshark")
    assert tshark is not None
    done = subprocess.run(
        [tshark, "-r", out, "-T", "json", "--no-duplicate-keys"], capture_output=True, check=True, timeout=60
    )
    frames = [frame["_source"]["layers"] for frame in json.loads(done.stdout)]
    assert [frame["frame"]["frame.time_epoch"] for frame in frames] == [
        f"{record.time_ns // 10**9}.{record.time_ns % 10**9:09d}" for record in records
    ]
    assert not any("_ws.malformed" in frame for frame in frames)
    assert [frame["mqtt"].get("mqtt.topic") for frame in frames] == [
        None, None, "plant/1", None, "plant/2", "plant/3",
    ]  # fmt: skip
    assert frames[2]["mqtt"]["mqtt.msg"] == "32:31:2e:35"
    assert [frame["tcp"]["tcp.stream"] for frame in frames] == ["0", "0", "0", "1", "1", "0"]
    commented = [
        n
        for n, frame in enumerate(frames)
        if "serial:/dev/ttyÄ, connection 1" in json.dumps(frame, ensure_ascii=False)
    ]
    assert commented == [0]
    # tshark reassembles a frame that exceeds an IP packet.
    with LogWriter(log) as writer:
        size = len(large) + 9
        body = bytes([0x30, size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + b"\0\7plant/4" + large
        writer.append(BEGIN + 5_000_000_000, 1, "serial:/dev/ttyÄ", 0, 1, 4, body)
    assert main(["capture", "export", str(log), "--pcap", str(out), "--peer", "serial:/dev/ttyÄ"]) == 0
    shown = subprocess.run(
        [tshark, "-r", out, "-T", "fields", "-e", "mqtt.topic", "-e", "mqtt.len"],
        capture_output=True,
        check=True,
        timeout=60,
        text=True,
    )
    assert f"plant/4\t{size}" in shown.stdout
    assert "plant/2" not in shown.stdout
