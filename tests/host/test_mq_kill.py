"""A process that uses a local queue is killed (SIGKILL) in the middle, again and again.

It moves messages from one queue to another in units of work, and puts new ones outside of them; it writes down each
thing when the call has returned. What was written down is so afterwards; no message is lost, twice, or there by half.
"""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from headwater_host.mq import CMQC
from headwater_host.mq.descriptors import MD
from headwater_mq.queue import Queue
from tests.host.mq_queue import attempt, gmo2, queue_manager

LIVES = 4

WORKER = """
import os, random, sys
from headwater_host.mq import CMQC
from headwater_mq import GMO, MD, MQMIError, PMO, Queue, QueueManager

path, said, life = sys.argv[1], sys.argv[2], int(sys.argv[3])
out = os.open(said, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
chance = random.Random(life)
manager = QueueManager("", path, create=False)
first, second = Queue(manager, "FIRST"), Queue(manager, "SECOND")
put = Queue(manager, "FIRST", CMQC.MQOO_OUTPUT)
unit, gmo = PMO(Options=CMQC.MQPMO_SYNCPOINT), GMO(Options=CMQC.MQGMO_SYNCPOINT)

def say(*what):
    os.write(out, (" ".join(what) + "\\n").encode())

n = 0
while True:
    for _ in range(chance.randrange(1, 6)):
        n += 1
        name = "%d.%d" % (life, n)
        put.put(name.encode() * chance.choice([1, 1, 500]), MD(CorrelId=name.encode()))
        say("put", name)
    moved = []
    for _ in range(chance.randrange(1, 6)):
        md = MD()
        try:
            data = first.get(None, md, gmo)
        except MQMIError:
            break
        second.put(data, MD(CorrelId=md.CorrelId), unit)
        moved.append(md.CorrelId.rstrip(b"\\0").decode())
    if chance.random() < 0.2:
        manager.backout()
    else:
        manager.commit()
        for name in moved:
            say("moved", name)
"""


def live(path: Path, said: Path, life: int, much: int) -> None:
    """Let it work until it has written down so much, and kill it."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    size = said.stat().st_size if said.exists() else 0
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(path), str(said), str(life)], env=environment
    )
    try:
        while not said.exists() or said.stat().st_size <= size + much:
            assert process.poll() is None, "it ended by itself"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def contents(folder: Path) -> dict[str, Counter[str]]:
    """What is in the two queues, taken out and backed out again."""
    found: dict[str, Counter[str]] = {}
    with queue_manager(folder) as manager:
        for name in ("FIRST", "SECOND"):
            found[name] = Counter()
            with Queue(manager, name) as queue:
                while True:
                    md = MD()
                    data = attempt(queue.get, None, md, gmo2(CMQC.MQGMO_SYNCPOINT))
                    if not isinstance(data, bytes):
                        assert data.reason == CMQC.MQRC_NO_MSG_AVAILABLE
                        break
                    key = md.CorrelId.rstrip(b"\0")
                    assert data in (key, key * 500), "half a message"
                    found[name][key.decode()] += 1
        manager.backout()
        for counted in manager.statistics():
            assert counted.depth == counted.messages == found[counted.name].total()
    return found


def test_what_was_said_is_so(tmp_path: Path) -> None:
    said = tmp_path / "said.txt"
    chance = random.Random("killed")
    with queue_manager(tmp_path, MaxMsgLength=10_000) as manager:
        for name in ("FIRST", "SECOND"):
            manager.define(name, MaxQDepth=1_000_000)
    moved: set[str] = set()
    for life in range(LIVES):
        live(tmp_path / "queues.db", said, life, chance.randrange(1, 2000))
        lines = [line.split() for line in said.read_text().splitlines()]
        put = {name for what, name in lines if what == "put"}
        moved = {name for what, name in lines if what == "moved"}
        found = contents(tmp_path)
        there = found["FIRST"] + found["SECOND"]
        assert set(there.values()) == {1}, "a message is there twice"
        assert put <= there.keys(), "a message is lost"
        assert moved <= found["SECOND"].keys(), "a unit of work that was committed is undone"
        # Of what was not said there is at most the last message that was put.
        assert len(there.keys() - put) <= life + 1
        assert len(put) > life
    assert len(moved) > LIVES
    assert not list(tmp_path.glob("*-user*"))
