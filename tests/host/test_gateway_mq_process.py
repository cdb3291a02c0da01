"""The gateway as a process, with a real broker in front, a local queue of IBM MQ's kind behind, and an end with
``kill -9`` again and again. And without IBM's client."""

import asyncio
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater_host.client.mqtt import Client
from headwater_host.mq import CMQC
from headwater_host.mq.descriptors import MD
from headwater_host.mq.errors import MQMIError
from headwater_mq.manager import QueueManager
from headwater_mq.options import GMO
from headwater_mq.queue import Queue
from tests.host.command import headwater, running
from tests.host.gateway_peers import recorded
from tests.host.mq_log import cut
from tests.waiting import wait_until
from tools.broker import HOST, Mosquitto


def configuration(folder: Path, port: int, more: str = "") -> Path:
    path = folder / "gateway.toml"
    path.write_text(
        f'capture = "{folder}/log"\nstats = "{folder}/stats.json"\n'
        f'[[broker]]\nhost = "{HOST}"\nport = {port}\ntopics = ["edge/#"]\n'
        f'[mq]\nfile = "{folder}/mq.db"\nqueue = "EDGE"\ntopics = ["edge/mq/#"]\nformat = "MQSTR"\n{more}'
    )
    return path


def got(folder: Path, remove: bool = False) -> list[tuple[MD, bytes]]:
    """Everything in the queue, by puts and gets as programs do them."""
    found = []
    with QueueManager("", folder / "mq.db", create=False) as manager:
        queue = Queue(manager, "EDGE", CMQC.MQOO_INPUT_SHARED | CMQC.MQOO_BROWSE)
        how = CMQC.MQGMO_NO_SYNCPOINT if remove else CMQC.MQGMO_BROWSE_NEXT
        while True:
            md = MD(Version=2)
            try:
                found.append((md, queue.get(None, md, GMO(Version=2, Options=how, MatchOptions=0))))
            except MQMIError as error:
                if error.reason == CMQC.MQRC_NO_MSG_AVAILABLE:
                    return found
                raise


def depth(folder: Path) -> int:
    with QueueManager("", folder / "mq.db", create=False) as manager:
        return manager.statistics("EDGE")[0].messages


def publish(port: int, payloads: list[tuple[str, bytes]]) -> None:
    """At QoS 1: the broker has them when this returns."""

    async def scenario() -> None:
        async with Client(HOST, port, timeout=30) as client:
            await asyncio.gather(*(client.publish(topic, payload, 1) for topic, payload in payloads))

    asyncio.run(scenario())


@pytest.mark.needs_mosquitto
def test_segments_through_a_gateway_that_is_killed(
    mosquitto: Callable[..., Mosquitto], tmp_path: Path
) -> None:
    broker = mosquitto()
    path = configuration(tmp_path, broker.port)
    rng = random.Random(5)
    whole = [rng.randbytes(20_000) for _ in range(12)]
    payloads = [
        ("edge/mq/parts", piece)
        for number, data in enumerate(whole, 1)
        for piece in cut(data, 500, group=bytes([number]) * 24)
    ]
    plain = [b"reading %d" % number for number in range(40)]
    payloads += [("edge/mq/plain", data) for data in plain] + [("edge/other", b"not for the queue")] * 20
    rng.shuffle(payloads)
    rounds = [payloads[at::4] for at in range(4)]
    for part in rounds:
        with running("gateway", "--config", path, directory=tmp_path) as command:
            command.wait_for("subscribed")
            publish(broker.port, part)
            if part is rounds[-1]:
                wait_until(lambda: depth(tmp_path) >= len(whole) + len(plain), "the queue has all")
                assert command.end() == 0
                break
            # At some moment of its work.
            time.sleep(rng.uniform(0, 0.15))
            command.process.send_signal(signal.SIGKILL)
            command.wait()
    found = got(tmp_path, remove=True)
    # A segment that the broker has sent again counts once. A plain message has nothing to be told by, and the log has
    # it twice when its acknowledgement was lost with the gateway.
    counted = Counter(data for _, data in found)
    assert {data: counted[data] for data in whole} == dict.fromkeys(whole, 1)
    assert set(counted) == {*whole, *plain}
    in_log = Counter(m.payload for m in recorded(tmp_path / "log") if m.topic == "edge/mq/plain")
    assert {data: counted[data] for data in plain} == in_log
    assert {md.Format for md, _ in found} == {b"MQSTR   "}
    stats = json.loads((tmp_path / "stats.json").read_text())["mq"]
    assert (stats["state"], stats["incomplete"], stats["problems"], stats["uplink"]) == (
        "following",
        0,
        {},
        None,
    )


def test_a_configuration_that_cannot_be_is_refused_at_once(tmp_path: Path) -> None:
    done = headwater("gateway", "--config", configuration(tmp_path, 1, "depth = 0\n"))
    assert done.returncode == 2
    assert b"gateway.toml, line 12: 'depth' in [mq] is a whole number" in done.stderr
    (tmp_path / "mq.db").write_text("this is not a queue file, however long it is " * 50)
    done = headwater("gateway", "--config", configuration(tmp_path, 1))
    assert done.returncode == 1
    assert f"the local queue: {tmp_path / 'mq.db'} is not a queue file".encode() in done.stderr
    assert b"Traceback" not in done.stderr
    path = configuration(tmp_path, 1)
    path.write_text(path.read_text().replace("/mq.db", "/no/mq.db"))
    done = headwater("gateway", "--config", path)
    file = tmp_path / "no" / "mq.db"
    says = f"headwater: the local queue: {file} cannot be opened: there is no folder {file.parent}"
    assert (done.returncode, done.stderr.decode().splitlines()[-1]) == (1, says)


@pytest.mark.needs_ibmmq
def test_an_uplink_without_ibms_client_is_said_at_once(tmp_path: Path) -> None:
    more = '[mq.uplink]\nqueue_manager = "QM1"\nchannel = "C"\nconnection = "localhost(1)"\nqueue = "IN"\n'
    done = headwater("gateway", "--config", configuration(tmp_path, 1, more))
    assert done.returncode == 2
    assert b"install IBM MQ's redistributable client" in done.stderr
    # Nothing was begun.
    assert b"recording in" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["gateway.toml"]
    assert b"Traceback" not in done.stderr
