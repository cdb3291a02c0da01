"""Examples that need a chip run as they stand, on the virtual ESP32 and RP2."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from headwater_host.client.blocking import Client
from tests.host.gateway_peers import recorded, running_gateway
from tests.host.test_docs_index import anchors
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
    assert messages[0] == {"board": "board-7", "boot": 1, "cause": "power on"}
    readings = messages[1:]
    assert [reading["seq"] for reading in readings] == [n + 1 for n in range(len(readings))]
    assert all(reading["boot"] == 1 for reading in readings)


@pytest.fixture(params=["esp32", "rp2"])
def port(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def running_example(port: str, example: str, broker: Mosquitto) -> Iterator[VirtualBoard]:
    """The board runs the example, over WiFi to the broker."""
    board = board_of(port, example)
    board.air.name("broker.local", "192.168.4.1")
    board.air.reach("192.168.4.1:1883", broker.port)
    with board:
        yield board
        assert "Traceback" not in board.log, board.log


@pytest.fixture
def broker(mosquitto: Callable[..., Mosquitto]) -> Mosquitto:
    return mosquitto()


def test_wifi_sensor(port: str, broker: Mosquitto) -> None:
    with Client(HOST, broker.port) as client:
        client.subscribe("board-1/#", 1)
        with running_example(port, "wifi_sensor", broker) as board:
            assert json.loads(client.get(60).payload) == {"board": "board-1", "boot": 1, "cause": "power on"}
            first = json.loads(client.get(60).payload)
            assert first == {"board": "board-1", "boot": 1, "seq": 1, "level": 0x4000}
            # What its outbox has on flash comes first, perhaps again, then what the next start says.
            board.air.switch_off("workshop")
            board.wait_for("offline", 60)
            board.power_cut()
            board.power_on()
            board.air.switch_on("workshop")
            boots: list[int] = []
            while boots[-2:] != [2, 2]:
                boots.append(json.loads(client.get(60).payload)["boot"])
            assert boots == sorted(boots)
            assert "watchdog" not in [event for _, event in board.events]


def test_led(broker: Mosquitto) -> None:
    with Client(HOST, broker.port) as client:
        client.publish("board-1/led", b"on", 1, retain=True)
        client.subscribe("board-1/led/state", 1)
        with running_example("rp2", "led", broker):
            assert client.get(60).payload == b"on"
            for wanted in (b"off", b"on"):
                client.publish("board-1/led", wanted, 1)
                assert client.get(60).payload == wanted


COMMANDS = {
    '{"id": 7, "do": "add", "a": 1, "b": 2}': {"id": 7, "result": 3},
    '{"id": 8, "do": "boot"}': {"id": 8, "result": {"board": "board-1", "boot": 1, "cause": "power on"}},
    '{"id": 9, "do": "dance"}': {"id": 9, "error": "KeyError: dance"},
    '{"do": "boot"}': {"error": "KeyError: id"},
    "no JSON": {"error": "ValueError: syntax error in JSON"},
}


def test_command_response(port: str, broker: Mosquitto) -> None:
    with Client(HOST, broker.port) as client:
        client.subscribe("board-1/answers", 1)
        with running_example(port, "command_response", broker):
            # Until it has subscribed, nobody answers.
            client.publish("board-1/commands", '{"id": 1, "do": "free"}', 2, retain=True)
            answer = json.loads(client.get(60).payload)
            assert answer["id"] == 1
            assert answer["result"] > 10000
            for command, expected in COMMANDS.items():
                client.publish("board-1/commands", command, 2)
                assert json.loads(client.get(60).payload) == expected


def test_asyncio_tasks(port: str, broker: Mosquitto) -> None:
    with Client(HOST, broker.port) as client:
        client.subscribe("board-1/level", 1)
        with running_example(port, "asyncio_tasks", broker) as board:
            assert [client.get(60).payload for _ in range(2)] == [b"16384"] * 2
            at = board.wait_for("hello 16384 online", 60)
            client.publish("board-1/text", b"good morning", 1)
            at = board.wait_for("good morning 16384 online", 60, after=at)
            # The display goes on while WiFi is away.
            board.air.switch_off("workshop")
            for _ in range(3):
                at = board.wait_for("good morning 16384 offline", 60, after=at)
            board.air.switch_on("workshop")
            board.wait_for("good morning 16384 online", 60, after=at)


def test_umqtt_program(port: str, broker: Mosquitto) -> None:
    board = board_of(port, "umqtt_program")
    board.put({"boot.py": "import headwater_board.umqtt\n"})
    board.air.name("broker.local", "192.168.4.1")
    board.air.reach("192.168.4.1:1883", broker.port)
    with Client(HOST, broker.port) as client, board:
        client.subscribe("board-1/count", 1)
        first = int(client.get(60).payload)
        client.publish("board-1/commands", b"blink", 1)
        board.wait_for("b'board-1/commands' b'blink'", 60)
        assert [int(client.get(60).payload) for _ in range(2)] == [first + 1, first + 2]


def test_every_example_has_a_page_with_links_that_lead_somewhere() -> None:
    pages = sorted(EXAMPLES.glob("*.md"))
    assert len(pages) >= 8
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert f"`{page.stem}.py`" in text
        assert page.with_suffix(".py").exists()
        for link, _, anchor in re.findall(r"\]\(([^)#]+)(#([\w-]+))?\)", text):
            assert (page.parent / link).exists(), (page, link)
            if anchor:
                assert anchor in anchors((page.parent / link).resolve()), (page, link, anchor)
