"""Topic aliases that a server gives out, and the asyncio client that has announced how many it takes."""

import asyncio
from typing import Any

import pytest

from headwater import errors
from headwater.mqtt.server import ServerSession
from headwater.mqtt.server5 import ServerV5
from headwater.mqtt.spec5 import TOPIC_ALIAS_MAXIMUM
from headwater.mqtt.topic_aliases import OutgoingAliases
from headwater_host.client.mqtt import Client, Limits, Message
from headwater_host.client.rxbuf import GrowingRxBuf
from headwater_host.errors import ArgumentError, ProtocolError
from tests.host.client_options import grouped
from tests.host.command import Running
from tests.host.mqtt_server import HOST, after_connect, packet, serve, speak
from tests.waiting import PATIENCE_S, take

TOPICS = [b"short", b"x" * 300, b"/".join([b"long"] * 4000), "ä€𝄞".encode()]
CONNACK = b"\x20\x03\x00\x00\x00"


def server_session() -> ServerSession:
    return ServerSession(
        rx_size=4096,
        tx_size=1 << 17,
        version=ServerV5(aliases_out=OutgoingAliases(3)),
        rx=GrowingRxBuf(),
        response_ms=10000,
    )


def client_of(port: int, reconnect: bool | None = None, **limits: Any) -> Client:
    return Client(
        HOST, port, protocol="5.0", limits=Limits(**limits), reconnect=reconnect, timeout=PATIENCE_S
    )


def alias(message: Message) -> Any:
    return message.properties.get("topic_alias")


async def test_a_server_that_gives_topics_numbers() -> None:
    async with serve(make=server_session) as server:
        client = Client(HOST, server.port, protocol="5.0", limits=Limits(topic_aliases=2))
        for _ in range(2):
            # They do not outlive their connection.
            async with client:
                session, connection = server.sessions[-1], server.connections[-1]
                assert session.v5.limits[TOPIC_ALIAS_MAXIMUM] == 2
                sent = []
                for n in range(40):
                    topic = TOPICS[n % len(TOPICS)]
                    # Some beyond what the receive buffer holds at first.
                    payload = b"%d" % n + b"." * (n % 7 * 15000)
                    assert session.publish(topic, payload) == 0
                    connection.flush()
                    sent.append((topic.decode(), payload))
                came = await take(client, 40)
                assert [(str(m.topic), m.payload) for m in came] == sent
                assert [alias(m) for m in came[:8]] == [1, 2, None, None] * 2


async def test_without_it_none_is_announced_and_none_is_taken() -> None:
    async with serve(make=server_session) as server, Client(HOST, server.port, protocol="5.0") as client:
        assert server.sessions[0].v5.limits[TOPIC_ALIAS_MAXIMUM] == 0
        for _ in range(2):
            assert server.sessions[0].publish(b"t", b"x") == 0
        server.connections[0].flush()
        assert [alias(m) for m in await take(client, 2)] == [None, None]


@pytest.mark.parametrize(
    "packets",
    [
        bytes.fromhex("3006 0000 03 230001"),  # a number that has no topic yet
        bytes.fromhex("3007 000161 03 230000"),  # 0
        bytes.fromhex("3007 000161 03 230003"),  # more than were announced
        bytes.fromhex("3007 000161 03 230001 3006 0000 03 230002"),
    ],
)
async def test_numbers_that_there_are_not_end_the_connection(packets: bytes) -> None:
    async with speak(after_connect(CONNACK + packets)) as port:
        client = client_of(port, topic_aliases=2)
        with pytest.raises(ProtocolError, match=r"alias|value"):
            async with client:
                await take(client, 3)


async def test_a_number_does_not_outlive_its_connection() -> None:
    talks = iter(("3008 000161 03 230001 31", "3007 0000 03 230001 32"))

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(200)
        writer.write(CONNACK + bytes.fromhex(next(talks)))
        await reader.read()

    async with speak(talk) as port:
        client = client_of(port, topic_aliases=2)
        async with client:
            assert [str(m.topic) for m in await take(client, 1)] == ["a"]
        with pytest.raises(ProtocolError, match="alias"):
            async with client:
                await take(client, 1)


async def test_a_number_gets_another_topic_and_one_of_a_large_message_is_noted() -> None:
    """In pieces of one byte, so that the buffer's rest is moved in between."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(200)
        large = b"\x00\x02bb\x03\x23\x00\x02" + bytes(100_000)
        head = bytes((0x30, len(large) & 127 | 128, len(large) >> 7 & 127 | 128, len(large) >> 14))
        parts = (
            "3008 000161 03 230001 31",
            "3007 0000 03 230001 32",
            "3008 000163 03 230001 33",
            "320a 000164 0007 03 230001 34",
            "3409 0000 0008 03 230001 35",
            "3007 0000 03 230001 36",
        )
        writer.write(CONNACK)
        for part in parts:
            for byte in bytes.fromhex(part):
                writer.write(bytes((byte,)))
                await writer.drain()
        writer.write(head + large + bytes.fromhex("3007 0000 03 230002 37"))
        await reader.read()

    async with (
        speak(talk) as port,
        client_of(port, topic_aliases=2) as client,
    ):
        came = await take(client, 8)
        shown = ["a1", "a2", "c3", "d4", "d5", "d6", "bb\0", "bb7"]
        assert [str(m.topic) + m.payload[:1].decode() for m in came] == shown


class Recorded:
    """What a server that takes two numbers, and packets of 60 bytes, is sent over each connection, as hexadecimal."""

    CONNACK = bytes.fromhex("2010 0000 0d 220002 270000003c 2100142a01".replace(" ", ""))

    def __init__(self) -> None:
        self.packets: list[list[str]] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await packet(reader)
        writer.write(self.CONNACK)
        self.packets.append([])
        while (data := b"".join(await packet(reader)))[0] >> 4 != 14:
            self.packets[-1].append(data.hex())
            if data[0] & 6:
                at = 4 + data[3]
                writer.write(b"\x40\x02" + data[at : at + 2])


async def test_our_topics_get_numbers_as_far_as_the_server_takes_them() -> None:
    recorded = Recorded()
    async with speak(recorded) as port:
        client = client_of(port, outgoing_topic_aliases=9)
        async with client:
            for topic in "aabcabc":
                await client.publish(topic, "1")
            # With the number it is too large for the server, without it not.
            await client.publish("d" * 50, "12")
            await client.publish("a", "2", 1)
            await client.publish("a", "3", properties={"content_type": "t"})
            await client.publish("a", "4", retain=True)
        async with client:
            await client.publish("b", "5")
            await client.publish("a", "6")
    first, second = recorded.packets
    assert first == [
        "3008000161032300 0131".replace(" ", ""),
        "30070000032300 0131".replace(" ", ""),
        "3008000162032300 0231".replace(" ", ""),
        "30050001630031",
        "30070000032300 0131".replace(" ", ""),
        "30070000032300 0231".replace(" ", ""),
        "30050001630031",
        "30370032" + "64" * 50 + "003132",
        "3207000161" + "0001" + "0032",
        "300b000007230001" + "03000174" + "33",
        "310700000323000134",
    ]
    # They do not outlive their connection.
    assert second == ["300800016203230001" + "35", "300800016103230002" + "36"]


async def test_numbers_that_wait_for_a_connection_are_those_of_the_connection() -> None:
    recorded = Recorded()
    async with (
        speak(recorded) as port,
        client_of(port, reconnect=True, outgoing_topic_aliases=1, when_full="drop_oldest") as client,
    ):
        await client.publish("a", "1")
        assert client.connection is not None
        client.connection.drop(errors.E_TIMEOUT)
        waiting = [asyncio.create_task(client.publish("b", n)) for n in "23"]
        await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S)
        await client.publish("c", "4", 1)
    first, second = recorded.packets
    assert first == ["30080001610323000131"]
    assert second == ["30080001620323000132", "300700000323000133", "32070001630001" + "0034"]


def test_options_are_checked() -> None:
    for options in (
        {"topic_aliases": 5},
        {"topic_aliases": -1, "protocol": "5.0"},
        {"topic_aliases": 65536, "protocol": "5.0"},
        {"outgoing_topic_aliases": 5},
        {"outgoing_topic_aliases": 65536, "protocol": "5.0"},
    ):
        with pytest.raises(ArgumentError, match="aliases"):
            Client(HOST, 1, **grouped(options))


async def test_sub_shows_the_number(tmp_path: Any) -> None:
    async with serve(make=server_session) as server:
        granted = asyncio.Event()

        def on_subscribe(p: object, qos: int) -> int:
            granted.set()
            return qos

        server.prepare = lambda session: setattr(session, "on_subscribe", on_subscribe)
        sub = Running(
            ["sub", "-h", HOST, "-p", str(server.port), "-V", "5", "-t", "#", "-C", "2", "-F", "%t %A %p",
             "-D", "connect", "topic-alias-maximum", "4"],
            tmp_path,
        )  # fmt: skip
        try:
            await asyncio.wait_for(granted.wait(), PATIENCE_S)
            for payload in (b"one", b"two"):
                assert server.sessions[0].publish(b"t", payload) == 0
            server.connections[0].flush()
            assert await asyncio.to_thread(sub.wait, PATIENCE_S) == 0
            assert sub.output == b"t 1 one\nt 1 two\n"
        finally:
            sub.process.kill()
            sub.process.wait()
