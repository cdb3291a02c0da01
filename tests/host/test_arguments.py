"""Arguments of the host's clients: what is plainly meant is accepted, the rest is refused at once, with a sentence."""

import asyncio
from typing import Any

import pytest

from headwater_host import blocking
from headwater_host.aio import Client, MqttArgumentError, Reconnect, Will
from headwater_host.fmq import client as fmq
from headwater_host.session import HostServerSession
from headwater_host.subscribing import filters_of
from tests.host.mqtt_server import HOST, serve, speak


@pytest.mark.parametrize(
    "options, text",
    [
        ({"will": "t"}, r"will='t': a Will, such as Will\(topic, payload\)"),
        ({"timeout": None}, "timeout=None: a number of seconds above 0"),
        ({"timeout": "5"}, "timeout='5': a number of seconds above 0"),
        ({"timeout": 0}, "timeout=0: "),
        ({"reconnect": 5}, r"reconnect=5: True, or a Reconnect such as Reconnect\(attempts=5\)"),
        ({"reconnect": "yes"}, "reconnect='yes': "),
        ({"port": 70000}, "port 70000: a whole number from 1 to 65535"),
        ({"port": 0}, "port 0: "),
        ({"port": "1883"}, "port '1883': "),
        ({"more_servers": [("b", 70000)]}, "port 70000: "),
        ({"more_servers": "b"}, "more_servers='b': a list"),
        ({"more_servers": [5]}, "more_servers: 5 is not a host"),
        (
            {"max_queued_outgoing_messages": 0},
            "max_queued_outgoing_messages=0: a whole number from 1 to 65280",
        ),
        ({"max_queued_outgoing_messages": "9"}, "max_queued_outgoing_messages='9': "),
        ({"max_inflight_messages": 0}, "max_inflight_messages=0: "),
        ({"max_queued_incoming_messages": "many"}, "max_queued_incoming_messages='many': "),
        ({"when_full": "wait"}, "when_full"),
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [Client, blocking.Client, fmq.Client])
def test_what_is_refused_by_each_client(make: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(MqttArgumentError, match=text):
        make("nowhere", **options)


@pytest.mark.parametrize("host", [None, "", 5, b"host"], ids=str)
@pytest.mark.parametrize("make", [Client, blocking.Client, fmq.Client])
def test_a_host_is_a_name_or_an_address(make: Any, host: Any) -> None:
    with pytest.raises(MqttArgumentError, match="a name or an address"):
        make(host)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"protocol": 6}, r"protocol=6: one of '3\.1', '3\.1\.1', '5\.0'"),
        ({"protocol": True}, "protocol=True: "),
        ({"protocol": []}, r"protocol=\[\]: "),
        ({"keepalive": "60"}, "keepalive='60': a whole number from 0 to 65535"),
        ({"keepalive": 65536}, "keepalive=65536: "),
        ({"subscriptions": 5}, "5: a topic filter, or several"),
        ({"subscriptions": [5]}, "5: a topic filter, or a pair of a filter and its QoS"),
        ({"subscriptions": [("a", 3)]}, "QoS is 0, 1 or 2, not 3"),
        ({"identifier": 5}, "the identifier is text or bytes, not int"),
        ({"username": 5}, "the username is text or bytes, not int"),
        ({"will": Will("t", "x", "1")}, "a will's QoS is 0, 1 or 2"),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_what_is_refused_of_mqtt(options: dict[str, Any], text: str) -> None:
    with pytest.raises(MqttArgumentError, match=text):
        Client("nowhere", **options)


@pytest.mark.parametrize(
    "options",
    [{"first": "1"}, {"first": None}, {"attempts": 1.5}, {"attempts": "3"}, {"refused": "no"}],
    ids=str,
)
def test_what_is_refused_of_reconnecting(options: dict[str, Any]) -> None:
    with pytest.raises(MqttArgumentError, match=f"{next(iter(options))}="):
        Reconnect(**options)


@pytest.mark.parametrize(
    "given, name",
    [(5, "5.0"), (5.0, "5.0"), ("5", "5.0"), (4, "3.1.1"), (3, "3.1"), (3.1, "3.1"), ("3.1.1", "3.1.1")],
    ids=str,
)
def test_versions_by_what_they_are_called(given: Any, name: str) -> None:
    assert Client("nowhere", protocol=given).protocol == name


@pytest.mark.parametrize(
    "given, meant",
    [
        ("a", [("a", 2)]),
        (("a", 1), [("a", 1)]),
        (["a", "b"], [("a", 2), ("b", 2)]),
        (("a", "b"), [("a", 2), ("b", 2)]),
        ([("a", 1), ("b", 0)], [("a", 1), ("b", 0)]),
        ((("a", 1), ("b", 0)), [("a", 1), ("b", 0)]),
        (["a", ("b", 0)], [("a", 2), ("b", 0)]),
        ({"a": 1, "b": 0}, [("a", 1), ("b", 0)]),
        (["a"], [("a", 2)]),
        ([], []),
    ],
    ids=str,
)
def test_filters_by_what_they_plainly_mean(given: Any, meant: list[tuple[str, int]]) -> None:
    assert filters_of(given, 2) == meant


@pytest.mark.parametrize("given", [None, 5, b"a", [None], [("a", 1, 2)], [["a", 1, 2]], [b"a"]], ids=str)
def test_filters_that_are_none(given: Any) -> None:
    with pytest.raises(MqttArgumentError, match="a topic filter"):
        filters_of(given)


def test_filters_that_are_asked_for() -> None:
    asked: list[tuple[bytes, int]] = []

    def prepare(session: HostServerSession) -> None:
        def on_subscribe(packet: Any, qos: int) -> int:
            asked.append((packet.topic_bytes(), qos))
            return qos

        session.on_subscribe = on_subscribe

    async def scenario() -> None:
        async with (
            serve(prepare) as server,
            Client(HOST, server.port, subscriptions=["first/#"], more_servers=["other"]) as client,
        ):
            assert await client.subscribe(("a", 1)) == (1,)
            assert await client.subscribe(["b", "c"], 2) == (2, 2)
            with pytest.raises(MqttArgumentError, match="a topic filter"):
                await client.subscribe(5)  # type: ignore[arg-type]
            await client.unsubscribe(["a", "b"])
            with pytest.raises(MqttArgumentError, match="a topic filter"):
                await client.unsubscribe(5)  # type: ignore[arg-type]
        assert asked == [(b"first/#", 0), (b"a", 1), (b"b", 2), (b"c", 2)]

    asyncio.run(scenario())


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    "properties, text",
    [
        (
            {"topic_alias": 1},
            "holds for one connection, so the client chooses it: Client.outgoing_topic_aliases=N",
        ),
        ({"subscription_identifier": [1]}, "a client sends no subscription_identifier"),
    ],
    ids=str,
)
def test_properties_that_a_program_cannot_give(qos: int, properties: dict[str, Any], text: str) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly((await reader.readexactly(2))[1])
        writer.write(bytes.fromhex("2003000000"))
        await reader.read()

    async def scenario() -> None:
        async with speak(talk) as port, Client(HOST, port, protocol="5.0") as client:
            with pytest.raises(MqttArgumentError, match=f"not published: .*{text}"):
                await client.publish("t", b"x", qos, properties=properties)

    asyncio.run(scenario())
