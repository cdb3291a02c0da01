"""Bursts from a mosquitto with its default settings: the gateway records all of it, as any subscriber would get it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.host.command import headwater, running
from tests.host.gateway_peers import landed
from tests.interop.test_gateway_mosquitto import gateway, records, wait_until
from tools.broker import HOST, Mosquitto

pytestmark = pytest.mark.needs_mosquitto
StartBroker = Callable[..., Mosquitto]

#: What mosquitto does unless it is told otherwise, and not what its other tests tell it.
DEFAULTS = {"max_queued_messages": 1000, "set_tcp_nodelay": "false", "log_type": "notice"}
DROPPED = "Outgoing messages are being dropped"
# Behind 20 messages in flight and 1,000 in its queue mosquitto drops, whoever subscribes: the machine must not be too
# busy for a moment to take them. Waiting 50 ms for each 20 fails always.
TRIES = 8
BURSTS = [(1, 20_000), (2, 10_000)]


def burst(broker: Mosquitto, directory: Path, qos: int, count: int, *options: object) -> list[bytes]:
    """The payloads that a gateway has recorded of ``count`` messages."""
    with running(*gateway(directory, broker, f"boards/#:{qos}"), *options, directory=directory) as command:
        command.wait_for("subscribed")
        lines = b"".join(b"%d\n" % number for number in range(count))
        published = headwater(
            "pub", "-h", HOST, "-p", broker.port, "-t", "boards/x", "-q", qos, "-l", data=lines
        )
        assert published.returncode == 0, published.stderr
        wait_until(lambda: records(directory) == count or DROPPED in broker.log_text(), "it is recorded")
        assert command.end() == 0
    return [message.payload for message in landed(directory / "log")]


@pytest.mark.parametrize("qos, count", BURSTS)
def test_a_burst_behind_default_settings_is_recorded_whole(
    mosquitto: StartBroker, tmp_path: Path, qos: int, count: int
) -> None:
    came: list[bytes] = []
    for number in range(TRIES):
        with mosquitto(settings=DEFAULTS) as broker:
            directory = tmp_path / str(number)
            directory.mkdir()
            came = burst(broker, directory, qos, count)
            dropped = DROPPED in broker.log_text()
        if not dropped:
            break
    assert [int(payload) for payload in came] == list(range(count))
