"""WiFi and session on a virtual ESP32 and RP2: networks that go and come, lie, and lead nowhere."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.test_keeper_board import WAIT_S, Listener
from tests.names import everything_is, name_server
from tools import deploy
from tools.board_air import PASSWORD, SSID
from tools.broker import Mosquitto
from tools.virtual_board import VirtualBoard

pytestmark = [pytest.mark.needs_micropython, pytest.mark.needs_mosquitto]
PROGRAM = Path(__file__).parent / "device" / "wifi.py"
PHONE = "phone"


class Board:
    """A virtual board that runs ``device/wifi.py``, its broker, and somebody who listens there."""

    def __init__(self, port: str, broker: Mosquitto, **settings: object):
        self.broker = broker
        self.listener = Listener(broker.port, b"numbers")
        settings = {"PORT": broker.port, "NETWORKS": [(SSID, PASSWORD), (PHONE, None)], **settings}
        lines = "".join(f"{name} = {value!r}\n" for name, value in settings.items())
        self.virtual = VirtualBoard(
            port=port,  # type: ignore[arg-type]  # one of PORTS
            heap="256K",
            main=PROGRAM.read_text(encoding="utf-8"),
            files={**deploy.package_files("mpy"), "settings.py": lines},
        )
        self.virtual.start()
        self.air = self.virtual.air
        self.air.name("broker.test", "127.0.0.1")
        self.at = 0

    def until(self, text: str) -> None:
        """Wait until the board says something, to the end of the line, after what it said last."""
        self.virtual.wait_for(text, WAIT_S, after=self.at)
        self.at = self.virtual.log.index(text, self.at)
        self.virtual.wait_for("\n", WAIT_S, after=self.at)
        self.at = self.virtual.log.index("\n", self.at)

    def counters(self) -> list[int]:
        """``connects``, ``lost``, ``restarts``, ``resets`` of the last line that has them."""
        found: list[str] = re.findall(r"\((\d+, \d+, \d+, \d+)\)", self.virtual.log)
        return [int(number) for number in found[-1].split(", ")]

    def nothing_is_lost(self) -> None:
        """All numbers since the start have arrived, and the board has never been reset."""
        assert "reset" not in self.virtual.log
        assert self.virtual.log.count("start") == 1
        self.listener.collect(lambda got: len(got) > 5)
        numbers = [int(payload) for _, payload in self.listener.got]
        assert sorted(set(numbers)) == list(range(max(numbers) + 1))


@pytest.fixture(params=["esp32", "rp2"])
def board(request: pytest.FixtureRequest, mosquitto: Callable[..., Mosquitto]) -> Iterator[Board]:
    made = Board(request.param, mosquitto(persistence=True))
    try:
        made.until("online")
        yield made
    finally:
        made.virtual.close()


def test_access_points_that_go_and_come_back(board: Board) -> None:
    board.air.switch_off(SSID)
    board.until("offline -63")
    board.air.switch_on(SSID)
    board.until("online")
    assert board.counters() == [2, 1, 0, 0]
    # Another one is there meanwhile.
    board.air.switch_off(SSID)
    board.air.add(PHONE)
    board.until("offline -63")
    board.until("online")
    assert board.counters() == [3, 2, 0, 0]
    board.nothing_is_lost()


def test_a_dead_link_restarts_the_interface(board: Board) -> None:
    board.air.change(SSID, dead=True)
    board.until("offline -61")
    board.until("wifi 1")
    board.air.change(SSID, dead=False)
    board.until("online")
    assert board.counters()[2] >= 1
    board.nothing_is_lost()


def test_a_wrong_password_that_becomes_right(board: Board) -> None:
    board.air.change(SSID, password="another")
    board.air.switch_off(SSID)
    board.until("offline -63")
    board.air.switch_on(SSID)
    board.until("wrong password")
    board.air.change(SSID, password=PASSWORD)
    board.until("online")
    board.nothing_is_lost()


def test_a_broker_that_is_gone_is_no_reason_to_restart_the_interface(board: Board) -> None:
    board.broker.stop()
    board.until("offline -62")
    time.sleep(5)
    board.broker.start()
    board.until("online")
    assert board.counters() == [1, 0, 0, 0]
    board.nothing_is_lost()


def test_a_soft_reset_leaves_the_interface_half_up(board: Board) -> None:
    with Path(board.virtual.port).open("wb", buffering=0) as console:
        # ctrl-C, ctrl-D
        console.write(b"\x03")
        board.virtual.wait_for(">>> ", 20, after=board.at)
        console.write(b"\x04")
        board.until("start")
    board.until("online")
    assert board.counters() == [1, 0, 0, 0]


@pytest.mark.parametrize("port", ["esp32", "rp2"])
def test_a_cable_that_is_pulled_and_plugged_in(port: str, mosquitto: Callable[..., Mosquitto]) -> None:
    made = Board(port, mosquitto(persistence=True), NETWORKS=[])
    try:
        made.until("online")
        made.air.set(cable=False)
        made.until("offline -63")
        made.until("wifi 2")
        made.air.set(cable=True)
        made.until("online")
        assert made.counters() == [2, 1, 0, 0]
        # Unplugged for longer, the interface restarts.
        made.air.set(cable=False)
        made.until("wifi 1")
        made.air.set(cable=True)
        made.until("online")
        made.nothing_is_lost()
    finally:
        made.virtual.close()


@pytest.mark.parametrize("port", ["esp32", "rp2"])
def test_names_from_the_networks_name_server(port: str, mosquitto: Callable[..., Mosquitto]) -> None:
    with name_server(everything_is("127.0.0.1")) as (dns, asked):
        made = Board(port, mosquitto(), RESOLVER=True)
        made.air.set(dns=False)
        try:
            made.air.reach("192.168.4.1:53", dns)
            made.until("online")
        finally:
            made.virtual.close()
    assert asked
