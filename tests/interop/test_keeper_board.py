"""The keeper on MicroPython, over brokers that stop, die, fall silent, refuse, and cannot be reached."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from headwater import errors
from headwater.mqtt.client import Client
from tests.certificates import Pki
from tests.interop.dialer import SocketDialer
from tools import deploy, mpy
from tools.broker import Mosquitto, free_port
from tools.runtimes import run_unix
from tools.virtual_board import VirtualBoard

Start = Callable[..., Mosquitto]
DEVICE = Path(__file__).parent / "device"
WAIT_S = 200.0
NOTHING: Mapping[str, Path] = {}

pytestmark = [pytest.mark.needs_micropython, pytest.mark.needs_mosquitto]


def board(program: str, port: int, files: Mapping[str, Path] = NOTHING, **settings: object) -> VirtualBoard:
    lines = "".join(f"{name} = {value!r}\n" for name, value in {"PORT": port, **settings}.items())
    return VirtualBoard(
        main=(DEVICE / f"{program}.py").read_text(encoding="utf-8"),
        files={**deploy.package_files("mpy"), "settings.py": lines, **files},
        name=program.replace("_", ""),
    )


class Listener:
    """A session at the broker that is there before the board is, and takes what came when all is over."""

    def __init__(self, port: int, topic: bytes) -> None:
        self.got: list[tuple[int, bytes]] = []
        self.client = Client(
            SocketDialer(port), b"listener", clean_start=False, rx_size=4096, receive_window=200
        )
        self.client.on_message = lambda m: self.got.append((m.qos(), m.payload_bytes()))
        answers: list[int] = []
        self.client.session.on_answer = lambda packet_id, code: answers.append(code)
        self.client.connect()
        self.client.subscribe(topic, 2)
        while not answers:
            assert self.client.wait(10) == 0
        self.client.disconnect()

    def collect(self, enough: Callable[[list[tuple[int, bytes]]], bool]) -> None:
        self.client.connect()
        deadline = time.monotonic() + WAIT_S
        while not enough(self.got):
            assert self.client.wait(20) == 0
            assert time.monotonic() < deadline, len(self.got)
        assert self.client.wait(100) == 0
        self.client.disconnect()


def send(port: int, payload: bytes, topic: bytes = b"commands") -> None:
    client = Client(SocketDialer(port), b"commander", clean_start=True)
    client.connect()
    client.publish(topic, payload, 1)
    client.flush(5000)
    client.disconnect()


@contextmanager
def frozen(broker: Mosquitto) -> Iterator[None]:
    """The broker neither answers nor hangs up."""
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


@contextmanager
def unanswered() -> Iterator[int]:
    """A port where connecting neither succeeds nor fails: its queue is full, and nobody takes from it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        waiting = []
        try:
            for _ in range(4):
                waiting.append(socket.socket())
                waiting[-1].setblocking(False)
                waiting[-1].connect_ex(("127.0.0.1", port))
            yield port
        finally:
            for one in waiting:
                one.close()


def test_nothing_is_lost_over_a_broker_that_stops_and_falls_silent(mosquitto: Start) -> None:
    broker = mosquitto(persistence=True)
    listener = Listener(broker.port, b"numbers")
    with board("keeper", broker.port) as b:
        at = b.wait_for("published 20", WAIT_S)
        for _ in range(2):
            broker.stop()
            at = b.wait_for(f"offline {errors.E_CLOSED}", WAIT_S, after=at)
            at = b.wait_for("published", WAIT_S, after=at)
            broker.start()
            at = b.wait_for("online True", WAIT_S, after=at)
            at = b.wait_for("published", WAIT_S, after=at)
        with frozen(broker):
            # Half open: only the keep-alive can tell.
            at = b.wait_for(f"offline {errors.E_TIMEOUT}", WAIT_S, after=at)
        at = b.wait_for("online True", WAIT_S, after=at)
        send(broker.port, b"stop")
        at = b.wait_for("stopped 0 ", WAIT_S, after=at)
        b.wait_for("\n", WAIT_S, after=at)
        n = int(b.log[b.log.index("stopped 0 ") :].split()[2])
        assert b.log.count("answer") == 1
    listener.collect(lambda got: len({m for _, m in got}) == n)
    twice = [m for qos, m in listener.got if qos == 2]
    assert twice == [b"%d" % i for i in range(1, n, 2)], "at QoS 2 each once, in order"
    once = [m for qos, m in listener.got if qos == 1]
    assert list(dict.fromkeys(once)) == [b"%d" % i for i in range(0, n, 2)]


@pytest.mark.parametrize("version", ["3.1.1", "5.0"])
def test_a_broker_that_forgets_everything_is_subscribed_to_again(mosquitto: Start, version: str) -> None:
    broker = mosquitto()
    with board("keeper", broker.port, V5=version == "5.0") as b:
        at = b.wait_for("answer b'commands' 1", WAIT_S)
        send(broker.port, b"one")
        at = b.wait_for("command one", WAIT_S, after=at)
        broker.kill()
        at = b.wait_for("offline", WAIT_S, after=at)
        broker.start()
        at = b.wait_for("online False", WAIT_S, after=at)
        at = b.wait_for("answer b'commands' 1", WAIT_S, after=at)
        send(broker.port, b"stop")
        b.wait_for("stopped 0 ", WAIT_S, after=at)


def test_a_board_that_is_up_before_its_broker(mosquitto: Start) -> None:
    broker = mosquitto(persistence=True)
    listener = Listener(broker.port, b"numbers")
    broker.stop()
    with board("keeper", broker.port) as b:
        at = b.wait_for("published 40", WAIT_S)
        assert "online" not in b.log
        broker.start()
        at = b.wait_for("online False", WAIT_S, after=at)
        at = b.wait_for("answer b'commands' 1", WAIT_S, after=at)
        send(broker.port, b"stop")
        b.wait_for("stopped 0 ", WAIT_S, after=at)
    listener.collect(lambda got: len({m for _, m in got}) >= 40)


def test_a_server_that_does_not_answer_blocks_nothing_and_the_next_one_is_tried(mosquitto: Start) -> None:
    broker = mosquitto()
    with unanswered() as dead, board("keeper", broker.port, PORTS=[dead, free_port(), broker.port]) as b:
        at = b.wait_for("online False", WAIT_S)
        # It went on with its work meanwhile.
        assert "published 20" in b.log
        at = b.wait_for("answer b'commands' 1", WAIT_S, after=at)
        send(broker.port, b"stop")
        at = b.wait_for("stopped 0 ", WAIT_S, after=at)
        b.wait_for("\n", WAIT_S, after=at)
        polls = int(b.log[b.log.index("stopped 0 ") :].split()[3])
        assert polls > 20


def test_over_tls(mosquitto: Start, tmp_path: Path) -> None:
    """The handshake blocks nothing either, and a broker that restarts is found again."""
    pki = Pki(tmp_path)
    broker = mosquitto(settings=pki.listener(pki.server))
    with board("keeper", broker.port, {"ca.der": pki.ca.cert_der}, TLS=True) as b:
        at = b.wait_for("online False", WAIT_S)
        at = b.wait_for("published", WAIT_S, after=at)
        with frozen(broker):
            at = b.wait_for(f"offline {errors.E_TIMEOUT}", WAIT_S, after=at)
        at = b.wait_for("online", WAIT_S, after=at)
        broker.restart()
        at = b.wait_for("offline", WAIT_S, after=at)
        at = b.wait_for("online False", WAIT_S, after=at)
        b.wait_for("published", WAIT_S, after=at)


def test_a_name_with_several_addresses(mosquitto: Start) -> None:
    broker = mosquitto()
    path = [mpy.compiled(mpy.SDK), mpy.compiled(mpy.BOARD_PORT)]
    with unanswered() as dead:
        ports = [str(port) for port in (free_port(), dead, broker.port)]
        done = run_unix(DEVICE / "addresses.py", *ports, path=path)
    assert done.stdout.splitlines() == ["[111, 110] True", "True 3"], done.stdout


@pytest.mark.parametrize("version", ["3.1.1", "5.0"])
def test_bad_credentials_end_it_when_that_is_asked_for(mosquitto: Start, version: str) -> None:
    broker = mosquitto(settings={"allow_anonymous": "false"})
    with board("keeper", broker.port, USER=b"who", PASSWORD=b"knows", V5=version == "5.0") as b:
        b.wait_for(f"gave up {errors.E_REFUSED} {5 if version == '3.1.1' else 0x87}", WAIT_S)
        assert "knows" not in broker.log_text()
