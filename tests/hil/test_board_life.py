"""A board's life on the virtual ESP32 and RP2: resets and their causes, the watchdog, deep sleep and light sleep."""

import json
import re
import time
from collections.abc import Callable
from typing import cast

import pytest

from headwater_host.client.blocking import Client
from tests.conftest import require
from tests.names import everything_is, name_server
from tools.board_air import PASSWORD, SSID
from tools.broker import HOST, Mosquitto
from tools.deploy import package_files
from tools.virtual_board import Port, VirtualBoard


@pytest.fixture(params=["esp32", "rp2"])
def port(request: pytest.FixtureRequest) -> Port:
    require("micropython")
    return cast("Port", request.param)


def board_of(port: Port, main: str) -> VirtualBoard:
    files = package_files("mpy")
    return VirtualBoard(port=port, main=main, files=files, flash="littlefs", pace=0.02, heap="256K")


CAUSES = """
import json, machine, sys, time
from headwater_board.boots import Boots
from headwater_board.watchdog import Watchdog
boots = Boots()
print("REPORT", str(boots.report("b1"), "ascii"))
if boots.boot == 1:
    try:
        [][1]
    except IndexError as error:
        boots.failed(error)
    boots.reset("an update")
if boots.boot == 2:
    boots.note("deep sleep")
    machine.deepsleep(1)
if boots.boot == 3:
    watchdog = Watchdog(1000)
    for _ in range(30):
        watchdog.fed(0)
        time.sleep_ms(50)
    print("fed for 1.5 s")
    while True:
        watchdog.fed(-3)
if boots.boot == 5:
    boots.note("a reset that the power cut comes before")
print("READY")
"""


def test_why_the_board_started(port: Port) -> None:
    with board_of(port, CAUSES) as board:
        board.wait_for("READY", 60)
        mark = board.mark
        board.power_cut()
        board.power_on()
        mark = board.wait_for("READY", 60, after=mark)
        board.power_cut()
        board.power_on()
        board.wait_for("READY", 60, after=mark)
        log = board.log
    assert "fed for 1.5 s" in log
    reports = [json.loads(text) for text in re.findall(r"REPORT (.*)", log)]
    assert [report["boot"] for report in reports] == [1, 2, 3, 4, 5, 6]
    assert [report["cause"] for report in reports] == [
        "power on",
        "ours: an update",
        "deep sleep",
        "watchdog",
        "power on",
        "power on",
    ]
    assert "error" not in reports[0]
    for report in reports[1:]:
        assert report["error"].endswith("IndexError: list index out of range")
        assert report["error_boot"] == 1


COUNTS = """
from headwater_board.boots import Boots
boots = Boots()
print("BOOT", boots.boot, "of", boots.error)
try:
    [][boots.boot]
except IndexError as error:
    boots.failed(error)
boots.note("a reset")
print("END")
"""


def test_no_boot_number_is_used_twice_over_power_cuts(port: Port) -> None:
    """The power goes within each flash operation of a start, and of the one behind it."""
    with board_of(port, COUNTS) as board:
        board.wait_for("END", 60)
        board.power_cut()
        for cut in (1, 1, 2, 2, 3, 3):
            board.power_on(cut_at_flash_operation=cut)
            board.wait_off(60)
        mark = board.mark
        board.power_on()
        board.wait_for("END", 60, after=mark)
        log = board.log
    numbers = [int(number) for number in re.findall(r"BOOT (\d+) of None", log)]
    assert len(numbers) >= 4
    assert numbers == sorted(set(numbers))
    # A start whose write was cut may have counted.
    assert numbers[-1] <= 8


BLOCKED = """
import time
from headwater_board.watchdog import Watchdog
watchdog = Watchdog(1000)
watchdog.allow(3000)
time.sleep_ms(2500)
watchdog.fed(0)
print("done", time.ticks_ms())
watchdog.allow(2000)
print("blocked", time.ticks_ms())
while True:
    time.sleep_ms(100)
"""


def test_a_call_may_block_for_the_time_that_it_was_given(port: Port) -> None:
    with board_of(port, BLOCKED) as board:
        board.wait_for("blocked", 60)
        began = time.monotonic()
        assert not [event for _, event in board.events if event == "watchdog"]
        while not [event for _, event in board.events if event == "watchdog"]:
            assert time.monotonic() < began + 30
            time.sleep(0.02)
        # Two seconds, and the watchdog's own.
        assert 1.9 < time.monotonic() - began < 6


SLEEPER = f"""
from headwater_board import sleep
from headwater.mqtt.client import Client
from headwater.mqtt.keeper import Keeper
from headwater_board.boots import Boots
from headwater_board.flash import flash_outbox
from headwater_board.resolver import Resolver
from headwater_board.tcp import Tcp
from headwater_board.wifi import Wifi

boots = Boots()
outbox = flash_outbox("/outbox.hwj")
resolver = Resolver(addresses=sleep.load_addresses(), timeout_ms=60000, retry_ms=60000)
client = Client(Tcp("broker.example", resolver=resolver), b"sleeper", clean_start=False, outbox=outbox)
client.on_message = lambda message: print("TOOK", str(message.payload_bytes(), "ascii"))
keeper = Keeper(client, network=Wifi([({SSID!r}, {PASSWORD!r})]))
keeper.subscribe(b"sleeper/commands", 1)
keeper.on_online = lambda present: print("ONLINE", present)
print("BOOT", boots.boot, boots.cause, outbox.count)
keeper.publish(b"sleeper/readings", b"%d.%d" % (boots.boot, boots.next_seq()), 2)
# The third start finds no WiFi.
limit = 4000 if boots.boot == 3 else 60000
sleep.cycle(keeper, 3600000, limit, linger_ms=300, boots=boots, resolver=resolver)
"""


@pytest.mark.needs_mosquitto
@pytest.mark.timeout(200)
def test_deep_sleep_cycles(port: Port, mosquitto: Callable[..., Mosquitto]) -> None:
    broker = mosquitto()
    with (
        name_server(everything_is("192.168.4.1")) as (dns, asked),
        Client(HOST, broker.port) as client,
        board_of(port, "print('NOT YET')") as board,
    ):
        client.subscribe("sleeper/readings", 2)
        board.power_cut()
        board.air.reach("192.168.4.1:53", dns)
        board.air.reach("192.168.4.1:1883", broker.port)
        board.put({"main.py": SLEEPER})

        def awake(start: Callable[[], object]) -> str:
            """What the board prints in one time awake."""
            mark = board.mark
            start()
            board.wait_for("unacknowledged", 60, after=mark)
            assert board.wait_asleep(60) == 3600000
            return board.log[mark:]

        # It subscribes, and learns the address.
        log = awake(board.power_on)
        assert "BOOT 1 power on 0\n" in log
        assert "ONLINE False" in log
        assert client.get(60).payload == b"1.1"
        assert asked == ["broker.example"]
        # The broker keeps the session and a command; no name server is asked.
        client.publish("sleeper/commands", b"faster", 1)
        log = awake(board.wake)
        assert "BOOT 2 deep sleep 0\n" in log
        assert "ONLINE True" in log
        assert "TOOK faster" in log
        assert client.get(60).payload == b"2.1"
        assert asked == ["broker.example"]
        milliseconds = [int(word) for word in re.findall(r"awake (\d+) ms, 0 unacknowledged", board.log)]
        assert len(milliseconds) == 2
        assert all(milliseconds)
        # Without WiFi it goes to sleep all the same, and the next start delivers.
        board.air.switch_off(SSID)
        log = awake(board.wake)
        assert "BOOT 3 deep sleep 0\n" in log
        (awake_ms,) = re.findall(r"awake (\d+) ms, 1 unacknowledged", log)
        assert int(awake_ms) >= 4000
        board.air.switch_on(SSID)
        log = awake(board.wake)
        assert "BOOT 4 deep sleep 1\n" in log
        assert [client.get(60).payload, client.get(60).payload] == [b"3.1", b"4.1"]


def test_a_sleep_that_is_too_long_for_rp2_is_refused_before_anything_happens() -> None:
    require("micropython")
    main = """
from headwater_board import sleep
try:
    sleep.cycle(None, 4294968)
except ValueError as error:
    print(error)
"""
    with board_of("rp2", main) as board:
        board.wait_for("this port sleeps at most 4294967 ms", 60)


NAP = f"""
import time
from headwater_board import sleep
from headwater.mqtt.client import Client
from headwater.mqtt.keeper import ONLINE, Keeper
from headwater_board.tcp import Tcp
from headwater_board.wifi import Wifi
client = Client(Tcp("192.168.4.1"), b"napper", clean_start=False)
keeper = Keeper(client, network=Wifi([({SSID!r}, {PASSWORD!r})]))
keeper.start()
for n in range(3):
    while keeper.state != ONLINE:
        keeper.wait(10)
    print("published", keeper.publish(b"napper/readings", b"%d" % n, 1))
    begin = time.ticks_ms()
    keeper.flush(5000)
    begin = time.ticks_ms()
    sleep.nap(keeper, 1500)
    print("SLEPT", time.ticks_diff(time.ticks_ms(), begin), keeper.network.nic.active())
"""


@pytest.mark.needs_mosquitto
def test_light_sleep_with_the_interface_off(port: Port, mosquitto: Callable[..., Mosquitto]) -> None:
    broker = mosquitto()
    with Client(HOST, broker.port) as client, board_of(port, "print('NOT YET')") as board:
        client.subscribe("napper/readings", 1)
        board.power_cut()
        board.air.reach("192.168.4.1:1883", broker.port)
        board.put({"main.py": NAP})
        board.power_on()
        assert [client.get(60).payload for _ in range(3)] == [b"0", b"1", b"2"]
        mark = 0
        for _ in range(3):
            mark = board.wait_for("SLEPT", 60, after=mark)
        board.wait_for("False", 60, after=mark)
        assert all(1500 <= int(ms) < 2500 for ms in re.findall(r"SLEPT (\d+)", board.log)), board.log
