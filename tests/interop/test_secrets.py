"""User names and passwords appear in no repr, no log, no error and no traceback of ours, whatever is logged."""

import asyncio
import logging
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater_host.cli import argument_types
from headwater_host.client.mqtt import Client, ConnectionOptions, Tls
from headwater_host.errors import ArgumentError, ClientError
from headwater_host.gateway.config import BrokerConfig, GatewayConfig, check, load
from tests.certificates import Pki
from tests.host.command import headwater, running
from tests.host.mqtt_server import speak
from tests.interop.secure import Web, serve_websocket, silent
from tools.broker import HOST, Mosquitto

pytestmark = pytest.mark.needs_mosquitto
StartBroker = Callable[..., Mosquitto]

USER = "wh0-is-it"
PASSWORD = "h7nter2-sesame"
KEY_PASSWORD = "0pen-the-key"
SECRETS = (USER, PASSWORD, KEY_PASSWORD)
#: Refuses everybody.
CLOSED = {"allow_anonymous": "false"}


def clean(text: str) -> None:
    """There is no secret in the text, as it stands or in hex."""
    squeezed = text.replace(" ", "").replace("\\x", "").lower()
    for secret in SECRETS:
        # Either end of it would help as well: what shows frames leaves out their middle.
        for part in (secret[:6], secret[-6:]):
            assert part not in text
            assert part.encode().hex() not in squeezed


def told(error: BaseException) -> str:
    """Everything that a log would have of an error."""
    return "".join(traceback.format_exception(error)) + repr(error) + str(error)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """All that anybody logs, looked through at the end."""
    caplog.set_level(logging.DEBUG)
    for name in ("asyncio", "headwater", "headwater.client", "websockets", "websockets.client"):
        caplog.set_level(logging.DEBUG, name)
    yield caplog
    records = caplog.get_records("call")
    assert records
    clean("\n".join(logging.Formatter().format(record) for record in records))


def make(port: int, **more: Any) -> Client:
    return Client(HOST, port, username=USER, password=PASSWORD, timeout=2, **more)


def test_reprs(pki: Pki) -> None:
    tls = Tls(pki.ca.cert, pki.client.cert, pki.client.key, key_password=KEY_PASSWORD)
    client = make(1, tls=tls)
    broker = BrokerConfig("h", topics=(("a", 1),), username=USER, password=PASSWORD.encode(), tls=tls)
    config = check(GatewayConfig(Path("log"), brokers=(broker,)))
    url = argument_types.url(f"mqtts://{USER}:{PASSWORD}@h/a")
    assert (url.username, url.password) == (USER, PASSWORD)
    for one in (client, client.session, client.messages, client.session.outbox, tls, broker, config, url):
        clean(f"{one!r} {one}")


def test_a_file_of_the_gateway(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(PASSWORD)
    path = tmp_path / "gateway.toml"
    path.write_text(
        f'capture = "log"\n[[broker]]\nhost = "h"\ntopics = ["a"]\nusername = "{USER}"\n'
        f'password_file = "{tmp_path}/password"\n'
    )
    config = load(path)
    assert config.brokers[0].password == PASSWORD.encode()
    clean(repr(config))


@pytest.mark.parametrize(
    "wrong",
    [
        {"password": PASSWORD + "\ud800"},
        {"username": USER + "\ud800", "password": PASSWORD},
        {"password": PASSWORD},
        {"username": USER, "password": PASSWORD * 10000},
        {"username": USER * 10000, "password": PASSWORD},
        {"username": USER, "password": PASSWORD, "timeout": 0},
    ],
)
def test_options_that_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError) as refused:
        Client(HOST, **wrong)
    clean(told(refused.value))
    assert "\\ud800" not in told(refused.value)


def test_a_key_that_does_not_open(pki: Pki) -> None:
    with pytest.raises(ArgumentError) as refused:
        Client(HOST, tls=Tls(cert=pki.locked.cert, key=pki.locked.key, key_password=KEY_PASSWORD))
    clean(told(refused.value))


async def use(client: Client) -> None:
    async with client:
        await client.publish("a", "b", 1)


def errors_of(client: Client) -> ClientError | None:
    try:
        # Debugging asyncio logs what it runs.
        asyncio.run(use(client), debug=True)
    except ClientError as error:
        clean(told(error))
        return error
    return None


def test_connections_that_hold(mosquitto: StartBroker, pki: Pki, log: pytest.LogCaptureFixture) -> None:
    with mosquitto() as broker:
        assert errors_of(make(broker.port)) is None
    web = serve_websocket(mosquitto)
    assert errors_of(make(web.port, connection=ConnectionOptions(websocket="/mqtt"))) is None
    with mosquitto(settings=pki.listener(pki.server)) as broker:
        assert errors_of(make(broker.port, tls=Tls(ca=pki.ca.cert))) is None


def test_connections_that_are_refused(
    mosquitto: StartBroker, pki: Pki, log: pytest.LogCaptureFixture
) -> None:
    with mosquitto(settings=CLOSED) as broker:
        assert "not authorized" in str(errors_of(make(broker.port)))
        assert "no connection to" in str(errors_of(make(broker.port, tls=True)))
        assert "no connection to" in str(
            errors_of(make(broker.port, connection=ConnectionOptions(websocket="")))
        )
    web: Web = serve_websocket(mosquitto, **CLOSED)
    assert "not authorized" in str(errors_of(make(web.port, connection=ConnectionOptions(websocket="/mqtt"))))


def test_connections_that_say_nothing(log: pytest.LogCaptureFixture) -> None:
    async def scenario(**more: Any) -> None:
        async with speak(silent) as port:
            client = Client(HOST, port, username=USER, password=PASSWORD, timeout=0.2, **more)
            with pytest.raises(ClientError) as late:
                await use(client)
            clean(told(late.value))

    for more in ({}, {"tls": True}, {"connection": ConnectionOptions(websocket="/mqtt")}):
        asyncio.run(scenario(**more), debug=True)


def test_commands(mosquitto: StartBroker, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    with mosquitto(settings=CLOSED) as broker:
        where = ["-h", HOST, "-p", str(broker.port), "-u", USER, "-t", "a"]
        url = f"mqtt://{USER}:{PASSWORD}@{HOST}:{broker.port}/a"
        for arguments in (
            ["-P", PASSWORD, *where],
            ["--password-file", str(file), *where],
            where,
            ["-L", url],
        ):
            for command in (["pub", "-n", "-q", "1"], ["sub", "-W", "5"]):
                shown = headwater(*command, *arguments, HEADWATER_PASSWORD=PASSWORD)
                assert shown.returncode == 1
                assert b"not authorized" in shown.stderr
                clean((shown.stdout + shown.stderr).decode())
    for bad in (
        f"mqtt://{USER}:{PASSWORD}@",
        f"http://{USER}:{PASSWORD}@h",
        f"mqtt://{USER}:{PASSWORD}@h/#/a",
    ):
        shown = headwater("pub", "-n", "-L", bad)
        assert shown.returncode == 2
        clean((shown.stdout + shown.stderr).decode())


@pytest.mark.parametrize("settings", [{}, CLOSED])
def test_the_gateway(mosquitto: StartBroker, tmp_path: Path, settings: dict[str, str]) -> None:
    (tmp_path / "password").write_text(PASSWORD)
    stats = tmp_path / "stats.json"
    with mosquitto(settings=settings) as broker:
        config = tmp_path / "gateway.toml"
        config.write_text(
            f'capture = "{tmp_path}/log"\nstats = "{stats}"\n[[broker]]\nhost = "{HOST}"\nport = {broker.port}\n'
            f'topics = ["a"]\nusername = "{USER}"\npassword_file = "{tmp_path}/password"\n'
        )
        with running("gateway", "--config", config, directory=tmp_path) as gateway:
            gateway.wait_for("not authorized" if settings else "subscribed")
            assert gateway.end() == 0
            clean(gateway.errors + gateway.output.decode() + stats.read_text())
