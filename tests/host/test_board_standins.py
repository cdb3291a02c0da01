"""The virtual board's stand-ins for ESP32 and RP2: WiFi, watchdog, sleep, clock and partitions."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.conftest import require
from tools.board_air import PASSWORD, SSID
from tools.virtual_board import VirtualBoard

PORTS = ("esp32", "rp2")
CONNECT = f"""
import machine, network, socket, sys, time
wlan = network.WLAN(network.STA_IF)

def watch(until, ms=5000):
    seen = []
    end = time.ticks_add(time.ticks_ms(), ms)
    while time.ticks_diff(end, time.ticks_ms()) > 0:
        status = wlan.status()
        if seen[-1:] != [status]:
            seen.append(status)
        if until():
            break
        time.sleep_ms(2)
    return seen

def join():
    wlan.active(True)
    wlan.connect({SSID!r}, {PASSWORD!r})
    return watch(wlan.isconnected)
"""


@pytest.fixture(autouse=True)
def _micropython() -> None:
    require("micropython")


def run(board: VirtualBoard, text: str) -> str:
    """Run a program after CONNECT as ``main.py`` and return what it prints up to "END"."""
    mark = board.mark
    board.put({"main.py": CONNECT + text + "\nprint('END')\n"})
    board.reset()
    board.wait_for("END", 30, after=mark)
    return board.log[mark:].partition("END")[0].strip().replace("\r\n", "\n")


@pytest.fixture(params=PORTS)
def board(request: pytest.FixtureRequest) -> Iterator[VirtualBoard]:
    with VirtualBoard(port=request.param, pace=0.03) as made:
        yield made


def on(board: VirtualBoard, esp32: object, rp2: object) -> str:
    return str(esp32 if "esp32" in str(board._port) else rp2)


def test_status_of_a_successful_attempt_and_of_a_wrong_password(board: VirtualBoard) -> None:
    # ESP32 has no word for "joined, no address", and shows IDLE before the address; RP2's 2 has no name.
    assert run(board, "print(join())") == on(board, [1001, 1000, 1001, 1010], [1, 2, 3])
    text = f"wlan.active(True); wlan.connect({SSID!r}, 'wrong'); print(watch(lambda: False, 300), wlan.isconnected())"
    assert run(board, text) == on(board, "[1001, 202] False", "[1, -3] False")


def test_esp32_hides_the_next_attempt_behind_the_last_reason(board: VirtualBoard) -> None:
    text = f"""
wlan.active(True)
wlan.connect("nowhere", "")
watch(lambda: wlan.status() not in (1, 1000, 1001))
wlan.disconnect()
wlan.connect({SSID!r}, {PASSWORD!r})
print(watch(wlan.isconnected))
"""
    assert run(board, text) == on(board, [1000, 1010], [1, 2, 3])


def test_connect_while_connecting(board: VirtualBoard) -> None:
    text = f"""
try:
    wlan.connect({SSID!r}, {PASSWORD!r})
except OSError as error:
    print(error)
wlan.active(True)
for _ in range(2):
    try:
        wlan.connect({SSID!r}, {PASSWORD!r})
    except OSError as error:
        print(error)
"""
    assert run(board, text) == on(board, "Wifi Not Started\nWifi Internal State Error", "[Errno 1] EPERM")


def test_lost_access_point_and_its_return(board: VirtualBoard) -> None:
    text = """
join()
print("joined")
watch(lambda: not wlan.isconnected())
print("lost", wlan.status())
print(watch(lambda: False, 400))
"""
    board.put({"main.py": CONNECT + text + "\nprint('END')\n"})
    board.reset()
    board.wait_for("joined", 30)
    board.air.switch_off(SSID)
    # ESP32: BEACON_TIMEOUT is hidden while the driver tries by itself. RP2 says that it connects, and does nothing.
    board.wait_for("lost " + on(board, 1001, 1), 30)
    board.air.switch_on(SSID)
    board.wait_for(on(board, "[1001, 201, 1010]", "[1]"), 30)


def test_esp32_pauses_after_a_restart_of_the_access_point() -> None:
    text = f"""
wlan.config(reconnects=0)
join()
print("joined")
watch(lambda: not wlan.isconnected())
print("lost", wlan.status())
time.sleep_ms(100)
wlan.connect({SSID!r}, {PASSWORD!r})
print(watch(wlan.isconnected))
"""
    with VirtualBoard(port="esp32", pace=0.03) as board:
        board.put({"main.py": CONNECT + text + "\nprint('END')\n"})
        board.reset()
        board.wait_for("joined", 30)
        board.air.switch_off(SSID)
        board.wait_for("lost 200", 30)
        board.air.switch_on(SSID)
        board.wait_for("1010]", 30)


def test_a_soft_reset_leaves_the_interface_up(board: VirtualBoard) -> None:
    run(board, "join()\nprint(wlan.isconnected())")
    mark = board.mark
    board.put(
        {"main.py": CONNECT + "print(wlan.active(), wlan.isconnected(), wlan.status())\nprint('END')\n"}
    )
    from tools.board import Board

    with Board(board.port, board) as host:
        host.soft_reset()
        assert "True" in host.exec("import network; print(network.WLAN(0).isconnected())")
    assert board.events[-1][1] == "soft reset"
    assert mark < board.mark


def test_settings_that_only_one_port_knows(board: VirtualBoard) -> None:
    text = """
for name, value in (("reconnects", 0), ("pm", network.WLAN.PM_NONE), ("nonsense", 1)):
    try:
        wlan.config(**{name: value})
        print(name, wlan.config(name))
    except ValueError as error:
        print(name, error)
network.country("DE")
network.hostname("sensor-7")
print(network.country(), network.hostname())
"""
    unknown = "unknown config param"
    assert run(board, text).splitlines() == [
        "reconnects " + on(board, 0, unknown),
        "pm " + on(board, 0, 16),
        "nonsense " + unknown,
        "DE sensor-7",
    ]


@pytest.fixture
def echo() -> Iterator[int]:
    """A TCP server that echoes: its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=copy, args=(peer,), daemon=True).start()

        def copy(peer: socket.socket) -> None:
            with peer:
                while data := peer.recv(1000):
                    peer.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


SOCKETS = """
def attempt(what):
    try:
        return what()
    except OSError as error:
        return "OSError %d" % error.errno

def resolve():
    return socket.getaddrinfo("echo.test", 7)[0][-1]

print(attempt(resolve), attempt(lambda: socket.socket().connect(("10.0.0.9", 7))))
join()
s = socket.socket()
s.connect(resolve())
s.settimeout(0.2)
s.send(b"one")
print(s.recv(10))
print("ready")
while wlan.status("rssi") != -99:
    time.sleep_ms(2)
print(s.send(b"two"), attempt(lambda: s.recv(10)), wlan.isconnected(), attempt(resolve))
print("dead")
while wlan.status("rssi") != -50:
    time.sleep_ms(2)
print(s.recv(10))
wlan.active(False)
print(attempt(lambda: s.recv(10)))
print("END")
"""


def test_sockets_of_a_dead_link_are_silent_and_live_on(board: VirtualBoard, echo: int) -> None:
    board.air.name("echo.test", "10.0.0.9")
    board.air.reach("10.0.0.9:7", echo)
    board.put({"main.py": CONNECT + SOCKETS})
    mark = board.mark
    board.reset()
    board.wait_for("ready", 30)
    board.air.change(SSID, dead=True, rssi=-99)
    board.wait_for("dead", 30)
    board.air.change(SSID, dead=False, rssi=-50)
    board.wait_for("END", 30)
    no_name = on(board, "OSError -202", "OSError -2")
    lines = board.log[mark:].replace("\r\n", "\n").partition("END")[0].strip().splitlines()
    assert lines == [
        f"{no_name} OSError 113",
        "b'one'",
        "ready",
        # Written into the send buffer, never answered; the interface notices nothing, and DNS gives up after a while.
        f"3 OSError 110 True {no_name}",
        "dead",
        "b'two'",
        "OSError 103",
    ]


def test_watchdog_resets_a_program_that_hangs(board: VirtualBoard) -> None:
    board.put(
        {
            "main.py": "import machine\nprint('cause', machine.reset_cause())\n"
            "if machine.reset_cause() == 1:\n"
            "    import time\n"
            "    wdt = machine.WDT(timeout=300)\n"
            "    for _ in range(4):\n"
            "        time.sleep_ms(150)\n"
            "        wdt.feed()\n"
            "    print('fed')\n"
            "    while True:\n"
            "        pass\n"
        }
    )
    board.reset()
    mark = board.wait_for("fed", 30)
    board.wait_for("cause 3", 30, after=mark)
    assert [what for _, what in board.events][-1] == "watchdog"


def test_rp2_refuses_a_long_watchdog() -> None:
    with VirtualBoard(port="rp2") as board:
        text = """
try:
    machine.WDT(timeout=8389)
except ValueError as error:
    print(error)
print(hasattr(machine, "DEEPSLEEP_RESET"))
"""
        assert run(board, text) == "timeout exceeds 8388\nFalse"


def test_deep_sleep_ends_the_program_and_starts_it_again(board: VirtualBoard) -> None:
    board.put(
        {
            "main.py": "import machine, sys, time\n"
            "print('cause', machine.reset_cause(), time.gmtime()[0])\n"
            "rtc = machine.RTC()\n"
            "if machine.reset_cause() == 1:\n"
            "    rtc.datetime((2030, 1, 2, 0, 3, 4, 5, 0))\n"
            "    if sys.platform == 'esp32':\n"
            "        rtc.memory(b'kept')\n"
            "    machine.deepsleep(60000)\n"
            "if sys.platform == 'esp32':\n"
            "    print(rtc.memory(), machine.wake_reason())\n"
        }
    )
    board.reset()
    assert board.wait_asleep(30) == 60000
    mark = board.mark
    board.wake()
    # RP2's deepsleep resets the chip, and its clock with it.
    board.wait_for("cause " + on(board, "4 2030", "3 2021"), 30, after=mark)
    if on(board, 1, 0) == "1":
        board.wait_for("b'kept' 4", 30, after=mark)
    board.power_cut()
    board.power_on()
    board.wait_for("cause 1", 30, after=mark)


def test_rp2_counts_the_watchdog_while_it_sleeps() -> None:
    with VirtualBoard(port="rp2") as board:
        board.put({"main.py": "import machine\nmachine.WDT(timeout=2000)\nmachine.deepsleep(60000)\n"})
        board.reset()
        assert board.wait_asleep(30) <= 2000


def test_lightsleep_returns_at_once_on_a_pico_w_with_wifi(board: VirtualBoard) -> None:
    text = """
wlan.active(True)
start = time.ticks_ms()
machine.lightsleep(200)
print(time.ticks_diff(time.ticks_ms(), start) >= 200)
"""
    assert run(board, text) == on(board, True, False)


PARTITIONS = """
import machine
from esp32 import Partition
now = Partition(Partition.RUNNING)
print("running", now.info()[4])
"""


def test_a_new_image_is_tried_once_unless_it_is_marked_valid() -> None:
    update = """
target = now.get_next_update()
try:
    target.set_boot()
except OSError as error:
    print(error.errno)
target.writeblocks(0, b"\\xe9" + bytes(4095))
target.set_boot()
machine.reset()
"""
    with VirtualBoard(port="esp32", ota=True) as board:

        def boot(text: str, expected: str) -> None:
            mark = board.mark
            board.put({"main.py": PARTITIONS + text})
            board.reset()
            board.wait_for(expected, 30, after=mark)

        boot("if now.info()[4] == 'ota_0':" + update.replace("\n", "\n    "), "running ota_1")
        boot("", "running ota_0")
        boot(
            "if now.info()[4] == 'ota_0':"
            + update.replace("\n", "\n    ")
            + "\nPartition.mark_app_valid_cancel_rollback()\n",
            "running ota_1",
        )
        boot("", "running ota_1")


def test_generic_esp32_firmware_has_one_partition() -> None:
    text = """
from esp32 import Partition
now = Partition(Partition.RUNNING)
print(now.info()[4])
try:
    now.get_next_update()
except OSError as error:
    print(error.errno)
"""
    with VirtualBoard(port="esp32") as board:
        assert run(board, text) == "factory\n2"


def test_ethernet() -> None:
    text = """
lan = network.LAN(mdc=23, mdio=18, phy_addr=1, phy_type=network.PHY_LAN8720)
print(lan.status() == network.ETH_INITIALIZED, lan.isconnected())
lan.active(True)
while not lan.isconnected():
    time.sleep_ms(2)
print(lan.status() == network.ETH_GOT_IP, lan.ifconfig()[0])
print("cable")
while lan.isconnected():
    time.sleep_ms(2)
print(lan.status() == network.ETH_DISCONNECTED)
print("END")
"""
    with VirtualBoard(port="esp32", pace=0.03) as board:
        board.put({"main.py": CONNECT + text})
        mark = board.mark
        board.reset()
        board.wait_for("cable", 30)
        board.air.set(cable=False)
        board.wait_for("END", 30)
        lines = board.log[mark:].replace("\r\n", "\n").partition("END")[0].strip().splitlines()
        assert lines == ["True False", "True 192.168.4.2", "cable", "True"]


def test_without_a_port_there_is_no_radio() -> None:
    from tools.board_files import BoardError

    with VirtualBoard() as board, pytest.raises(BoardError, match="port="):
        _ = board.air
