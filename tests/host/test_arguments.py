"""Arguments of the host's clients: what is plainly meant is accepted, the rest is refused at once, with a sentence."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headwater.mqtt.server5 import ServerV5
from headwater_host.arguments import servers_of
from headwater_host.client import blocking, fmq
from headwater_host.client.mqtt import (
    Client,
    ConnectionOptions,
    Limits,
    Reconnect,
    SessionOptions,
    Version,
    Will,
)
from headwater_host.client.mqtt.filters import filters_of
from headwater_host.client.mqtt.session import HostServerSession
from headwater_host.errors import ArgumentError
from tests.host.client_options import grouped
from tests.host.mqtt_server import HOST, after_connect, serve, speak
from tests.rows import each_row

KINDS: dict[str, Any] = {"connection": ConnectionOptions, "session": SessionOptions, "limits": Limits}


@each_row(
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
            {"queued_outgoing": 0},
            "queued_outgoing=0: a whole number from 1 to 65280",
        ),
        ({"queued_outgoing": "9"}, "queued_outgoing='9': "),
        ({"in_flight": 0}, "in_flight=0: "),
        ({"queued_incoming": "many"}, "queued_incoming='many': "),
        ({"when_full": "wait"}, "when_full"),
        ({"tls": "ca.pem"}, r"tls='ca.pem': True, a Tls such as Tls\(ca=...\), or an ssl.SSLContext"),
        ({"tls": 1.5}, "tls=1.5: True"),
    ],
    ids=str,
)
@each_row("make", [Client, blocking.Client, fmq.Client])
def test_what_is_refused_by_each_client(make: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        make("nowhere", **grouped(options))


@each_row("make", [Client, blocking.Client, fmq.Client])
def test_a_port_in_the_host_is_refused_and_brackets_are_no_part_of_it(make: Any) -> None:
    with pytest.raises(ArgumentError, match="host 'nowhere:1883': pass the port apart"):
        make("nowhere:1883")
    make("::1")
    assert servers_of("[::1]", 1, ["[::2]"]) == [("::1", 1), ("::2", None)]


@each_row("host", [None, "", 5, b"host"], ids=str)
@each_row("make", [Client, blocking.Client, fmq.Client])
def test_a_host_is_a_name_or_an_address(make: Any, host: Any) -> None:
    with pytest.raises(ArgumentError, match="a name or an address"):
        make(host)


@each_row(
    "options, text",
    [
        ({"protocol": 6}, r"protocol=6: one of '3\.1', '3\.1\.1', '5\.0'"),
        ({"protocol": True}, "protocol=True: "),
        ({"protocol": []}, r"protocol=\[\]: "),
        ({"keepalive": "60"}, "keepalive='60': a whole number from 0 to 65535"),
        ({"keepalive": 65536}, "keepalive=65536: "),
        ({"subscriptions": 5}, "5: a topic filter, or several"),
        (
            {"subscriptions": [5]},
            "5: a topic filter, or a pair of a filter and its QoS",
        ),
        ({"subscriptions": [("a", 3)]}, "QoS is 0, 1 or 2, not 3"),
        ({"websocket": True}, "websocket=True: a path, such as '/mqtt'"),
        (
            {"outgoing_topic_aliases": "9", "protocol": "5.0"},
            "outgoing_topic_aliases='9': a whole number",
        ),
        ({"outgoing_topic_aliases": 9}, "outgoing_topic_aliases needs MQTT 5.0"),
        ({"properties": 5, "protocol": "5.0"}, "properties=5: a dictionary of names and values"),
        ({"subscriptions": [("a", 1.0)]}, "QoS is 0, 1 or 2, not 1.0"),
        ({"identifier": 5}, "the identifier is text or bytes, not int"),
        ({"username": 5}, "the username is text or bytes, not int"),
        ({"will": Will("t", "x", "1")}, "a will's QoS is 0, 1 or 2"),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_what_is_refused_of_mqtt(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        Client("nowhere", **grouped(options))


def test_options_of_a_concern_are_an_object() -> None:
    clients: tuple[Any, ...] = (Client, blocking.Client, fmq.Client)
    for make in clients:
        for name, kind in KINDS.items():
            with pytest.raises(ArgumentError, match=f"{name}=5: a {kind.__name__}, such as"):
                make("nowhere", **{name: 5})
    with pytest.raises(ArgumentError, match="FMQ has no WebSocket"):
        fmq.Client("nowhere", connection=ConnectionOptions(websocket="/mqtt"))


@each_row("store", [5, b"store.db"], ids=str)
def test_a_store_is_a_path(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for make in (partial(Client, identifier="c"), partial(fmq.Client, identifier="c")):
        with pytest.raises(ArgumentError, match="the path of a file"):
            make("nowhere", session=SessionOptions(store=store))
    assert list(tmp_path.iterdir()) == []


@each_row("size", [0, "9"], ids=str)
def test_the_largest_packet_of_fmq_is_a_number(size: Any) -> None:
    with pytest.raises(ArgumentError, match="packet_size="):
        fmq.Client("nowhere", limits=fmq.Limits(packet_size=size))


@each_row(
    "options",
    [{"first": "1"}, {"first": None}, {"attempts": 1.5}, {"attempts": "3"}, {"refused": "no"}],
    ids=str,
)
def test_what_is_refused_of_reconnecting(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=f"{next(iter(options))}="):
        Reconnect(**options)


@each_row(
    "given, name",
    [(5, "5.0"), (5.0, "5.0"), ("5", "5.0"), (4, "3.1.1"), (3, "3.1"), (3.1, "3.1"), ("3.1.1", "3.1.1")],
    ids=str,
)
def test_versions_by_what_they_are_called(given: Any, name: str) -> None:
    assert Client("nowhere", protocol=given).protocol == name


@each_row(
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


@each_row("given", [None, 5, b"a", [None], [("a", 1, 2)], [["a", 1, 2]], [b"a"]], ids=str)
def test_filters_that_are_none(given: Any) -> None:
    with pytest.raises(ArgumentError, match="a topic filter"):
        filters_of(given)


async def test_filters_that_are_asked_for() -> None:
    asked: list[tuple[bytes, int]] = []

    def prepare(session: HostServerSession) -> None:
        def on_subscribe(packet: Any, qos: int) -> int:
            asked.append((packet.topic_bytes(), qos))
            return qos

        session.on_subscribe = on_subscribe

    async with (
        serve(prepare) as server,
        Client(
            HOST,
            server.port,
            session=SessionOptions(subscriptions=["first/#"]),
            connection=ConnectionOptions(more_servers=["other"]),
        ) as client,
    ):
        assert await client.subscribe(("a", 1)) == (1,)
        assert await client.subscribe(["b", "c"], 2) == (2, 2)
        with pytest.raises(ArgumentError, match="a topic filter"):
            await client.subscribe(5)  # type: ignore[arg-type]
        await client.unsubscribe(["a", "b"])
        with pytest.raises(ArgumentError, match="a topic filter"):
            await client.unsubscribe(5)  # type: ignore[arg-type]
    assert asked == [(b"first/#", 0), (b"a", 1), (b"b", 2), (b"c", 2)]


@each_row("qos", [0, 1, 2])
@each_row(
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
async def test_properties_that_a_program_cannot_give(qos: int, properties: dict[str, Any], text: str) -> None:
    async with (
        speak(after_connect(b"\x20\x03\x00\x00\x00")) as port,
        Client(HOST, port, protocol="5.0") as client,
    ):
        with pytest.raises(ArgumentError, match=f"not published: .*{text}"):
            await client.publish("t", b"x", qos, properties=properties)


@each_row("protocol", ["3.1.1", "5.0"])
async def test_arguments_of_calls(protocol: Version) -> None:
    """Refused before anything is sent."""
    asked: list[bytes] = []

    def prepare(session: Any) -> None:
        session.on_subscribe = lambda packet, qos: asked.append(packet.topic_bytes())
        session.on_message = lambda packet: asked.append(packet.topic_bytes())

    make = HostServerSession if protocol == "3.1.1" else lambda: HostServerSession(version=ServerV5())
    async with serve(prepare, make) as server, Client(HOST, server.port, protocol=protocol) as client:
        wrong: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
            (client.subscribe, ("a", 1.0), {}, "QoS is 0, 1 or 2"),
            (client.subscribe, ("a",), {"timeout": "1"}, "timeout='1': a number of seconds"),
            (client.subscribe, ("a",), {"options": -1}, "options=-1: "),
            (client.subscribe, ("a",), {"options": "4"}, "options='4': "),
            (client.unsubscribe, ("a",), {"timeout": []}, r"timeout=\[\]: "),
            (client.publish, ("t", "x", 1.0), {}, "QoS is 0, 1 or 2"),
            (client.publish, ("t", "x", 1), {"timeout": "1"}, "timeout='1': "),
            (client.publish, ("t", "x", 0), {"timeout": float("nan")}, "timeout=nan: "),
            (client.publish, ("t", "x", 1), {"properties": 5}, "properties"),
            (client.post, ("t", "x", 1), {"timeout": "1"}, "timeout='1': "),
            (client.drain, ("1",), {}, "timeout='1': "),
        ]
        for call, values, options, text in wrong:
            with pytest.raises(ArgumentError, match=text):
                await call(*values, **options)
        assert asked == []
        await client.publish("t", "x", 0, retain="yes")  # type: ignore[arg-type]
        await client.publish("t", "x", 1, timeout=5)
    assert asked == [b"t", b"t"]
