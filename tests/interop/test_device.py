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


class Watcher:
    """A subscriber at the broker."""

    def __init__(self, port: int, topic: bytes = b"board-1") -> None:
        self.client = Client(SocketDialer(port), b"watcher")
        self.got: list[tuple[str, Any]] = []
        self.client.on_message = lambda m: self.got.append((m.topic_text(), json.loads(m.payload_bytes())))
        self.client.connect()
        for topic_filter in (topic, topic + b"/boot"):
            self.client.subscribe(topic_filter, 1)
        self.client.flush(5000)

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
        watcher.until(lambda got: len(got) > 3)
        (first, report), *readings = watcher.got
        assert (first, report) == (f"{topic}/boot", {"board": "board-1", "boot": 1, "cause": "power on"})
        assert readings[:3] == [
            (topic, {"board": "board-1", "boot": 1, "seq": seq, "celsius": 21.5}) for seq in (1, 2, 3)
        ]
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


SERIAL = """
from headwater_board.device import Device

device = Device()
device.log.write(30, b"the sensor is warm")
with device:
    while device.wait(100) == 0:
        device.send({"celsius": 21.5})
"""


def test_a_serial_line_carries_readings_and_the_log(tmp_path: Path) -> None:
    serial = {"line": 0}
    found = {"serial": serial, "broker": {"client_id": "board-1"}, "log": {"topic": "unused"}}
    with board(found, SERIAL, uarts=1, port="rp2", flash="littlefs") as b:
        with running_gateway(tmp_path, serials=[b.uart_ports[0]]) as gateway:
            gateway.wait_for("the sensor is warm")
            wait_until(lambda: len(list(recorded(tmp_path / "log"))) > 3, "readings in the gateway's log")
        messages = [(message.topic, json.loads(message.payload)) for message in recorded(tmp_path / "log")]
    assert dict(messages)["board-1/boot"] == {"board": "board-1", "boot": 1, "cause": "power on"}
    readings = [reading for topic, reading in messages if topic == "board-1"]
    assert [reading["seq"] for reading in readings] == list(range(1, len(readings) + 1))


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
