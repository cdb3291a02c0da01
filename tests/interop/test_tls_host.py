"""The asyncio client over TLS, against mosquitto and against servers that misbehave."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater_host.client.mqtt import Client, ConnectionOptions, Tls
from headwater_host.errors import ArgumentError, NotConnectedError, TimedOutError, TlsError
from tests.certificates import Pki
from tests.host.client_options import grouped
from tests.host.mqtt_server import speak
from tests.interop.secure import UNKNOWN, StartBroker, Web, connect, exchange, silent
from tests.rows import each_row
from tools.broker import HOST, Mosquitto

pytestmark = pytest.mark.needs_mosquitto


@pytest.fixture(scope="module")
def broker(mosquitto: StartBroker, pki: Pki) -> Mosquitto:
    return mosquitto(settings=pki.listener(pki.server))


# ---- certificates ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tls",
    [
        lambda pki: Tls(ca=pki.ca.cert),
        lambda pki: Tls(ca=str(pki.ca.cert), server_name="localhost"),
        lambda pki: Tls(ca=pki.ca.cert.read_bytes()),
        lambda pki: Tls(ca=pki.ca.cert_der.read_bytes()),
        lambda pki: ssl.create_default_context(cafile=pki.ca.cert),
        lambda pki: Tls(context=ssl.create_default_context(cafile=pki.ca.cert), server_name="localhost"),
        lambda pki: Tls(ca=pki.ca.cert, check_hostname=False, server_name="elsewhere.example"),
    ],
)
def test_a_server_that_the_ca_vouches_for(broker: Mosquitto, pki: Pki, tls: Callable[[Pki], Any]) -> None:
    asyncio.run(exchange(Client(HOST, broker.port, tls=tls(pki))))


def test_a_directory_of_authorities(broker: Mosquitto, pki: Pki, tmp_path: Path) -> None:
    assert shutil.which("openssl")
    shutil.copy(pki.ca.cert, tmp_path / "ca.pem")
    subprocess.run(["openssl", "rehash", str(tmp_path)], check=True)
    connect(broker.port, tls=Tls(ca=tmp_path))


@pytest.mark.parametrize(
    "tls, says",
    [
        (lambda pki: True, UNKNOWN),
        (lambda pki: Tls(ca=pki.stranger.cert), UNKNOWN),
        (lambda pki: Tls(ca=pki.ca.cert, server_name="elsewhere.example"), "not valid for 'elsewhere.example'"),
    ],
)  # fmt: skip
def test_a_server_that_nobody_vouches_for(
    broker: Mosquitto, pki: Pki, tls: Callable[[Pki], Any], says: str
) -> None:
    with pytest.raises(TlsError, match=says) as refused:
        connect(broker.port, tls=tls(pki))
    assert str(refused.value).startswith(
        f"no connection to {HOST}:{broker.port}: TLS: the server's certificate"
    )


@pytest.mark.parametrize("which, says", [("elsewhere", "IP address mismatch"), ("expired", "has expired")])
def test_a_server_with_the_wrong_certificate(mosquitto: StartBroker, pki: Pki, which: str, says: str) -> None:
    with mosquitto(settings=pki.listener(getattr(pki, which))) as broker:
        with pytest.raises(TlsError, match=says):
            connect(broker.port, tls=Tls(ca=pki.ca.cert))
        if which == "elsewhere":
            connect(broker.port, tls=Tls(ca=pki.ca.cert, check_hostname=False))


def test_a_client_that_shows_its_certificate(mosquitto: StartBroker, pki: Pki) -> None:
    with mosquitto(settings=pki.listener(pki.server, clients=True)) as broker:
        for own in (pki.client, pki.locked):
            tls = Tls(ca=pki.ca.cert, cert=own.cert, key=own.key, key_password="open sesame")
            asyncio.run(exchange(Client(HOST, broker.port, tls=tls)))
        # With TLS 1.3 the server says so when our side of the handshake is over, and closes. By then we may have sent
        # CONNECT, and the reset that answers it may be all that we get to see.
        with pytest.raises(NotConnectedError, match=r"certificate required|reset by peer|Broken pipe"):
            connect(broker.port, tls=Tls(ca=pki.ca.cert))


@each_row(
    "tls, says",
    [
        (lambda pki: Tls(ca="none.pem"), "cannot use the CA in none.pem: No such file"),
        (lambda pki: Tls(ca=pki.ca.key), "cannot use the CA in .*key.pem"),
        (lambda pki: Tls(ca=b""), "cannot use the CA's bytes"),
        (lambda pki: Tls(ca=b"\xff-----BEGIN"), "cannot use the CA's bytes"),
        (lambda pki: Tls(cert="none.pem"), "cannot use the certificate none.pem: No such file"),
        (lambda pki: Tls(cert=pki.client.cert), "cannot use the certificate"),
        (lambda pki: Tls(cert=pki.client.cert, key=pki.server.key), "key values mismatch"),
        (lambda pki: Tls(cert=pki.locked.cert, key=pki.locked.key), "cannot use the certificate"),
        (
            lambda pki: Tls(cert=pki.locked.cert, key=pki.locked.key, key_password="hunter2"),
            "a wrong password",
        ),
        (lambda pki: Tls(key=pki.client.key), "a client's key needs its certificate"),
    ],
    ids=lambda row: row[1],
)
def test_what_is_no_certificate_or_key(pki: Pki, tls: Callable[[Pki], Tls], says: str) -> None:
    with pytest.raises(ArgumentError, match=says) as wrong:
        Client(HOST, tls=tls(pki))
    assert "hunter2" not in str(wrong.value)


def test_the_port_follows_from_the_rest() -> None:
    assert Client(HOST).port == 1883
    assert Client(HOST, tls=True).port == 8883
    assert Client(HOST, connection=ConnectionOptions(websocket="")).port == 80
    assert Client(HOST, connection=ConnectionOptions(websocket="/mqtt"), tls=True).port == 443
    assert Client(HOST, 1, tls=True).port == 1


# ---- handshakes that do not come to their end ------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"tls": True}, {"websocket": "/mqtt"}, {"tls": True, "websocket": ""}])
async def test_a_server_that_says_nothing(options: dict[str, Any]) -> None:
    async with speak(silent) as port:
        with pytest.raises(TimedOutError, match=r"no connection to .* within 0\.2 s"):
            async with Client(HOST, port, timeout=0.2, **grouped(options)):
                pass


@pytest.mark.parametrize("stop_after", [1, 5, 60, 400])
@pytest.mark.parametrize("hang_up", [False, True])
async def test_a_server_that_stops_in_the_middle_of_the_handshake(
    broker: Mosquitto, pki: Pki, stop_after: int, hang_up: bool
) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(HOST, broker.port)

        async def down() -> None:
            writer.write(await far_reader.readexactly(stop_after))
            await writer.drain()
            if hang_up:
                writer.close()

        task = asyncio.create_task(down())
        while data := await reader.read(65536):
            far_writer.write(data)
        await task
        far_writer.close()

    async with speak(talk) as port:
        wanted = NotConnectedError if hang_up else TimedOutError
        with pytest.raises(wanted, match="no connection to"):
            async with Client(HOST, port, timeout=5 if hang_up else 0.3, tls=Tls(ca=pki.ca.cert)):
                pass


def test_a_server_that_does_not_speak_tls(web: Web, plain: Mosquitto) -> None:
    with pytest.raises(TlsError, match=f"no connection to {HOST}:.* may not speak TLS on this port"):
        connect(plain.port, tls=True)
    with pytest.raises(TlsError, match=r"wrong version number\); the server may not speak TLS on this port"):
        connect(web.port, tls=True)


def test_a_url_where_a_host_belongs_is_refused_in_a_sentence() -> None:
    for url, says in (
        ("mqtt://broker.local", "Client('broker.local')"),
        ("mqtts://me:hunter2@broker.local:8884/a", "Client('broker.local', 8884, tls=True)"),
        (
            "wss://broker.local/mqtt",
            "Client('broker.local', tls=True, connection=ConnectionOptions(websocket='/...'))",
        ),
    ):
        with pytest.raises(ArgumentError) as refused:
            Client(url)
        assert says in str(refused.value)
        assert "hunter2" not in str(refused.value)
        with pytest.raises(ArgumentError):
            Client(HOST, connection=ConnectionOptions(more_servers=[(url, 1883)]))
