"""A client with a store is killed (SIGKILL) in the middle, again and again, before a real broker.

What it was told is published arrives at QoS 1 at least once and at QoS 2 exactly once, in order; what it had received
at QoS 2 and acknowledged is not received again.
"""

import asyncio
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from headwater_host.client.mqtt import Client, SessionOptions
from headwater_host.client.store import SqliteOutbox
from headwater_host.errors import ArgumentError, StoreError
from tools.broker import Mosquitto

LIVES = 12
MESSAGES = 3000
WINDOW = 8

PUBLISHER = """
import asyncio, sys, time
sys.path[:0] = {path!r}
from headwater_host.client.mqtt import Client, SessionOptions

async def main(life, count):
    handed = open({handed!r}, "a", buffering=1)
    async with Client("127.0.0.1", {port}, identifier="killed",
                      session=SessionOptions(clean_start=False, store={store!r}),
                      protocol={protocol!r}) as client:
        print("online", client.session.outbox.count, flush=True)
        for n in range(0, count, 5):
            # What is posted is in the file, several at a time in one commit.
            some = [(1 + k % 2, "%d.%d" % (life, k)) for k in range(n, n + 5)]
            await asyncio.gather(*(client.post("kill/%d" % qos, text, qos, timeout=60) for qos, text in some))
            handed.write("".join("%d %s\\n" % one for one in some))
        while client.session.outbox.count:
            await asyncio.sleep(0.01)

asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
print("done", flush=True)
"""

RECEIVER = """
import asyncio, os, sys
sys.path[:0] = {path!r}
from headwater_host.client.mqtt import Client, SessionOptions

async def main():
    taken = os.open({taken!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with Client("127.0.0.1", {port}, identifier="taker",
                      session=SessionOptions(clean_start=False, auto_ack=False, store={store!r}),
                      protocol={protocol!r}) as client:
        await client.subscribe("down", qos=2)
        print("online", flush=True)
        async for message in client.messages:
            os.write(taken, b"%s %d\\n" % (message.payload, message.mid))
            await message.ack()
            os.write(taken, b"%s acknowledged\\n" % message.payload)
            if message.payload == b"end":
                await asyncio.sleep(0.2)
                return

asyncio.run(main())
"""


def start(code: str, *arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def check_far_end(received: list[tuple[int, str]], handed: list[tuple[int, str]]) -> None:
    for qos in (1, 2):
        there = [payload for level, payload in handed if level == qos]
        here = [payload for level, payload in received if level == qos]
        first = list(dict.fromkeys(here))
        assert set(there) <= set(first), ("lost", sorted(set(there) - set(first)))
        order = [[int(part) for part in payload.split(".")] for payload in first]
        for before, after in pairwise(range(len(order))):
            assert order[before] < order[after], ("swapped", qos, first[max(0, before - 20) : after + 20])
        if qos == 2:
            assert len(here) == len(first), Counter(here).most_common(3)


@pytest.mark.needs_mosquitto
@pytest.mark.parametrize("protocol", ["3.1.1", "5.0"])
def test_a_publisher_that_is_killed(
    mosquitto: Callable[..., Mosquitto], tmp_path: Path, protocol: str
) -> None:
    broker = mosquitto(settings={"max_queued_messages": 0})
    store, handed = tmp_path / "store.db", tmp_path / "handed.txt"
    code = PUBLISHER.format(
        path=sys.path, port=broker.port, store=str(store), handed=str(handed), protocol=protocol
    )
    numbers = random.Random("killed")
    recovered = []

    def lives() -> None:
        for life in range(LIVES + 1):
            last = life == LIVES
            process = start(code, life, 40 if last else 1_000_000)
            assert process.stdout is not None
            with process:
                line = process.stdout.readline()
                assert line.startswith("online"), line
                recovered.append(int(line.split()[1]))
                if last:
                    assert process.stdout.readline() == "done\n"
                else:
                    # Somewhere in the middle: that is the test. A message is a line of some 8 bytes.
                    end = handed.stat().st_size + numbers.randrange(1, 800)
                    while handed.stat().st_size < end:
                        assert process.poll() is None, "it ended before it was killed"
                        time.sleep(0.0005)
                    process.send_signal(signal.SIGKILL)

    async def listen() -> list[tuple[int, str]]:
        received = []
        async with Client("127.0.0.1", broker.port) as client:
            await client.subscribe([("kill/+", 2), ("end", 2)])
            run = asyncio.create_task(asyncio.to_thread(lives))
            run.add_done_callback(lambda _: asyncio.create_task(client.publish("end", qos=2)))
            async for message in client.messages:
                if str(message.topic) == "end":
                    break
                received.append((int(str(message.topic)[-1]), message.payload.decode()))
            await run
        return received

    received = asyncio.run(asyncio.wait_for(listen(), 100))
    lines = [line.split() for line in handed.read_text().splitlines()]
    check_far_end(received, [(int(qos), payload) for qos, payload in lines])
    assert any(recovered), "no life found anything of the one before"


@pytest.mark.needs_mosquitto
@pytest.mark.parametrize("protocol", ["3.1.1", "5.0"])
def test_a_receiver_that_is_killed(
    mosquitto: Callable[..., Mosquitto], tmp_path: Path, protocol: str
) -> None:
    broker = mosquitto(settings={"max_queued_messages": 0, "max_inflight_messages": WINDOW})
    store, taken = tmp_path / "store.db", tmp_path / "taken.txt"
    code = RECEIVER.format(
        path=sys.path, port=broker.port, store=str(store), taken=str(taken), protocol=protocol
    )
    numbers = random.Random("taker")

    async def feed() -> None:
        async with Client("127.0.0.1", broker.port) as client:
            for n in range(MESSAGES):
                await client.publish("down", str(n), qos=1 + (n % 10 > 0))
            await client.publish("down", "end", qos=2)

    thread = threading.Thread(target=asyncio.run, args=(feed(),))
    fed = False
    # Each life is ended when so many bytes have been noted, by messages of some 27 each.
    for end in sorted(numbers.randrange(50, 10 * MESSAGES) for _ in range(LIVES)):
        with start(code) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "online\n"
            if not fed:
                thread.start()
                fed = True
            while taken.stat().st_size < end and process.poll() is None:
                time.sleep(0.0005)
            assert process.poll() is None, "it ended before it was killed"
            process.send_signal(signal.SIGKILL)
    with start(code) as process:
        assert process.wait(60) == 0
    thread.join()
    seen: list[str] = []
    acknowledged: set[str] = set()
    for line in taken.read_text().splitlines():
        payload, what = line.split()
        if what == "acknowledged":
            acknowledged.add(payload)
            continue
        if payload != "end" and int(payload) % 10 > 0:
            assert payload not in acknowledged, "acknowledged at QoS 2, and received again"
        seen.append(payload)
    assert set(seen) == {str(n) for n in range(MESSAGES)} | {"end"}, "lost"
    doubled = [payload for payload, times in Counter(seen).items() if times > 1]
    assert len([payload for payload in doubled if int(payload) % 10 > 0]) <= LIVES * WINDOW, (
        "more than were open"
    )


@pytest.mark.needs_mosquitto
def test_the_store_of_a_client(mosquitto: Callable[..., Mosquitto], tmp_path: Path) -> None:
    broker = mosquitto()

    async def run() -> None:
        path = tmp_path / "store.db"
        with pytest.raises(ArgumentError, match="identifier"):
            Client("127.0.0.1", broker.port, session=SessionOptions(store=path))
        first = Client(
            "127.0.0.1", broker.port, identifier="a", session=SessionOptions(clean_start=False, store=path)
        )
        with pytest.raises(StoreError, match="in use"):
            Client(
                "127.0.0.1",
                broker.port,
                identifier="a",
                session=SessionOptions(clean_start=False, store=path),
            )
        box = first.session.outbox
        assert isinstance(box, SqliteOutbox)
        async with first as client:
            await client.publish("t", "x" * 100, qos=2)
        assert not box.unsynced
        box.close()
        with SqliteOutbox(path, "a") as own:
            with pytest.raises(ArgumentError, match="of the client 'a'"):
                Client("127.0.0.1", broker.port, identifier="b", session=SessionOptions(store=own))
            client = Client(
                "127.0.0.1", broker.port, identifier="a", session=SessionOptions(clean_start=False, store=own)
            )
            async with client:
                await client.publish("t", "y", qos=1)
                own.commits.db.execute("PRAGMA query_only = 1")
                with pytest.raises(StoreError, match=r"cannot be written: .*readonly"):
                    await client.publish("t", "z", qos=1)
            own.commits.db.execute("PRAGMA query_only = 0")
            async with client:
                await client.publish("t", "again", qos=1)
            assert own.count == 0
            with pytest.raises(ArgumentError, match=r"the store is for MQTT 3\.1\.1, not MQTT 5\.0"):
                Client(
                    "127.0.0.1",
                    broker.port,
                    identifier="a",
                    protocol="5.0",
                    session=SessionOptions(store=own),
                )

    asyncio.run(asyncio.wait_for(run(), 200))
