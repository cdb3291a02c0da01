"""A process with the hub's storage is killed (SIGKILL) in the middle, again and again.

It publishes, acknowledges, gives back, registers, opens and closes handshakes, and writes down each thing when the
storage says that it is on the disk. Whatever was written down is found again; nothing is there by half; nothing
acknowledged is handed out again.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from headwater_host.hub.storage import DEAD, Limits, Store
from tests.host.hub_storage import BOTH_ENGINES, NOW, Place

LIVES = 15
LIMITS = Limits(tries=3, cache=2000)

HUB = """
import asyncio, json, os, random, sys
from headwater_host.hub.storage import Limits, Store

path, said, life = sys.argv[1], sys.argv[2], int(sys.argv[3])
out = os.open(said, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
chance = random.Random(life)
NOW = int(sys.argv[4])

def say(*what):
    os.write(out, json.dumps(what).encode() + b"\\n")

async def main():
    store = Store.open(path, Limits(tries=3, cache=2000))
    sessions = store.sessions
    if not life:
        store.register("t", 2)
        store.attach("g", "t")
        store.attach("h", "t")
        sessions.save("me", {})
    n = 0
    while True:
        for _ in range(chance.randrange(1, 30)):
            n += 1
            name = "%d.%d" % (life, n)
            payload = name.encode() * chance.choice([1, 1, 1, 2000])
            store.publish("t", name.encode(), n, payload, time_ns=NOW)
            store.after(lambda name=name: say("stored", name))
            if chance.random() < 0.1:
                number = sessions.process(name)
                sessions.hold("me", "received", name.encode())
                store.after(lambda name=name, number=number: say("client", name, number))
            if chance.random() < 0.05:
                for old in list(sessions.get("me").received)[:3]:
                    say("releasing", old.decode())
                    sessions.release("me", "received", old)
                    store.after(lambda old=old: say("released", old.decode()))
        for group in "gh":
            for queue in (0, 1):
                for one in store.take(group, "t", queue, 40):
                    name, seq = one.message.id.decode(), one.message.seq
                    assert one.message.payload[: len(name)] == name.encode()
                    roll = chance.random()
                    if roll < 0.8:
                        say("acking", group, name)
                        store.ack(group, "t", queue, seq)
                        store.after(lambda group=group, name=name: say("acked", group, name))
                    elif roll < 0.9:
                        for _ in store.give_back(group, "t", queue, [seq], time_ns=NOW):
                            store.after(lambda group=group, name=name: say("dead", group, name))
        say("turn")
        await asyncio.sleep(0)
        if chance.random() < 0.2:
            done = asyncio.Event()
            store.after(done.set)
            await done.wait()

asyncio.run(main())
"""


def live(path: Place, said: Path, life: int, much: int) -> None:
    """Let it work until it has written down so much, and kill it."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    size = said.stat().st_size if said.exists() else 0
    process = subprocess.Popen(
        [sys.executable, "-c", HUB, str(path), str(said), str(life), str(NOW)], env=environment
    )
    try:
        while True:
            # However fast the machine is, it is killed in the middle: after so many bytes of what it says.
            assert process.poll() is None, "it ended by itself"
            if said.exists() and said.stat().st_size > size + much:
                break
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def check(path: Place, said: Path) -> dict[str, int]:
    """What was written down, against what is there."""
    *whole, torn = said.read_text().split("\n")
    assert not torn
    lines = [json.loads(line) for line in whole]
    stored = {line[1] for line in lines if line[0] == "stored"}
    clients = {line[1]: line[2] for line in lines if line[0] == "client"}
    releasing = {line[1] for line in lines if line[0] == "releasing"}
    released = {line[1] for line in lines if line[0] == "released"}
    acked = {group: {line[2] for line in lines if line[:2] == ["acked", group]} for group in "gh"}
    acking = {group: {line[2] for line in lines if line[:2] == ["acking", group]} for group in "gh"}
    dead = {line[2] for line in lines if line[0] == "dead"}
    numbers = [line[2] for line in lines if line[0] == "client"]
    assert len(numbers) == len(set(numbers)), "a process number was given twice"

    async def look() -> None:
        store = Store.open(path, LIMITS)
        topic = store.topics["t"]
        there = {m.id.decode(): m for queue in (0, 1) for m in store.read("t", queue, 0, 10**6)}
        letters = store.read(DEAD + "t", 0, 0, 10**6) if DEAD + "t" in store.topics else []
        assert not store.damaged
        for name, message in there.items():
            assert message.payload in (name.encode(), name.encode() * 2000), "half a message"
            assert message.queue == int(name.split(".")[1]) % 2
        buried = {m.id.decode() for m in letters}
        assert dead <= buried
        rest = {}
        for group in "gh":
            got = [
                one.message.id.decode() for queue in (0, 1) for one in store.take(group, "t", queue, 10**6)
            ]
            rest[group] = set(got)
            assert len(got) == len(rest[group])
            assert not rest[group] & acked[group], "acknowledged, and handed out again"
            lost = stored - rest[group] - acking[group] - buried
            assert not lost, ("neither there nor acknowledged", group, sorted(lost)[:10])
        assert there.keys() >= rest["g"] | rest["h"]
        for queue in (0, 1):
            # What everybody is done with is gone, up to the first message that somebody is not done with.
            for oldest in store.read("t", queue, 0, 1):
                assert oldest.id.decode() in rest["g"] | rest["h"]
        session = store.sessions.get("me")
        assert session is not None
        for name in stored:
            assert name.encode() in store._seen.ids
        assert set(clients.items()) <= set(store.sessions.clients.items())
        assert {name.encode() for name in clients.keys() - releasing} <= session.received.keys()
        assert not {name.encode() for name in released} & set(session.received)
        for name in set(there) - stored:
            assert name.encode() in store._seen.ids, "stored, but its id is not"
        assert topic.count == len(there)
        # In order, and each change once.
        for queue in (0, 1):
            order = [tuple(map(int, m.id.split(b"."))) for m in store.read("t", queue, 0, 10**6)]
            assert order == sorted(order)
        changes: list[int] = []
        while len(changes) < store.seq:
            changes += [change.seq for change in store.changes(len(changes), 1000)]
        assert changes == list(range(1, store.seq + 1))
        await store.close()

    asyncio.run(look())
    return {"stored": len(stored), "acked": sum(map(len, acked.values())), "dead": len(dead)}


@BOTH_ENGINES
def test_nothing_that_was_committed_is_lost_and_nothing_is_there_by_half(
    place: Place, tmp_path: Path
) -> None:
    said = tmp_path / "said.txt"
    chance = random.Random("killed")
    seen = {}
    for life in range(LIVES):
        live(place, said, life, chance.randrange(1, 20_000))
        seen = check(place, said)
    assert seen["stored"] > 500, seen
    assert seen["acked"] > 500, seen
    assert seen["dead"], seen


MAKER = "import sys; from headwater_host.hub.storage import Store; Store.open(sys.argv[1])"


def test_a_file_that_was_just_being_made(tmp_path: Path) -> None:
    """Killed as soon as there is a file, at whatever point of making it."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    for n in range(5):
        path = tmp_path / f"{n}.db"
        process = subprocess.Popen([sys.executable, "-c", MAKER, str(path)], env=environment)
        while not path.exists() and process.poll() is None:
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()

        async def use(path: Path) -> None:
            store = Store.open(path)
            store.register("t")
            await store.close()

        asyncio.run(use(path))
