"""The core's client and the asyncio client against RabbitMQ's MQTT plugin, whose broker is no relative of mosquitto.

It speaks 3.1 and 3.1.1, and knows QoS 0 and 1 only: a subscription at QoS 2 is granted as QoS 1. What is published at
QoS 2 it answers with PUBACK, which is against 4.3.3; see ``test_a_message_at_qos_2_is_not_understood``.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headwater import errors
from headwater.errors import HeadwaterError
from headwater.streaming import stream_to
from headwater_host.client.mqtt import Client, SessionOptions, Will
from headwater_host.errors import NotConnectedError, ProtocolError
from tests.host.command import running
from tests.host.gateway_peers import recorded
from tests.interop.test_mqtt_client import Gather, Peer
from tests.waiting import take
from tools.broker import HOST
from tools.rabbitmq import RabbitMq

pytestmark = pytest.mark.needs_rabbitmq
WAIT_S = 200.0
RECONNECT_S = 60.0


class Board(Peer):
    """As ``Peer``, with the QoS that this broker grants."""

    version = "3.1.1"

    def subscribe(self, topic_filter: bytes, qos: int) -> None:
        packet_id = self.client.subscribe(topic_filter, qos)
        assert packet_id > 0
        self.until(lambda: packet_id in self.answers, "SUBACK")
        assert self.answers[packet_id] == min(qos, 1)


class OldBoard(Board):
    """At MQTT 3.1."""

    version = "3.1"


Connected = Callable[..., Board]


@pytest.fixture
def board(rabbitmq: RabbitMq) -> Iterator[Connected]:
    made: list[Board] = []

    def connected(name: str, kind: type[Board] = Board, **options: object) -> Board:
        made.append(kind(rabbitmq, name, **options))  # type: ignore[arg-type]
        made[-1].client.connect()
        return made[-1]

    yield connected
    for one in made:
        one.client.close()


# ---- the core's client -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Board, OldBoard], ids=["3.1.1", "3.1"])
def test_qos_0_and_1_both_ways(board: Connected, kind: type[Board]) -> None:
    # RabbitMQ may still be busy with the end of who had the same client id, and takes the new one for the old.
    one, other = board("one " + kind.version, kind), board("other " + kind.version, kind)
    name = kind.version.encode()
    for qos in (0, 1, 2):
        other.subscribe(b"ways/%s/%d" % (name, qos), qos)
    for qos in (0, 1):
        for granted in (0, 1, 2):
            for n in range(5):
                payload = bytes([qos, granted, n])
                assert one.client.publish(b"ways/%s/%d" % (name, granted), payload, qos) >= 0
    one.client.flush(5000)
    assert one.delivered
    other.until(lambda: len(other.got) == 30)
    for topic, payload, qos, retain, dup in other.got:
        assert topic.endswith(str(payload[1]))
        assert (qos, retain, dup) == (min(payload[0], payload[1]), False, False)
    for granted in (0, 1, 2):
        for qos in (0, 1):
            # It keeps the order within a QoS and a subscription.
            came = [m[1] for m in other.got if m[1][:2] == bytes([qos, granted])]
            assert came == [bytes([qos, granted, n]) for n in range(5)]


def test_a_message_at_qos_2_is_not_understood(board: Connected) -> None:
    """PUBACK instead of PUBREC is an error that names itself; the message stays unacknowledged."""
    one = board("twice", clean_start=False)
    assert one.client.publish(b"twice", b"?", 2) > 0
    deadline = time.monotonic() + WAIT_S
    while one.client.wait(10) == 0:
        assert time.monotonic() < deadline
    assert one.client.status == errors.E_ACK_KIND
    assert one.client.session.outbox.count == 1


def test_retained(board: Connected) -> None:
    one = board("keeper")
    assert one.client.publish(b"kept/a", b"first", 1, True) > 0
    assert one.client.publish(b"kept/a", b"last", 1, True) > 0
    one.client.flush(5000)
    late = board("late")
    late.subscribe(b"kept/a", 1)
    late.until(lambda: bool(late.got), "the retained message")
    assert late.got == [("kept/a", b"last", 1, True, False)]
    assert one.client.publish(b"kept/a", b"", 1, True) > 0
    one.client.flush(5000)
    latest = board("latest")
    latest.subscribe(b"kept/a", 1)
    latest.settle(300)
    assert latest.got == []


@pytest.mark.parametrize("how", ["close", "disconnect"])
def test_will(board: Connected, how: str) -> None:
    witness, mortal = board("witness-" + how), board("mortal-" + how)
    topic = b"wills/" + how.encode()
    witness.subscribe(b"wills/" + how.encode(), 1)
    mortal.client.close()
    assert mortal.client.session.set_will(topic, b"\x00gone", 1) == 0
    mortal.client.connect()
    if how == "close":
        mortal.client.close()
        witness.until(lambda: bool(witness.got), "the will")
        assert witness.got == [(topic.decode(), b"\x00gone", 1, False, False)]
    else:
        mortal.client.disconnect()
        witness.settle(300)
        assert witness.got == []


@pytest.mark.parametrize("kind", [Board, OldBoard], ids=["3.1.1", "3.1"])
def test_a_session_is_kept_while_its_client_is_away(board: Connected, kind: type[Board]) -> None:
    name = kind.version
    listener = board("away" + name, kind, clean_start=False)
    assert listener.client.session_present is False
    topic = b"away/" + name.encode()
    listener.subscribe(topic, 1)
    listener.client.disconnect()
    talker = board("talker-" + kind.version, kind)
    for n in range(10):
        assert talker.client.publish(topic, bytes([n]), 1) > 0
    talker.client.flush(5000)
    assert listener.client.connect() is listener.knows(True)
    listener.until(lambda: len(listener.got) == 10)
    listener.settle()
    assert listener.numbers(1) == list(range(10))
    listener.client.session.clean_start = True
    assert listener.client.connect() is False


def test_a_board_that_was_reset_finds_its_session_and_publishes(board: Connected) -> None:
    """Its outbox was in memory. It must not release ids with PUBREL: behind that, this broker says nothing any more."""
    board("reset", clean_start=False).subscribe(b"reset", 1)
    one = board("reset", clean_start=False)
    assert one.client.session_present
    assert one.client.publish(b"reset", b"after it", 1) > 0
    one.client.flush(5000)
    one.until(lambda: one.payloads() == [b"after it"])


@pytest.mark.parametrize(
    "pattern, matching",
    [
        (b"wild/+/x", {"wild/a/x", "wild/b/x"}),
        (b"wild/#", {"wild", "wild/a", "wild/a/x", "wild/b/x", "wild/b/x/y"}),
        (b"+/a", {"wild/a"}),
        (b"wild/+/+/#", {"wild/a/x", "wild/b/x", "wild/b/x/y"}),
    ],
)
def test_wildcards(board: Connected, pattern: bytes, matching: set[str]) -> None:
    listener, talker = board("listener"), board("speaker")
    listener.subscribe(pattern, 1)
    topics = ("wild", "wild/a", "wild/a/x", "wild/b/x", "wild/b/x/y", "tame/a/x")
    for topic in topics:
        assert talker.client.publish(topic.encode(), b"", 1) > 0
    talker.client.flush(5000)
    listener.until(lambda: len(listener.got) >= len(matching))
    listener.settle(200)
    assert sorted(m[0] for m in listener.got) == sorted(matching)


def test_unsubscribe(board: Connected) -> None:
    one = board("leaver")
    one.subscribe(b"left/x", 1)
    packet_id = one.client.unsubscribe(b"left/x")
    one.until(lambda: packet_id in one.answers, "UNSUBACK")
    one.client.publish(b"left/x", b"", 1)
    one.client.flush(5000)
    one.settle(200)
    assert one.got == []


def test_a_message_larger_than_the_buffers(board: Connected) -> None:
    payload = os.urandom(300_000)
    listener, skipping = board("gathering"), board("skipping")
    talker = board("feeder", outbox_size=400_000)
    sink = Gather()
    stream_to(listener.client.session, sink)
    for one in (listener, skipping):
        one.subscribe(b"large/x", 1)
    for message in (payload, b"small"):
        assert talker.client.publish(b"large/x", message, 1) > 0
    talker.client.flush(10000)
    for one in (listener, skipping):
        one.until(lambda one=one: bool(one.got))  # type: ignore[misc]
        assert one.got == [("large/x", b"small", 1, False, False)]
    assert sink.whole == [payload]
    assert skipping.client.session.skipped == 1


def test_links_that_are_cut_lose_nothing(rabbitmq: RabbitMq) -> None:
    """Cut inside CONNECT, inside a message, before and inside an acknowledgement: each arrives at least once."""
    listener = Board(rabbitmq, "cut-listener")
    listener.client.connect()
    listener.subscribe(b"cut", 1)
    cuts = [(5, -1), (-1, 2), (40, -1), (-1, 6), (60, -1), (-1, 8), (90, -1)]
    talker = Board(rabbitmq, "cut-talker", list(cuts), clean_start=False, slots=32, outbox_size=4096)
    for n in range(20):
        assert talker.client.publish(b"cut", bytes([n]), 1) > 0
    for _ in cuts:
        with contextlib.suppress(HeadwaterError):
            talker.client.connect()
            talker.client.flush(5000)
    talker.client.connect()
    talker.client.flush(10000)
    assert len(talker.dialer.opened) == len(cuts) + 1
    listener.until(lambda: len(set(listener.payloads())) == 20)
    assert list(dict.fromkeys(listener.numbers(1))) == list(range(20))
    for one in (listener, talker):
        one.client.disconnect()


# ---- the asyncio client ----------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def client(broker: RabbitMq, **options: object) -> AsyncIterator[Client]:
    async with Client(HOST, broker.port, timeout=WAIT_S, **options) as one:  # type: ignore[arg-type]
        yield one


async def silent(one: Client) -> None:
    """Nothing more has come: all that the broker was told before it has handled."""
    await one.unsubscribe("barrier/none")
    assert len(one.messages) == 0


@pytest.mark.parametrize("qos", [0, 1])
async def test_aio_messages_come_as_they_were_sent(rabbitmq: RabbitMq, qos: int) -> None:
    topic = f"plain/{qos}/ä€𝄞"
    async with client(rabbitmq) as one:
        assert await one.subscribe(f"plain/{qos}/#", qos=2) == (1,)
        sent = [b"", "Grüße".encode(), b"\x00\xff", *(b"%d" % n for n in range(500))]
        for payload in sent:
            await one.publish(topic, payload, qos=qos)
        came = await take(one, len(sent))
        assert [m.payload for m in came] == sent
        assert {(m.topic, m.qos, m.retain, m.dup) for m in came} == {(topic, qos, False, False)}
        await silent(one)


async def test_aio_a_message_at_qos_2_is_an_error_of_the_server(rabbitmq: RabbitMq) -> None:
    with pytest.raises(ProtocolError, match="wrong_acknowledgement"):
        async with client(rabbitmq) as one:
            await one.publish("twice", "?", qos=2)


@pytest.mark.parametrize("protocol", ["3.1", "3.1.1"])
async def test_aio_a_message_at_qos_2_arrives_when_puback_may_end_it(
    rabbitmq: RabbitMq, protocol: str
) -> None:
    topic = f"qos-2/{protocol}"
    options = {
        "identifier": f"qos-2-{protocol}",
        "protocol": protocol,
    }
    session = SessionOptions(puback_ends_qos_2=True)
    # The second time with a session that the server has kept: it must not be asked to release ids.
    for again in (False, True):
        async with client(rabbitmq, session=replace(session, clean_start=False), **options) as one:
            assert one.session_present == (again and protocol == "3.1.1")
            assert await one.subscribe(topic, qos=2) == (1,)
            for n in range(50):
                await one.post(topic, n, qos=n % 3)
            await one.drain()
            await one.publish(topic, 50, qos=2)
            came = await take(one, 51)
            assert [int(m.payload) for m in came if m.qos] == [n for n in range(51) if n % 3]
            assert one.session.outbox.count == one.session.in_flight == 0
            await silent(one)
    async with client(rabbitmq, session=session, **options):
        pass


async def test_aio_large_messages_pass_whole(rabbitmq: RabbitMq) -> None:
    async with client(rabbitmq) as one:
        await one.subscribe("big", qos=1)
        large = [os.urandom(n) for n in (127, 128, 16383, 16384, 65536, 3_000_000, 10, 2_097_153)]
        await asyncio.gather(*(one.publish("big", data, qos=1) for data in large))
        assert [m.payload for m in await take(one, len(large))] == large


async def test_aio_retained_and_will(rabbitmq: RabbitMq) -> None:
    async with client(rabbitmq) as one:
        await one.publish("aio/kept", "this", qos=1, retain=True)
        await one.subscribe("aio/kept", qos=1)
        (message,) = await take(one, 1)
        assert (message.payload, message.retain) == (b"this", True)
        await one.publish("aio/kept", b"", qos=1, retain=True)
        assert [m.payload for m in await take(one, 1)] == [b""]
        await one.subscribe("aio/will", qos=1)
        will = Will("aio/will", "gone", qos=1)
        async with client(rabbitmq, will=will):
            pass
        with contextlib.suppress(NotConnectedError):
            async with client(rabbitmq, will=will) as mortal:
                connection = mortal.connection
                assert connection is not None
                assert connection.transport is not None
                connection.transport.abort()
                await mortal.messages.__anext__()
        (message,) = await take(one, 1)
        assert (message.topic, message.payload, message.retain) == ("aio/will", b"gone", False)
        await silent(one)


async def test_aio_a_session_is_kept(rabbitmq: RabbitMq) -> None:
    kept = Client(
        HOST,
        rabbitmq.port,
        identifier="aio-kept",
        session=SessionOptions(clean_start=False),
        timeout=WAIT_S,
    )
    async with kept:
        assert not kept.session_present
        await kept.subscribe("aio/away", qos=1)
    async with client(rabbitmq) as other:
        for n in range(20):
            await other.publish("aio/away", n, qos=1)
    async with kept:
        assert kept.session_present
        assert [int(m.payload) for m in await take(kept, 20)] == list(range(20))
        await kept.unsubscribe("aio/away")
    async with client(rabbitmq, identifier="aio-kept") as clean:
        assert not clean.session_present


# ---- the broker ends and comes again ---------------------------------------------------------------------------------


def test_a_broker_that_restarts(rabbitmq: RabbitMq) -> None:
    """Messages before, while it is away and after: each at least once, in their order; it keeps the session."""
    listener = Board(rabbitmq, "restart-listener", clean_start=False)
    talker = Board(rabbitmq, "restart-talker", clean_start=False, slots=32, outbox_size=4096)
    for one in (listener, talker):
        one.client.connect()
    listener.subscribe(b"restart/x", 1)
    for n in range(10):
        assert talker.client.publish(b"restart/x", bytes([n]), 1) > 0
    talker.client.flush(5000)
    listener.client.close()
    rabbitmq.stop()
    deadline = time.monotonic() + WAIT_S
    while talker.client.wait(10) == 0:
        assert time.monotonic() < deadline
    for n in range(10, 20):
        assert talker.client.publish(b"restart/x", bytes([n]), 1) > 0
    rabbitmq.start()
    for one in (listener, talker):
        deadline = time.monotonic() + RECONNECT_S
        while not one.client.connected:
            with contextlib.suppress(HeadwaterError):
                assert one.client.connect() is (one is listener)
            assert time.monotonic() < deadline
    talker.client.flush(10000)
    listener.until(lambda: len(set(listener.payloads())) == 20)
    assert list(dict.fromkeys(listener.numbers(1))) == list(range(20))
    for one in (listener, talker):
        one.client.session.clean_start = True
        one.client.connect()
        one.client.disconnect()


async def test_the_gateway_speaks_3_1_1_to_it(rabbitmq: RabbitMq, tmp_path: Path) -> None:
    """RabbitMQ 3.10 does not know MQTT 5.0."""

    arguments = ("gateway", "--capture", tmp_path / "log", "--broker", f"{HOST}:{rabbitmq.port}")
    with running(*arguments, "--topic", "gateway/#:1", directory=tmp_path) as command:
        command.wait_for("session, MQTT 3.1.1")
        command.wait_for("subscribed")
        async with Client(HOST, rabbitmq.port, timeout=WAIT_S) as client:
            for number in range(100):
                await client.publish("gateway/x", number, 1)
        deadline = time.monotonic() + WAIT_S
        while (
            not (log := list((tmp_path / "log").glob("segment-*")))
            or len(list(recorded(tmp_path / "log"))) < 100
        ):
            assert time.monotonic() < deadline, log
            time.sleep(0.05)
        assert command.end() == 0
        assert command.errors.count("trying 3.1.1") == 1
    assert [int(message.payload) for message in recorded(tmp_path / "log")] == list(range(100))
