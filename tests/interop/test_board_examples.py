"""Examples that need a chip run as they stand, on the virtual ESP32 and RP2."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from headwater_host.client.blocking import Client
from tests.host.gateway_peers import recorded, running_gateway
from tests.names import everything_is, name_server
from tools.broker import HOST, Mosquitto
from tools.deploy import package_files
from tools.toolchain import ROOT
from tools.virtual_board import Port, VirtualBoard

EXAMPLES = ROOT / "examples" / "device"
pytestmark = pytest.mark.needs_micropython


def board_of(port: str, example: str, uarts: int = 0) -> VirtualBoard:
    """A board whose ``main.py`` is the example; the power is off."""
    return VirtualBoard(
        port=cast("Port", port),
        flash="littlefs",
        heap="256K",
        pace=0.02,
        networks={"workshop": "correct horse"},
        files={**package_files("mpy"), "main.py": EXAMPLES / f"{example}.py"},
        uarts=uarts,
    )


@pytest.mark.needs_mosquitto
@pytest.mark.parametrize("port", ["esp32", "rp2"])
def test_deep_sleep(port: str, mosquitto: Callable[..., Mosquitto]) -> None:
    broker = mosquitto()
    with Client(HOST, broker.port) as client, name_server(everything_is("192.168.4.1")) as (dns, _):
        client.subscribe("meter-7/level", 1)
        board = board_of(port, "deep_sleep")
        board.air.reach("224.0.0.251:5353", dns)
        board.air.reach("192.168.4.1:1883", broker.port)
        with board:
            for boot in (1, 2, 3):
                reading = json.loads(client.get(60).payload)
                assert reading == {"board": "meter-7", "boot": boot, "seq": 1, "level": 0x4000}
                assert board.wait_asleep(60) == 600000
                board.wake()
            board.wait_for("ms, 0 unacknowledged")


def test_uart_sensor(tmp_path: Path) -> None:
    board = board_of("rp2", "uart_sensor", uarts=2)
    with board, running_gateway(tmp_path, serials=[board.uart_ports[1]]) as gateway:
        gateway.wait_for("W ")
        gateway.wait_for("started: power on")
        messages: list[dict[str, object]] = []
        while len([message for message in messages if "seq" in message]) < 3:
            messages = [json.loads(message.payload) for message in recorded(tmp_path / "log")]
    assert messages[0] == {"boot": 1, "cause": "power on"}
    readings = messages[1:]
    assert [reading["seq"] for reading in readings] == [n + 1 for n in range(len(readings))]
    assert all(reading["boot"] == 1 for reading in readings)
