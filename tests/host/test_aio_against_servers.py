"""The asyncio client against servers that no broker is: refusing, slow byte by byte, hostile, half dead."""

import asyncio
from typing import Any

import pytest

from headwater import errors
from headwater_host.client.inbox import Inbox
from headwater_host.client.mqtt import Client, Limits, Message, Reconnect, SessionOptions, Topic
from headwater_host.client.mqtt.session import HostServerSession
from headwater_host.client.waiting import Line
from headwater_host.errors import (
    ConnectRefusedError,
    NotConnectedError,
    ProtocolError,
    SubscribeError,
    TimedOutError,
)
from tests.host.mqtt_server import HOST, Talk, after_connect, packet, serve, speak

CONNACK = bytes.fromhex("20020000")


async def enter(talk: Talk, **options: Any) -> None:
    async with speak(talk) as port, Client(HOST, port, **options) as client:
        await client.messages.__anext__()


async def test_a_refused_subscription_is_an_error_that_names_it() -> None:
    def prepare(session: HostServerSession) -> None:
        session.on_subscribe = lambda packet, qos: 0x80 if packet.topic_bytes() == b"no" else min(qos, 1)

    async with serve(prepare) as server, Client(HOST, server.port) as client:
        assert await client.subscribe([("yes", 2), ("too", 0)]) == (1, 0)
        with pytest.raises(SubscribeError, match="refused the subscription to 'no'") as caught:
            await client.subscribe([("yes", 1), ("no", 1)])
        assert caught.value.topic == "no"
        assert client.connected


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5])
def test_each_refusal_of_connect_says_why(code: int) -> None:
    with pytest.raises(ConnectRefusedError) as caught:
        asyncio.run(enter(after_connect(bytes((0x20, 2, 0, code)))))
    assert caught.value.return_code == code
    assert caught.value.code == errors.E_REFUSED


@pytest.mark.parametrize(
    "answer, reason",
    [
        ("20020006", "bad_code"),
        ("20020100", "bad_code"),  # a session, although a clean one was asked for
        ("20020200", "bad_flags"),
        ("200100", "bad_packet_length"),
        ("d000", "unexpected_packet"),
        ("20020000 20020000", "unexpected_packet"),
        ("20020000 100c00044d515454040200000000", "unexpected_packet"),
        ("20020000 00", "reserved_packet_type"),
        ("20020000 f000", "reserved_packet_type"),
        ("20020000 30ffffffff01", "malformed_remaining_length"),
        ("20020000 36050001610001", "bad_qos"),
        ("20020000 3003000261", "field_beyond_packet"),
        ("20020000 3004000223 61", "bad_topic"),
        ("20020000 30050003c3a9c3", "bad_utf8"),
        ("20020000 3205000161 0000", "packet_id_zero"),
        ("20020000 9003 000103", "bad_code"),
        ("474554202f20485454502f312e310d0a", "bad_flags"),
    ],
)
def test_what_breaks_the_protocol_ends_the_connection_with_its_name(answer: str, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason) as caught:
        asyncio.run(enter(after_connect(bytes.fromhex(answer))))
    assert caught.value.reason == reason


@pytest.mark.parametrize("answer", ["", "20", "20020000", "20020000 30", "20020000 3005000161"])
def test_a_server_that_hangs_up_delivers_nothing_in_part(answer: str) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(bytes.fromhex(answer))
        writer.close()

    with pytest.raises(NotConnectedError, match="was lost") as caught:
        asyncio.run(enter(talk))
    assert not isinstance(caught.value, ProtocolError)


def test_a_server_that_accepts_and_resets_at_once() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    with pytest.raises(NotConnectedError, match="was lost"):
        asyncio.run(enter(talk))


def test_connack_in_pieces_that_never_becomes_whole_is_a_timeout() -> None:
    with pytest.raises(TimedOutError, match="did not answer CONNECT"):
        asyncio.run(enter(after_connect(b"\x20\x02\x00"), timeout=0.1))


async def test_a_packet_that_arrives_byte_by_byte() -> None:
    packets = bytes.fromhex("3003000161 3209000361c3a9000168 69") + b"\x30\x80\x01\x00\x01b" + bytes(125)

    pieces = [bytes((byte,)) for byte in CONNACK + packets]
    async with speak(after_connect(*pieces)) as port, Client(HOST, port) as client:
        came = [await client.messages.__anext__() for _ in range(3)]
        assert [(m.topic, len(m.payload)) for m in came] == [("a", 0), ("aé", 2), ("b", 125)]


async def test_a_length_that_is_only_claimed_costs_no_memory() -> None:
    claim = CONNACK + b"\x30\xff\xff\xff\x7f\x00\x01a" + bytes(1000)
    async with speak(after_connect(claim)) as port, Client(HOST, port) as client:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.messages.__anext__(), 0.2)
        assert len(client.session.rx.buf) == 1 << 16


async def test_stray_acknowledgements_are_counted_and_otherwise_nothing() -> None:
    strays = bytes.fromhex("40020001 50020002 62020003 70020004 9003000501 b0020006")

    async with (
        speak(after_connect(CONNACK + strays + b"\x30\x03\0\x01a")) as port,
        Client(HOST, port) as client,
    ):
        assert (await client.messages.__anext__()).topic == "a"
        assert client.session.strays == 6
        assert client.connected


async def test_a_server_that_ends_the_connection_in_the_middle_of_a_publish_is_heard_at_once() -> None:
    def prepare(session: HostServerSession) -> None:
        session.acks.automatic = False

    async with serve(prepare) as server, Client(HOST, server.port) as client:
        waiting = asyncio.ensure_future(client.publish("t", b"x", qos=2))
        while not server.sessions[0].rx_time or not client.session.in_flight:
            await asyncio.sleep(0)
        server.connections[0].drop(errors.E_CLOSED)
        with pytest.raises(NotConnectedError, match="was lost"):
            await waiting
        assert client.session.outbox.count == 1


async def test_acknowledgements_leave_in_the_order_of_arrival() -> None:
    acknowledged: list[int] = []

    def prepare(session: HostServerSession) -> None:
        session.on_delivered = acknowledged.append

    async with (
        serve(prepare) as server,
        Client(HOST, server.port, session=SessionOptions(auto_ack=False)) as client,
    ):
        session = server.sessions[0]
        ids = [session.publish(b"t", b"%d" % i, 1) for i in range(4)]
        server.connections[0].push()
        came = [await client.messages.__anext__() for _ in range(4)]
        assert [m.mid for m in came] == ids
        for i in (2, 1, 3):
            await came[i].ack()
        await client.unsubscribe("barrier")
        assert acknowledged == []
        await came[0].ack()
        await client.unsubscribe("barrier")
        assert acknowledged == ids


async def test_a_reader_that_is_cancelled_leaves_its_message_to_the_next() -> None:
    inbox: Inbox[Message] = Inbox(lambda: None, None, lambda: None)
    readers = [asyncio.ensure_future(inbox.__anext__()) for _ in range(3)]
    await asyncio.sleep(0)
    inbox.put(Message(Topic("a"), b"1"))
    # Woken already, and cancelled before it could take anything.
    readers[0].cancel()
    readers[1].cancel()
    assert (await asyncio.wait_for(readers[2], 200)).payload == b"1"
    assert readers[0].cancelled()
    assert readers[1].cancelled()


@pytest.mark.parametrize("reconnect", [None, Reconnect(at_start=True)], ids=["once", "at start"])
async def test_entering_can_be_cancelled_in_each_turn_of_the_loop(reconnect: Reconnect | None) -> None:
    async with serve() as server:
        for turns in range(1000):
            client = Client(
                HOST, server.port, reconnect=reconnect, session=SessionOptions(subscriptions=[("a", 0)])
            )
            entering = asyncio.ensure_future(client.__aenter__())
            for _ in range(turns):
                await asyncio.sleep(0)
            if not entering.cancel():
                await client.__aexit__(None, None, None)
                return
            with pytest.raises(asyncio.CancelledError):
                await entering
            assert client.connection is None


async def test_leaving_can_be_cancelled_in_each_turn_of_the_loop() -> None:
    async with serve() as server:
        for turns in range(1, 1000):
            client = Client(HOST, server.port, reconnect=True)
            await client.__aenter__()
            leaving = asyncio.ensure_future(client.__aexit__(None, None, None))
            for _ in range(turns):
                await asyncio.sleep(0)
            over = not leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            assert client.connection is None
            if over:
                return
            assert leaving.cancelled()


async def test_requests_that_nobody_waits_for_any_more_do_not_hinder_others() -> None:
    asked: list[bytes] = []
    go_on = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await packet(reader)
        writer.write(CONNACK)
        answered = 0
        while data := await reader.read(1024):
            # SUBSCRIBE to "a", eight bytes.
            asked.extend(data[i + 2 : i + 4] for i in range(0, len(data), 8) if data[i] == 0x82)
            if len(asked) >= 8:
                await go_on.wait()
                for packet_id in asked[answered:]:
                    writer.write(b"\x90\x03" + packet_id + b"\0")
                answered = len(asked)

    async with speak(talk) as port, Client(HOST, port) as client:
        late = await asyncio.gather(
            *(client.subscribe("a", timeout=0.01) for _ in range(8)), return_exceptions=True
        )
        assert [type(error) for error in late] == [TimedOutError] * 8
        with pytest.raises(TimedOutError):
            await client.subscribe("a", timeout=0.01)
        next_one = asyncio.ensure_future(client.subscribe("a", timeout=60))
        await asyncio.sleep(0)
        go_on.set()
        assert await next_one == (0,)


async def test_a_caller_that_is_cancelled_in_its_turn_passes_it_on() -> None:
    line = Line()
    late = asyncio.get_running_loop().time() + 5
    assert await line.enter(late)
    places = [asyncio.ensure_future(line.enter(late)) for _ in range(3)]
    await asyncio.sleep(0)
    line.leave()
    places[0].cancel()
    places[1].cancel()
    assert await asyncio.wait_for(places[2], 200)
    assert line.busy
    assert not await line.enter(asyncio.get_running_loop().time() + 0.01)
    line.leave()
    assert not line.busy


async def test_qos2_is_delivered_once_however_often_it_is_sent() -> None:
    # PUBLISH three times, PUBREL, and then a new message with the same id.
    answers = CONNACK + bytes.fromhex("34070001610007 7879") * 3
    again = bytes.fromhex("62020007 34070001610007 7a7a")
    async with speak(after_connect(answers, again)) as port, Client(HOST, port) as client:
        came = [await client.messages.__anext__() for _ in range(2)]
        assert [m.payload for m in came] == [b"xy", b"zz"]
        assert client.session.duplicates == 2
        assert len(client.messages) == 0


async def test_a_second_client_object_does_not_disturb_a_session_that_ends_late() -> None:
    """The transport of a connection that timed out may still close after the next one was opened."""

    def prepare(session: HostServerSession) -> None:
        session.on_message = lambda packet: None

    async with serve(prepare) as server:
        client = Client(HOST, server.port)
        for _ in range(5):
            task = asyncio.ensure_future(client.__aenter__())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            async with client:
                await client.publish("t", b"x", qos=1)
                assert client.connected


class Writes:
    """Counts what the client hands to its transport."""

    def __init__(self, client: Client) -> None:
        connection = client.connection
        assert connection is not None
        assert connection.transport is not None
        self.sizes: list[int] = []
        self._write = connection.transport.write
        connection.transport.write = self  # type: ignore[method-assign]

    def __call__(self, data: bytes | bytearray | memoryview) -> None:
        self.sizes.append(len(data))
        self._write(data)


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_burst_leaves_in_few_writes_and_its_first_packet_at_once(qos: int) -> None:
    async with serve() as server, Client(HOST, server.port, limits=Limits(in_flight=100)) as client:
        writes = Writes(client)
        tasks = [asyncio.ensure_future(client.publish("t", bytes(100), qos)) for _ in range(100)]
        while not writes.sizes:
            await asyncio.sleep(0)
        assert writes.sizes[0] <= 110
        await asyncio.gather(*tasks)
        await client.unsubscribe("barrier")
        # One for the first packet, one for the others; at QoS 2 PUBREL; and UNSUBSCRIBE.
        assert len(writes.sizes) <= (3 if qos < 2 else 6)


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_one_read_brings_is_answered_in_one_write(qos: int) -> None:
    def publish(packet_id: int) -> bytes:
        return bytes((0x30 | qos << 1, 6, 0, 1)) + b"t" + packet_id.to_bytes(2, "big") + b"x"

    answered = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(CONNACK)
        await go.wait()
        writer.write(b"".join(publish(packet_id) for packet_id in range(1, 101)))
        await reader.readexactly(4 * 100)
        answered.set()
        await reader.read()

    go = asyncio.Event()
    async with speak(talk) as port, Client(HOST, port) as client:
        writes = Writes(client)
        go.set()
        await asyncio.wait_for(answered.wait(), 200)
        assert writes.sizes == [4 * 100]


async def test_messages_that_come_with_connack_are_delivered() -> None:
    came: list[bytes] = []

    def prepare(session: HostServerSession) -> None:
        session.on_message = lambda p: came.append(p.payload_bytes())

    answer = CONNACK + b"\x30\x05\0\x01aHi" + b"\x32\x06\0\x01a\0\x01!"
    async with speak(after_connect(answer)) as port, Client(HOST, port) as client:
        assert [(await client.messages.__anext__()).payload for _ in range(2)] == [b"Hi", b"!"]
    async with serve(prepare) as server, Client(HOST, server.port) as client:
        await client.publish("t", b"there", qos=1)
    assert came == [b"there"]
