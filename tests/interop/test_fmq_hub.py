"""The core's FMQ client against the hub, over real sockets."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from headwater.errors import HeadwaterError
from headwater.fmq.client import Client
from headwater.fmq.frames import Frame
from headwater.fmq.manual_ack import acknowledge
from headwater.fmq.queues import consume, register, unregister
from headwater_host.hub.service import Hub
from tests.host.hub_client import until
from tests.interop.dialer import SocketDialer

MS = 60000


def port(hub: Hub) -> int:
    return int(hub.addresses[0][1])


def stored(hub: Hub, topic: str) -> list[bytes]:
    store = hub.broker.store
    queues = range(len(store.topics[topic].queues)) if topic in store.topics else ()
    return [message.payload for queue in queues for message in store.read(topic, queue, 0, 10**6)]


def online(client: Client) -> None:
    """Connect, again and again."""
    while True:
        try:
            client.connect()
            return
        except (OSError, HeadwaterError):
            continue


def flushed(client: Client) -> None:
    """Flush, over as many connections as it takes."""
    while True:
        try:
            client.flush(MS)
            return
        except HeadwaterError:
            online(client)


def wait_for(client: Client, true: Callable[[], object]) -> None:
    deadline = time.monotonic() + MS / 1000
    while not true():
        assert client.wait(20) == 0
        assert time.monotonic() < deadline


def published(number: int, name: str, cuts: list[tuple[int, int]]) -> SocketDialer:
    """A client that publishes at QoS 1 and 2, over connections that are cut."""
    dialer = SocketDialer(number, cuts)
    client = Client(dialer, name.encode(), clean_start=False)
    delivered: list[int] = []
    client.on_delivered = delivered.append
    online(client)
    topic = name.encode()
    payloads = [(b"one", 1), (b"two", 2), (b"three", 1)]
    handed = [client.publish(topic, payload, qos) for payload, qos in payloads]
    assert handed == [1, 2, 3]
    flushed(client)
    assert sorted(delivered) == handed
    client.disconnect()
    return dialer


async def test_what_is_published_over_cuts_at_every_byte_is_stored_once(hub: Hub) -> None:
    whole = (await asyncio.to_thread(published, port(hub), "whole", [])).opened[0]
    up, down = len(whole.sent), len(whole.received)
    names = ["whole"]
    for cuts in [(k, -1) for k in range(1, up)] + [(-1, k) for k in range(1, down)]:
        names.append(f"cut {cuts}")
        await asyncio.to_thread(published, port(hub), names[-1], [cuts])
    assert len(names) > 150
    for name in names:
        assert stored(hub, name) == [b"one", b"two", b"three"], name


async def test_the_will_is_published_unless_the_client_says_goodbye(hub: Hub) -> None:
    def live(name: bytes, politely: bool) -> None:
        client = Client(SocketDialer(port(hub)), name)
        assert client.session.set_will(b"wills", name, 1) == 0
        client.connect()
        if politely:
            client.disconnect()
        else:
            client.close()

    await asyncio.to_thread(live, b"polite", True)
    await asyncio.to_thread(live, b"rude", False)
    await until(lambda: stored(hub, "wills"))
    await until(lambda: not hub.broker.connections)
    assert stored(hub, "wills") == [b"rude"]


async def test_topics(hub: Hub) -> None:
    def work() -> list[tuple[int, int, bytes]]:
        client = Client(SocketDialer(port(hub)), b"board")
        answers: list[tuple[int, int, bytes]] = []
        client.on_answer = lambda n, code: answers.append((n, code, client.session.reason()))
        client.connect()
        session = client.session
        asked = [
            register(session, b"jobs", 3),
            register(session, b"jobs", 2),
            unregister(session, b"none"),
        ]
        wait_for(client, lambda: len(answers) == 3)
        client.disconnect()
        # An answer waits for the disk, and a refusal does not.
        return sorted(answers, key=lambda answer: asked.index(answer[0]))

    answers = await asyncio.to_thread(work)
    assert answers[0][1:] == (0, b"")
    assert all(code >= 0x80 and reason for _, code, reason in answers[1:])
    assert len(hub.broker.store.topics["jobs"].queues) == 3


async def test_a_session_is_kept(hub: Hub) -> None:
    def work() -> Any:
        client = Client(SocketDialer(port(hub)), b"board", clean_start=False)
        present = [client.connect(), client.connect()]
        assert client.session.process
        client.disconnect()
        return present

    assert await asyncio.to_thread(work) == [False, True]


async def test_messages_are_pushed_at_every_qos(hub: Hub) -> None:
    def work() -> None:
        listener = Client(SocketDialer(port(hub)), b"listener", clean_start=False)
        talker = Client(SocketDialer(port(hub)), b"talker")
        got: list[tuple[bytes, bytes, int]] = []
        answers: list[int] = []
        listener.on_message = lambda f: got.append((f.topic_bytes(), f.payload_bytes(), f.qos()))
        listener.on_answer = lambda n, code: answers.append(code)
        listener.connect()
        talker.connect()
        assert talker.publish(b"x/kept", b"old", 1, True) > 0
        talker.flush(MS)
        number = listener.subscribe(b"x/+")
        wait_for(listener, lambda: answers == [0] and len(got) == 1)
        for qos in (0, 1, 2):
            talker.publish(b"x/y", b"%d" % qos, qos)
        talker.flush(MS)
        wait_for(listener, lambda: len(got) == 4)
        assert got[0][:2] == (b"x/kept", b"old")
        assert sorted(got[1:]) == [(b"x/y", b"%d" % qos, qos) for qos in (0, 1, 2)]
        assert listener.session.strays == listener.session.duplicates == 0
        assert listener.unsubscribe(number) > 0
        wait_for(listener, lambda: answers == [0, 0])

    await asyncio.to_thread(work)


async def test_consumers_get_what_was_not_acknowledged_again(hub: Hub) -> None:
    def work() -> None:
        client = Client(SocketDialer(port(hub)), b"worker", clean_start=False)
        session = client.session
        got: list[bytes] = []
        receipts: list[int] = []
        answers: list[tuple[int, int]] = []

        def take(f: Frame) -> None:
            assert session.source == number
            got.append(f.payload_bytes())
            receipts.append(session.receipt)

        client.on_message = take
        client.on_answer = lambda n, code: answers.append((n, code))
        session.auto_ack = False
        client.connect()
        number = client.subscribe(b"jobs", group=b"workers")
        wait_for(client, lambda: answers == [(number, 0)])
        assert consume(session, number, 3, True) > 0
        for n in range(5):
            assert client.publish(b"jobs", b"%d" % n, 1) > 0
        wait_for(client, lambda: len(got) == 3)
        assert acknowledge(client.session, receipts[0]) == 0
        wait_for(client, lambda: len(got) == 4)
        assert got == [b"0", b"1", b"2", b"3"]
        # No more than the window are unacknowledged.
        client.close()
        assert client.connect() is True
        session.auto_ack = True
        assert consume(session, number, 3, True) > 0
        wait_for(client, lambda: len(got) == 8)
        assert sorted(got[4:]) == [b"1", b"2", b"3", b"4"]

    await asyncio.to_thread(work)
