"""``headwater pub``, ``sub`` and ``gateway`` over TLS and WebSocket, against mosquitto."""

import base64
import hashlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater_host.capture import CaptureReader
from tests.certificates import Pki
from tests.host.command import ended, headwater, hub_at, running
from tests.interop.test_cli_pub_sub import subscribed
from tests.rows import each_row
from tools.broker import HOST, Mosquitto, free_port

pytestmark = pytest.mark.needs_mosquitto
StartBroker = Callable[..., Mosquitto]


@pytest.fixture(scope="module")
def broker(mosquitto: StartBroker, pki: Pki) -> Mosquitto:
    return mosquitto(settings=pki.listener(pki.server))


def test_options_of_mosquittos_users(broker: Mosquitto, pki: Pki, tmp_path: Path) -> None:
    """--cafile turns TLS on, --insecure leaves the name unchecked and nothing else."""
    where = ["-h", HOST, "-p", broker.port, "--cafile", pki.ca.cert]
    with running("sub", *where, "-t", "cli/tls", "-i", "tls", "-C", 3, directory=tmp_path) as sub:
        subscribed(broker, "tls")
        assert headwater("pub", *where, "-t", "cli/tls", "-m", "1", "-q", 1).returncode == 0
        assert headwater("pub", *where, "-t", "cli/tls", "-m", "2", "-q", 1, "--insecure").returncode == 0
        url = f"mqtts://{HOST}:{broker.port}/cli/tls"
        sent = headwater("pub", "-L", url, "--cafile", pki.ca.cert, "-m", "3", "-q", 1)
        assert (sent.returncode, sent.stderr) == (0, b"")
        assert sub.wait() == 0
        assert sub.output == b"1\n2\n3\n"
    refused = headwater("pub", *where[:4], "--cafile", pki.stranger.cert, "-t", "a", "-n", "--insecure")
    assert refused.returncode == 3
    assert b"TLS: the server's certificate is refused" in refused.stderr
    assert b"Traceback" not in refused.stderr
    refused = headwater("pub", "-L", f"mqtts://{HOST}:{broker.port}/a", "-n")
    assert refused.returncode == 3
    assert b"TLS: the server's certificate is refused" in refused.stderr


def test_a_wrong_name_and_insecure(mosquitto: StartBroker, pki: Pki) -> None:
    with mosquitto(settings=pki.listener(pki.elsewhere)) as broker:
        where = ["-h", HOST, "-p", broker.port, "--cafile", pki.ca.cert, "-t", "a", "-n"]
        refused = headwater("pub", *where)
        assert refused.returncode == 3
        assert b"IP address mismatch" in refused.stderr
        assert headwater("pub", *where, "--insecure", "-q", 1).returncode == 0


def test_our_own_certificate(mosquitto: StartBroker, pki: Pki) -> None:
    with mosquitto(settings=pki.listener(pki.server, clients=True)) as broker:
        where = ["-h", HOST, "-p", broker.port, "--cafile", pki.ca.cert, "-t", "a", "-n", "-q", 1]
        assert headwater("pub", *where, "--cert", pki.client.cert, "--key", pki.client.key).returncode == 0
        assert headwater("pub", *where).returncode == 3
        wrong = headwater("pub", *where, "--cert", pki.client.cert, "--key", pki.server.key)
        assert wrong.returncode == 2
        assert b"key values mismatch" in wrong.stderr


@each_row("secure", [False, True])
def test_websocket(mosquitto: StartBroker, pki: Pki, tmp_path: Path, secure: bool) -> None:
    port = free_port()
    own = pki.listener(pki.server) if secure else {}
    settings = {"listener ": f"{port} {HOST}", "protocol": "websockets", **own}
    broker = mosquitto(settings=settings)
    with broker:
        where = ["-L", f"{'wss' if secure else 'ws'}://{HOST}:{port}", "-t", "cli/ws"]
        where += ["--cafile", str(pki.ca.cert)] if secure else []
        with running("sub", *where, "-i", "web", "-C", 1, directory=tmp_path) as sub:
            subscribed(broker, "web")
            sent = headwater("pub", *where, "-m", "over the web", "-q", 1)
            assert (sent.returncode, sent.stderr) == (0, b"")
            assert sub.wait() == 0
            assert sub.output == b"over the web\n"


NO_TLS = b"the server may not speak TLS on this port"
WANTS_TLS = b"it may want TLS on this port"


@each_row("command", [["pub", "-n"], ["sub"]])
@each_row("version", ["3.1.1", "5"])
def test_tls_where_there_is_none_and_none_where_there_is(
    broker: Mosquitto, plain: Mosquitto, pki: Pki, command: list[str], version: str
) -> None:
    where = [*command, "-t", "a", "-V", version, "-h", HOST, "-p"]
    for port, more, says in ((plain.port, ["--cafile", pki.ca.cert], NO_TLS), (broker.port, [], WANTS_TLS)):
        shown = headwater(*where, port, *more)
        assert (shown.returncode, says in shown.stderr) == (3, True), shown.stderr


def test_tls_and_a_hub_without_it_and_the_other_way_round(
    broker: Mosquitto, pki: Pki, tmp_path: Path
) -> None:
    where = ["pub", "--protocol", "fmq", "-n", "-t", "a", "-h", HOST, "-p"]
    with hub_at(tmp_path, "--port", 0) as port:
        shown = headwater(*where, port, "--cafile", pki.ca.cert)
    assert (shown.returncode, NO_TLS in shown.stderr) == (3, True), shown.stderr
    # A server that speaks TLS, whatever comes in it.
    shown = headwater(*where, broker.port)
    assert (shown.returncode, WANTS_TLS in shown.stderr) == (3, True), shown.stderr


def test_a_server_that_refuses_what_is_no_tls_with_an_alert() -> None:
    """As OpenSSL does, when the client reads before it is reset."""
    with socket.create_server((HOST, 0)) as server:

        def refuse() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(bytes((0x15, 3, 1, 0, 2, 2, 70)))
                connection.recv(1000)

        thread = threading.Thread(target=refuse)
        thread.start()
        shown = headwater("pub", "-n", "-t", "a", "-h", HOST, "-p", server.getsockname()[1])
        thread.join()
    assert shown.stderr == b"headwater: the connection was lost: the server speaks TLS on this port\n"
    assert shown.returncode == 3


def test_user_and_password_in_a_url(mosquitto: StartBroker, tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    # As mosquitto_passwd, which is in another package, would write it.
    salt = os.urandom(12)
    digest = hashlib.pbkdf2_hmac("sha512", b"p@ss:w/rd", salt, 101)
    line = f"who@me:$7$101${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}\n"
    passwords.write_text(line)
    with mosquitto(settings={"allow_anonymous": "false", "password_file": passwords}) as broker:
        url = f"mqtt://who%40me:p%40ss:w%2Frd@{HOST}:{broker.port}/a"
        sent = headwater("pub", "-L", url, "-n", "-q", 1)
        assert (sent.returncode, sent.stderr) == (0, b"")
        refused = headwater("pub", "-L", url, "-n", "-q", 1, "-P", "hunter2")
        assert refused.returncode == 1
        assert b"hunter2" not in refused.stderr
        assert b"who@me" not in refused.stderr


@each_row(
    "arguments, says",
    [
        (["-L", "mqtt://h/a", "-p", "1"], "remove -h and -p"),
        (["-L", "mqtt://h/a", "-h", "g"], "remove -h and -p"),
        (["-L", "mqtt://h"], "a topic is required"),
        (["-L", "ws://h/a"], "a topic is required"),
        ([], "a topic is required"),
        (["-t", "a", "--insecure"], "--insecure needs TLS"),
        (["-t", "a", "--cafile", "none.pem"], "cannot use the CA in none.pem"),
        (["-t", "a", "--cafile", "a", "--capath", "b"], "not both"),
        (["-t", "a", "--cert", "none.pem"], "cannot use the certificate none.pem"),
        (["-h", "mqtt://me:hunter2@h", "-t", "a"], "a host name is needed, not a URL"),
        (["-L", "http://me:hunter2@h/a"], "-L/--url: expected SCHEME://"),
        (["-L", "mqtt://me:hunter2@h:x/a"], "-L/--url: expected SCHEME://"),
        (["-L", "mqtt://me:hunter2@h:99999/a"], "-L/--url: expected SCHEME://"),
        (["-L", "mqtt://me:hunter2@/a"], "-L/--url: expected SCHEME://"),
        (["-L", "mqtt://me:hunter2@h/a#"], "is not a topic filter"),
        (["-L", "ws://h/a b", "-t", "a"], "is not a path for WebSocket"),
    ],
)
@each_row("command", [["pub", "-n"], ["sub"]])
def test_a_wrong_command_line(
    command: list[str], arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = ended(*command, *arguments)
    said = capsys.readouterr()
    assert says in said.err
    assert (code, said.out) == (2, "")
    assert "hunter2" not in said.err
    assert "Traceback" not in said.err


def test_the_gateway_lands_from_a_broker_over_tls(mosquitto: StartBroker, pki: Pki, tmp_path: Path) -> None:
    with mosquitto(settings=pki.listener(pki.server, clients=True)) as broker:
        config = tmp_path / "gateway.toml"
        config.write_text(
            f'capture = "{tmp_path}/log"\n[[broker]]\nhost = "{HOST}"\nport = {broker.port}\n'
            f'topics = ["t:1"]\ncafile = "{pki.ca.cert}"\ncert = "{pki.client.cert}"\nkey = "{pki.client.key}"\n'
        )
        with running("gateway", "--config", config, directory=tmp_path) as gateway:
            gateway.wait_for("subscribed to t (QoS 1)")
            own = ["--cafile", pki.ca.cert, "--cert", pki.client.cert, "--key", pki.client.key]
            sent = headwater("pub", "-h", HOST, "-p", broker.port, *own, "-t", "t", "-m", "x", "-q", 1)
            assert sent.returncode == 0, sent.stderr
            assert gateway.end() == 0
        assert sum(block.header.records for block in CaptureReader(tmp_path / "log").blocks()) == 1
