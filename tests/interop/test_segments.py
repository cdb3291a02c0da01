"""Segments from a virtual board, over TCP to a broker and a hub, and over a serial line to a gateway."""

import asyncio
import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.mqtt.client import Client
from headwater_host.capture import CaptureReader
from headwater_host.inspect.records import decoded
from headwater_host.mq.reassembly.assembler import Assembler
from headwater_host.mq.reassembly.outcomes import Whole
from tests.host.command import running
from tests.interop.dialer import SocketDialer
from tools import deploy, gigabyte
from tools.broker import Mosquitto
from tools.toolchain import ROOT
from tools.virtual_board import VirtualBoard

EXAMPLE = ROOT / "examples" / "device" / "send_file.py"
SECONDS = 100.0
#: For the gigabyte, which takes ten seconds where nothing else runs.
LONG_S = 500

pytestmark = pytest.mark.needs_micropython


@pytest.mark.needs_mosquitto
@pytest.mark.parametrize(
    "way, length",
    [
        pytest.param(gigabyte.Way("mqtt", 1), 8_000_000, id="mqtt-qos1"),
        pytest.param(gigabyte.Way("mqtt", 2, outbox=4096), 1_000_000, id="mqtt-qos2"),
        # A million segments of 1 KB would take half a minute of a processor.
        pytest.param(
            gigabyte.Way("mqtt", 0, buffer=8192),
            gigabyte.GIGABYTE,
            id="gigabyte",
            marks=pytest.mark.timeout(LONG_S + 60),
        ),
        pytest.param(gigabyte.Way("fmq", 1), 1_000_000, id="fmq-qos1"),
    ],
)
def test_what_a_board_sends_arrives_whole_and_its_heap_stays_as_it_is(
    way: gigabyte.Way, length: int, tmp_path: Path
) -> None:
    seconds = LONG_S if length == gigabyte.GIGABYTE else SECONDS
    reception, report = asyncio.run(gigabyte.send(length, way, tmp_path, seconds))
    assert reception.segments == -(-length // way.piece)
    assert reception.duplicates == 0
    # The board's id, and behind it the boot's number, by chance, and that it is the first of this boot.
    assert reception.group_id.startswith(b"\x68gigabyte\0\0\0")
    assert reception.group_id[12:20] != bytes(8)
    assert reception.group_id[20:] == b"\0\0\0\x01"
    assert report.lowest == report.highest == report.end
    assert report.end < 256 << 10
    if way.qos:
        # It was looked at whenever the outbox was full.
        assert report.samples > 50


@pytest.mark.parametrize("protocol", ["mqtt", "fmq"])
def test_over_a_serial_line_to_a_gateway(protocol: str, tmp_path: Path) -> None:
    length = 40_000
    way = gigabyte.Way(protocol, 1, outbox=4096)
    text = gigabyte.program(length, way, uart=0)
    files = deploy.package_files("mpy")
    with VirtualBoard(main=text, files=files, heap=gigabyte.HEAP, name="serial", uarts=1) as board:
        port = f"{board.uart_ports[0]}:460800"
        arguments: list[object] = ["gateway", "--capture", tmp_path / "log"]
        if protocol == "fmq":
            arguments += ["--hub", tmp_path / "hub.db", "--hub-port", 0, "--fmq-serial", port]
        else:
            arguments += ["--serial", port]
        with running(*arguments, directory=tmp_path) as command:
            report = gigabyte.reported(board, SECONDS)
            # Everything was acknowledged: it is in the log.
            assert command.end() == 0
    reception = gigabyte.Reception(way.piece)
    for record in CaptureReader(tmp_path / "log").records():
        said = decoded(record)
        assert said is not None
        if said["type"] == "PUBLISH":
            reception.take(bytes.fromhex(said["payload"]))
    assert reception.whole
    assert reception.received == length
    assert report.lowest == report.highest == report.end


@pytest.mark.needs_mosquitto
def test_send_file_as_it_stands(mosquitto: Callable[..., Mosquitto], tmp_path: Path) -> None:
    broker = mosquitto()
    content = "".join(f"{n} lines of a log\n" for n in range(2000)).encode()
    program = re.sub(r'Tcp\("broker[^"]*"\)', f'Tcp("127.0.0.1", {broker.port})', EXAMPLE.read_text())
    assert str(broker.port) in program
    client = Client(SocketDialer(broker.port), b"listener", rx_size=4096)
    client.connect()
    assembler = Assembler(sqlite3.connect(":memory:"))
    whole: list[tuple[bytes, str]] = []

    def take(topic: str, payload: bytes) -> None:
        for outcome in assembler.add(topic, payload, 0.0):
            assert isinstance(outcome, Whole), outcome
            whole.append((outcome.read(), outcome.format))

    client.on_message = lambda message: take(message.topic_text(), message.payload_bytes())
    granted: list[int] = []
    client.session.on_answer = lambda packet_id, code: granted.append(code)
    client.subscribe(b"board-1/log", 1)
    while not granted:
        assert client.wait(10) == 0
    files: dict[str, Path | bytes] = {**deploy.package_files("mpy"), "log.txt": content}
    with VirtualBoard(main=program, files=files, name="file") as board:
        deadline = time.monotonic() + SECONDS
        while ">>> " not in board.log or not whole:
            assert client.wait(10) == 0
            assert time.monotonic() < deadline, board.log
        assert "sent" in board.log
    client.disconnect()
    assert whole == [(content, "MQSTR   ")]
