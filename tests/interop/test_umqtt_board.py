"""Programs that were written for umqtt, on headwater: the calls they make, on MicroPython, against mosquitto."""

import ast
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.certificates import Pki
from tests.interop.test_keeper_board import WAIT_S, Listener, board, frozen, send, unanswered
from tools import deploy
from tools.broker import Mosquitto, free_port
from tools.virtual_board import VirtualBoard

Start = Callable[..., Mosquitto]

pytestmark = [pytest.mark.needs_micropython, pytest.mark.needs_mosquitto]


def program(scenario: str, port: int, **settings: object) -> VirtualBoard:
    return board("umqtt_calls", port, SCENARIO=scenario, **settings)  # type: ignore[arg-type]  # none is ``files``


def test_publish_once(mosquitto: Start) -> None:
    broker = mosquitto(settings={"queue_qos0_messages": "true"})
    listener = Listener(broker.port, b"foo_topic")
    with program("publish_once", broker.port) as b:
        b.wait_for("connected 0", WAIT_S)
        b.wait_for("published", WAIT_S)
    listener.collect(lambda got: len(got) == 5)
    assert sorted(listener.got) == [(0, b"at 0"), (0, b"hello"), (0, b"text"), (1, b"at 1"), (2, b"at 2")]


def test_wait_for_one_message_after_the_other(mosquitto: Start) -> None:
    broker = mosquitto()
    with program("wait_loop", broker.port) as b:
        at = b.wait_for("subscribed", WAIT_S)
        for n in range(6):
            send(broker.port, b"%d" % n, b"foo_topic")
        b.wait_for("done", WAIT_S, after=at)
        assert [line for line in b.log.splitlines() if line.startswith("(")] == [
            f"(b'foo_topic', b'{n}')" for n in range(6)
        ]


def test_look_for_messages_now_and_then(mosquitto: Start) -> None:
    broker = mosquitto()
    with program("check_loop", broker.port) as b:
        at = b.wait_for("subscribed", WAIT_S)
        for n in range(6):
            send(broker.port, b"%d" % n, b"foo_topic")
        b.wait_for(f"done {[b'%d' % n for n in range(6)]}", WAIT_S, after=at)


def test_a_callback_that_switches_something_and_answers(mosquitto: Start) -> None:
    broker = mosquitto()
    listener = Listener(broker.port, b"led/state")
    with program("led", broker.port) as b:
        at = b.wait_for("subscribed", WAIT_S)
        for word in (b"on", b"off", b"toggle", b"toggle"):
            send(broker.port, word, b"led")
        b.wait_for("done", WAIT_S, after=at)
        assert b.log.count("led True") == b.log.count("led False") == 2
    listener.collect(lambda got: len(got) == 4)
    assert listener.got == [(1, b"0"), (1, b"1"), (1, b"0"), (1, b"1")]


@pytest.mark.parametrize("kept", [True, False])
def test_a_robust_listener(mosquitto: Start, kept: bool) -> None:
    broker = mosquitto(persistence=kept)
    with program("robust", broker.port) as b:
        at = b.wait_for("subscribed", WAIT_S)
        for n in range(2):
            send(broker.port, b"%d" % n, b"foo_topic")
            at = b.wait_for(f"got b'{n}'", WAIT_S, after=at)
            broker.stop()
            at = b.wait_for("mqtt reconnect: OSError", WAIT_S, after=at)
            answered = broker.log_text().count("Sending SUBACK to umqtt_client")
            broker.start()
            deadline = time.monotonic() + WAIT_S
            # Where the session was lost it subscribes again; until then nobody would get a message.
            while not kept and broker.log_text().count("Sending SUBACK to umqtt_client") == answered:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        send(broker.port, b"stop", b"foo_topic")
        b.wait_for("got b'stop'", WAIT_S, after=at)


def test_a_robust_publisher(mosquitto: Start) -> None:
    broker = mosquitto(persistence=True)
    listener = Listener(broker.port, b"numbers")
    with program("robust_publisher", broker.port) as b:
        at = b.wait_for("published", WAIT_S)
        for _ in range(3):
            broker.stop()
            broker.start()
            at = b.wait_for("published", WAIT_S, after=at)
            at = b.wait_for("published", WAIT_S, after=at)
        send(broker.port, b"stop", b"stop")
        at = b.wait_for("stopped ", WAIT_S, after=at)
        b.wait_for("\n", WAIT_S, after=at)
        n = int(b.log[b.log.rindex("stopped ") + 8 :].split()[0])
    listener.collect(lambda got: len({m for _, m in got}) == n)
    assert [m for qos, m in listener.got if qos == 2] == [b"%d" % i for i in range(1, n, 2)]


def test_what_goes_wrong(mosquitto: Start, tmp_path: Path) -> None:
    users = tmp_path / "users"
    subprocess.run(["mosquitto_passwd", "-b", "-c", users, "me", "known"], check=True, capture_output=True)
    users.chmod(0o600)
    broker = mosquitto(settings={"allow_anonymous": "false", "password_file": users})
    with unanswered() as dead, program("failures", broker.port, DEAD=dead, CLOSED=free_port()) as b:
        b.wait_for("done", WAIT_S)
        said = b.log.splitlines()
    assert said[: said.index("done")] == [
        "OSError 107",
        "OSError 107",
        "MQTTException 5",
        "OSError 110",
        "OSError 111",
        "MQTTException -3",
        "0",
        "MQTTException -1",
        "MQTTException -23",
        "MQTTException -2",
        "MQTTException -3",
        "nothing",
    ]


def test_nothing_hangs(mosquitto: Start) -> None:
    broker = mosquitto(persistence=True)
    listener = Listener(broker.port, b"t")
    with program("frozen", broker.port) as b:
        b.wait_for("freeze", WAIT_S)
        with frozen(broker):
            at = b.wait_for("errors ", WAIT_S)
            b.wait_for("\n", WAIT_S, after=at)
        b.wait_for("done", WAIT_S, after=at)
        assert ast.literal_eval(b.log[b.log.index("errors ") + 7 :].splitlines()[0]) == [110, 110, 110]
    listener.collect(lambda got: len({m for _, m in got}) == 2)
    assert [m for _, m in listener.got] == [b"late", b"later"]


def test_a_will_and_large_messages(mosquitto: Start) -> None:
    broker = mosquitto()
    listener = Listener(broker.port, b"will")
    with program("will_and_large", broker.port) as b:
        at = b.wait_for("large ", WAIT_S)
        b.wait_for("done", WAIT_S, after=at)
        sizes = ast.literal_eval(b.log[b.log.index("large ") + 6 :].splitlines()[0])
    assert sorted(sizes[:3]) == [4000, 4001, 4002]
    # Once more after the callback has raised; and once more if the board had no PUBACK yet.
    assert sizes[3:] in ([9, 9], [9, 9, 9])
    # When it connected again without a word, and when its socket was closed.
    listener.collect(lambda got: len(got) == 2)
    assert listener.got == [(1, b"gone")] * 2


def test_over_tls(mosquitto: Start, tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    broker = mosquitto(settings=pki.listener(pki.server))
    source = (Path(__file__).parent / "device" / "umqtt_calls.py").read_text(encoding="utf-8")
    files: dict[str, str | bytes | Path] = {
        **deploy.package_files("mpy"),
        "settings.py": f"PORT = {broker.port}\nSCENARIO = 'secure'\n",
        "ca.der": pki.ca.cert_der,
    }
    with VirtualBoard(main=source, files=files, name="secure", heap="512K") as b:
        b.wait_for("done", WAIT_S)
        assert b.log.count("secure") == 4
