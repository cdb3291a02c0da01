"""The device examples run as they stand, on MicroPython, against a real broker."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tools import deploy
from tools.broker import Mosquitto
from tools.toolchain import ROOT
from tools.virtual_board import VirtualBoard

EXAMPLES = ROOT / "examples" / "device"
pytestmark = [pytest.mark.needs_micropython, pytest.mark.needs_mosquitto]


def test_uptime_publishes_and_takes_commands_over_a_broker_that_restarts(
    mosquitto: Callable[..., Mosquitto], tmp_path: Path
) -> None:
    broker = mosquitto(persistence=True)
    source = (EXAMPLES / "uptime.py").read_text(encoding="utf-8")
    program = source.replace('Tcp("broker.local")', f'Tcp("127.0.0.1", {broker.port})')
    assert program != source
    # The second client is the same core, on another board.
    listener = f"""
import time
from headwater.client import Client
from headwater_board.tcp import Tcp
client = Client(Tcp("127.0.0.1", {broker.port}), b"listener", clean=True)
client.on_message = lambda message: print(message.topic_text(), message.payload_bytes(), message.qos())
client.connect()
client.subscribe(b"board-1/uptime", 1)
print("listening")
client.wait(2500)
print("published", client.publish(b"board-1/commands", b"blink", 1) > 0)
client.flush(3000)
client.disconnect()
"""
    files = deploy.package_files("mpy")
    with VirtualBoard(main=program, files=files, name="uptime") as board:
        with VirtualBoard(main=listener, files=files, name="listener") as other:
            other.wait_for("published True", 20)
            assert "board-1/uptime b'" in other.log[other.log.index("listening") :]
        board.wait_for("board-1/commands b'blink'", 20)
        broker.stop()
        board.wait_for("again in a second:", 20)
        broker.start()
        mark = board.mark
        with VirtualBoard(main=listener, files=files, name="listener2") as other:
            other.wait_for("published True", 20)
        board.wait_for("board-1/commands b'blink'", 20, after=mark)
