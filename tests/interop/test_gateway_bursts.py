"""Bursts from a mosquitto with its default settings: the gateway records all of it, as any subscriber would get it."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.host.command import HEADWATER, environment, headwater, running
from tests.host.gateway_peers import recorded
from tests.interop.test_gateway_mosquitto import records
from tests.waiting import wait_until
from tools.broker import HOST, Mosquitto

pytestmark = pytest.mark.needs_mosquitto
StartBroker = Callable[..., Mosquitto]

#: What mosquitto does unless it is told otherwise, and not what its other tests tell it.
DEFAULTS = {"max_queued_messages": 1000, "set_tcp_nodelay": "false", "log_type": "notice"}
DROPPED = "Outgoing messages are being dropped"
# Mosquitto has 1,000 messages in its queue besides those in flight, and drops the rest, whoever subscribes. So that a
# busy machine does not keep the gateway from taking them, the publisher is less important than the gateway, and there
# are several tries. Waiting 50 ms for each 20, as 3.1.1 with a timer does, fails always.
POLITE = ["nice", "-n", "5"]
TRIES = 8

# The command with a disk that takes 50 ms for each sync.
SLOW_DISK = """\
import sys
import time
from headwater_host.capture import block_log

sync = block_log.datasync

def slow(fd):
    time.sleep(0.05)
    sync(fd)

block_log.datasync = slow
from headwater_host.cli.main import main

sys.exit(main())
"""
ON_SLOW_DISK = [sys.executable, "-c", SLOW_DISK]


def burst(
    broker: Mosquitto, directory: Path, qos: int, count: int, settings: str, command: Sequence[str]
) -> list[bytes]:
    """The payloads that a gateway has recorded of ``count`` messages."""
    config = directory / "gateway.toml"
    config.write_text(
        f'capture = "{directory}/log"\n[[broker]]\nhost = "{HOST}"\nport = {broker.port}\n'
        f'topics = ["boards/#:{qos}"]\n{settings}\n'
    )
    with running("gateway", "--config", config, directory=directory, command=command) as gateway:
        gateway.wait_for("a new session, MQTT " + ("3.1.1" if "3.1.1" in settings else "5.0"))
        gateway.wait_for("subscribed")
        lines = b"".join(b"%d\n" % number for number in range(count))
        publish = [*POLITE, *HEADWATER, "pub", "-h", HOST, "-p", str(broker.port), "-t", "boards/x"]
        subprocess.run(
            [*publish, "-q", str(qos), "-l"], input=lines, check=True, env=environment(), timeout=300
        )
        wait_until(lambda: records(directory) == count or DROPPED in broker.log_text(), "it is recorded", 300)
        assert gateway.end() == 0
    return [message.payload for message in recorded(directory / "log")]


@pytest.mark.parametrize("qos, count", [(1, 20_000), (2, 10_000)])
@pytest.mark.parametrize(
    "settings, command, tries",
    [
        pytest.param("", HEADWATER, TRIES, id="5.0"),
        pytest.param("", ON_SLOW_DISK, TRIES, id="5.0, slow disk"),
        pytest.param("receive_maximum = 65535", ON_SLOW_DISK, 1, id="5.0, slow disk, all in flight"),
        pytest.param('protocol = "3.1.1"', HEADWATER, TRIES, id="3.1.1"),
    ],
)
def test_a_burst_behind_default_settings_is_recorded_whole(
    mosquitto: StartBroker,
    tmp_path: Path,
    settings: str,
    command: Sequence[str],
    tries: int,
    qos: int,
    count: int,
) -> None:
    came: list[bytes] = []
    for number in range(tries):
        with mosquitto(settings=DEFAULTS) as broker:
            directory = tmp_path / str(number)
            directory.mkdir()
            came = burst(broker, directory, qos, count, settings, command)
            dropped = DROPPED in broker.log_text()
        if not dropped:
            break
    assert [int(payload) for payload in came] == list(range(count))


@pytest.mark.parametrize("qos", [1, 2])
def test_a_broker_that_waits_for_acknowledgements_is_told_once(
    mosquitto: StartBroker, tmp_path: Path, qos: int
) -> None:
    """At 3.1.1 and on a slow disk mosquitto still drops: the gateway says what to change, and counts."""
    config = tmp_path / "gateway.toml"
    lines = b"".join(b"%d\n" % number for number in range(2000))
    sign = "the broker sends nothing until messages are acknowledged"
    with mosquitto(settings=DEFAULTS) as broker:
        config.write_text(
            f'capture = "{tmp_path}/log"\nstats = "{tmp_path}/stats.json"\n[[broker]]\nhost = "{HOST}"\n'
            f'port = {broker.port}\ntopics = ["boards/#:{qos}"]\nprotocol = "3.1.1"\n'
        )
        with running("gateway", "--config", config, directory=tmp_path, command=ON_SLOW_DISK) as gateway:
            gateway.wait_for("subscribed")
            deadline = time.monotonic() + 300
            while sign not in gateway.errors:
                assert time.monotonic() < deadline, gateway.errors
                headwater("pub", "-h", HOST, "-p", broker.port, "-t", "boards/x", "-q", qos, "-l", data=lines)
            headwater("pub", "-h", HOST, "-p", broker.port, "-t", "boards/x", "-q", qos, "-l", data=lines)
            assert gateway.end() == 0
            assert gateway.errors.count(sign) == 1
            assert "max_inflight_messages, max_queued_messages" in gateway.errors
    (source,) = json.loads((tmp_path / "stats.json").read_text())["sources"]
    assert source["full_windows"] >= 3
    assert source["protocol"] == "3.1.1"
