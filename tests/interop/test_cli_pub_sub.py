"""``headwater pub`` and ``headwater sub`` against a real mosquitto, and their exit codes."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.host.command import HEADWATER, environment, headwater, running
from tools.broker import HOST, Mosquitto, free_port

pytestmark = pytest.mark.needs_mosquitto
StartBroker = Callable[..., Mosquitto]


@pytest.fixture(scope="module")
def broker(mosquitto: StartBroker) -> Mosquitto:
    return mosquitto()


def subscribed(broker: Mosquitto, identifier: str, count: int = 1) -> None:
    """Wait until the broker has sent SUBACK to ``identifier``."""
    deadline = time.monotonic() + 200
    while broker.log_text().count(f"Sending SUBACK to {identifier}\n") < count:
        assert time.monotonic() < deadline, broker.log_text()[-2000:]
        time.sleep(0.01)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_published_is_printed(broker: Mosquitto, tmp_path: Path, qos: int) -> None:
    where = ("-h", HOST, "-p", broker.port)
    payload = tmp_path / "payload"
    payload.write_bytes(b"\x00\xff\n")
    reader = ("sub", *where, "-t", f"cli/{qos}/#", "-q", qos, "-C", 6, "-v", "-i", f"reader{qos}")
    with running(*reader, directory=tmp_path) as sub:
        subscribed(broker, f"reader{qos}")
        for what in (["-m", "Grüße"], ["-n"], ["-f", payload]):
            sent = headwater("pub", *where, "-t", f"cli/{qos}/a", "-q", qos, *what)
            assert (sent.returncode, sent.stdout, sent.stderr) == (0, b"", b"")
        assert (
            headwater("pub", *where, "-t", f"cli/{qos}/b", "-q", qos, "-f", "-", data=b"in").returncode == 0
        )
        assert headwater("pub", *where, "-t", f"cli/{qos}/b", "-q", qos, "-l", data=b"1\r\n2").returncode == 0
        assert sub.wait() == 0
        a, b = f"cli/{qos}/a ".encode(), f"cli/{qos}/b ".encode()
        assert sub.output == (
            a + "Grüße\n".encode() + a + b"\n" + a + b"\x00\xff\n\n" + b + b"in\n" + b + b"1\n" + b + b"2\n"
        )
        assert sub.errors == ""


def test_many_lines_arrive_in_their_order(broker: Mosquitto, tmp_path: Path) -> None:
    where = ("-h", HOST, "-p", broker.port)
    lines = b"".join(b"%d\n" % i for i in range(3000))
    with running("sub", *where, "-t", "lines", "-q", 2, "-C", 3000, "-i", "liner", directory=tmp_path) as sub:
        subscribed(broker, "liner")
        assert headwater("pub", *where, "-t", "lines", "-q", 2, "-l", data=lines).returncode == 0
        assert sub.wait() == 0
        assert sub.output == lines


def test_a_message_is_written_before_it_is_acknowledged(
    broker: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without a buffer, every line would be written at once.
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    where = ("-h", HOST, "-p", broker.port)
    with running("sub", *where, "-t", "written", "-q", 1, "-i", "writer", directory=tmp_path) as sub:
        subscribed(broker, "writer")
        assert headwater("pub", *where, "-t", "written", "-q", 1, "-m", "first").returncode == 0
        deadline = time.monotonic() + 200
        while "Received PUBACK from writer " not in broker.log_text():
            assert time.monotonic() < deadline, broker.log_text()[-2000:]
            time.sleep(0.01)
        assert sub.output == b"first\n"


def test_json_has_text_or_hex(broker: Mosquitto, tmp_path: Path) -> None:
    where = ("-h", HOST, "-p", broker.port)
    assert headwater("pub", *where, "-t", "json/a", "-m", 'say "ä"', "-r", "-q", 1).returncode == 0
    assert headwater("pub", *where, "-t", "json/b", "-f", "-", "-r", data=b"\xff").returncode == 0
    shown = headwater("sub", *where, "-t", "json/#", "-C", 2, "--json", "-q", 1)
    assert shown.returncode == 0
    rows = {row["topic"]: row for row in map(json.loads, shown.stdout.splitlines())}
    first, second = rows["json/a"], rows["json/b"]
    assert abs(first.pop("time_ns") - time.time_ns()) < 60e9
    assert first.pop("packet_id") > 0
    assert first == {"topic": "json/a", "qos": 1, "retain": True, "dup": False, "payload": 'say "ä"'}
    assert second["payload_hex"] == "ff"
    assert second["packet_id"] is None
    assert "payload" not in second


def test_several_filters_and_a_kept_session(broker: Mosquitto) -> None:
    where = ("-h", HOST, "-p", broker.port)
    reader = ("sub", *where, "-i", "keeper", "-c", "-q", 1, "-t", "one", "-t", "two/+")
    assert headwater(*reader, "-W", 0.3).returncode == 0
    for topic in ("one", "two/x", "three"):
        assert headwater("pub", *where, "-t", topic, "-m", topic, "-q", 1).returncode == 0
    shown = headwater(*reader, "-C", 2)
    assert shown.returncode == 0
    assert shown.stdout == b"one\ntwo/x\n"


def test_too_few_messages_in_time_is_exit_code_4(broker: Mosquitto) -> None:
    where = ("-h", HOST, "-p", broker.port)
    assert headwater("sub", *where, "-t", "none", "-C", 1, "-W", 0.3).returncode == 4
    assert headwater("sub", *where, "-t", "none", "-W", 0.3).returncode == 0


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_sub_in_good_order(broker: Mosquitto, tmp_path: Path, how: signal.Signals) -> None:
    where = ("-h", HOST, "-p", broker.port)
    name = f"ended-{how}"
    with running("sub", *where, "-t", "x", "-i", name, directory=tmp_path) as sub:
        subscribed(broker, name)
        assert sub.end(how) == 0
        assert sub.errors == ""
    assert f"Received DISCONNECT from {name}\n" in broker.log_text()
    with running("sub", *where, "-t", "x", "-i", name, "-C", 1, directory=tmp_path) as sub:
        subscribed(broker, name, 2)
        assert sub.end(how) == 128 + how
        assert sub.errors == ""


def test_a_signal_ends_pub_that_waits_for_lines(broker: Mosquitto, tmp_path: Path) -> None:
    where = ("-h", HOST, "-p", broker.port)
    with running(
        "pub", *where, "-t", "x", "-l", "-i", "waiter", directory=tmp_path, stdin=subprocess.PIPE
    ) as pub:
        assert pub.process.stdin
        deadline = time.monotonic() + 200
        while "Sending CONNACK to waiter" not in broker.log_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert pub.end() == 128 + signal.SIGTERM
        pub.process.stdin.close()
        assert pub.errors == ""


def test_lines_are_sent_as_they_come(broker: Mosquitto, tmp_path: Path) -> None:
    where = ("-h", HOST, "-p", broker.port)
    with (
        running("sub", *where, "-t", "live", "-C", 1, "-i", "live", directory=tmp_path) as sub,
        running("pub", *where, "-t", "live", "-l", directory=tmp_path, stdin=subprocess.PIPE) as pub,
    ):
        subscribed(broker, "live")
        assert pub.process.stdin
        pub.process.stdin.write(b"now\n")
        pub.process.stdin.flush()
        assert sub.wait() == 0
        assert sub.output == b"now\n"
        pub.process.stdin.close()
        assert pub.wait() == 0


def test_no_connection_is_exit_code_3() -> None:
    port = free_port()
    for command in (("pub", "-t", "a", "-n"), ("sub", "-t", "a")):
        shown = headwater(*command, "-h", HOST, "-p", port)
        assert shown.returncode == 3
        assert shown.stderr == f"headwater: no connection to {HOST}:{port}: Connection refused\n".encode()


def test_a_connection_that_is_lost_is_exit_code_3(mosquitto: StartBroker, tmp_path: Path) -> None:
    broker = mosquitto()
    where = ("-h", HOST, "-p", broker.port, "-t", "a", "-i", "reader")
    with running("sub", *where, "--no-reconnect", directory=tmp_path) as sub:
        subscribed(broker, "reader")
        broker.kill()
        assert sub.wait() == 3
        assert sub.errors == "headwater: the connection was lost\n"


def test_a_broker_that_does_not_answer_is_exit_code_4(mosquitto: StartBroker) -> None:
    broker = mosquitto()
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        shown = headwater("pub", "-h", HOST, "-p", broker.port, "-t", "a", "-n", "--timeout", 0.3)
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    assert shown.returncode == 4
    assert b"did not answer CONNECT within 0.3 s" in shown.stderr


def test_passwords_from_everywhere_and_a_refusal_is_exit_code_1(
    mosquitto: StartBroker, tmp_path: Path
) -> None:
    users = tmp_path / "users"
    users.touch(0o700)
    subprocess.run(["mosquitto_passwd", "-b", users, "me", "päss word"], check=True, capture_output=True)
    broker = mosquitto(settings={"allow_anonymous": "false", "password_file": users})
    secret = tmp_path / "secret"
    secret.write_text("päss word\n")
    pub = ("pub", "-h", HOST, "-p", broker.port, "-t", "a", "-m", "x", "-q", 1)
    assert headwater(*pub, "-u", "me", "-P", "päss word").returncode == 0
    assert headwater(*pub, "-u", "me", "--password-file", secret).returncode == 0
    assert headwater(*pub, "-u", "me", HEADWATER_PASSWORD="päss word").returncode == 0
    for wrong in ((), ("-u", "me"), ("-u", "me", "-P", "pass")):
        shown = headwater(*pub, *wrong)
        assert shown.returncode == 1
        assert shown.stderr == b"headwater: the server refused the connection: not authorized\n"


def test_the_will_is_published_when_sub_is_killed(broker: Mosquitto, tmp_path: Path) -> None:
    where = ("-h", HOST, "-p", broker.port)
    will = ("--will-topic", "wills/me", "--will-payload", "gone", "--will-qos", 1, "--will-retain")
    with running(
        "sub", *where, "-t", "wills/me", "-C", 1, "-i", "watcher", "-v", directory=tmp_path
    ) as watcher:
        subscribed(broker, "watcher")
        with running("sub", *where, "-t", "x", "-i", "mortal", *will, directory=tmp_path) as sub:
            subscribed(broker, "mortal")
            sub.end(signal.SIGKILL)
        assert watcher.wait() == 0
        assert watcher.output == b"wills/me gone\n"
    shown = headwater("sub", *where, "-t", "wills/me", "-C", 1, "--json")
    assert json.loads(shown.stdout)["retain"] is True


def test_a_reader_that_has_seen_enough_is_no_error(broker: Mosquitto) -> None:
    where = ["-h", HOST, "-p", str(broker.port)]
    process = subprocess.Popen(
        [*HEADWATER, "sub", *where, "-t", "pipe", "-i", "piper"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout
    assert process.stderr
    subscribed(broker, "piper")
    assert headwater("pub", *where, "-t", "pipe", "-m", "x").returncode == 0
    assert process.stdout.readline() == b"x\n"
    # Though no other message comes.
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == b""
    process.stderr.close()
    deadline = time.monotonic() + 60
    while "Received DISCONNECT from piper" not in broker.log_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
