"""The gateway on a real mosquitto, killed, restarted and starved; and a real MicroPython on its serial line."""

import asyncio
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from headwater_host.capture import CaptureReader, verify
from headwater_host.capture.format import DUPLICATE, MAX_FRAME, ORIGINAL
from headwater_host.client.mqtt import Client
from headwater_spark.pipeline import run_on
from headwater_spark.tables import MESSAGES
from tests.host.command import environment, headwater, running
from tests.host.gateway_peers import Recorded, gateway, recorded, running_gateway
from tests.spark.logs import InProcess, rows
from tests.waiting import wait_until
from tools import deploy
from tools.broker import HOST, Mosquitto, free_port
from tools.toolchain import ROOT
from tools.virtual_board import VirtualBoard

pytestmark = pytest.mark.needs_mosquitto
StartBroker = Callable[..., Mosquitto]


def records(directory: Path) -> int:
    try:
        return sum(block.header.records for block in CaptureReader(directory / "log").blocks())
    except FileNotFoundError:
        return 0


def messages(directory: Path) -> list[Recorded]:
    return list(recorded(directory / "log"))


def publish(broker: Mosquitto, numbers: Iterable[float], topic: str = "t", qos: int = 1) -> None:
    """Publish numbers in their order; the broker has acknowledged them when this returns."""

    async def scenario() -> None:
        async with Client(HOST, broker.port, timeout=30) as client:
            await asyncio.gather(*(client.publish(topic, number, qos) for number in numbers))

    asyncio.run(scenario())


def config_file(directory: Path, broker: Mosquitto) -> Path:
    """Topic ``t`` at QoS 0, and a short keep-alive."""
    path = directory / "gateway.toml"
    path.write_text(
        f'capture = "{directory}/log"\n[[broker]]\nhost = "{HOST}"\nport = {broker.port}\n'
        'topics = ["t:0"]\nkeepalive = 2\ntimeout = 5\n'
    )
    return path


async def test_topics_are_recorded_as_they_came(mosquitto: StartBroker, tmp_path: Path) -> None:
    broker = mosquitto()
    large = os.urandom(3_000_000)

    with running_gateway(tmp_path, broker=broker.port, topics=["a/#:2", "other/+"], stats=False) as command:
        command.wait_for("subscribed to a/# (QoS 2), other/+ (QoS 1)")
        async with Client(HOST, broker.port) as client:
            for qos in range(3):
                await client.publish(f"a/{qos}", b"%d" % qos, qos)
            await client.publish("other/ä", large, 2)
            await client.publish("nobody/asked", b"x", 1)
            await client.publish("a/kept", b"kept", 1, retain=True)
        wait_until(lambda: records(tmp_path) == 5, "all is on disk")
        assert command.end() == 0
    came = messages(tmp_path)
    assert [(m.topic, m.payload, m.qos) for m in came] == [
        ("a/0", b"0", 0),
        ("a/1", b"1", 1),
        ("a/2", b"2", 2),
        ("other/ä", large, 1),
        ("a/kept", b"kept", 1),
    ]
    assert {m.peer for m in came} == {f"mqtt:{HOST}:{broker.port}"}
    assert not verify(tmp_path / "log").problems
    assert "Received DISCONNECT from headwater-" in broker.log_text()


def test_what_was_acknowledged_is_in_the_log_when_the_gateway_is_killed(
    mosquitto: StartBroker, tmp_path: Path
) -> None:
    broker = mosquitto()
    fate = random.Random(13)
    with running_gateway(tmp_path, broker=broker.port, topics=["t:2"], stats=False) as command:
        command.wait_for("subscribed")
    # From here on the broker keeps what the gateway does not acknowledge, and forgets what it does.
    # The numbers are published all the while by a process of its own, which says how many there were.
    program = (
        "import asyncio\nimport sys\nfrom headwater_host.client.mqtt import Client\n"
        "async def main():\n"
        "    ended = asyncio.Event()\n"
        "    asyncio.get_running_loop().add_reader(sys.stdin, ended.set)\n"
        "    i = 0\n"
        f"    async with Client({HOST!r}, {broker.port}, timeout=60) as client:\n"
        "        while not ended.is_set():\n"
        "            await asyncio.gather(*(client.publish('t', i + k, 1 + k % 2) for k in range(8)))\n"
        "            await asyncio.sleep(0.005)\n"
        "            i += 8\n"
        "    print(i)\n"
        "asyncio.run(main())\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment(), stdin=pipe, stdout=pipe
    ) as publisher:
        for _ in range(6):
            before = records(tmp_path)
            with running_gateway(tmp_path, broker=broker.port, topics=["t:2"], stats=False) as command:
                # It is killed while it is at work, at some moment of it.
                deadline = time.monotonic() + 30
                while records(tmp_path) <= before:
                    assert time.monotonic() < deadline, "it records nothing"
                    time.sleep(0.01)
                time.sleep(fate.uniform(0, 0.2))
                command.process.kill()
                command.wait()
        count = int(publisher.communicate(timeout=60)[0])
        assert publisher.returncode == 0
    with running_gateway(tmp_path, broker=broker.port, topics=["t:2"], stats=False) as command:
        command.wait_for("a kept session")
        wait_until(
            lambda: len({m.payload for m in messages(tmp_path)}) == count, "everything is in the log", 60
        )
        assert command.end() == 0
    came = [int(m.payload) for m in messages(tmp_path)]
    assert set(came) == set(range(count))
    assert not verify(tmp_path / "log").damaged


def test_a_broker_that_restarts_and_one_that_is_not_there(mosquitto: StartBroker, tmp_path: Path) -> None:
    broker = mosquitto(port=free_port(), persistence=True)
    broker.stop()
    with running_gateway(tmp_path, broker=broker.port, topics=["t"], stats=False) as command:
        command.wait_for("Connection refused")
        broker.start()
        command.wait_for("connected, a new session")
        command.wait_for("subscribed")
        publish(broker, range(100))
        # A broker that is killed may lose what it has not passed on.
        wait_until(lambda: records(tmp_path) == 100, "the first are on disk")
        broker.kill()
        command.wait_for("the connection was lost")
        broker.start()
        command.wait_for_count("subscribed", 2)
        publish(broker, range(100, 200))
        wait_until(lambda: len({m.payload for m in messages(tmp_path)}) == 200, "all is in the log")
        broker.stop()
        command.wait_for_count("the connection was lost", 2)
        assert command.end() == 0
        # What does not change is said once.
        assert command.errors.count("Connection refused") <= 3
    assert len({m.connection for m in messages(tmp_path)}) == 2


def test_a_kept_session_survives_a_change_of_the_version(mosquitto: StartBroker, tmp_path: Path) -> None:
    """Gateways that spoke 3.1.1 so far speak 5.0 after an update: what the broker keeps for them must come."""
    broker = mosquitto()
    config = tmp_path / "gateway.toml"
    for number, protocol in enumerate(("3.1.1", "5.0", "3.1.1")):
        config.write_text(
            f'capture = "{tmp_path}/log"\n[[broker]]\nhost = "{HOST}"\nport = {broker.port}\n'
            f'topics = ["t:2"]\nprotocol = "{protocol}"\n'
        )
        with running("gateway", "--config", config, directory=tmp_path) as command:
            command.wait_for("a kept session" if number else "a new session")
            command.wait_for("subscribed")
            expected = 150 * number
            wait_until(lambda count=expected: records(tmp_path) == count, "what was kept is recorded")  # type: ignore[misc]
            assert command.end() == 0
        for qos in (1, 2):
            publish(broker, range(150 * number + 75 * (qos - 1), 150 * number + 75 * qos), qos=qos)
    assert sorted(int(m.payload) for m in messages(tmp_path)) == list(range(300))


def test_a_full_disk_stops_acknowledgements_and_loses_nothing(mosquitto: StartBroker, tmp_path: Path) -> None:
    broker = mosquitto(settings={"max_inflight_messages": 50})

    def acknowledged() -> int:
        return broker.log_text().count("Received PUBACK from headwater-")

    with running_gateway(tmp_path, broker=broker.port, topics=["t:1"], stats=False) as command:
        command.wait_for("subscribed")
        publish(broker, range(5000))
        wait_until(lambda: acknowledged() == 5000, "all is acknowledged")
        assert records(tmp_path) == 5000
        (segment,) = (tmp_path / "log").glob("segment-*.hwc")
        command.limit_files(segment.stat().st_size + 1000)
        publish(broker, range(5000, 6000))
        command.wait_for("nothing is acknowledged")
        count = acknowledged()
        assert count <= records(tmp_path) < 6000
        command.limit_files(resource.RLIM_INFINITY)
        command.wait_for("can be written again")
        wait_until(lambda: records(tmp_path) == 6000, "the rest is on disk")
        assert command.end() == 0
    assert [int(m.payload) for m in messages(tmp_path)] == list(range(6000))


def test_what_a_broker_sends_again_is_marked_and_is_one_row(mosquitto: StartBroker, tmp_path: Path) -> None:
    """The same reading again and again, on a full disk, from a broker that restarts."""
    broker = mosquitto(persistence=True)

    def sent() -> int:
        return broker.log_text().count("Sending PUBLISH to headwater-")

    def taken() -> int:
        return broker.log_text().count("Received PUBACK from headwater-")

    with running_gateway(tmp_path, broker=broker.port, topics=["t:1"], stats=False) as command:
        command.wait_for("subscribed")
        # So many that the limit leaves room for what the gateway says.
        publish(broker, [20.5] * 300)
        wait_until(lambda: taken() == 300, "the broker has read that the first are on disk")
        (segment,) = (tmp_path / "log").glob("segment-*.hwc")
        command.limit_files(segment.stat().st_size)
        publish(broker, [20.5] * 10)
        command.wait_for("nothing is acknowledged")
        wait_until(lambda: sent() == 310, "the gateway has all")
        broker.restart()
        command.wait_for("a kept session")
        wait_until(lambda: sent() == 320, "what was not acknowledged has come again")
        command.limit_files(resource.RLIM_INFINITY)
        wait_until(lambda: records(tmp_path) == 320, "all is on disk")
        assert command.end() == 0
    marks = [record.mark for block in CaptureReader(tmp_path / "log").blocks() for record in block.records()]
    assert marks == [ORIGINAL] * 310 + [DUPLICATE] * 10
    run_on(InProcess(), tmp_path / "log", tmp_path / "out")
    found = rows(tmp_path / "out", MESSAGES, "copies", "possible_duplicate")
    assert found == [(1, False)] * 300 + [(2, False)] * 10


async def test_a_full_disk_holds_the_broker_and_the_connection_lives(
    mosquitto: StartBroker, tmp_path: Path
) -> None:
    """QoS 0 in plenty: the gate closes, nothing more is read, and everything that was sent is recorded afterwards."""
    broker = mosquitto()
    size, count = 50_000, 2000

    with running("gateway", "--config", config_file(tmp_path, broker), directory=tmp_path) as command:
        command.wait_for("subscribed")
        await asyncio.to_thread(publish, broker, range(3000), qos=0)
        wait_until(lambda: records(tmp_path) == 3000, "the first are on disk")
        (segment,) = (tmp_path / "log").glob("segment-*.hwc")
        command.limit_files(segment.stat().st_size)
        async with Client(HOST, broker.port, timeout=30) as client:
            for i in range(count):
                await client.publish("t", i.to_bytes(4, "big") + bytes(size))
            await client.unsubscribe("barrier")
        command.wait_for("nothing is acknowledged")
        # Three keep-alives: the gateway does not read, and the broker does not give it up.
        begin = broker.log_text().count("Received PINGREQ from headwater-")
        wait_until(
            lambda: broker.log_text().count("Received PINGREQ from headwater-") >= begin + 6, "six pings"
        )
        with Path(f"/proc/{command.process.pid}/status").open() as status:
            resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
        assert resident < 75_000
        command.limit_files(resource.RLIM_INFINITY)
        wait_until(lambda: records(tmp_path) == 3000 + count, "all is on disk")
        assert command.end() == 0
        assert command.errors.count("connected,") == 1
    numbers = [int.from_bytes(m.payload[:4], "big") for m in messages(tmp_path) if len(m.payload) > size]
    assert numbers == list(range(count))


async def test_a_full_disk_keeps_the_gateway_from_connecting(mosquitto: StartBroker, tmp_path: Path) -> None:
    """Each connection would bring what is unacknowledged again, and more of it."""
    broker = mosquitto()

    with running("gateway", "--config", config_file(tmp_path, broker), directory=tmp_path) as command:
        command.wait_for("subscribed")
        await asyncio.to_thread(publish, broker, range(3000), qos=0)
        wait_until(lambda: records(tmp_path) == 3000, "the first are on disk")
        (segment,) = (tmp_path / "log").glob("segment-*.hwc")
        command.limit_files(segment.stat().st_size)
        async with Client(HOST, broker.port, timeout=30) as client:
            for _ in range(400):
                await client.publish("t", bytes(50_000))
        # Not sooner: what the broker still has of it ends with the broker, and there would be room for more.
        command.wait_for("the sources stop reading")
        broker.restart()
        # Its next ping tells that the connection is gone.
        command.wait_for("the connection was lost")
        over = time.monotonic() + 2
        wait_until(lambda: time.monotonic() > over, "four times the first delay is over")
        assert command.errors.count("connected,") == 1
        command.limit_files(resource.RLIM_INFINITY)
        wait_until(lambda: records(tmp_path) > 3100, "what was taken is on disk")
        command.wait_for_count("connected,", 2)
        assert command.end() == 0


async def test_the_largest_record_is_recorded_and_what_is_larger_is_skipped(
    mosquitto: StartBroker, tmp_path: Path
) -> None:
    broker = mosquitto()
    # The packet is longer than its payload: first byte, four of length, the topic and its length, the packet id, the
    # length of properties.
    largest = os.urandom(MAX_FRAME - 12)

    with running_gateway(tmp_path, broker=broker.port, topics=["tt:1"], stats=False) as command:
        command.wait_for("subscribed")
        async with Client(HOST, broker.port, timeout=30) as client:
            await client.publish("tt", largest, 1)
            await client.publish("tt", largest + b"x", 1)
            await client.publish("tt", "behind it", 1)
        wait_until(lambda: records(tmp_path) == 2, "both are on disk")
        assert f"skipped a message of {len(largest) + 1} bytes on tt" in command.errors
        assert command.end() == 0
    first, second = messages(tmp_path)
    assert first.payload == largest
    assert second.payload == b"behind it"


def test_a_refusal_is_said_and_tried_again(mosquitto: StartBroker, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.touch(0o700)
    subprocess.run(["mosquitto_passwd", "-b", users, "me", "secret"], check=True, capture_output=True)
    broker = mosquitto(settings={"allow_anonymous": "false", "password_file": users})
    arguments = gateway(tmp_path, broker=broker.port, topics=["t"], stats=False)
    with running(*arguments, directory=tmp_path) as command:
        command.wait_for("the server refused the connection: not authorized")
        assert command.end() == 0
    word = tmp_path / "word"
    word.write_text("secret\n")
    with running(*arguments, "--username", "me", "--password-file", word, directory=tmp_path) as command:
        command.wait_for("subscribed")
        assert "secret" not in command.errors
        assert "secret" not in Path(f"/proc/{command.process.pid}/cmdline").read_text()
        assert command.end() == 0


def test_a_second_signal_ends_it_at_once(mosquitto: StartBroker, tmp_path: Path) -> None:
    broker = mosquitto()
    with running_gateway(tmp_path, broker=broker.port, topics=["t"], stats=False) as command:
        command.wait_for("subscribed")
        publish(broker, range(3000))
        wait_until(lambda: records(tmp_path) == 3000, "all is on disk")
        (segment,) = (tmp_path / "log").glob("segment-*.hwc")
        command.limit_files(segment.stat().st_size)
        publish(broker, range(10))
        command.wait_for("nothing is acknowledged")
        command.process.send_signal(signal.SIGTERM)
        command.process.send_signal(signal.SIGTERM)
        assert command.wait(200) in {-signal.SIGTERM, 1}


@pytest.mark.needs_micropython
def test_a_real_micropython_on_the_serial_line(mosquitto: StartBroker, tmp_path: Path) -> None:
    """One log, two ways in: a board on a serial line, and topics of a broker."""
    broker = mosquitto()
    program = """
import time
from headwater.mqtt.client import Client
from headwater.errors import HeadwaterError
from headwater_board.serial import Serial
client = Client(Serial(0), b"uart-board", clean_start=False)
delivered = []
client.on_delivered = delivered.append
number = 0
while len(delivered) < 200:
    try:
        client.connect()
        print("connected", client.session_present)
        while client.wait(2) == 0 and len(delivered) < 200:
            if number < 300 and client.publish(b"uart", b"%d" % number, number % 3) >= 0:
                number += 1
    except (OSError, HeadwaterError) as error:
        print("again:", error)
        time.sleep(0.1)
client.disconnect()
print("all delivered")
"""
    with (
        VirtualBoard(main=program, files=deploy.package_files("mpy"), name="uart", uarts=1) as board,
        running(
            *gateway(tmp_path, broker=broker.port, topics=["t:1"], stats=False),
            "--serial",
            board.uart_ports[0],
            directory=tmp_path,
        ) as command,
    ):
        command.wait_for("subscribed")
        board.wait_for("connected", 200)
        publish(broker, range(50))
        board.wait_for("all delivered", 200)
        command.wait_for("disconnected")
        assert "uart-board connected" in command.errors
        assert command.end() == 0
    came = messages(tmp_path)
    numbers = {qos: [int(m.payload) for m in came if m.topic == "uart" and m.qos == qos] for qos in range(3)}
    assert numbers[1] == list(range(1, 300, 3))
    assert numbers[2] == list(range(2, 300, 3))
    assert set(numbers[0]) <= set(range(0, 300, 3))
    assert len(numbers[0]) > 90
    assert [int(m.payload) for m in came if m.topic == "t"] == list(range(50))


def test_the_command_of_the_readme(tmp_path: Path) -> None:
    """Its options exist and do what the README says, with a serial board as well."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (line,) = [line for line in readme.splitlines() if line.startswith("headwater gateway ")]
    arguments = [argument.strip("'") for argument in line.split()[1:]]
    arguments[arguments.index("--capture") + 1] = str(tmp_path / "log")
    arguments[arguments.index("--broker") + 1] = f"{HOST}:{free_port()}"
    arguments += ["--serial", str(tmp_path / "none")]
    with running(*arguments, directory=tmp_path) as command:
        command.wait_for("Connection refused")
        command.wait_for("cannot be opened")
        assert command.end() == 0
    shown = headwater("capture", "verify", tmp_path / "log")
    assert shown.returncode == 0
