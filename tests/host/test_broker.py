"""The broker starter: a broker that accepts, survives a restart on its port, and leaves no process behind."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.broker import Amqtt, Broker, BrokerError, Mosquitto, start_broker

# MQTT 3.1.1, 3.1: clean session, keep-alive 60 s, client identifier "t"; and the same with a session that is kept.
CONNECT = bytes.fromhex("100d 0004 4d515454 04 02 003c 0001 74")
CONNECT_KEPT = bytes.fromhex("100d 0004 4d515454 04 00 003c 0001 74")
ACCEPTED = bytes.fromhex("2002 0000")
ACCEPTED_SESSION_PRESENT = bytes.fromhex("2002 0100")
REFUSED_NOT_AUTHORISED = bytes.fromhex("2002 0005")
# 3.8: packet id 1, filter "a", QoS 1.
SUBSCRIBE = bytes.fromhex("8206 0001 0001 61 01")
SUBSCRIBED = bytes.fromhex("9003 0001 01")
DISCONNECT = bytes.fromhex("e000")


def exchange(broker: Broker, *steps: tuple[bytes, bytes]) -> None:
    """Send each request and compare the answer, byte for byte, on one connection; then disconnect."""
    with socket.create_connection((broker.host, broker.port), timeout=10) as peer:
        for request, expected in steps:
            peer.sendall(request)
            answer = b""
            while len(answer) < len(expected):
                more = peer.recv(len(expected) - len(answer))
                assert more, f"the broker closed after {answer.hex()}"
                answer += more
            assert answer == expected
        peer.sendall(DISCONNECT)
        assert peer.recv(1) == b""


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def refuses(broker: Broker) -> bool:
    try:
        socket.create_connection((broker.host, broker.port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def test_mosquitto_accepts_a_client(mosquitto: Callable[..., Mosquitto]) -> None:
    with mosquitto() as broker:
        exchange(broker, (CONNECT, ACCEPTED), (SUBSCRIBE, SUBSCRIBED))
        assert "New client connected" in broker.log_text()


def test_two_brokers_have_two_ports(mosquitto: Callable[..., Mosquitto]) -> None:
    with mosquitto() as one, mosquitto() as two:
        assert one.port != two.port
        exchange(one, (CONNECT, ACCEPTED))
        exchange(two, (CONNECT, ACCEPTED))


@pytest.mark.parametrize("end", [Broker.stop, Broker.kill])
def test_stop_and_kill_leave_no_process_and_no_port(
    mosquitto: Callable[..., Mosquitto], end: Callable[[Broker], None]
) -> None:
    broker = mosquitto()
    pid = broker.pid
    assert is_alive(pid)
    end(broker)
    assert not is_alive(pid)
    assert broker.pid == 0
    assert refuses(broker)
    end(broker)  # a second time is harmless


def test_restart_keeps_the_port_and_forgets_the_session_without_persistence(
    mosquitto: Callable[..., Mosquitto],
) -> None:
    with mosquitto() as broker:
        port = broker.port
        exchange(broker, (CONNECT_KEPT, ACCEPTED), (SUBSCRIBE, SUBSCRIBED))
        exchange(broker, (CONNECT_KEPT, ACCEPTED_SESSION_PRESENT))
        broker.restart()
        assert broker.port == port
        exchange(broker, (CONNECT_KEPT, ACCEPTED))


def test_persistence_keeps_the_session_over_a_stop(mosquitto: Callable[..., Mosquitto]) -> None:
    with mosquitto(persistence=True) as broker:
        exchange(broker, (CONNECT_KEPT, ACCEPTED), (SUBSCRIBE, SUBSCRIBED))
        broker.restart()
        exchange(broker, (CONNECT_KEPT, ACCEPTED_SESSION_PRESENT))
        assert (broker.directory / "mosquitto.db").exists()


def test_settings_reach_the_broker(mosquitto: Callable[..., Mosquitto]) -> None:
    with (
        mosquitto(settings={"allow_anonymous": "false"}) as broker,
        socket.create_connection((broker.host, broker.port), timeout=10) as peer,
    ):
        peer.sendall(CONNECT)
        assert peer.recv(16) == REFUSED_NOT_AUTHORISED


def test_a_bad_setting_is_an_error_with_the_broker_s_words(mosquitto: Callable[..., Mosquitto]) -> None:
    with pytest.raises(BrokerError, match="no_such_setting"):
        mosquitto(settings={"no_such_setting": 1})


def test_a_port_in_use_is_an_error(mosquitto: Callable[..., Mosquitto]) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        with pytest.raises(BrokerError, match="ddress already in use"):
            mosquitto(port=holder.getsockname()[1])


def test_starting_twice_is_an_error(mosquitto: Callable[..., Mosquitto]) -> None:
    with mosquitto() as broker, pytest.raises(BrokerError, match="already runs"):
        broker.start()


def test_amqtt_accepts_restarts_and_leaves_no_process(tmp_path: Path) -> None:
    with Amqtt(tmp_path) as broker:
        port, pid = broker.port, broker.pid
        exchange(broker, (CONNECT, ACCEPTED), (SUBSCRIBE, SUBSCRIBED))
        broker.kill()
        assert not is_alive(pid)
        broker.restart()
        assert broker.port == port
        exchange(broker, (CONNECT, ACCEPTED))
        pid = broker.pid
    assert not is_alive(pid)
    assert refuses(broker)


@pytest.mark.needs_mosquitto
def test_mosquitto_is_preferred(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        assert broker.name == "mosquitto"


def test_amqtt_is_the_fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.toolchain.find", lambda name: None)
    with start_broker(tmp_path) as broker:
        assert broker.name == "amqtt"
        exchange(broker, (CONNECT, ACCEPTED))
    with pytest.raises(BrokerError, match="apt-get install mosquitto"):
        Mosquitto(tmp_path)
