"""``headwater_board.device.Device`` on a virtual board: what it builds from its settings, and that it works."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headwater.mqtt.client import Client
from headwater_host.hub.service import Hub
from tests.certificates import Pki
from tests.host.gateway_peers import recorded, running_gateway
from tests.host.hub_client import Peer, until
from tests.interop.dialer import SocketDialer
from tests.interop.test_fmq_hub import stored
from tests.names import everything_is, name_server
from tests.waiting import wait_until
from tools import deploy
from tools.board_air import PASSWORD, SSID
from tools.broker import Mosquitto
from tools.virtual_board import Port, VirtualBoard

WAIT_S = 30
Start = Callable[..., Mosquitto]
pytestmark = [pytest.mark.needs_micropython, pytest.mark.needs_mosquitto]

PROGRAM = """
from headwater_board.device import Device

device = Device()
device.on_message = lambda message: print("got", message.payload_bytes())
device.on_online = lambda session_present: print("online", session_present)
device.subscribe(device.topic + b"/commands")
with device:
    while device.wait(100) == 0:
        device.send({"celsius": 21.5})
"""


def settings(port: int, **more: object) -> dict[str, Any]:
    broker: dict[str, Any] = {"host": "127.0.0.1", "port": port, "client_id": "board-1"}
    broker.update(more.pop("broker", {}))  # type: ignore[call-overload]
    return {"broker": broker, **more}


WIFI = {"wifi": [{"ssid": SSID, "password": PASSWORD}]}


@contextmanager
def on_wifi(port: Port, broker: Mosquitto, main: str = PROGRAM, **more: object) -> Iterator[VirtualBoard]:
    """A board with this port's modules, whose only way to the broker is WiFi and a name."""
    found = settings(1883, **WIFI, **more)
    found["broker"]["host"] = "broker.local"
    made = board(found, main, flash="littlefs", port=port, pace=0.02)
    made.air.reach("192.168.4.1:1883", broker.port)
    with name_server(everything_is("192.168.4.1")) as (names, _):
        made.air.reach("224.0.0.251:5353", names)
        with made:
            yield made


def board(found: dict[str, Any], main: str = PROGRAM, **options: Any) -> VirtualBoard:
    files = {**deploy.package_files("mpy"), "headwater.json": json.dumps(found), **options.pop("files", {})}
    # A Pico W has some 190 KB, and objects half as large.
    return VirtualBoard(main=main, files=files, name="device", heap="384K", **options)


POWERED_ON = {"board": "board-1", "boot": 1, "cause": "power on"}
FIRST_READINGS = [{"board": "board-1", "boot": 1, "seq": seq, "celsius": 21.5} for seq in (1, 2, 3)]


def payloads(messages: list[tuple[str, Any]], topic: str) -> list[Any]:
    return [payload for name, payload in messages if name == topic]


def reported(topic: str, messages: list[tuple[str, Any]]) -> bool:
    """Whether the report of the start and three readings are there: the report follows what waited before it."""
    return bool(payloads(messages, f"{topic}/boot")) and len(payloads(messages, topic)) >= 3


class Watcher:
    """A subscriber at the broker."""

    def __init__(self, port: int, topic: bytes = b"board-1") -> None:
        self.client = Client(SocketDialer(port), b"watcher")
        self.got: list[tuple[str, Any]] = []
        #: QoS of the last message by topic.
        self.qos: dict[str, int] = {}
        self.client.on_message = self._take
        self.client.connect()
        for topic_filter in (topic, topic + b"/boot"):
            self.client.subscribe(topic_filter, 1)
        self.client.flush(5000)

    def _take(self, message: Any) -> None:
        self.got.append((message.topic_text(), json.loads(message.payload_bytes())))
        self.qos[message.topic_text()] = message.qos()

    def until(self, condition: Callable[[list[tuple[str, Any]]], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition(self.got):
            assert self.client.wait(20) == 0
            assert time.monotonic() < deadline, self.got

    def send(self, topic: bytes, payload: bytes) -> None:
        self.client.publish(topic, payload, 1)
        self.client.flush(5000)


@pytest.mark.parametrize(
    "more",
    [{}, {"broker": {"version": "5.0"}, "outbox": {}, "topic": "plant/board-1"}],
    ids=["least", "more"],
)
def test_readings_and_commands_pass_and_errors_are_reported(mosquitto: Start, more: dict[str, Any]) -> None:
    broker = mosquitto()
    topic = more.get("topic", "board-1")
    watcher = Watcher(broker.port, topic.encode())
    with board(settings(broker.port, **more), flash="littlefs" if "outbox" in more else "posix") as b:
        watcher.until(partial(reported, topic))
        assert payloads(watcher.got, f"{topic}/boot") == [POWERED_ON]
        assert payloads(watcher.got, topic)[:3] == FIRST_READINGS
        watcher.send(topic.encode() + b"/commands", b"blink")
        b.wait_for("got b'blink'", WAIT_S)
        b.power_cut()
        b.put({"main.py": PROGRAM.replace("21.5", "1 / 0")})
        b.power_on()
        b.wait_for("ZeroDivisionError", WAIT_S)
        b.power_cut()
        b.put({"main.py": PROGRAM})
        b.power_on()
        watcher.until(lambda got: any("cause" in report and report["boot"] == 3 for _, report in got))
        (report,) = [report for _, report in watcher.got if "cause" in report and report["boot"] == 3]
        assert (report["cause"], report["error_boot"]) == ("power on", 2)
        assert "ZeroDivisionError" in report["error"]


FAILING = """
from headwater_board.device import Device

device = Device()
device.boots.failed(OSError("x" * 200))
report = device.boots.report
device.boots.report = lambda board: print("reports") or report(board)
with device:
    while device.wait(100) == 0:
        if device.boots.seq < 3:
            device.send({"celsius": 21.5})
"""


def test_a_report_too_large_for_the_outbox_is_sent_at_qos_0(mosquitto: Start) -> None:
    broker = mosquitto()
    watcher = Watcher(broker.port)
    with board(settings(broker.port, outbox={"size": 128}), FAILING, flash="littlefs") as b:
        watcher.until(lambda got: reported("board-1", got))
        b.wait_for("reports", WAIT_S)
        assert b.log.count("reports") == 1
    (report,) = payloads(watcher.got, "board-1/boot")
    assert (report["cause"], report["error"], report["error_boot"]) == ("power on", "x" * 200, 1)
    assert watcher.qos["board-1/boot"] == 0


def test_a_report_to_a_server_without_qos_1_is_sent_at_qos_0(mosquitto: Start) -> None:
    broker = mosquitto(settings={"max_qos": 0})
    watcher = Watcher(broker.port)
    with board(settings(broker.port, broker={"version": "5.0"}), FAILING, flash="littlefs") as b:
        watcher.until(lambda got: bool(payloads(got, "board-1/boot")))
        b.wait_for("reports", WAIT_S)
        assert b.log.count("reports") == 1


FULL = """
from headwater.errors import E_STORE
from headwater_board.device import Device

device = Device()
report = device.boots.report
device.boots.report = lambda board: print("reports") or report(board)

def fill(session_present):
    # Not before: a session that begins writes to the journal as well.
    refused = 0
    while refused < 2:
        with open("/junk.bin", "ab") as junk:
            for size in (4096, 512, 64):
                try:
                    while True:
                        junk.write(bytes(size))
                        junk.flush()
                except OSError:
                    pass
        # The journal's last block may have room, and a journal that failed leaves its blocks to the next one.
        status = device.publish(b"junk", bytes(40), 1)
        assert status > 0 or status == E_STORE, status
        refused = refused + 1 if status == E_STORE else 0
    print("full")

device.on_online = fill
with device:
    while device.wait(100) == 0:
        if device.boots.seq < 3:
            device.send({"celsius": 21.5}, 0)
"""


def test_a_report_that_a_full_flash_refuses_is_sent_at_qos_0(mosquitto: Start) -> None:
    broker = mosquitto()
    watcher = Watcher(broker.port)
    with board(settings(broker.port, outbox={}), FULL, flash="littlefs") as b:
        watcher.until(partial(reported, "board-1"))
        b.wait_for("reports", WAIT_S)
        assert b.log.count("full") == b.log.count("reports") == 1
    assert payloads(watcher.got, "board-1/boot") == [POWERED_ON]
    assert watcher.qos["board-1/boot"] == 0


def test_tls(mosquitto: Start, pki: Pki) -> None:
    with mosquitto(settings=pki.listener(pki.server)) as broker:
        tls = {"ca": "/ca.der", "server_name": "localhost"}
        found = settings(broker.port, broker={"tls": tls})
        with board(found, files={"ca.der": pki.ca.cert_der}) as b:
            b.wait_for("online", WAIT_S)


async def test_fmq(hub: Hub) -> None:
    with board(settings(hub.addresses[0][1], broker={"protocol": "fmq"})) as b:
        await until(lambda: len(stored(hub, "board-1")) > 2)
        assert json.loads(stored(hub, "board-1")[0])["celsius"] == 21.5
        peer = await Peer.login(hub)
        await peer.send_message("board-1/commands", b"blink")
        await asyncio.to_thread(b.wait_for, "got b'blink'", 60)
        await peer.leave()


ASYNCIO = """
import asyncio
from headwater_board import aio
from headwater_board.device import Device

device = Device()

async def main():
    async with aio.Client(device.keeper) as client:
        await client.subscribe(b"board-1/commands", 1)
        print("ready")
        async for message in client:
            print("got", message.payload)

asyncio.run(main())
"""


def test_the_asyncio_client_polls_the_whole_device(mosquitto: Start) -> None:
    broker = mosquitto()
    with on_wifi("esp32", broker, ASYNCIO, watchdog_ms=1000) as b:
        b.wait_for("ready", WAIT_S)
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 2.5, "more than two watchdog timeouts")
        Watcher(broker.port).send(b"board-1/commands", b"blink")
        b.wait_for("got b'blink'", WAIT_S)
        assert [event for _, event in b.events] == ["power on"]


STOPPED = """
import asyncio
from headwater_board import aio
from headwater_board.device import Device

device = Device()
device.on_offline = lambda status: print("offline", status)

async def main():
    async with aio.Client(device.keeper, close_ms=300) as client:
        await client.publish(b"board-1", b'"before"', 1)
        device.network.stop()
        waiting = asyncio.create_task(client.publish(b"board-1", b'"while stopped"', 1))
        await asyncio.sleep_ms(500)
        print("waits", not waiting.done(), device.network.nic.active())
        device.network.start()
        await waiting
        device.network.stop()
        waiting = asyncio.create_task(client.publish(b"board-1", b'"at the end"', 1))
        await asyncio.sleep_ms(100)
    try:
        await waiting
    except Exception as error:
        print("ended", error)
    device.network.start()
    async with aio.Client(device.keeper) as client:
        await client.publish(b"board-1", b'"after"', 1)
    print("left")

asyncio.run(main())
"""


def test_asyncio_over_a_stopped_network(mosquitto: Start) -> None:
    broker = mosquitto()
    watcher = Watcher(broker.port)
    with on_wifi("esp32", broker, STOPPED) as b:
        b.wait_for("left", WAIT_S)
        watcher.until(lambda got: ("board-1", "after") in got)
        log = b.log
    texts = [text for topic, text in watcher.got if topic == "board-1"]
    assert texts == ["before", "while stopped", "at the end", "after"]
    assert "waits True False" in log
    assert log.count("offline -63") == 2
    assert "ended" in log


REFUSED = """
import os
from headwater_board.device import Device

for name in sorted(os.listdir("/bad")):
    try:
        Device("/bad/" + name)
        print(name, "accepted")
    except Exception as error:
        print(name, type(error).__name__, error)
print("end")
Device()
"""
LAN = {"chip": "LAN8720", "mdc": 23, "mdio": 18}
SPI = {"spi": 0, "sck": 18, "mosi": 19, "miso": 16, "cs": 17, "reset": 20}
#: What the board does not have, and the error after the file's name.
MISSING: list[tuple[dict[str, Any], str]] = [
    (
        {"broker": {"host": "h", "tls": {"ca": "/no.der"}}},
        'broker.tls.ca is "/no.der", which cannot be read ([Errno 2] ENOENT): copy the file to the board',
    ),
    (
        {"broker": {"host": "h", "tls": {"ca": "/empty", "cert": "/no.der", "key": "/no.der"}}},
        'broker.tls.ca is "/empty", which is empty: copy the file to the board',
    ),
    (
        {"broker": {"host": "h", "tls": {"ca": "/text", "cert": "/no.der", "key": "/text"}}},
        'broker.tls.cert is "/no.der", which cannot be read ([Errno 2] ENOENT): copy the file to the board',
    ),
    ({"broker": {"host": "h", "tls": {"ca": "/text"}}}, "broker.tls: ca: invalid cert: pass DER or PEM"),
    (
        {"broker": {"host": "h"}, "update": {"topic": "u", "key_file": "/no.key"}},
        'update.key_file is "/no.key", which cannot be read ([Errno 2] ENOENT): copy the file to the board',
    ),
    ({"serial": {"line": 7}}, "serial: UART(7) doesn't exist: give the number and the pins of another UART"),
    (
        {"broker": {"host": "h"}, "outbox": {"path": "/none/outbox"}},
        "outbox.path: [Errno 2] ENOENT: create its directory",
    ),
    (
        {"broker": {"host": "h"}, "ethernet": {**SPI, "chip": "W5500", "int": 21, "reset": None}},
        "ethernet: chip is W5500, which this firmware does not have",
    ),
    (
        {"broker": {"host": "h"}, "sleep": {"seconds": 5000}},
        "sleep.seconds: 5000000 ms: this port sleeps at most 4294967 ms",
    ),
    ({"broker": {"host": "a."}, **WIFI}, ""),
]


def test_what_the_board_does_not_have_is_an_error_with_the_key() -> None:
    files = {f"bad/{i:02}.json": json.dumps(found) for i, (found, _) in enumerate(MISSING)}
    files.update({"empty": "", "text": "no certificate", "update.key": ""})
    bad = {"broker": {"host": "h"}, "update": {"topic": "u", "key_file": "/update.key"}}
    with board(bad, REFUSED, files=files, port="rp2", flash="littlefs") as b:
        b.wait_for("update.key_file", WAIT_S)
        b.wait_for("copy the file to the board", WAIT_S, after=b.mark)
        lines = b.log.replace("\r", "").split("\n")
    for i, (_, text) in enumerate(MISSING):
        said = [line for line in lines if line.startswith(f"{i:02}.json ")]
        expected = f"SettingsError /bad/{i:02}.json: {text}" if text else "accepted"
        assert said == [f"{i:02}.json {expected}"]
    # Without a program's except clause, the console shows the same text.
    assert (
        'SettingsError: /headwater.json: update.key_file is "/update.key", which is empty: '
        "copy the file to the board" in lines
    )


@pytest.mark.parametrize("port, ethernet", [("esp32", LAN), ("rp2", SPI), ("rp2", {})])
def test_ethernet(mosquitto: Start, port: Port, ethernet: dict[str, Any]) -> None:
    broker = mosquitto()
    watcher = Watcher(broker.port)
    found = settings(1883, ethernet=ethernet, hostname="board-1")
    found["broker"]["host"] = "192.168.4.1"
    made = board(found, flash="littlefs", port=port, pace=0.02)
    made.air.reach("192.168.4.1:1883", broker.port)
    with made as b:
        b.wait_for("online", WAIT_S)
        watcher.until(lambda got: len(got) > 2)


@pytest.mark.parametrize("port", ["esp32", "rp2"])
def test_wpa3_on_rp2_needs_the_setting(mosquitto: Start, port: Port) -> None:
    broker = mosquitto()
    main = PROGRAM.replace("    while", '    print("begins")\n    while').replace(
        'device.send({"celsius": 21.5})', "print(device.network.reason)"
    )
    for security in ("wpa2", "wpa3"):
        with on_wifi(port, broker, main) as b:
            b.power_cut()
            b.air.change(SSID, wpa3=True)
            found = settings(1883, wifi=[{**WIFI["wifi"][0], "security": security}])
            found["broker"]["host"] = "broker.local"
            b.put({"headwater.json": json.dumps(found)})
            b.power_on()
            b.wait_for("wrong password" if (port, security) == ("rp2", "wpa2") else "online", WAIT_S)


SERIAL = """
from headwater_board.device import Device

device = Device()
device.log.write(30, b"the sensor is warm")
with device:
    while device.wait(100) == 0:
        # The outbox holds these and the report, however long the gateway takes to start.
        if device.boots.seq < 3:
            device.send({"celsius": 21.5})
"""


def test_a_serial_line_carries_readings_and_the_log(tmp_path: Path) -> None:
    def messages() -> list[tuple[str, Any]]:
        return [(message.topic, json.loads(message.payload)) for message in recorded(tmp_path / "log")]

    serial = {"line": 0}
    found = {"serial": serial, "broker": {"client_id": "board-1"}, "log": {}}
    with board(found, SERIAL, uarts=1, port="rp2", flash="littlefs") as b:
        with running_gateway(tmp_path, serials=[b.uart_ports[0]]) as gateway:
            gateway.wait_for("the sensor is warm")
            wait_until(lambda: reported("board-1", messages()), "report and readings in the gateway's log")
        assert payloads(messages(), "board-1/boot") == [POWERED_ON]
        assert payloads(messages(), "board-1") == FIRST_READINGS


STORING = """
from headwater_board.device import Device

device = Device()
device.on_online = lambda session_present: print("online")
print("boot", device.boots.boot)
with device:
    while device.wait(20) == 0:
        print("waiting", device.keeper.waiting())
        if device.keeper.waiting() < 10:
            device.send({})
"""


def test_a_store_keeps_readings_over_a_power_cut(mosquitto: Start) -> None:
    broker = mosquitto(persistence=True)
    with board(settings(broker.port, outbox={"size": 8192}), STORING, flash="littlefs") as b:
        b.wait_for("online", WAIT_S)
        broker.stop()
        b.wait_for("waiting 10", WAIT_S, after=b.mark)
        b.power_cut()
        broker.start()
        watcher = Watcher(broker.port)
        b.power_on()
        b.wait_for("boot 2", WAIT_S)
        watcher.until(lambda got: any(reading["boot"] == 2 for _, reading in got))
    # The report of the start may be among the ten.
    before = [reading["seq"] for topic, reading in watcher.got if topic == "board-1" and reading["boot"] == 1]
    assert len(before) >= 9
    assert before == list(range(before[0], before[0] + len(before)))


@pytest.mark.parametrize("port", ["esp32", "rp2"])
def test_wifi_comes_back_and_a_hang_resets_the_board(mosquitto: Start, port: Port) -> None:
    broker = mosquitto()
    watcher = Watcher(broker.port)
    hanging = """
import time

def hang(message):
    print("hangs")
    while True:
        time.sleep_ms(10)
""" + PROGRAM.replace('lambda message: print("got", message.payload_bytes())', "hang")
    with on_wifi(port, broker, hanging, country="CH", hostname="board-1", watchdog_ms=1000) as b:
        b.wait_for("online", WAIT_S)
        watcher.until(lambda got: len(got) > 2)
        b.air.switch_off(SSID)
        watcher.got.clear()
        b.air.switch_on(SSID)
        b.wait_for("online", WAIT_S, after=b.mark)
        watcher.until(lambda got: len(got) > 2)
        assert {reading["boot"] for _, reading in watcher.got} == {1}
        watcher.send(b"board-1/commands", b"blink")
        b.wait_for("hangs", WAIT_S)
        watcher.until(lambda got: any(reading.get("cause") == "watchdog" for _, reading in got))
        assert [event for _, event in b.events][-1] == "watchdog"


SLEEPING = """
from headwater_board.device import Device

device = Device()
device.send({"celsius": 21.5})
device.sleep()
"""


def woken(boot: int, got: list[tuple[str, Any]]) -> bool:
    return bool(got) and got[-1][1]["boot"] == boot


@pytest.mark.parametrize("port", ["esp32", "rp2"])
def test_the_board_sleeps_between_its_messages(mosquitto: Start, port: Port) -> None:
    broker = mosquitto()
    watcher = Watcher(broker.port)
    with on_wifi(port, broker, SLEEPING, outbox={}, sleep={"seconds": 600}) as b:
        for boot in (1, 2):
            assert b.wait_asleep(WAIT_S) == 600000
            watcher.until(partial(woken, boot))
            b.wake()
        readings = [reading for topic, reading in watcher.got if topic == "board-1"]
        assert [(reading["boot"], reading["seq"]) for reading in readings][:2] == [(1, 1), (2, 1)]
        # Only the first start is worth a report.
        assert [reading["cause"] for topic, reading in watcher.got if topic == "board-1/boot"] == ["power on"]


LOADED = """
import sys
from headwater_board.device import Device
device = Device()
print("loaded", sorted(sys.modules))
"""


def test_only_what_the_settings_name_is_loaded() -> None:
    with board(settings(1883), LOADED) as b:
        b.wait_for("loaded", WAIT_S)
        b.wait_for("]", WAIT_S)
        loaded = b.log
    for name in ("wifi", "tls", "flash", "watchdog", "logs", "ota", "serial"):
        assert f"headwater_board.{name}'" not in loaded
    for name in ("headwater.fmq", "headwater.mqtt.v5", "headwater.journal"):
        assert f"{name}'" not in loaded
    assert "headwater_board.tcp'" in loaded


STEADY = """
import gc, micropython
from headwater_board.device import Device

device = Device()
device.start()
while not device.client.connected or device.keeper.waiting():
    device.wait(20)
topic = payload = b"steady"
for i in range(100):
    device.poll()
gc.collect()
micropython.heap_lock()
for i in range(1000):
    device.poll()
    device.publish(topic, payload, 1)
micropython.heap_unlock()
print("steady", device.keeper.state)
"""


def test_polling_and_publishing_allocate_nothing(mosquitto: Start) -> None:
    broker = mosquitto()
    with board(settings(broker.port), STEADY) as b:
        b.wait_for("steady 3", WAIT_S)


def test_a_mistake_in_the_settings_is_on_the_console() -> None:
    with board(settings(70000)) as b:
        b.wait_for(
            "SettingsError: /headwater.json: broker.port is 70000; allowed: a whole number from 1 to 65535"
        )
