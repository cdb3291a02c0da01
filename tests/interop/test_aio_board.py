"""The asyncio face on MicroPython, against mosquitto."""

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater import errors
from headwater.mqtt.client import Client
from tests.interop.dialer import SocketDialer
from tests.interop.test_keeper_board import WAIT_S, Listener, board, frozen, send
from tools.broker import Mosquitto
from tools.virtual_board import VirtualBoard

Start = Callable[..., Mosquitto]
#: Bytes of each operation on 64 bits; a board's are half. Idle, and publishing by the keeper, take nothing: what is
#: seen is the measuring.
HEAP = {"idle": 8, "poll": 8, "publish_0": 208, "publish_1": 608, "iterate": 928, "handle": 112}

pytestmark = [pytest.mark.needs_micropython, pytest.mark.needs_mosquitto]


def line(b: VirtualBoard, word: str, after: int = 0) -> str:
    """The rest of the line that begins with ``word``."""
    at = b.wait_for(word + " ", WAIT_S, after=after)
    b.wait_for("\n", WAIT_S, after=at)
    return b.log[b.log.rindex(word + " ") + len(word) + 1 :].splitlines()[0]


def test_a_program_that_notices_nothing_of_a_restart(mosquitto: Start) -> None:
    broker = mosquitto(persistence=True)
    listener = Listener(broker.port, b"numbers")
    with board("aio_client", broker.port, SCENARIO="steady") as b:
        at = b.wait_for("published 20", WAIT_S)
        send(broker.port, b"one", b"commands/one")
        broker.stop()
        broker.start()
        at = b.wait_for("online True", WAIT_S, after=at)
        at = b.wait_for("published", WAIT_S, after=at)
        send(broker.port, b"stop", b"commands/stop")
        n, _, got = line(b, "stopped", at).partition(" ")
    # What was acknowledged when the broker went down may come twice.
    assert list(dict.fromkeys(ast.literal_eval(got))) == [
        ("commands/one", b"one", 1),
        ("commands/stop", b"stop", 1),
    ]
    listener.collect(lambda got: len({m for _, m in got}) == int(n))
    assert [m for qos, m in listener.got if qos == 2] == [b"%d" % i for i in range(1, int(n), 2)]


def test_what_is_awaited_may_be_given_up(mosquitto: Start) -> None:
    broker = mosquitto(persistence=True)
    listener = Listener(broker.port, b"numbers")
    with board("aio_client", broker.port, SCENARIO="cancelled") as b:
        b.wait_for("freeze", WAIT_S)
        with frozen(broker):
            assert line(b, "given up") == "10 0 0"
        # Four were in the outbox when nobody waited any more, which has room for four.
        assert line(b, "delivered") == "4"
    listener.collect(lambda got: len(got) >= 4)
    assert [m for _, m in listener.got] == [b"late", b"0", b"1", b"2"]


def test_what_cannot_come_about_is_raised(mosquitto: Start) -> None:
    broker = mosquitto(settings={"allow_anonymous": "false"})
    with board("aio_client", broker.port, SCENARIO="refused") as b:
        e = errors
        assert ast.literal_eval(line(b, "codes")) == [
            *3 * [e.E_REFUSED],
            e.E_TOPIC,
            e.E_FILTER,
            e.E_UNKNOWN_ID,
            e.E_OFFLINE,
        ]


def test_a_slow_consumer_makes_the_server_wait(mosquitto: Start) -> None:
    broker = mosquitto()
    with board("aio_client", broker.port, SCENARIO="slow") as b:
        b.wait_for("ready", WAIT_S)
        flood(broker.port, 200, 1)
        assert line(b, "slow") == "200 True 1 0"


def flood(port: int, count: int, qos: int, topic: bytes = b"flood") -> None:
    """Publish messages of 50 bytes, whose payloads begin with their number."""
    client = Client(SocketDialer(port), b"flood", slots=200, window=20, outbox_size=20000, tx_size=4096)
    client.connect()
    for n in range(count):
        while client.publish(topic, b"%04d" % n + bytes(40), qos) < 0:
            assert client.wait(10) == 0
    client.flush(10000)
    client.disconnect()


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("v5", [False, True])
def test_a_program_that_publishes_for_each_message(mosquitto: Start, v5: bool, qos: int) -> None:
    """Acknowledgements, and CONNACK, arrive behind more messages than the queue holds."""
    broker = mosquitto(persistence=True)
    listener = Listener(broker.port, b"numbers")
    with board("aio_full", broker.port, SCENARIO="echo", V5=v5) as b:
        b.wait_for("ready", WAIT_S)
        flood(broker.port, 60, qos, b"commands")
        connections, _, got = line(b, "echoed").partition(" ")
    payloads = [b"%04d" % n + bytes(40) for n in range(60)]
    # At QoS 2 mosquitto 2.0.11 has more in flight than there are places for: those come on a further connection.
    assert connections == "2" or qos == 2
    assert ast.literal_eval(got) == payloads
    listener.collect(lambda got: len({m for _, m in got}) == 60)


def test_what_does_not_fit_at_qos_0_is_dropped(mosquitto: Start) -> None:
    broker = mosquitto()
    with board("aio_full", broker.port, SCENARIO="dropping", V5=False) as b:
        b.wait_for("ready", WAIT_S)
        flood(broker.port, 400, 0)
        assert line(b, "dropped") == "True 1"


def test_a_broker_that_sends_more_than_is_held(mosquitto: Start) -> None:
    broker = mosquitto(settings={"max_inflight_messages": 0})
    with board("aio_full", broker.port, SCENARIO="beyond", V5=False) as b:
        b.wait_for("ready", WAIT_S)
        flood(broker.port, 50, 1)
        send(broker.port, b"", b"flooded")
        assert line(b, "beyond") == f"{{{errors.E_RX_WINDOW}}} True True"


def test_the_connection_ends_once_for_what_is_lost_with_a_clean_session(mosquitto: Start) -> None:
    broker = mosquitto(settings={"max_inflight_messages": 0})
    with board("aio_full", broker.port, SCENARIO="anew", V5=False) as b:
        b.wait_for("ready", WAIT_S)
        flood(broker.port, 50, 1)
        assert line(b, "anew") == "2"


def test_a_message_that_the_broker_refuses(mosquitto: Start, tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.write_text("topic readwrite numbers\ntopic readwrite allowed/#\n")
    broker = mosquitto(settings={"acl_file": rules})
    with board("aio_refused", broker.port) as b:
        codes, seen, left = ast.literal_eval(line(b, "codes"))
    refused = (errors.E_REFUSED, "reason code 0x87")
    assert codes[:5] == [refused, 1, refused, refused, 1]
    assert codes[5:] == [[errors.E_REFUSED, 1], [1, errors.E_REFUSED]]
    assert seen == [0x87] * 5
    assert left == {}


def test_a_program_that_acknowledges_by_itself(mosquitto: Start) -> None:
    broker = mosquitto()
    with board("aio_client", broker.port, SCENARIO="acknowledged") as b:
        b.wait_for("ready", WAIT_S)
        for payload in (b"one", b"two"):
            send(broker.port, payload)
        assert ast.literal_eval(line(b, "acknowledged")) == [b"one", b"two", b"two"]


def test_a_handler_that_raises_ends_nothing(mosquitto: Start) -> None:
    broker = mosquitto()
    with board("aio_client", broker.port, SCENARIO="angry") as b:
        assert line(b, "calm") == "1"
        assert "said no" in b.log


def test_what_it_takes_from_the_heap(mosquitto: Start) -> None:
    broker = mosquitto()
    with board("aio_client", broker.port, SCENARIO="heap") as b:
        figures = ast.literal_eval(line(b, "heap"))
    assert figures.keys() == HEAP.keys()
    assert not {name: used for name, used in figures.items() if used > HEAP[name]}, figures
