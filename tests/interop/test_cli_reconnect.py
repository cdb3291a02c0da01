"""``headwater pub`` and ``sub`` before a broker that is stopped and started again."""

import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.host.command import Running, headwater, running
from tests.interop.kept_clients import WAIT_S
from tools.broker import HOST, Mosquitto

pytestmark = pytest.mark.needs_mosquitto
StartBroker = Callable[..., Mosquitto]


def subscribed(broker: Mosquitto, name: str, times: int = 1) -> None:
    deadline = time.monotonic() + WAIT_S
    while broker.log_text().count(f"Sending SUBACK to {name}\n") < times:
        assert time.monotonic() < deadline, broker.log_text()
        time.sleep(0.01)


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
def test_sub_goes_on_when_the_broker_comes_back(mosquitto: StartBroker, tmp_path: Path, version: str) -> None:
    broker = mosquitto()
    where = ("-h", HOST, "-p", broker.port, "-V", version)
    with running("sub", *where, "-t", "again", "-q", 1, "-C", 2, "-i", "s", directory=tmp_path) as sub:
        subscribed(broker, "s")
        assert headwater("pub", *where, "-t", "again", "-m", "one", "-q", 1).returncode == 0
        broker.stop()
        sub.wait_for("; trying again\n")
        broker.start()
        sub.wait_for(f"headwater: connected again to {HOST}:{broker.port}\n", WAIT_S)
        assert headwater("pub", *where, "-t", "again", "-m", "two", "-q", 1).returncode == 0
        assert sub.wait(WAIT_S) == 0
        assert sub.output == b"one\ntwo\n"
        assert all(line.startswith("headwater: ") for line in sub.errors.splitlines())


@pytest.mark.parametrize(
    "options, lines", [(("--no-reconnect",), 1), (("--reconnect", 0), 1), (("--reconnect", 2), 3)]
)
def test_sub_ends_with_3_when_told_so(
    mosquitto: StartBroker, tmp_path: Path, options: tuple[object, ...], lines: int
) -> None:
    broker = mosquitto()
    with running(
        "sub", "-h", HOST, "-p", broker.port, "-t", "x", "-i", "s", *options, directory=tmp_path
    ) as sub:
        subscribed(broker, "s")
        broker.stop()
        assert sub.wait(WAIT_S) == 3
        assert len(sub.errors.splitlines()) == lines, sub.errors
        assert "trying again" not in sub.errors.splitlines()[-1]


def test_sub_is_ended_by_a_signal_and_by_its_time_while_it_waits(
    mosquitto: StartBroker, tmp_path: Path
) -> None:
    broker = mosquitto()
    where = ("-h", HOST, "-p", broker.port, "-t", "x")
    with (
        running("sub", *where, "-i", "signal", directory=tmp_path) as sub,
        running("sub", *where, "-i", "quiet", "--quiet", "-C", 1, "-W", 2, directory=tmp_path) as timed,
    ):
        subscribed(broker, "signal")
        subscribed(broker, "quiet")
        broker.stop()
        sub.wait_for("trying again")
        assert sub.end() == 0
        assert timed.wait(WAIT_S) == 4
        assert timed.errors == ""


def write(command: Running, data: bytes) -> None:
    assert command.process.stdin
    command.process.stdin.write(data)
    command.process.stdin.flush()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_lines_of_pub_wait_for_the_broker(mosquitto: StartBroker, tmp_path: Path, qos: int) -> None:
    broker = mosquitto()
    where = ("-h", HOST, "-p", broker.port)
    with running(
        "pub", *where, "-t", "lines", "-l", "-q", qos, "--timeout", 2, "-i", "p",
        directory=tmp_path, stdin=subprocess.PIPE,
    ) as pub:  # fmt: skip
        write(pub, b"one\n")
        deadline = time.monotonic() + WAIT_S
        while "Received PUBLISH from p" not in broker.log_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        broker.stop()
        pub.wait_for("; trying again\n")
        write(pub, b"two\nthree\n")
        broker.start()
        pub.wait_for("connected again", WAIT_S)
        write(pub, b"four\n")
        assert pub.process.stdin
        pub.process.stdin.close()
        assert pub.wait(WAIT_S) == 0
    shown = [line for line in broker.log_text().splitlines() if "Received PUBLISH from p" in line]
    assert len(shown) >= 3


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_lines_of_pub_do_not_wait_when_the_oldest_may_be_dropped(
    mosquitto: StartBroker, tmp_path: Path, qos: int
) -> None:
    broker = mosquitto(persistence=True)
    listener = ("-h", HOST, "-p", broker.port, "-t", "lines", "-q", 2, "-i", "s", "-c")
    assert headwater("sub", *listener, "-E").returncode == 0
    with running(
        "pub", "-h", HOST, "-p", broker.port, "-t", "lines", "-q", qos, "-l", "--drop-oldest", 3, "-i", "p", "-d",
        directory=tmp_path, stdin=subprocess.PIPE,
    ) as pub:  # fmt: skip
        write(pub, b"0\n")
        deadline = time.monotonic() + WAIT_S
        while "Received PUBLISH from p" not in broker.log_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if qos:
            pub.wait_for("acknowledged")
        broker.stop()
        pub.wait_for("; trying again\n")
        # Many more than are read without dropping any.
        write(pub, b"".join(b"%d\n" % n for n in range(1, 5001)))
        pub.wait_for_count("dropped a message", 4997)
        broker.start()
        assert pub.process.stdin
        pub.process.stdin.close()
        assert pub.wait(WAIT_S) == 0
        assert "headwater: 4997 messages were dropped\n" in pub.errors
    while qos == 0 and broker.log_text().count("Received PUBLISH from p") < 4:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    if qos:
        came = headwater("sub", *listener, "-C", 4, "-W", WAIT_S)
        assert came.stdout.split() == [b"0", b"4998", b"4999", b"5000"]


def test_pub_of_one_message_does_not_wait_and_can_be_told_to(mosquitto: StartBroker, tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as silent:
        port = silent.getsockname()[1]
        for options in ((), ("--no-reconnect",)):
            with running(
                "pub", "-h", HOST, "-p", port, "-t", "a", "-n", "-q", 1, *options, directory=tmp_path
            ) as pub:
                peer, _ = silent.accept()
                with peer:
                    peer.recv(100)
                    peer.sendall(b"\x20\x02\x00\x00")
                    assert peer.recv(100)[:1] == b"\x32"
                assert pub.wait(WAIT_S) == 3
        with running(
            "pub", "-h", HOST, "-p", port, "-t", "a", "-n", "-q", 1, "--reconnect", 5, directory=tmp_path
        ) as pub:
            for reply in (b"", b"\x40\x02\x00\x01"):
                peer, _ = silent.accept()
                with peer:
                    peer.recv(100)
                    peer.sendall(b"\x20\x02\x00\x00")
                    # Without a session the second one is a new one.
                    assert peer.recv(100)[:1] == b"\x32"
                    peer.sendall(reply)
                    if reply:
                        assert peer.recv(100) == b"\xe0\x00"
            assert pub.wait(WAIT_S) == 0
