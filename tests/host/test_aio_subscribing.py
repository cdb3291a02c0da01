"""Subscribing and unsubscribing over servers that refuse, that have limits, and that hang up instead of answering."""

import asyncio
import queue
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.errors import E_LIMIT, E_TOO_LARGE
from headwater.mqtt import spec, spec5
from headwater_host.client import blocking
from headwater_host.client.mqtt import Client, Reconnect, SessionOptions, Version
from headwater_host.errors import (
    ArgumentError,
    ClientError,
    NotConnectedError,
    SubscribeError,
    TimedOutError,
    UnsubscribeError,
)
from tests.host.command import Running
from tests.host.mqtt_server import HOST, packet, speak

WAIT_S = 200
QUICK = Reconnect(first=0.01, longest=0.02, refused=0.02)
HANG_UP = -1
SILENCE = -2


class Server:
    """Accepts every connection, without a session, and answers requests by ``code``: of a filter, HANG_UP and SILENCE
    for no answer. ``asked`` has each request's filters, by connection and packet."""

    def __init__(
        self, protocol: str = "5.0", code: Callable[[str], int] = lambda name: 0, connack: bytes = b""
    ):
        self.is_5 = protocol == "5.0"
        self.code = code
        self.connack = connack
        self.present = False
        self.reason = b""
        self.asked: list[list[tuple[str, ...]]] = []
        self.options: dict[str, int] = {}
        self.packets: list[bytes] = []
        self.writers: deque[asyncio.StreamWriter] = deque()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked: list[tuple[str, ...]] = []
        self.asked.append(asked)
        self.writers.append(writer)
        while True:
            try:
                head, body = await packet(reader)
            except asyncio.IncompleteReadError:
                return
            self.packets.append(head + body)
            kind = head[0] >> 4
            if kind == spec.CONNECT:
                block = bytes((len(self.connack),)) + self.connack if self.is_5 else b""
                writer.write(bytes((0x20, 2 + len(block), self.present, 0)) + block)
            elif kind in (spec.SUBSCRIBE, spec.UNSUBSCRIBE):
                names = self._filters(kind, body)
                asked.append(tuple(names))
                codes = [self.code(name) for name in names]
                if HANG_UP in codes:
                    return
                if SILENCE not in codes:
                    self._answer(writer, kind, body[:2], codes)
            elif kind == spec.PINGREQ:
                writer.write(b"\xd0\x00")
            elif kind == spec.DISCONNECT:
                return

    def _answer(self, writer: asyncio.StreamWriter, kind: int, packet_id: bytes, codes: list[int]) -> None:
        block = b""
        if self.is_5:
            block = b"\x1f" + len(self.reason).to_bytes(2, "big") + self.reason if self.reason else b""
            block = bytes((len(block),)) + block
        if kind == spec.UNSUBSCRIBE and not self.is_5:
            codes = []
        writer.write(bytes(((kind + 1) << 4, 2 + len(block) + len(codes))) + packet_id + block + bytes(codes))

    def _filters(self, kind: int, body: bytes) -> list[str]:
        at = 2
        if self.is_5:
            at += 1 + body[2]
        names = []
        while at < len(body):
            n = int.from_bytes(body[at : at + 2], "big")
            names.append(body[at + 2 : at + 2 + n].decode())
            at += 2 + n
            if kind == spec.SUBSCRIBE:
                self.options[names[-1]] = body[at]
                at += 1
        return names

    def hang_up(self) -> None:
        for writer in self.writers:
            writer.close()
        self.writers.clear()


class Told:
    """What ``on_connection`` is told: waits until the connection is there for the ``n``-th time since."""

    def __init__(self, client: Client):
        self.said: asyncio.Queue[ClientError | None] = asyncio.Queue()
        client.on_connection = self.said.put_nowait

    async def online(self) -> None:
        async def wait() -> None:
            while await self.said.get() is not None:
                pass

        await asyncio.wait_for(wait(), WAIT_S)


def names(count: int) -> list[str]:
    return [f"t/{n}" for n in range(count)]


# -- several filters ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["3.1", "3.1.1", "5.0"])
async def test_many_filters_go_out_eight_to_a_packet(protocol: Version) -> None:
    server = Server(protocol)
    async with speak(server) as port, Client(HOST, port, protocol=protocol) as client:
        assert await client.subscribe([(name, n % 3) for n, name in enumerate(names(20))]) == (0,) * 20
        assert sorted(map(len, server.asked[0])) == [4, 8, 8]
        assert server.options == {name: n % 3 for n, name in enumerate(names(20))}
        assert await client.unsubscribe(names(20)) == (0,) * 20
        assert sorted(map(len, server.asked[0][3:])) == [4, 8, 8]


@pytest.mark.parametrize("protocol", ["3.1.1", "5.0"])
@pytest.mark.parametrize("reconnect", [None, QUICK])
async def test_what_is_granted_behind_a_refused_filter_is_known(
    protocol: Version, reconnect: Reconnect | None
) -> None:
    """Before it raises; and with ``reconnect`` it is asked for again."""
    bad = ("t/3", "t/11")

    server = Server(protocol, lambda name: 0x80 if name in bad else 1)
    async with (
        speak(server) as port,
        Client(HOST, port, protocol=protocol, reconnect=reconnect) as client,
    ):
        with pytest.raises(SubscribeError) as caught:
            await client.subscribe([(name, 1) for name in names(20)])
        assert (caught.value.topic, caught.value.reason_code) == ("t/3", 0x80)
        assert caught.value.codes == tuple(0x80 if name in bad else 1 for name in names(20))
        wanted = {name: 1 for name in names(20) if name not in bad}
        assert client.granted == wanted
        if reconnect:
            told = Told(client)
            server.hang_up()
            await told.online()
            assert {name for packet in server.asked[1] for name in packet} == set(wanted)
            assert len(server.asked[1]) == 3
            assert client.granted == wanted


async def test_a_filter_that_cannot_be_sent_does_not_hide_the_others() -> None:
    server = Server(code=lambda name: SILENCE if name == "t/9" else 0)
    async with speak(server) as port, Client(HOST, port, protocol="5.0", reconnect=QUICK) as client:
        with pytest.raises(TimedOutError):
            await client.subscribe([(name, 0) for name in names(20)], timeout=0.2)
        assert set(client.granted) == {f"t/{n}" for n in (*range(8), *range(16, 20))}


async def test_packets_keep_to_the_servers_maximum() -> None:
    """With the properties, which are the packet's, in each."""
    server = Server(connack=b"\x27\x00\x00\x00\x32")
    async with speak(server) as port, Client(HOST, port, protocol="5.0") as client:
        filters = [f"{n:015}" for n in range(9)]
        await client.subscribe([(name, 1) for name in filters], properties={"subscription_identifier": 300})
        packets = [packet for packet in server.packets if packet[0] >> 4 == spec.SUBSCRIBE]
        assert all(len(packet) <= 50 and packet[4:8] == b"\x03\x0b\xac\x02" for packet in packets)
        assert [len(asked) for asked in server.asked[0]] == [2, 2, 2, 2, 1] or len(packets) == 5
        await client.unsubscribe(filters)
        assert all(len(packet) <= 50 for packet in server.packets)
        assert client.granted == {}


async def test_subscriptions_with_other_properties_do_not_share_a_packet() -> None:
    server = Server()
    async with speak(server) as port, Client(HOST, port, protocol="5.0", reconnect=QUICK) as client:
        for n in range(6):
            await client.subscribe(f"t/{n}", properties={"subscription_identifier": 1 + n % 2})
        told = Told(client)
        server.hang_up()
        await told.online()
        assert sorted(server.asked[1]) == [("t/0", "t/2", "t/4"), ("t/1", "t/3", "t/5")]


# -- reason codes ------------------------------------------------------------------------------------------------------


async def test_what_a_server_says_to_unsubscribe_is_seen() -> None:
    codes = {"t/0": 0, "t/1": spec5.NO_SUBSCRIPTION_EXISTED, "t/2": spec5.NOT_AUTHORIZED, "t/3": 0}

    server = Server()
    async with speak(server) as port, Client(HOST, port, protocol="5.0", reconnect=QUICK) as client:
        await client.subscribe([(name, 0) for name in codes])
        server.code = lambda name: codes[name]
        server.reason = b"not yours"
        with pytest.raises(UnsubscribeError, match=r"'t/2'.*not authorized.*not yours") as caught:
            await client.unsubscribe(list(codes))
        assert (caught.value.topic, caught.value.reason_code) == ("t/2", spec5.NOT_AUTHORIZED)
        assert caught.value.codes == tuple(codes.values())
        assert client.granted == {"t/2": 0}
        server.code = lambda name: 0x11
        assert await client.unsubscribe("t/2") == (0x11,)
        assert client.granted == {}


async def test_a_refusal_has_the_servers_reason() -> None:
    server = Server(code=lambda name: spec5.QUOTA_EXCEEDED)
    server.reason = b"three at most"
    async with speak(server) as port, Client(HOST, port, protocol="5.0") as client:
        with pytest.raises(SubscribeError, match=r"quota exceeded.*three at most") as caught:
            await client.subscribe("t")
        assert caught.value.reason_string == "three at most"


# -- limits of the server ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "connack, filters, properties, code, text",
    [
        (b"\x27\x00\x00\x00\x32", [*names(9), "t" * 60], None, E_TOO_LARGE, r"68 bytes.*50"),
        (b"\x28\x00", [*names(9), "a/#"], None, E_LIMIT, "wildcard"),
        (b"\x2a\x00", [*names(9), "$share/g/a"], None, E_LIMIT, "shared"),
        (b"\x29\x00", ["a"], {"subscription_identifier": 5}, E_LIMIT, "subscription identifiers"),
    ],
)
async def test_a_subscription_above_the_servers_limit_names_it(
    connack: bytes, filters: list[str], properties: dict[str, int] | None, code: int, text: str
) -> None:
    """And nothing is sent of the same call, however many packets it takes."""
    server = Server(connack=connack)
    async with speak(server) as port, Client(HOST, port, protocol="5.0") as client:
        with pytest.raises(ArgumentError, match=text) as caught:
            await client.subscribe([(name, 0) for name in filters], properties=properties)
        assert caught.value.code == code
        assert server.asked == [[]]
        if code == E_TOO_LARGE:
            with pytest.raises(ArgumentError, match=r"67 bytes.*50"):
                await client.unsubscribe(filters)
            assert server.asked == [[]]
        assert client.connected


async def test_a_filter_of_any_length_can_be_asked_for() -> None:
    name = "t" * 65535

    # The properties have no one-byte length here, so the server's filters are not read.
    Server._filters, kept = (lambda self, kind, body: ["x", "y"]), Server._filters  # type: ignore[method-assign]
    try:
        server = Server()
        async with speak(server) as port, Client(HOST, port, protocol="5.0") as client:
            user = [("k" * 60_000, "v" * 60_000)]
            await client.subscribe([(name, 1), ("b", 1)], properties={"user_property": user})
            await client.unsubscribe([name, "b"])
    finally:
        Server._filters = kept  # type: ignore[method-assign]


# -- subscribing again -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["3.1.1", "5.0"])
@pytest.mark.parametrize("refused", [None, 300])
async def test_a_filter_that_is_refused_later_leaves_the_rest_online(
    protocol: Version, refused: float | None
) -> None:
    policy = Reconnect(first=0.01, longest=0.02, refused=refused)

    server = Server(protocol)
    async with speak(server) as port, Client(HOST, port, protocol=protocol, reconnect=policy) as client:
        await client.subscribe([(name, 0) for name in names(10)])
        server.code = lambda name: 0x80 if name == "t/4" else 0
        reported: list[SubscribeError] = []
        client.on_subscription_refused = reported.append
        told = Told(client)
        server.hang_up()
        await told.online()
        assert client.connected
        assert [error.topic for error in reported] == ["t/4"]
        assert list(client.granted) == [name for name in names(10) if name != "t/4"]
        # The next session may grant it.
        server.code = lambda name: 0
        server.hang_up()
        await told.online()
        assert list(client.granted) == names(10)


async def test_at_the_first_connection_a_refused_filter_raises_unless_it_is_tried_again() -> None:
    server = Server(code=lambda name: 0x87 if name == "t/1" else 0)
    wanted = [(name, 0) for name in names(3)]
    async with speak(server) as port:
        with pytest.raises(SubscribeError, match="t/1"):
            async with Client(
                HOST, port, protocol="5.0", reconnect=QUICK, session=SessionOptions(subscriptions=wanted)
            ):
                raise AssertionError("entered")
        policy = Reconnect(first=0.01, longest=0.02, at_start=True)
        async with Client(
            HOST, port, protocol="5.0", reconnect=policy, session=SessionOptions(subscriptions=wanted)
        ) as client:
            assert set(client.granted) == {"t/0", "t/2"}


async def test_a_raising_handler_of_refusals_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    async with speak(server) as port, Client(HOST, port, protocol="5.0", reconnect=QUICK) as client:
        await client.subscribe([("a", 0), ("b", 0)])

        def raising(error: SubscribeError) -> None:
            raise KeyError("mine")

        client.on_subscription_refused = raising
        server.code = lambda name: 0x80 if name == "a" else 0
        told = Told(client)
        server.hang_up()
        await told.online()
        assert client.granted == {"b": 0}
        assert "refused the subscription to 'a'" in caplog.text
        assert "KeyError" in caplog.text


async def test_filters_go_out_singly_when_the_connection_ended_instead_of_an_answer() -> None:
    """The one that ends it is asked for last, and left out when it has ended three connections on its own."""
    killer = "t/2"

    server = Server()
    async with speak(server) as port, Client(HOST, port, protocol="5.0", reconnect=QUICK) as client:
        await client.subscribe([(name, 0) for name in names(6)])
        reported: list[SubscribeError] = []
        client.on_subscription_refused = reported.append
        server.code = lambda name: HANG_UP if name == killer else 0
        told = Told(client)
        server.hang_up()
        await told.online()
        rest = [name for name in names(6) if name != killer]
        assert list(client.granted) == rest
        assert [error.topic for error in reported] == [killer]
        assert server.asked[1] == [tuple(names(6))]
        # What was answered may share a packet again.
        assert server.asked[2] == [("t/0",), ("t/1",), (killer,)]
        assert server.asked[3] == [("t/0", "t/1"), ("t/3",), ("t/4",), ("t/5",), (killer,)]
        assert server.asked[4] == [tuple(rest), (killer,)]
        assert server.asked[5:] == [[tuple(rest)]]
        # A caller that waits for it now gets the same error.
        with pytest.raises((SubscribeError, NotConnectedError)):
            await client.subscribe([(killer, 0), ("other", 0)], timeout=WAIT_S)
        assert set(client.granted) == {*rest, "other"}


async def test_what_a_server_without_the_session_has_forgotten_is_not_granted() -> None:
    """Without ``reconnect`` the program asks again."""
    server = Server()
    async with speak(server) as port:
        client = Client(HOST, port, protocol="5.0")
        async with client:
            await client.subscribe("t")
            assert client.granted == {"t": 0}
        async with client:
            assert client.granted == {}
            assert server.asked[1] == []


async def test_an_answer_that_comes_late_is_known() -> None:
    server = Server(code=lambda name: SILENCE)
    async with speak(server) as port, Client(HOST, port, protocol="5.0") as client:
        with pytest.raises(TimedOutError):
            await client.subscribe("t", timeout=0.1)
        assert client.granted == {}
        (asked,) = [packet for packet in server.packets if packet[0] >> 4 == spec.SUBSCRIBE]
        server.writers[0].write(b"\x90\x04" + asked[2:4] + b"\x00\x00")
        server.code = lambda name: 0
        await client.subscribe("u")
        assert client.granted == {"t": 0, "u": 0}


async def test_options_are_per_filter() -> None:
    server = Server()
    async with speak(server) as port, Client(HOST, port, protocol="5.0") as client:
        await client.subscribe([("a", 0), ("b", 2)], options=spec5.NO_LOCAL)
        assert server.options == {"a": spec5.NO_LOCAL, "b": 2 | spec5.NO_LOCAL}


async def test_sub_ends_when_a_filter_is_refused_later(tmp_path: Path) -> None:
    server = Server("3.1.1")
    async with speak(server) as port:
        sub = Running(["sub", "-h", HOST, "-p", str(port), "-t", "a", "-t", "b"], tmp_path)
        try:
            while not server.options.keys() >= {"a", "b"}:
                await asyncio.sleep(0.05)
            server.code = lambda name: 0x80 if name == "a" else 0
            server.hang_up()
            assert await asyncio.to_thread(sub.wait, WAIT_S) == 1
            assert "refused the subscription to 'a'" in sub.errors
        finally:
            sub.process.kill()
            sub.process.wait()


async def test_the_blocking_client_reports_refusals_and_codes() -> None:
    server = Server()
    reported: queue.SimpleQueue[SubscribeError] = queue.SimpleQueue()
    async with speak(server) as port:
        loop = asyncio.get_running_loop()

        def program() -> None:
            client = blocking.Client(HOST, port, protocol="5.0", reconnect=QUICK)
            client.on_subscription_refused = reported.put
            with client:
                assert client.subscribe([("a", 0), ("b", 1)]) == (0, 0)
                server.code = lambda name: 0x87 if name == "a" else 0
                loop.call_soon_threadsafe(server.hang_up)
                assert reported.get(timeout=WAIT_S).topic == "a"
                assert client.granted == {"b": 0}
                server.code = lambda name: spec5.NO_SUBSCRIPTION_EXISTED
                assert client.unsubscribe(["a", "b"]) == (0x11, 0x11)

        await asyncio.to_thread(program)
