"""A board with a journal on littlefs loses its power half way through a program or erase, and publishes to a broker.

What it said it had handed in arrives, at QoS 2 exactly once, in order; what it receives at QoS 2 it receives once,
unless the power goes before what its handler did is recorded.

The broker sees nothing of a cut, as with a real board. When it does, in the middle of taking a session up again, then
mosquitto (2.0.11) sends PUBLISH on the next connection for what it had released (``docs/mqtt-session.md``): messages
come twice, and by no fault of the board's.
"""

import asyncio
import re
from collections.abc import Callable, Iterator

import pytest

from headwater_host.client.mqtt import Client
from tests.conftest import require
from tools.board import Board
from tools.broker import Mosquitto
from tools.deploy import package_files
from tools.virtual_board import VirtualBoard

#: The program or erase at which the power goes, life by life: every one of the first ones, then samples.
CUTS = [*range(1, 34), *range(36, 150, 7)]
#: Messages to the board before each life; they may all be under way at once.
DOWN = 3
RECEIVE_WINDOW = DOWN * len(CUTS)

MAIN = """
import time
from headwater.mqtt.client import Client
from headwater_board.flash import flash_outbox
from headwater_board.tcp import Tcp

try:
    with open("/life.txt") as file:
        life, count = [int(word) for word in file.read().split()]
    outbox = flash_outbox("/outbox.hwj", 700, 8, RECEIVE_WINDOW, 480)
    if outbox.torn or outbox.damaged or outbox.unreadable:
        print("DAMAGE", outbox.torn, outbox.damaged)
    print("recovered", outbox.count)
    client = Client(Tcp("127.0.0.1", PORT), b"flash-board", clean_start=False, window=6, outbox=outbox)
    client.on_message = lambda m: print("took", str(m.payload_bytes(), "ascii"), m.dup(), m.packet_id)
    client.connect()
    if not client.session_present:
        client.subscribe(b"flash/down", 2)
    n = 0
    while n < count:
        qos = 1 + n % 2
        if client.publish(b"flash/%d" % qos, b"%d.%d" % (life, n), qos) > 0:
            print("handed", qos, "%d.%d" % (life, n))
            n += 1
        status = client.poll()
        if status < 0:
            print("lost", status, client.session.strays)
            client.connect()
    client.flush(20000)
    client.wait(LINGER)
    outbox.sync()
    client.disconnect()
    print("done", life)
except OSError as error:
    print("OSError", error)
"""


@pytest.fixture
def virtual() -> Iterator[VirtualBoard]:
    """A board of its own: the power goes at flash operations that others must not share."""
    require("micropython")
    with VirtualBoard(flash="littlefs", heap="256K", files=package_files("mpy")) as board:
        board.power_cut()
        yield board


def words(log: str, first: str) -> list[list[str]]:
    return [line.split() for line in log.splitlines() if line.startswith(first + " ")]


def story(payload: str, log: str, broker: Mosquitto) -> str:
    """What the board said in the lives in which it took a message, and the broker of its packet id."""
    lives = [part for part in log.split("recovered ") if f"took {payload} " in part]
    packet_id = next(packet_id for _, taken, _, packet_id in words(log, "took") if taken == payload)
    about = re.compile(
        rf" as flash-board |flash-board.*\b(m|Mid: ){packet_id}\b|flash-board.*(clos|disconnect)"
    )
    return "\n".join([*lives, *filter(about.search, broker.log_text().splitlines())])


@pytest.mark.needs_mosquitto
@pytest.mark.timeout(300)
def test_power_cuts_at_flash_operations(virtual: VirtualBoard, mosquitto: Callable[..., Mosquitto]) -> None:
    broker = mosquitto(settings={"max_queued_messages": 0})
    main = MAIN.replace("PORT", str(broker.port)).replace("LINGER", "300")
    main = main.replace("RECEIVE_WINDOW", str(RECEIVE_WINDOW))
    begin = virtual.mark
    received: list[tuple[int, str]] = []
    sent_down: list[str] = []

    def live(life: int, count: int, cut: int) -> None:
        virtual.put({"main.py": main, "life.txt": f"{life} {count}"})
        virtual.power_on(cut_at_flash_operation=cut, half_open=cut > 0)
        if cut:
            virtual.wait_off(30)
        else:
            virtual.wait_for(f"done {life}", 200)
            virtual.power_cut()

    async def run() -> None:
        async with Client("127.0.0.1", broker.port) as client:
            await client.subscribe([("flash/1", 2), ("flash/2", 2), ("flash/end", 2)])
            await asyncio.to_thread(live, 0, 2, 0)  # it subscribes
            for life, cut in enumerate(CUTS, 1):
                for _ in range(DOWN):
                    sent_down.append(str(len(sent_down)))
                    await client.publish("flash/down", sent_down[-1], qos=2)
                await asyncio.to_thread(live, life, 1_000_000, cut)
            await asyncio.to_thread(live, len(CUTS) + 1, 20, 0)
            await client.publish("flash/end", qos=2)
            async for message in client.messages:
                if str(message.topic) == "flash/end":
                    return
                received.append((int(str(message.topic)[-1]), message.payload.decode()))

    asyncio.run(asyncio.wait_for(run(), 280))
    log = virtual.log_path.read_bytes()[begin:].decode(errors="replace")
    assert "Traceback" not in log
    assert "DAMAGE" not in log
    handed = [(int(qos), payload) for _, qos, payload in words(log, "handed")]
    for qos in (1, 2):
        there = [payload for level, payload in handed if level == qos]
        here = [payload for level, payload in received if level == qos]
        first = list(dict.fromkeys(here))
        assert set(there) <= set(first), ("lost", sorted(set(there) - set(first)))
        assert first == sorted(first, key=lambda payload: [int(part) for part in payload.split(".")])
        if qos == 2:
            assert len(here) == len(first), "doubled at QoS 2"
    assert any(int(count) for _, count in words(log, "recovered")), "no life found anything of the one before"
    # A message is recorded as taken before the next one is handed out: only the last of a life may be taken again.
    again: dict[str, bool] = {}
    taken = 0
    for part in log.split("recovered "):
        taken_here = words(part, "took")
        for n, (_, payload, dup, _) in enumerate(taken_here, 1):
            if payload in again:
                assert dup == "True", f"{payload} again, without DUP:\n{story(payload, log, broker)}"
                assert again[payload], (
                    f"{payload} again, though another was behind it:\n{story(payload, log, broker)}"
                )
            again[payload] = n == len(taken_here)
        taken += len(taken_here)
    assert again.keys() == set(sent_down), "lost on the way down"
    print(len(handed), "handed in,", taken, "taken,", taken - len(again), "of them twice")


BORN = """
from headwater.mqtt.session import ClientSession
from headwater_board.flash import flash_outbox
outbox = flash_outbox("/born.hwj", 700, 8)
session = ClientSession(b"born", outbox=outbox)
print("handed in", session.publish(b"t", b"x", 2) > 0, outbox.unreadable)
"""


@pytest.mark.parametrize("operation", [1, 2, 3, 4])
def test_a_power_cut_while_the_journal_is_made(virtual: VirtualBoard, operation: int) -> None:
    """Of the first journal there may be a name, and nothing behind it: it begins anew, and nothing is amiss."""
    virtual.put({"main.py": BORN})
    virtual.power_on(cut_at_flash_operation=operation)
    virtual.wait_off()
    mark = virtual.mark
    virtual.power_on()
    virtual.wait_for(">>> ", after=mark)
    assert "handed in True False\n" in virtual.log[mark:]


FULL = """
import os
from headwater.errors import E_STORE
from headwater.mqtt.session import ClientSession
from headwater_board.flash import flash_outbox
outbox = flash_outbox("/full.hwj", 4000, 16)
session = ClientSession(b"full", outbox=outbox)
first = session.publish(b"t", bytes(300), 2)
junk = open("/junk.bin", "wb")
for size in (4096, 512, 64):
    try:
        while True:
            junk.write(bytes(size))
            junk.flush()
    except OSError as error:
        print(error.errno)
try:
    junk.close()
except OSError:
    pass
statuses = []
while not statuses or statuses[-1] > 0:
    statuses.append(session.publish(b"t", bytes(300), 2))
print(first, statuses[-1] == E_STORE, outbox.error.errno, outbox.count == len(statuses))
again = flash_outbox("/full.hwj", 4000, 16)
print(again.count == outbox.count, again.torn, again.damaged)
again.close()
os.remove("/junk.bin")
print(session.publish(b"t", bytes(300), 2) == outbox.count)
outbox.close()
again = flash_outbox("/full.hwj", 4000, 16)
print(again.count == outbox.count, again.torn, again.damaged)
os.remove("/full.hwj")
"""


@pytest.mark.timeout(120)
def test_a_file_system_that_is_full(board: Board) -> None:
    if board.virtual is None:
        pytest.skip("fills the flash: not on a real board")
    lines = board.exec(FULL, timeout=100).splitlines()
    assert lines == ["28"] * 3 + ["1 True 28 True", "True 0 0", "True", "True 0 0"]
