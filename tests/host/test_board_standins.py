"""The virtual board's stand-ins for ESP32 and RP2: WiFi, watchdog, sleep, clock and partitions."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator

import pytest

from tests.conftest import require
from tools.board import Board
from tools.board_air import PASSWORD, SSID
from tools.board_files import BOOT_DIR, BoardError
from tools.toolchain import ROOT
from tools.virtual_board import VirtualBoard

PORTS = ("esp32", "rp2")
CONNECT = f"""
import machine, network, socket, sys, time
wlan = network.WLAN(network.STA_IF)

def join():
    wlan.active(True)
    wlan.connect({SSID!r}, {PASSWORD!r})
    while not wlan.isconnected():
        time.sleep_ms(2)
"""


@pytest.fixture(autouse=True)
def _micropython() -> None:
    require("micropython")


def begin(board: VirtualBoard, text: str) -> int:
    """Run a program after CONNECT as ``main.py``; returns the place in the log."""
    board.wait_for(">>> ", 30)  # the start without a program is over
    mark = board.mark
    board.put({"main.py": f"print('BEGIN')\n{CONNECT}{text}\nprint('END')\n"})
    board.reset()
    return mark


def lines(board: VirtualBoard, mark: int) -> list[str]:
    """Return the lines that the program has printed, when it has ended."""
    board.wait_for("END", 30, after=mark)
    text = board.log[mark:].replace("\r\n", "\n")
    return text.partition("BEGIN\n")[2].partition("END")[0].strip().splitlines()


def run(board: VirtualBoard, text: str) -> list[str]:
    """Run a program to its end: the lines that it prints."""
    return lines(board, begin(board, text))


@pytest.fixture(params=PORTS)
def board(request: pytest.FixtureRequest) -> Iterator[VirtualBoard]:
    with VirtualBoard(port=request.param, pace=0.03) as made:
        made.wait_for(">>> ", 30)
        yield made


def on(board: VirtualBoard, esp32: object, rp2: object) -> str:
    return str(esp32 if "esp32" in str(board._port) else rp2)


def simulated(port: str, text: str) -> list[str]:
    """Run a program on a clock that jumps, so that it misses no status, and return the lines that it prints."""
    done = subprocess.run(
        [str(require("micropython")), "-c", SIMULATED.format(port=port) + text],
        env={"MICROPYPATH": f"{BOOT_DIR}:{ROOT / 'sdk'}:.frozen"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout.splitlines()


SIMULATED = """
from world import rig
w = rig.setup({port!r})
from world.clock import clock
import network
wlan = network.WLAN(network.STA_IF)

def watch(until=lambda: False, ms=20000):
    seen = []
    end = clock.now + ms
    while clock.now < end:
        status = wlan.status()
        if seen[-1:] != [status]:
            seen.append(status)
        if until():
            break
        clock.advance(10)
    return seen

def connect(password=rig.PASSWORD, ssid=rig.SSID):
    try:
        wlan.connect(ssid, password)
    except OSError as error:
        print(error)

"""


@pytest.mark.parametrize(
    "port, good, bad", [("esp32", [1001, 1000, 1001, 1010], 202), ("rp2", [1, 2, 3], -3)]
)
def test_status_of_a_successful_attempt_and_of_a_wrong_password(port: str, good: list[int], bad: int) -> None:
    # ESP32 has no word for "joined, no address", and shows IDLE before the address; RP2's 2 has no name.
    text = """
wlan.active(True)
connect()
print(watch(wlan.isconnected))
wlan.disconnect()
connect("wrong")
print(watch()[-1], wlan.isconnected())
"""
    assert simulated(port, text) == [str(good), f"{bad} False"]


@pytest.mark.parametrize("port, seen", [("esp32", [1000, 1010]), ("rp2", [1, 2, 3])])
def test_esp32_hides_the_next_attempt_behind_the_last_reason(port: str, seen: list[int]) -> None:
    text = """
wlan.active(True)
connect("", "nowhere")
watch()
wlan.disconnect()
connect()
print(watch(wlan.isconnected))
"""
    assert simulated(port, text) == [str(seen)]


@pytest.mark.parametrize(
    "port, said",
    [("esp32", ["Wifi Not Started", "Wifi Internal State Error"]), ("rp2", ["[Errno 1] EPERM"])],
)
def test_connect_while_down_and_while_connecting(port: str, said: list[str]) -> None:
    text = """
connect()
wlan.active(True)
connect()
connect()
"""
    assert simulated(port, text) == said


LOST = """
{settings}
wlan.active(True)
connect()
watch(wlan.isconnected)
w.access_point["up"] = False
print(watch(lambda: not wlan.isconnected()), clock.now)
w.restart_access_point()
print(watch(wlan.isconnected))
"""


def test_esp32_reconnects_by_itself() -> None:
    # BEACON_TIMEOUT is hidden while the driver tries.
    lost, back = simulated("esp32", LOST.format(settings=""))
    assert lost.startswith("[1010, 1001]")
    assert back.endswith("1010]")


def test_esp32_without_reconnects_shows_the_loss_and_needs_a_pause() -> None:
    text = """
from standins import radio
for pause in (0, 0, 1000):
    clock.advance(pause)
    connect()
    print(watch(lambda: w.station.phase in (radio.IDLE, radio.UP))[-1])
"""
    settings = "wlan.config(reconnects=0)"
    lost, back = simulated("esp32", LOST.format(settings=settings))
    # Nobody tries.
    assert (lost[:11], back) == ("[1010, 200]", "[200]")
    # A program that is too quick after the access point's restart is refused.
    quick = LOST.format(settings=settings).rpartition("print")[0] + text
    assert simulated("esp32", quick)[1:] == ["202", "202", "1010"]


def test_rp2_says_that_it_connects_and_does_nothing() -> None:
    lost, back = simulated("rp2", LOST.format(settings=""))
    assert lost.startswith("[3, 1]")
    assert back == "[1]"


def test_a_soft_reset_leaves_the_interface_up(board: VirtualBoard) -> None:
    run(board, "join()\nprint(wlan.isconnected())")
    mark = board.mark
    board.put(
        {"main.py": CONNECT + "print(wlan.active(), wlan.isconnected(), wlan.status())\nprint('END')\n"}
    )
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
    assert run(board, text) == [
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
"""


def test_sockets_of_a_dead_link_are_silent_and_live_on(board: VirtualBoard, echo: int) -> None:
    board.air.name("echo.test", "10.0.0.9")
    board.air.reach("10.0.0.9:7", echo)
    mark = begin(board, SOCKETS)
    board.wait_for("ready", 30)
    board.air.change(SSID, dead=True, rssi=-99)
    board.wait_for("dead", 30)
    board.air.change(SSID, dead=False, rssi=-50)
    no_name = on(board, "OSError -202", "OSError -2")
    assert lines(board, mark) == [
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
        assert run(board, text) == ["timeout exceeds 8388", "False"]


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
    assert run(board, text) == [on(board, True, False)]


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
            + "\nPartition.mark_app_valid_cancel_rollback()\nprint('valid', now.info()[4])\n",
            # The next reset must not come before the mark.
            "valid ota_1",
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
        assert run(board, text) == ["factory", "2"]


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
"""
    with VirtualBoard(port="esp32", pace=0.03) as board:
        mark = begin(board, text)
        board.wait_for("cable", 30)
        board.air.set(cable=False)
        assert lines(board, mark) == ["True False", "True 192.168.4.2", "cable", "True"]


def test_without_a_port_there_is_no_radio() -> None:
    with VirtualBoard() as board, pytest.raises(BoardError, match="port="):
        _ = board.air
