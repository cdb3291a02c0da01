"""The client on a board, over the board's network, to a real broker: QoS 0, 1 and 2, and power cuts in mid-flight.

A real board needs a network and a broker that it and this machine reach: ``HEADWATER_BROKER=192.168.1.10:1883``, and
a ``boot.py`` that joins the WiFi. For a virtual board a broker is started here.
"""

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Callable

import pytest

from headwater_host.client.mqtt import Client, SessionOptions
from tools.board import Board
from tools.broker import Mosquitto

ROUNDS = 5
ACKNOWLEDGED = "/hil/acknowledged.txt"


@pytest.fixture
def broker(deployed_board: Board, request: pytest.FixtureRequest) -> tuple[str, int]:
    """Host and port of a broker that the board reaches."""
    if deployed_board.virtual is None:
        host, _, port = os.environ.get("HEADWATER_BROKER", "").partition(":")
        if not host:
            pytest.skip("a real board needs a broker on its network: HEADWATER_BROKER=HOST:PORT")
        return host, int(port or 1883)
    start: Callable[..., Mosquitto] = request.getfixturevalue("mosquitto")
    return "127.0.0.1", start().port


ECHO = """
from headwater.mqtt.client import Client
from headwater_board.tcp import Tcp
client = Client(Tcp({host!r}, {port}), b"hil-echo", clean_start=True, rx_size=512)
got = []
done = []
client.on_message = lambda m: got.append((m.topic_text(), m.payload_bytes(), m.qos(), m.retain()))
client.on_delivered = done.append
client.session.on_answer = lambda packet_id, code: got.append(code)
client.connect()
client.subscribe(b"hil/echo/#", 2)
while not got:
    client.wait(20)
for qos in range(3):
    assert client.publish(b"hil/echo/%d" % qos, b"payload %d" % qos, qos) >= 0
client.flush(5000)
while len(got) < 4:
    client.wait(20)
client.disconnect()
print(got)
print(len(done), client.session.strays)
"""


def test_every_qos_there_and_back(board: Board, broker: tuple[str, int]) -> None:
    host, port = broker
    answers, counts = board.exec(ECHO.format(host=host, port=port), timeout=30).splitlines()
    wanted = {(f"hil/echo/{qos}", f"payload {qos}".encode(), qos, False) for qos in range(3)}
    granted, *messages = eval(answers)
    assert granted == 2
    assert set(messages) == wanted
    assert len(messages) == 3
    assert counts == "2 0"


LARGE = """
from headwater.mqtt.client import Client
from headwater.streaming import stream_to
from headwater_board.tcp import Tcp

class Sink:
    total = 0
    crc = 0
    ended = None
    def open(self, message, size):
        print(message.topic_text(), size)
        return True
    def write(self, buf, at, n):
        for i in range(at, at + n):
            self.crc = (self.crc * 31 + buf[i]) & 0xFFFFFF
        self.total += n
    def close(self, complete):
        self.ended = complete

sink = Sink()
client = Client(Tcp({host!r}, {port}), b"hil-large", rx_size=256)
stream_to(client.session, sink)
answered = []
client.session.on_answer = lambda packet_id, code: answered.append(code)
client.connect()
client.subscribe(b"hil/large", 2)
while not answered:
    client.wait(20)
client.publish(b"hil/ready", b"", 1)
while sink.ended is None:
    client.wait(20)
client.flush(5000)
client.disconnect()
print(sink.total, sink.crc, sink.ended)
"""


def test_a_message_larger_than_the_buffer_is_streamed(board: Board, broker: tuple[str, int]) -> None:
    host, port = broker
    payload = bytes(i * 7 & 0xFF for i in range(20000))

    async def both() -> str:
        async with Client(host, port) as client:
            # The board says so once.
            await client.subscribe("hil/ready")
            running = asyncio.create_task(
                asyncio.to_thread(board.exec, LARGE.format(host=host, port=port), 30.0)
            )
            async for _ in client.messages:
                await client.publish("hil/large", payload, qos=2)
                return await running
        raise AssertionError("the connection has ended")

    crc = 0
    for byte in payload:
        crc = (crc * 31 + byte) & 0xFFFFFF
    assert asyncio.run(both()).splitlines() == ["hil/large 20000", f"20000 {crc} True"]


PUBLISH_FOR_EVER = """
import json, os
from headwater.mqtt.client import Client
from headwater_board.tcp import Tcp
client = Client(Tcp({host!r}, {port}), b"hil-power", clean_start=False, slots=8)
waiting = {{}}
record = open({acknowledged!r}, "a")
def delivered(packet_id):
    record.write(json.dumps(waiting.pop(packet_id)) + "\\n")
    record.flush()
client.on_delivered = delivered
client.connect()
n = 0
while n < {count}:
    packet_id = client.publish(b"hil/power", json.dumps([{start}, n]).encode(), 1 + n % 2)
    if packet_id > 0:
        waiting[packet_id] = [{start}, n, 1 + n % 2]
        n += 1
    client.poll()
client.flush(5000)
client.disconnect()
print("done")
"""


def test_power_cuts_lose_and_double_nothing_that_was_acknowledged(
    switchable_board: Board, broker: tuple[str, int]
) -> None:
    """The session is kept by the broker, forgotten by the board: ids come again, and mean new messages."""
    board = switchable_board
    host, port = broker

    def program(start: int, count: int) -> str:
        return PUBLISH_FOR_EVER.format(
            host=host, port=port, start=start, count=count, acknowledged=ACKNOWLEDGED
        )

    def run_the_board() -> None:
        board.put(ACKNOWLEDGED, b"")
        for start in range(ROUNDS):
            board.start(program(start, 1_000_000))
            deadline = time.monotonic() + 200
            # In the middle of much that is under way, and not so late that the record fills the flash.
            while arrived[start] < 40 + 37 * start:
                assert time.monotonic() < deadline, f"only {arrived[start]} arrived"
                time.sleep(0.001)
            board.power_cut()
            board.power_on()
            board.soft_reset()
        assert board.exec(program(ROUNDS, 50), timeout=60).endswith("done\n")

    received: Counter[tuple[int, int]] = Counter()
    arrived: Counter[int] = Counter()

    async def listen() -> None:
        async with Client(
            host, port, identifier="hil-listener", session=SessionOptions(clean_start=True)
        ) as client:
            await client.subscribe("hil/power", qos=2)
            await client.subscribe("hil/end", qos=2)
            board_run = asyncio.create_task(asyncio.to_thread(run_the_board))
            board_run.add_done_callback(lambda _: asyncio.create_task(client.publish("hil/end", qos=2)))
            async for message in client.messages:
                if message.topic.matches("hil/end"):
                    break
                start, n = json.loads(message.payload)
                received[start, n] += 1
                arrived[start] += 1
            await board_run

    try:
        asyncio.run(asyncio.wait_for(listen(), 100))
        record = board.get(ACKNOWLEDGED).decode()
    finally:
        board.remove(ACKNOWLEDGED)
    acknowledged = {}
    for line in record.splitlines():
        start, n, qos = json.loads(line)
        acknowledged[start, n] = qos
    assert {start for start, _ in acknowledged} == set(range(ROUNDS + 1)), "a round acknowledged nothing"
    assert not [key for key in acknowledged if not received[key]], "acknowledged, and lost"
    doubled = [key for key, times in received.items() if times > 1 and key[1] % 2 == 1]
    assert not doubled, "QoS 2, and doubled"
