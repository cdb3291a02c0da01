"""Cut a board's power at flash operations while it publishes and receives over the flash outbox, with mosquitto.

    python -m tests.hil.store_cuts --random 1000

Every message that the board reports as published arrives in order, at QoS 2 exactly once. The board receives each
QoS 2 message once, unless the power is cut before its handler has recorded it.

The broker sees nothing of a cut, as with a real board. When it does, in the middle of taking a session up again, then
mosquitto (2.0.11) sends PUBLISH on the next connection for what it had released (``docs/mqtt-session.md``): messages
come twice, and by no fault of the board's.
"""

import argparse
import asyncio
import random
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from headwater_host.client.mqtt import Client
from tools.broker import Mosquitto
from tools.deploy import package_files
from tools.virtual_board import VirtualBoard

#: Messages to the board that may be under way at once.
RECEIVE_WINDOW = 200
#: The highest operation at which random cuts are tried: after connecting, each message takes one or two.
_MOST = 150
#: Lives of one board: the process of each is kept until the board is closed (``power_cut`` with ``half_open``).
_BATCH = 100

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


def words(log: str, first: str) -> list[list[str]]:
    """The words of the lines that begin with ``first``."""
    return [line.split() for line in log.splitlines() if line.startswith(first + " ")]


def story(payload: str, log: str, broker: Mosquitto) -> str:
    """What the board said in the lives in which it took a message, and the broker of its packet id."""
    lives = [part for part in log.split("recovered ") if f"took {payload} " in part]
    packet_id = next(packet_id for _, taken, _, packet_id in words(log, "took") if taken == payload)
    about = re.compile(
        rf" as flash-board |flash-board.*\b(m|Mid: ){packet_id}\b|flash-board.*(clos|disconnect)"
    )
    return "\n".join([*lives, *filter(about.search, broker.log_text().splitlines())])


def run_lives(board: VirtualBoard, broker: Mosquitto, cuts: Sequence[int], down: Sequence[int]) -> str:
    """Run a life for each cut, with ``down`` messages to the board before it, and one to the end. Check what arrived.

    The board is off. Returns how much there was.
    """
    main = MAIN.replace("PORT", str(broker.port)).replace("LINGER", "300")
    main = main.replace("RECEIVE_WINDOW", str(RECEIVE_WINDOW))
    begin = board.mark
    received: list[tuple[int, str]] = []
    sent_down: list[str] = []

    def live(life: int, count: int, cut: int) -> None:
        board.put({"main.py": main, "life.txt": f"{life} {count}"})
        mark = board.mark
        board.power_on(cut_at_flash_operation=cut, half_open=cut > 0)
        if cut:
            board.wait_off(60)
        else:
            board.wait_for(f"done {life}", 200, after=mark)
            board.power_cut()

    async def receive(client: Client) -> None:
        async for message in client.messages:
            if str(message.topic) == "flash/end":
                return
            received.append((int(str(message.topic)[-1]), message.payload.decode()))

    async def run() -> None:
        async with Client("127.0.0.1", broker.port) as client:
            await client.subscribe([("flash/1", 2), ("flash/2", 2), ("flash/end", 2)])
            receiving = asyncio.ensure_future(receive(client))
            await asyncio.to_thread(live, 0, 2, 0)  # it subscribes
            for life, cut in enumerate(cuts, 1):
                for _ in range(down[life - 1]):
                    sent_down.append(str(len(sent_down)))
                    await client.publish("flash/down", sent_down[-1], qos=2)
                await asyncio.to_thread(live, life, 1_000_000, cut)
            await asyncio.to_thread(live, len(cuts) + 1, 20, 0)
            await client.publish("flash/end", qos=2)
            await receiving

    asyncio.run(run())
    log = board.log_path.read_bytes()[begin:].decode(errors="replace")
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
    taken = check_taken(log, sent_down, broker)
    return f"{len(cuts)} cuts: {len(handed)} handed in, {taken} taken, {taken - len(sent_down)} of them twice"


def check_taken(log: str, sent_down: list[str], broker: Mosquitto) -> int:
    """A message is recorded as taken before the next one is handed out: only the last of a life may be taken again."""
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
    return taken


def board_for_cuts() -> VirtualBoard:
    """A board of its own: the power goes at flash operations that others must not share."""
    return VirtualBoard(flash="littlefs", heap="256K", files=package_files("mpy"))


def main() -> int:
    """Run lives with random cuts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--random", type=int, default=1000, metavar="N", help="lives to cut")
    parser.add_argument("--seed", type=int, default=12)
    args = parser.parse_args()
    chance = random.Random(args.seed)
    begin = time.monotonic()
    for done in range(0, args.random, _BATCH):
        with (
            tempfile.TemporaryDirectory() as folder,
            board_for_cuts() as board,
            Mosquitto(Path(folder), settings={"max_queued_messages": 0}) as broker,
        ):
            board.power_cut()
            cuts = [chance.randint(1, _MOST) for _ in range(min(_BATCH, args.random - done))]
            print(run_lives(board, broker, cuts, [chance.choice((0, 0, 0, 1, 2)) for _ in cuts]), flush=True)
    print(f"{args.random} cuts in {time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
