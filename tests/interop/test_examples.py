"""The device examples run as they stand, on MicroPython, against a real broker."""

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headwater.mqtt.client import Client
from headwater_host.capture import CaptureReader
from headwater_spark.pipeline import run_on
from headwater_spark.tables import TELEMETRY
from tests import built
from tests.host.command import running
from tests.interop.dialer import SocketDialer
from tests.spark.logs import InProcess, rows
from tools import deploy, toolchain
from tools.broker import Mosquitto
from tools.toolchain import ROOT
from tools.virtual_board import VirtualBoard

EXAMPLES = ROOT / "examples" / "device"
pytestmark = [pytest.mark.needs_micropython, pytest.mark.needs_mosquitto]


@pytest.mark.parametrize("form", ["modules", "component"])
def test_uptime_publishes_and_takes_commands_over_a_broker_that_restarts(
    form: str, mosquitto: Callable[..., Mosquitto], tmp_path: Path
) -> None:
    broker = mosquitto(persistence=True)
    source = (EXAMPLES / "uptime.py").read_text(encoding="utf-8")
    program = source.replace('Tcp("localhost")', f'Tcp("127.0.0.1", {broker.port})')
    assert program != source
    # The second client is the same core, on another board.
    listener = f"""
import time
from headwater.mqtt.client import Client
from headwater_board.tcp import Tcp
client = Client(Tcp("127.0.0.1", {broker.port}), b"listener", clean_start=True)
got = []
client.on_message = lambda message: got.append((message.topic_text(), message.payload_bytes(), message.qos()))
client.connect()
client.subscribe(b"board-1/uptime", 1)
print("listening")
while not got:
    assert client.wait(100) == 0
print(*got[0])
print("published", client.publish(b"board-1/commands", b"blink", 1) > 0)
client.flush(3000)
client.disconnect()
"""
    files = deploy.package_files("mpy")
    own = files
    if form == "component":
        own = built.on_board("headwater-mqtt", tmp_path / "built")
    with VirtualBoard(main=program, files=own, name="uptime") as board:
        with VirtualBoard(main=listener, files=files, name="listener") as other:
            other.wait_for("published True", 200)
            assert "board-1/uptime b'" in other.log[other.log.index("listening") :]
        board.wait_for("board-1/commands b'blink'", 200)
        broker.stop()
        board.wait_for("reconnecting in 1 s:", 200)
        broker.start()
        mark = board.mark
        with VirtualBoard(main=listener, files=files, name="listener2") as other:
            other.wait_for("published True", 200)
        board.wait_for("board-1/commands b'blink'", 30, after=mark)


def test_the_program_of_the_readme_makes_rows(mosquitto: Callable[..., Mosquitto], tmp_path: Path) -> None:
    """As the README says: MicroPython's unix build, this folder's library, a broker, a gateway, the pipeline."""
    broker = mosquitto()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (line,) = [line for line in readme.splitlines() if line.startswith("MICROPYPATH=")]
    path, command, program = line.split()
    (tmp_path / "uptime.py").write_text(example(Path(program).name, broker.port))
    options = ("--capture", tmp_path / "log", "--broker", f"127.0.0.1:{broker.port}", "--topic", "#:1")
    with running("gateway", *options, directory=tmp_path) as gateway:
        gateway.wait_for("subscribed")
        name, _, value = path.partition("=")
        board = subprocess.Popen(
            [str(toolchain.find("micropython")), tmp_path / "uptime.py"],
            cwd=ROOT,
            env={name: value},
            stdout=subprocess.PIPE,
        )
        try:
            deadline = time.monotonic() + 60
            while len(list(CaptureReader(tmp_path / "log").records())) < 2:
                assert board.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            board.kill()
            board.communicate()
        assert gateway.end() == 0
    assert (command, ROOT / program) == ("micropython", EXAMPLES / "uptime.py")
    run_on(InProcess(), tmp_path / "log", tmp_path / "out")
    found = rows(tmp_path / "out", TELEMETRY, "board", "seq", "topic", "metric")
    assert found[:2] == [("board-1", seq, "board-1/uptime", "uptime_ms") for seq in range(2)]
    assert len(set(rows(tmp_path / "out", TELEMETRY, "boot"))) == 1


def example(name: str, port: int) -> str:
    """The example's text, with this broker in the place of each that it names."""
    source = (EXAMPLES / name).read_text(encoding="utf-8")
    program = re.sub(r'Tcp\("(?:localhost|broker[^"]*)"\)', f'Tcp("127.0.0.1", {port})', source)
    assert program != source
    return program


def test_keeper_goes_on_over_a_broker_that_restarts(mosquitto: Callable[..., Mosquitto]) -> None:
    broker = mosquitto(persistence=True)
    program = example("keeper.py", broker.port)
    with VirtualBoard(main=program, files=deploy.package_files("mpy"), name="keeper") as board:
        at = board.wait_for("online", 200)
        broker.stop()
        at = board.wait_for("offline: E_CLOSED", 200, after=at)
        broker.start()
        at = board.wait_for("online", 30, after=at)
        with socket_client(broker.port) as client:
            seen: list[bytes] = []
            client.on_message = lambda message: seen.append(message.payload_bytes())
            client.subscribe(b"board-1/heap", 1)
            deadline = time.monotonic() + 30
            while not seen:
                assert client.wait(20) == 0
                assert time.monotonic() < deadline
            assert int(seen[0]) > 1000
            client.publish(b"board-1/commands", b"blink", 1)
            client.flush(3000)
        board.wait_for("board-1/commands b'blink'", 30, after=at)


@contextmanager
def socket_client(port: int) -> Iterator[Client]:
    client = Client(SocketDialer(port), b"listener")
    client.connect()
    try:
        yield client
    finally:
        client.disconnect()
