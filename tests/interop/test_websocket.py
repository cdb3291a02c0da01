"""The asyncio client over WebSocket, against mosquitto, behind a proxy, and against servers that misbehave."""

import asyncio
import contextlib
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from headwater_host.client.mqtt import Client, ConnectionOptions, Limits, SessionOptions, Tls, Will
from headwater_host.errors import ArgumentError, NotConnectedError, TlsError
from tests.certificates import Pki
from tests.host.mqtt_server import speak
from tests.interop.secure import UNKNOWN, StartBroker, Web, connect, exchange, serve_websocket
from tests.waiting import take
from tools.broker import HOST, Mosquitto

pytestmark = pytest.mark.needs_mosquitto


@pytest.fixture(scope="module")
def secure_web(mosquitto: StartBroker, pki: Pki) -> Web:
    return serve_websocket(mosquitto, **pki.listener(pki.server))


# mosquitto 2.0.11 writes some 40 KB/s to a WebSocket: few and small ones there.


@pytest.mark.parametrize("path", ["", "/", "/mqtt", "/a/path?and=query"])
def test_messages_pass_over_websocket(web: Web, path: str) -> None:
    asyncio.run(
        exchange(
            Client(HOST, web.port, connection=ConnectionOptions(websocket=path)), (0, 125, 126, 3000), 20
        )
    )


def test_messages_pass_over_websocket_and_tls(secure_web: Web, pki: Pki) -> None:
    tls = Tls(ca=pki.ca.cert)
    client = Client("localhost", secure_web.port, tls=tls, connection=ConnectionOptions(websocket="/mqtt"))
    asyncio.run(exchange(client, (0, 125, 126, 3000), 20))
    with pytest.raises(TlsError, match=UNKNOWN):
        connect(
            secure_web.port, tls=Tls(ca=pki.stranger.cert), connection=ConnectionOptions(websocket="/mqtt")
        )


@contextlib.asynccontextmanager
async def proxy(broker: Mosquitto, **options: Any) -> AsyncIterator[int]:
    """A WebSocket server in front of the broker's plain listener, as operators run them."""

    async def handle(websocket: ServerConnection) -> None:
        reader, writer = await asyncio.open_connection(HOST, broker.port)

        async def up() -> None:
            async for frame in websocket:
                assert isinstance(frame, bytes)
                writer.write(frame)
                await writer.drain()
            writer.close()

        task = asyncio.create_task(up())
        with contextlib.suppress(ConnectionError, ConnectionClosed):
            while data := await reader.read(100_000):
                await websocket.send(data)
        await websocket.close()
        await task

    subprotocols = [Subprotocol("mqtt")]
    async with serve(handle, HOST, 0, subprotocols=subprotocols, max_size=None, **options) as server:
        yield next(iter(server.sockets)).getsockname()[1]


@pytest.mark.parametrize("secure", [False, True])
async def test_large_messages_pass_a_proxy(plain: Mosquitto, pki: Pki, secure: bool) -> None:
    context = None
    if secure:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pki.server.cert, pki.server.key)
    async with proxy(plain, ssl=context) as port:
        await exchange(
            Client(
                HOST,
                port,
                tls=Tls(ca=pki.ca.cert) if secure else None,
                connection=ConnectionOptions(websocket="/mqtt"),
            )
        )


async def test_a_websocket_that_breaks_and_is_made_again(web: Web) -> None:
    client = Client(
        HOST,
        web.port,
        connection=ConnectionOptions(websocket="/mqtt"),
        identifier="again",
        session=SessionOptions(clean_start=False),
    )
    async with client:
        await client.subscribe("again", qos=1)
        assert client.connection is not None
        assert client.connection.transport is not None
        client.connection.transport.abort()
        with pytest.raises(NotConnectedError, match="was lost"):
            await client.messages.__anext__()
    async with client:
        assert client.session_present
        await client.publish("again", "x", 2)
        assert (await take(client, 1))[0].payload == b"x"


async def test_reading_is_held_over_websocket(plain: Mosquitto) -> None:
    """Whoever takes no messages does not get all of them into memory."""

    async with (
        proxy(plain) as port,
        Client(
            HOST, port, connection=ConnectionOptions(websocket="/mqtt"), limits=Limits(queued_incoming=10)
        ) as slow,
        Client(HOST, plain.port) as fast,
    ):
        await slow.subscribe("held", qos=1)
        for _ in range(300):
            await fast.publish("held", bytes(100_000), 1)
        connection = slow.connection
        assert connection is not None
        while not connection.held:
            await asyncio.sleep(0.01)
        assert len(slow.messages) < 300
        assert len(await take(slow, 300)) == 300


async def test_the_will_stays_unpublished_when_a_websocket_ends_well(web: Web) -> None:
    async with Client(HOST, web.port, connection=ConnectionOptions(websocket="/mqtt")) as watcher:
        await watcher.subscribe("wills")
        async with Client(
            HOST, web.port, connection=ConnectionOptions(websocket="/mqtt"), will=Will("wills", "gone")
        ):
            pass
        await watcher.publish("wills", "end")
        assert (await take(watcher, 1))[0].payload == b"end"


@pytest.mark.parametrize("path", ["mqtt", "/a b", "/a#b", "/a\r\nHost: x", "/ä"])
def test_what_is_no_path(path: str) -> None:
    with pytest.raises(ArgumentError, match="is not a path for WebSocket"):
        Client(HOST, connection=ConnectionOptions(websocket=path))


def serving(
    answer: Callable[[ServerProtocol, Any], Any], then: Callable[[ServerProtocol], object] | None = None
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
    """A WebSocket server that answers the request as told; ``then`` is called when CONNECT has come."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = ServerProtocol(subprotocols=[Subprotocol("mqtt")])
        while data := await reader.read(65536):
            frames.receive_data(data)
            for event in frames.events_received():
                if not isinstance(event, Frame):
                    frames.send_response(answer(frames, event))
                elif event.opcode is Opcode.BINARY and then is not None:
                    then(frames)
            writer.writelines(frames.data_to_send())
            await writer.drain()

    return talk


def without_subprotocol(frames: ServerProtocol, request: Any) -> Any:
    response = frames.accept(request)
    del response.headers["Sec-WebSocket-Protocol"]
    return response


@pytest.mark.parametrize(
    "answer, says",
    [
        (lambda frames, request: frames.reject(404, "nothing here"), "refuses WebSocket: HTTP status 404"),
        (lambda frames, request: frames.reject(401, "hunter2"), "HTTP status 401$"),
        (without_subprotocol, "it does not speak MQTT there"),
    ],
)
async def test_a_server_that_refuses_websocket(
    answer: Callable[[ServerProtocol, Any], Any], says: str
) -> None:
    async with speak(serving(answer)) as port:
        with pytest.raises(NotConnectedError, match=says):
            async with Client(HOST, port, connection=ConnectionOptions(websocket="/mqtt")):
                pass


@pytest.mark.parametrize(
    "noise, says",
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", "HTTP status 200"),
        (b"\x20\x02\x00\x00\r\n\r\n", "its answer is not WebSocket"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "its answer is not WebSocket"),
        (b"", "it closed the connection"),
    ],
)
async def test_a_server_that_does_not_speak_websocket(noise: bytes, says: str) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(noise)
        await writer.drain()

    async with speak(talk) as port:
        with pytest.raises(NotConnectedError, match=says):
            async with Client(HOST, port, connection=ConnectionOptions(websocket="/mqtt")):
                pass


def one_frame(frames: ServerProtocol) -> None:
    frames.send_binary(b"\x20\x02\x00\x00\x30\x05\x00\x01a12\x30\x05\x00\x01a34\x30")


def many_frames(frames: ServerProtocol) -> None:
    data = b"\x20\x02\x00\x00\x30\x05\x00\x01a12\x30\x05\x00\x01a34"
    for at in range(len(data)):
        frames.send_binary(data[at : at + 1])


def one_message_in_pieces(frames: ServerProtocol) -> None:
    frames.send_binary(b"\x20\x02\x00", fin=False)
    frames.send_ping(b"between")
    frames.send_continuation(b"\x00\x30\x05\x00\x01a12\x30", fin=False)
    frames.send_continuation(b"\x05\x00\x01a34", fin=True)


@pytest.mark.parametrize("then", [one_frame, many_frames, one_message_in_pieces])
async def test_frames_and_packets_need_not_agree(then: Callable[[ServerProtocol], None]) -> None:
    """MQTT 3.1.1 and 5.0, 6.0.0-2."""

    answer: Callable[[ServerProtocol, Any], Any] = lambda frames, request: frames.accept(request)  # noqa: E731
    async with (
        speak(serving(answer, then)) as port,
        Client(HOST, port, connection=ConnectionOptions(websocket="/mqtt")) as client,
    ):
        assert [m.payload for m in await take(client, 2)] == [b"12", b"34"]


@pytest.mark.parametrize(
    "then, says",
    [
        (lambda frames: frames.send_text(b"CONNACK"), "the server sent text over WebSocket"),
        (lambda frames: frames.writes.append(b"\xff\xff\xff\xff"), "the server broke WebSocket's protocol"),
        (lambda frames: frames.writes.append(b"\x82\x7f" + b"\x7f" * 8), "the server broke WebSocket's protocol"),
        (lambda frames: frames.send_close(1001), "the connection was lost"),
    ],
)  # fmt: skip
async def test_frames_that_end_the_connection(then: Callable[[ServerProtocol], object], says: str) -> None:
    """Anything but binary frames closes the connection (MQTT 3.1.1 and 5.0, 6.0.0-1)."""

    answer: Callable[[ServerProtocol, Any], Any] = lambda frames, request: frames.accept(request)  # noqa: E731
    async with speak(serving(answer, then)) as port:
        with pytest.raises(NotConnectedError, match=says):
            async with Client(HOST, port, connection=ConnectionOptions(websocket="/mqtt")):
                pass


def test_without_the_package_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "websockets.py").write_text("raise ImportError('not here')")
    program = (
        "from headwater_host.client.mqtt import Client, ConnectionOptions; Client('h'); "
        "Client('h', connection=ConnectionOptions(websocket='/mqtt'))"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "pip install 'headwater[websocket]'" in done.stderr
    assert "line 1, in <module>" in done.stderr


async def test_nagle_is_off_under_tls_and_websocket(secure_web: Web, pki: Pki) -> None:
    async with Client(
        HOST, secure_web.port, tls=Tls(ca=pki.ca.cert), connection=ConnectionOptions(websocket="/mqtt")
    ) as client:
        assert client.connection is not None
        assert client.connection.transport is not None
        endpoint = client.connection.transport.get_extra_info("socket")
        assert endpoint.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
