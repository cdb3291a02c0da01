"""What a message costs on the wire: our own figures to the byte, and that the proxy counts what passes."""

import gc
import importlib.util
import json
import re
import runpy
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from headwater_host.fmq.values import decode
from tools.bench import report, wire
from tools.bench.wires import meter, ours
from tools.bench.wires.message import MESSAGES, TOPIC, as_json, as_map
from tools.broker import HOST
from tools.toolchain import ROOT

# Beside topic and payload, at QoS 0, 1 and 2: to the server, and back from it. MQTT's PUBLISH has a byte, two of
# length, two of the topic's length, and from QoS 1 on two of packet id; MQTT 5's one of properties. The
# acknowledgements have four bytes each. FMQ's frames have a byte and an id of 12 (type and process number 2, thread 1,
# time 9), PUBLISH two of length, two of the topic's length and one of no tags, ACK one of length.
BESIDE = {
    "MQTT 3.1.1": ((5, 0), (5 + 2, 4), (5 + 2 + 4, 8)),
    "MQTT 5": ((6, 0), (6 + 2, 4), (6 + 2 + 4, 8)),
    "FMQ": ((18, 0), (18, 14), (18 + 13, 26)),
}
PAYLOAD = bytes(200)


@pytest.fixture(scope="module")
def mosquitto_port() -> Iterator[int]:
    with ours.mosquitto() as port:
        yield port


@pytest.fixture(scope="module")
def hub_port() -> Iterator[int]:
    with ours.hub() as port:
        yield port


@pytest.fixture
def port_of(request: pytest.FixtureRequest) -> Callable[[str], int]:
    def find(protocol: str) -> int:
        port: int = request.getfixturevalue("hub_port" if protocol == "FMQ" else "mosquitto_port")
        return port

    return find


@pytest.mark.needs_mosquitto
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("protocol", BESIDE)
def test_what_a_message_costs(protocol: str, qos: int, port_of: Callable[[str], int]) -> None:
    up, down = BESIDE[protocol][qos]
    cost = meter.Cost(up + len(TOPIC) + len(PAYLOAD), down)
    assert meter.costs(ours.session(protocol, PAYLOAD, qos), port_of(protocol)) == (cost, cost)


@pytest.mark.needs_mosquitto
def test_an_alias_saves_the_topic_at_qos_0(mosquitto_port: int) -> None:
    plain, short = (
        meter.costs(ours.session(protocol, PAYLOAD, 0), mosquitto_port)[0]
        for protocol in ("MQTT 5", "MQTT 5, topic alias")
    )
    # The alias is a property of three bytes.
    assert plain.up - short.up == len(TOPIC) - 3


def test_the_messages_are_those_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "mem_free", lambda: 1, raising=False)
    monkeypatch.setattr(gc, "mem_alloc", lambda: 1, raising=False)
    folder = ROOT / "examples/device"
    sampling = runpy.run_path(str(folder / "sampling.py"))
    added = re.findall(r'values\["(\w+)"\] = ', (folder / "telemetry.py").read_text())
    for name, sampler in (("microcontroller", "sample_board"), ("Linux board", "sample_machine")):
        assert list(MESSAGES[name]) == [*sampling[sampler](), *added]


@pytest.mark.parametrize("name", MESSAGES)
def test_json_and_map_say_the_same(name: str) -> None:
    values = MESSAGES[name]
    assert decode(as_map(values)) == json.loads(as_json(values)) == values


class Echo:
    """A server for one connection after the other, which sends back what it gets twice."""

    def __init__(self) -> None:
        self._server = socket.create_server((HOST, 0))
        self.port: int = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            with self._server.accept()[0] as connection:
                while data := connection.recv(4096):
                    connection.sendall(data * 2)


def _asks(port: int, singly: int, together: int) -> None:
    with socket.create_connection((HOST, port)) as connection:
        # What a connection costs is not what a message costs.
        connection.sendall(b"hello" + bytes(3) * singly + bytes(5) * together)
        left = 10 + 6 * singly + 10 * together
        while left:
            left -= len(connection.recv(left))


def test_what_passes_is_counted_both_ways() -> None:
    port = Echo().port
    assert meter.bytes_of(_asks, port, 2, 1) == (5 + 6 + 5, 10 + 12 + 10)
    assert meter.costs(_asks, port) == (meter.Cost(3, 6), meter.Cost(5, 10))


def test_a_session_that_sends_nothing_or_does_not_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    port = Echo().port
    with pytest.raises(ConnectionError, match="nothing was sent"):
        meter.bytes_of(lambda port, *_: socket.create_connection((HOST, port)).close(), port, 0, 0)
    monkeypatch.setattr(meter, "SECONDS", 0.1)
    left_open = []
    with pytest.raises(ConnectionError, match="timed out"):
        meter.bytes_of(lambda port, *_: left_open.append(socket.create_connection((HOST, port))), port, 0, 0)
    left_open[0].close()


@pytest.mark.needs_mosquitto
def test_without_the_peers_there_are_ours_as_the_page_has_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    rows = wire.run()
    error = capsys.readouterr().err
    assert "AMQP skipped" in error
    assert "Kafka skipped" in error
    assert [row["protocol"] for row in rows] == [*ours.PROTOCOLS, "FMQ"] * len(MESSAGES)
    page = [re.split(" {2,}", line) for line in report.DOCUMENT.read_text().splitlines()]
    assert [row for row in rows if list(row.values()) not in page] == []
