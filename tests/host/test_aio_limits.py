"""What the asyncio client announces to a server of MQTT 5.0, and what it does when the server does not keep to it."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from headwater.mqtt import spec5
from headwater.mqtt.v5 import ClientV5
from headwater_host.client.connection import take as take_all
from headwater_host.client.mqtt import Client, Limits, Message, Reconnect, SessionOptions
from headwater_host.client.mqtt.session import HostClientSession
from headwater_host.client.session_config import SessionConfig
from headwater_host.errors import (
    ArgumentError,
    ConnectRefusedError,
    DisconnectedError,
    ProtocolError,
    PublishError,
)
from tests.host.client_options import grouped
from tests.host.mqtt_server import HOST, after_connect, packet, serve, speak
from tests.rows import each_row
from tests.waiting import PATIENCE_S, until

CONNACK5 = b"\x20\x03\x00\x00\x00"
Options = dict[str, Any]
FIVE: Options = {"protocol": "5.0"}


def publish(packet_id: int, qos: int, payload: bytes = b"") -> bytes:
    """PUBLISH to the topic "t" without properties."""
    body = b"\x00\x01t" + packet_id.to_bytes(2, "big") + b"\x00" + payload
    return bytes((0x30 | qos << 1, len(body))) + body


class Scripted:
    """A server that accepts, sends ``packets``, and keeps CONNECT's properties and everything that comes behind it."""

    def __init__(self, packets: bytes):
        self.packets = packets
        self.connect = b""
        self.said = b""
        self.entered = asyncio.Event()
        self.over = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, body = await packet(reader)
        self.connect = body[11 : 11 + body[10]]
        writer.write(CONNACK5)
        await self.entered.wait()
        writer.write(self.packets)
        self.said = await reader.read(-1)
        self.over.set()


async def ended(server: Scripted, **options: Any) -> list[Message]:
    """What arrives until the client ends the connection because the server broke the protocol."""
    came = []
    async with speak(server) as port:
        async with Client(HOST, port, protocol="5.0", **grouped(options)) as client:
            server.entered.set()
            with contextlib.suppress(ProtocolError):
                while True:
                    came.append(await asyncio.wait_for(client.messages.__anext__(), PATIENCE_S))
        await asyncio.wait_for(server.over.wait(), PATIENCE_S)
    return came


def last(code: int) -> bytes:
    return bytes((0xE0, 1, code))


# -- receive maximum ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"receive_maximum": 2}, {"properties": {"receive_maximum": 2}}])
@pytest.mark.parametrize("auto_ack, levels", [(False, (1, 1, 1)), (False, (1, 2, 1)), (True, (2, 2, 2))])
async def test_more_messages_than_the_receive_maximum_end_the_connection(
    options: Options, auto_ack: bool, levels: tuple[int, ...]
) -> None:
    server = Scripted(b"".join(publish(n, qos) for n, qos in enumerate(levels, 1)))
    came = await ended(server, auto_ack=auto_ack, **options)
    assert server.connect == b"\x21\x00\x02"
    assert [m.mid for m in came[:2]] == [1, 2]
    answers = b"\x50\x02\x00\x01\x50\x02\x00\x02" if auto_ack else b""
    assert server.said == answers + last(spec5.RECEIVE_MAXIMUM_EXCEEDED)


async def test_what_is_answered_does_not_count() -> None:
    """With automatic acknowledgement a QoS 1 message is answered when it has been put into ``messages``."""
    server = Scripted(b"".join(publish(n, 1) for n in range(1, 9)))
    async with (
        speak(server) as port,
        Client(HOST, port, protocol="5.0", limits=Limits(receive_maximum=2), timeout=PATIENCE_S) as client,
    ):
        server.entered.set()
        for n in range(1, 9):
            assert (await asyncio.wait_for(client.messages.__anext__(), PATIENCE_S)).mid == n
    assert server.said.startswith(b"".join(bytes((0x40, 2, 0, n)) for n in range(1, 9)))


def test_ids_of_an_earlier_connection_do_not_count() -> None:
    """A server begins each connection with a quota of its own (4.9), beside what it had left open."""
    session = HostClientSession(
        SessionConfig(client_id=b"c", clean_start=False), version=ClientV5(receive_maximum=2)
    )
    for packet_id in (1, 3):
        assert session.connect(0) == 0
        take_all(session, [])
        present = packet_id > 1
        for data in (bytes((0x20, 3, present, 0, 0)), publish(packet_id, 2), publish(packet_id + 1, 2)):
            assert take(session, data) == 0
        session.lost()


def test_thousands_under_way_cost_each_read_the_same() -> None:
    """Whatever is acknowledged or open: no table is gone through for a message."""
    session = HostClientSession(SessionConfig(client_id=b"c"), version=ClientV5(receive_maximum=4096))
    session.acks.automatic = False
    assert session.connect(0) == 0
    assert take(session, CONNACK5) == 0
    looked_at = count_looks(session)
    for n in range(1, 4097):
        assert take(session, publish(n, 1 + n % 2)) == 0
    for n in range(1, 4097):
        assert session.acks.acknowledge(n, 1 + n % 2, session.epoch) == 0
        take_all(session, [])
        if n % 2:
            assert take(session, bytes((0x62, 2, n >> 8, n & 255))) == 0
            take_all(session, [])
    assert looked_at() == 0
    # All of the quota is there again, and no more than that.
    for n in range(1, 4097):
        assert take(session, publish(n, 1 + n % 2)) == 0
    assert take(session, publish(5000, 2)) < 0


def count_looks(session: HostClientSession) -> Callable[[], int]:
    """How often the table of ids was gone through from now on."""
    looks = 0

    class Table(type(session._ids)):  # type: ignore[misc]
        def __iter__(self) -> Any:
            nonlocal looks
            looks += 1
            return super().__iter__()

    session._ids = session.open_ids = Table("H")
    return lambda: looks


def take(session: HostClientSession, packet: bytes) -> int:
    session.rx.window()
    session.rx.view[: len(packet)] = packet
    return session.feed(len(packet))


async def test_a_server_that_sends_more_can_be_borne() -> None:
    server = Scripted(b"".join(publish(n, 2) for n in range(1, 6)))
    came = await ended(server, receive_maximum=2, receive_limit=4)
    assert server.connect == b"\x21\x00\x02"
    assert [m.mid for m in came] == [1, 2, 3, 4]
    assert server.said.endswith(last(spec5.RECEIVE_MAXIMUM_EXCEEDED))


@each_row(
    "options",
    [
        {"receive_maximum": 0},
        {"receive_maximum": 65536},
        {"receive_maximum": True},
        {"receive_maximum": 2.0},
        {"receive_maximum": 2, "protocol": "3.1.1"},
        {"receive_limit": 2},
        {"receive_limit": 2, "receive_maximum": 3},
        {"receive_limit": 65536, "receive_maximum": 3},
        {"receive_maximum": 2, "properties": {"receive_maximum": 3}},
        {"topic_aliases": 2, "properties": {"topic_alias_maximum": 3}},
        {"packet_size": 2000, "properties": {"maximum_packet_size": 3000}},
        {"expiry": 1, "properties": {"session_expiry_interval": 1}},
    ],
)
def test_what_cannot_be_announced_is_refused_with_the_option_s_name(options: Options) -> None:
    name = next(iter(options))
    with pytest.raises(ArgumentError, match=name):
        Client("nowhere", **grouped(FIVE | options))


# -- maximum packet size -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, announced",
    [
        ({}, b""),
        ({"packet_size": 1000}, b"\x27\x00\x00\x03\xe8"),
        ({"packet_size": 16}, b"\x27\x00\x00\x00\x10"),
        ({"properties": {"maximum_packet_size": 0xFFFFFFFF}}, b"\x27\xff\xff\xff\xff"),
    ],
)
async def test_the_maximum_packet_size_is_announced_as_it_was_asked_for(
    options: Options, announced: bytes
) -> None:
    server = Scripted(b"")
    async with speak(server) as port, Client(HOST, port, protocol="5.0", **grouped(options)):
        server.entered.set()
    assert server.connect == announced


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_larger_packet_than_was_announced_ends_the_connection(qos: int) -> None:
    def large(size: int) -> bytes:
        body = b"\x00\x01t" + (b"\x00\x07" if qos else b"") + b"\x00"
        body += bytes(size - 3 - len(body))
        return bytes((0x30 | qos << 1, len(body) & 127 | 128, len(body) >> 7)) + body

    assert len(large(1000)) == 1000
    server = Scripted(large(1000) + large(1001))
    came = await ended(server, limits=Limits(packet_size=1000))
    assert len(came) == 1
    assert server.said.endswith(last(spec5.PACKET_TOO_LARGE))


@pytest.mark.parametrize(
    "limit, sizes", [(1000, (2000, 1001, 1000, 3000, 999)), (50, (51, 50, 60, 3000, 20))]
)
async def test_without_an_announcement_larger_messages_are_skipped(
    limit: int, sizes: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Whole packets count, also those that fit in one read; skipped are: acknowledged, counted, logged."""
    async with serve() as server, Client(HOST, server.port, limits=Limits(packet_size=limit)) as client:
        session, connection = server.sessions[0], server.connections[0]
        for qos in (0, 1, 2):
            for size in sizes:
                around = 5 + (2 if qos else 0) + (0 if size < 130 else 1 if size < 16387 else 2)
                assert session.publish(b"t", bytes(size - around), qos) >= 0
                connection.flush()
                await until(lambda: not session.outbox.count)
        small = [size for size in sizes if size <= limit]
        for _ in range(3 * len(small)):
            message = await asyncio.wait_for(client.messages.__anext__(), PATIENCE_S)
            assert len(message.payload) < limit
        assert client.skipped == 3 * (len(sizes) - len(small))
        assert caplog.text.count("skipped a message") == client.skipped


# -- topic aliases -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"topic_aliases": 3}, {"properties": {"topic_alias_maximum": 3}}])
async def test_aliases_are_taken_up_to_what_was_announced(options: Options) -> None:
    packets = b"".join(bytes.fromhex(f"3007 000161 03 2300{n:02x}") for n in (1, 2, 3, 4))
    server = Scripted(packets)
    came = await ended(server, **options)
    assert server.connect == b"\x22\x00\x03"
    assert [m.properties["topic_alias"] for m in came] == [1, 2, 3]
    assert server.said == last(spec5.TOPIC_ALIAS_INVALID)


# -- the assigned client identifier ------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["", "mine", None])
def test_an_assigned_client_identifier_is_used_when_none_was_given(
    given: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Over the connections that follow as well; one that nobody asked for is ignored, and logged."""
    ids: list[str] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, body = await packet(reader)
        at = 11 + body[10]
        ids.append(body[at + 2 : at + 2 + body[at + 1]].decode())
        writer.write(b"\x20\x0b\x00\x00\x08\x12\x00\x05yours")
        await reader.read()

    async def scenario() -> None:
        async with speak(talk) as port:
            client = Client(HOST, port, protocol="5.0", identifier=given)
            before = client.identifier
            for _ in range(2):
                async with client:
                    assert client.server_properties["assigned_client_identifier"] == "yours"
                    assert client.identifier == ("yours" if given == "" else before)
            assert ids == (["", "yours"] if given == "" else [before, before])
            assert ("'yours'" in caplog.text) == (given != "")

    asyncio.run(scenario())


# -- what the server says of it ----------------------------------------------------------------------------------------

OTHER = b"\x1c\x00\x0aother:1883\x1f\x00\x05moved"


@pytest.mark.parametrize("kind", ["refused", "ended"])
async def test_where_a_server_sends_us_is_in_the_error(kind: str) -> None:
    code = spec5.SERVER_MOVED
    refusal = b"\x20" + bytes((3 + len(OTHER), 0, code, len(OTHER))) + OTHER
    ending = b"\xe0" + bytes((2 + len(OTHER), code, len(OTHER))) + OTHER
    answer = refusal if kind == "refused" else CONNACK5 + ending
    async with speak(after_connect(answer)) as port:
        with pytest.raises((ConnectRefusedError, DisconnectedError), match=r"moved.*other:1883") as caught:
            async with Client(HOST, port, protocol="5.0") as client:
                await client.messages.__anext__()
        error = caught.value
        assert isinstance(error, ConnectRefusedError if kind == "refused" else DisconnectedError)
        assert (error.reason_string, error.server_reference) == ("moved", "other:1883")


@pytest.mark.parametrize("qos", [1, 2])
async def test_the_reason_for_refusing_a_message_is_in_the_error(qos: int) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(200)
        writer.write(CONNACK5)
        message = await reader.read(200)
        at = 4 + message[3]
        head = 0x40 if qos == 1 else 0x50
        writer.write(bytes((head, 12)) + message[at : at + 2] + b"\x97\x08\x1f\x00\x05later")
        await reader.read()

    async with speak(talk) as port, Client(HOST, port, protocol="5.0") as client:
        with pytest.raises(PublishError, match=r"quota exceeded.*later") as caught:
            await client.publish("t", b"", qos)
        assert (caught.value.reason_code, caught.value.reason_string) == (0x97, "later")


async def test_the_reason_of_pubrec_is_known_at_the_end() -> None:
    """Over a reconnect as well, and of no other message."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = not writers
        writers.append(writer)
        await reader.read(200)
        writer.write(b"\x20\x03\x01\x00\x00")
        if first:
            await reader.readexactly(8)
            writer.write(b"\x50\x03\x00\x01\x10")
            await reader.readexactly(4)
            writer.close()
            return
        assert await reader.readexactly(4) == b"\x62\x02\x00\x01"
        writer.write(b"\x70\x02\x00\x01")
        for packet_id in (2, 3):
            await reader.readexactly(8)
            writer.write(b"\x50\x02\x00" + bytes((packet_id,)))
            await reader.readexactly(4)
            writer.write(b"\x70\x02\x00" + bytes((packet_id,)))
        await reader.read()

    writers: list[asyncio.StreamWriter] = []

    policy = Reconnect(first=0.01, longest=0.02)
    options: Options = {
        "identifier": "c",
        "session": SessionOptions(clean_start=False),
        "reconnect": policy,
        "timeout": PATIENCE_S,
    }
    async with speak(talk) as port:
        client = Client(HOST, port, protocol="5.0", **options)
        # What an earlier life may have left open is not asked for.
        client.session.outbox.fresh = False
        async with client:
            assert await client.publish("t", b"", 2) == spec5.NO_MATCHING_SUBSCRIBERS
            assert await client.publish("t", b"", 2) == 0
            assert await client.publish("t", b"", 2) == 0
