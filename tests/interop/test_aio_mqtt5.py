"""The asyncio client at MQTT 3.1 and 5.0 against a real mosquitto."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import E_LIMIT, E_TOO_LARGE
from headwater.mqtt import spec5
from headwater_host.client.mqtt import Client, Limits, SessionOptions, Version, Will
from headwater_host.client.mqtt.versions import VERSIONS
from headwater_host.errors import (
    ArgumentError,
    ConnectRefusedError,
    DisconnectedError,
    NotConnectedError,
    PublishError,
    SubscribeError,
)
from tests.host.client_options import grouped
from tests.host.mqtt_server import speak
from tests.waiting import take
from tools.broker import HOST, Broker, Mosquitto

pytestmark = pytest.mark.needs_mosquitto
StartBroker = Callable[..., Mosquitto]


@pytest.fixture(scope="module")
def broker(mosquitto: StartBroker) -> Mosquitto:
    """One broker for the tests that leave it as it was."""
    return mosquitto()


def client5(broker: Broker, **options: Any) -> Client:
    return Client(HOST, broker.port, protocol="5.0", **options)


@pytest.mark.parametrize("protocol", VERSIONS)
async def test_messages_of_every_version(broker: Mosquitto, protocol: Version) -> None:
    async with Client(HOST, broker.port, protocol=protocol, identifier="v") as client:
        assert await client.subscribe("versions/#", 2) == (2,)
        payloads = [b"", b"x", bytes(70_000), *(bytes([n]) * n for n in range(100, 140))]
        for payload in payloads:
            await asyncio.gather(*(client.publish(f"versions/{qos}", payload, qos) for qos in (0, 1, 2)))
        got = await take(client, 3 * len(payloads))
        for qos in (0, 1, 2):
            mine = [m for m in got if m.qos == qos]
            assert [m.payload for m in mine] == payloads
            assert {str(m.topic) for m in mine} == {f"versions/{qos}"}
            assert all(m.properties == {} for m in mine)
        await client.unsubscribe("versions/#")


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_properties_of_messages(broker: Mosquitto, qos: int) -> None:
    said = {
        "payload_format_indicator": 1,
        "content_type": "text/plain; charset=utf-8",
        "response_topic": "answers/°",
        "correlation_data": bytes(range(256)),
        "user_property": [("a", "1"), ("b", ""), ("a", "2")],
    }

    async with client5(broker) as client:
        await client.subscribe("props", qos, properties={"subscription_identifier": 268_435_455})
        await client.publish("props", "°", qos, properties=said | {"message_expiry_interval": 100})
        await client.publish("props", "bare", qos)
        await client.post("props", "posted", qos, properties={"content_type": "x"})
        first, second, third = await take(client, 3)
    assert first.payload == "°".encode()
    heard = dict(first.properties)
    assert 0 < heard.pop("message_expiry_interval") <= 100
    assert heard.pop("subscription_identifier") == [268_435_455]
    assert heard == said
    assert (second.payload, dict(second.properties)) == (
        b"bare",
        {"subscription_identifier": [268_435_455]},
    )
    assert third.properties["content_type"] == "x"


async def test_options_of_subscriptions(broker: Mosquitto) -> None:
    async with client5(broker) as client, client5(broker) as other:
        await other.publish("opt/kept", b"kept", 1, retain=True)
        never = 2 << spec5.RETAIN_HANDLING_SHIFT
        await client.subscribe("opt/#", 1, options=spec5.NO_LOCAL | spec5.RETAIN_AS_PUBLISHED | never)
        await client.publish("opt/mine", b"mine", 1)
        await other.publish("opt/kept", b"again", 1, retain=True)
        (message,) = await take(client)
        assert (message.payload, message.retain) == (b"again", True)
        await other.publish("opt/kept", b"", 1, retain=True)
        with pytest.raises(ArgumentError):
            await client.publish("opt", b"", 0, properties={"subscription_identifier": 1})
        with pytest.raises(ArgumentError):
            await client.publish("opt", b"", 1, properties={"topic_alias": 1})


async def test_shared_subscriptions(broker: Mosquitto) -> None:
    async with client5(broker) as one, client5(broker) as two, client5(broker) as sender:
        for client in (one, two):
            await client.subscribe("$share/group/jobs", 1)
        for n in range(20):
            await sender.publish("jobs", str(n), 1)
        for _ in range(200):
            if len(one.messages) + len(two.messages) == 20:
                break
            await asyncio.sleep(0.05)
        assert len(one.messages) == len(two.messages) == 10


async def test_will_with_properties(broker: Mosquitto) -> None:
    will = Will("wills", b"gone", 1, properties={"content_type": "w", "will_delay_interval": 1})

    async with client5(broker) as watcher:
        await watcher.subscribe("wills", 1)
        async with client5(broker, identifier="dying", will=will, session=SessionOptions(expiry=60)) as dying:
            assert dying.connection is not None
            dying.connection.drop(0)
        (message,) = await take(watcher)
        assert (message.payload, dict(message.properties)) == (b"gone", {"content_type": "w"})


async def test_the_session_expiry_decides_what_is_kept(broker: Mosquitto) -> None:
    async def present(**options: Any) -> bool:
        async with client5(broker, identifier="expiry", **options) as client:
            return client.session_present

    # Clean Start, and then kept for a while.
    assert not await present(session=SessionOptions(clean_start=True, expiry=100))
    # Kept so far, and gone with this connection.
    assert await present(session=SessionOptions(clean_start=False, expiry=0))
    assert not await present(session=SessionOptions(clean_start=False))
    assert await present(session=SessionOptions(clean_start=False))
    assert not await present()


async def test_goodbyes_with_properties(broker: Mosquitto) -> None:
    """UNSUBSCRIBE's, and DISCONNECT's: here, how long the session is kept from then on."""

    client = client5(broker, identifier="leaver", session=SessionOptions(clean_start=False, expiry=100))
    async with client:
        await client.subscribe("leave")
        await client.unsubscribe("leave", properties={"user_property": [("a", "b")]})
        with pytest.raises(ArgumentError):
            await client.unsubscribe("leave", properties={"content_type": "x"})
    client.disconnect_properties = {"session_expiry_interval": 0, "user_property": [("a", "b")]}
    async with client:
        assert client.session_present
    async with client:
        assert not client.session_present

    for protocol, wrong in (
        ("5.0", {"content_type": "x"}),
        ("5.0", {"session_expiry_interval": 5}),
        ("3.1.1", {"user_property": [("a", "b")]}),
    ):
        other = Client(HOST, broker.port, protocol=protocol)
        other.disconnect_properties = wrong
        with pytest.raises(ArgumentError):
            async with other:
                pass
        assert not other.connected


def test_what_the_server_says_of_itself(mosquitto: StartBroker) -> None:
    settings = {"retain_available": "false", "max_packet_size": 500, "max_keepalive": 30}
    with mosquitto(settings=settings) as broker:

        async def main() -> None:
            async with client5(broker, identifier="") as client:
                said = client.server_properties
                assert (said["retain_available"], said["maximum_packet_size"]) == (0, 500)
                assert said["server_keep_alive"] == client.session.keep_alive == 30
                assert client.session.client_id == said["assigned_client_identifier"].encode() != b""
                for qos in (0, 1):
                    with pytest.raises(ArgumentError) as caught:
                        await client.publish("t", b"", qos, retain=True)
                    assert caught.value.code == E_LIMIT
                    with pytest.raises(ArgumentError) as caught:
                        await client.publish("t", bytes(500), qos)
                    assert caught.value.code == E_TOO_LARGE
                    await client.publish("t", bytes(480), qos)

        asyncio.run(main())


@pytest.mark.parametrize("qos", [1, 2])
def test_a_refused_message_says_why(mosquitto: StartBroker, tmp_path: Path, qos: int) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic readwrite open/#\n")
    acl.chmod(0o644)
    with mosquitto(settings={"acl_file": acl}) as broker:

        async def main() -> None:
            async with client5(broker) as client:
                await client.publish("open/door", b"", qos)
                with pytest.raises(PublishError, match="not authorized") as refused:
                    await client.publish("closed", b"", qos)
                assert refused.value.reason_code == spec5.NOT_AUTHORIZED
                # Nothing of it is left. (This broker ends the connection with the next packet, whatever it is.)
                assert client.session.outbox.count == 0

        asyncio.run(main())


def test_a_refused_connection_says_why(mosquitto: StartBroker) -> None:
    with mosquitto(settings={"allow_anonymous": "false"}) as broker:

        async def main() -> None:
            with pytest.raises(ConnectRefusedError, match="not authorized") as refused:
                async with client5(broker):
                    pass
            assert refused.value.return_code == spec5.NOT_AUTHORIZED

        asyncio.run(main())


async def test_reasons_that_mosquitto_does_not_give() -> None:
    """A server that refuses a subscription and a message, lives on, and then says why it ends the connection."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def packet() -> bytes:
            head = await reader.readexactly(2)
            return head + await reader.readexactly(head[1])

        await packet()
        writer.write(b"\x20\x03\x00\x00\x00")
        asked = await packet()
        writer.write(b"\x90\x04" + asked[2:4] + b"\x00\xa2")
        for answer in (0x40, 0x50, 0x40):
            message = await packet()
            at = 4 + message[3]
            writer.write(
                bytes((answer, 3)) + message[at : at + 2] + bytes([0 if message[-1] == 49 else 0x97])
            )
        writer.write(b"\xe0\x0b\x9c\x09\x1f\x00\x06go off")
        await reader.read()

    async with speak(talk) as port, Client(HOST, port, protocol="5.0") as client:
        with pytest.raises(SubscribeError, match="wildcard") as not_granted:
            await client.subscribe("a/#")
        assert not_granted.value.reason_code == spec5.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
        for qos in (1, 2):
            with pytest.raises(PublishError, match="quota exceeded"):
                await client.publish("t", b"0", qos)
        await client.publish("t", b"1", 1)
        with pytest.raises(DisconnectedError, match=r"use another server.*go off") as ended:
            await take(client)
        assert ended.value.reason_code == spec5.USE_ANOTHER_SERVER
        with pytest.raises(NotConnectedError):
            await client.publish("t")


async def test_what_needs_5_0_is_refused_elsewhere(broker: Mosquitto) -> None:
    protocols: tuple[Version, ...] = ("3.1", "3.1.1")
    for protocol in protocols:
        for options in (
            {"expiry": 1},
            {"properties": {"receive_maximum": 5}},
            {"will": Will("t", properties={"content_type": "x"})},
            {"password": "secret"},
        ):
            with pytest.raises(ArgumentError) as caught:
                Client(HOST, broker.port, protocol=protocol, **grouped(options))
            assert "secret" not in str(caught.value)
    wrong: tuple[Any, ...] = ("4.0", "", "MQTT", "6")
    for protocol in wrong:
        with pytest.raises(ArgumentError, match=r"3\.1\.1"):
            Client(HOST, broker.port, protocol=protocol)
    for properties in (
        {"no_such": 1},
        {"content_type": "x"},
        {"receive_maximum": 0},
        {"user_property": [("a",)]},
        {"authentication_method": "\0"},
        {"authentication_data": "text"},
    ):
        with pytest.raises(ArgumentError):
            client5(broker, session=SessionOptions(properties=properties))

    async with Client(HOST, broker.port) as client:
        for qos in (0, 1):
            with pytest.raises(ArgumentError, match=r"5\.0"):
                await client.publish("t", b"", qos, properties={"content_type": "x"})
        with pytest.raises(ArgumentError, match=r"5\.0"):
            await client.subscribe("t", options=spec5.NO_LOCAL)
        with pytest.raises(ArgumentError, match=r"5\.0"):
            await client.subscribe("t", properties={"subscription_identifier": 1})


def test_an_unacknowledged_message_keeps_its_properties(mosquitto: StartBroker) -> None:
    with mosquitto(persistence=True) as broker:

        async def main() -> None:
            client = client5(broker, identifier="again", session=SessionOptions(clean_start=False))
            async with client5(
                broker, identifier="reader", session=SessionOptions(clean_start=False)
            ) as reader:
                await reader.subscribe("again", 2)
                async with client:
                    broker.kill()
                    with pytest.raises(NotConnectedError):
                        await client.publish("again", b"1", 2, properties={"user_property": [("k", "v")]})
                broker.restart()
            async with client5(
                broker, identifier="reader", session=SessionOptions(clean_start=False)
            ) as reader:
                await reader.subscribe("again", 2)
                async with client:
                    await client.drain()
                    (message,) = await take(reader)
            assert dict(message.properties) == {"user_property": [("k", "v")]}

        asyncio.run(main())


@pytest.mark.parametrize("qos", [1, 2])
def test_a_broker_that_exceeds_the_receive_maximum_can_be_borne(mosquitto: StartBroker, qos: int) -> None:
    """Over several connections, each of which ends with messages that are not acknowledged."""
    most, count, each = 10, 120, 30

    async def main(broker: Broker) -> None:
        options = {
            "identifier": "slow",
            "session": SessionOptions(clean_start=False, auto_ack=False),
        }
        limits = Limits(receive_maximum=most)
        client = client5(broker, limits=replace(limits, receive_limit=65535), **options)
        got: list[int] = []
        async with client:
            await client.subscribe("quota", qos)
        async with client5(broker, identifier="sender") as sender:
            for n in range(count):
                await sender.publish("quota", str(n), qos)
        while len(got) < count:
            async with client:
                if not got:
                    await take_nothing(client)
                    assert len(client.messages) == most
                for _ in range(min(each, count - len(got))):
                    (message,) = await take(client)
                    got.append(int(message.payload))
                    await message.ack()
                await take_nothing(client)
                assert client.connection is not None
                client.connection.drop(0)
        assert got == list(range(count))

    async def take_nothing(client: Client) -> None:
        """Behind the answer to this, everything that the broker had to send at once has come."""
        await client.unsubscribe("nothing")

    with mosquitto() as broker:
        asyncio.run(main(broker))


def test_a_goodbye_that_is_too_large_is_said_without_its_texts(mosquitto: StartBroker) -> None:
    """So the will is not published; nor is it when the properties of the goodbye are none."""
    with mosquitto(settings={"max_packet_size": 200}) as broker:

        async def main() -> None:
            async with client5(broker, identifier="watcher") as watcher:
                await watcher.subscribe("wills", 1)
                will = Will("wills", b"gone", 1)
                options = {
                    "identifier": "leaver",
                    "session": SessionOptions(clean_start=False, expiry=100),
                    "will": will,
                }
                client = client5(broker, **options)
                for properties in (
                    {"reason_string": "r" * 500, "session_expiry_interval": 200},
                    {"user_property": [("k", "v" * 100)] * 3},
                ):
                    client.disconnect_properties = properties
                    async with client:
                        pass
                wrongs: dict[Version, Any] = {
                    "5.0": {"content_type": "x"},
                    "3.1.1": {"user_property": [("a", "b")]},
                }
                for protocol, wrong in wrongs.items():
                    other = Client(HOST, broker.port, protocol=protocol, identifier="other", will=will)
                    other.disconnect_properties = wrong
                    with pytest.raises(ArgumentError):
                        async with other:
                            pass
                async with client5(
                    broker, identifier="leaver", session=SessionOptions(clean_start=False)
                ) as again:
                    assert again.session_present
                    # A will would have come before.
                    await again.publish("wills", b"alive", 1)
                (message,) = await take(watcher)
                assert message.payload == b"alive"

        asyncio.run(main())


async def test_a_message_that_nobody_has_subscribed_to_says_so(broker: Broker) -> None:
    """At QoS 1; this broker does not at QoS 2."""
    none, qos = spec5.NO_MATCHING_SUBSCRIBERS, 1

    async with client5(broker) as client:
        await client.subscribe("heard", qos)
        assert await client.publish("unheard", b"1", qos) == none
        assert await client.publish("heard", b"2", qos) == 0
        assert await client.publish("unheard", b"3", 0) == 0
        posted = [await client.post(topic, b"4", qos) for topic in ("unheard", "heard") * 20]
        await client.drain()
        assert [delivery.reason_code for delivery in posted] == [none, 0] * 20
        assert all(delivery.error is None for delivery in posted)
    async with Client(HOST, broker.port) as other:
        assert await other.publish("unheard", b"5", qos) == 0
