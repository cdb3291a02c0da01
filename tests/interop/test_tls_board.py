"""The board's client over TLS, on real MicroPython: against mosquitto, and against servers that misbehave."""

import contextlib
import datetime
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwater import errors
from tests.certificates import Certificate, Pki, make
from tools import mpy, tls_memory
from tools.broker import HOST, Mosquitto
from tools.runtimes import Result, run_unix

pytestmark = [pytest.mark.needs_mosquitto, pytest.mark.needs_micropython]
PROGRAM = Path(__file__).parent / "device" / "tls_client.py"
#: On 64 bits, from .mpy files and with one authority in DER; a board, with 32 bits, takes about half.
HEAP_BUDGET = 10_500

UNKNOWN_CA = (
    "The certificate is not correctly signed by the trusted CA; give the certificate of the server's CA as ca"
)

StartBroker = Callable[..., Mosquitto]


@pytest.fixture(scope="module")
def broker(mosquitto: StartBroker, pki: Pki) -> Mosquitto:
    return mosquitto(settings=pki.listener(pki.server))


def run(scenario: str, port: int, timeout: float = 60, **arguments: object) -> str:
    """What the program prints; it must end by itself, and well."""
    values = {"scenario": scenario, "host": HOST, "port": port, **arguments}
    words = [json.dumps(pair, default=str) for pair in values.items()]
    path = [mpy.compiled(mpy.SDK), mpy.compiled(mpy.BOARD_PORT)]
    done: Result = run_unix(PROGRAM, *words, path=path, timeout=timeout)
    assert done.returncode == 0, done.stdout
    return done.stdout.strip()


# ---- certificates ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["cert", "cert_der"])
@pytest.mark.parametrize("as_bytes", [[], ["ca"]])
def test_a_server_that_the_ca_vouches_for(
    broker: Mosquitto, pki: Pki, form: str, as_bytes: list[str]
) -> None:
    assert run("echo", broker.port, ca=getattr(pki.ca, form), as_bytes=as_bytes) == "ok"


def test_one_of_several_authorities_in_a_file(broker: Mosquitto, pki: Pki, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(pki.stranger.cert.read_bytes() + b"about the next one:\n" + pki.ca.cert.read_bytes())
    assert run("echo", broker.port, ca=bundle) == "ok"


def test_the_name_that_is_checked_may_be_told(broker: Mosquitto, pki: Pki) -> None:
    assert run("echo", broker.port, ca=pki.ca.cert_der, server_name="localhost") == "ok"


def test_a_wrong_name(broker: Mosquitto, pki: Pki) -> None:
    said = run("fail", broker.port, ca=pki.ca.cert_der, server_name="elsewhere.example")
    assert "OSError (13, 'The certificate Common Name (CN) does not match" in said
    assert said.endswith("; elsewhere.example is not in it: give a name that is as server_name')")


def test_a_server_with_another_name(mosquitto: StartBroker, pki: Pki) -> None:
    with mosquitto(settings=pki.listener(pki.elsewhere)) as broker:
        assert "does not match" in run("fail", broker.port, ca=pki.ca.cert_der)


def test_an_authority_that_nobody_knows(broker: Mosquitto, pki: Pki) -> None:
    said = run("fail", broker.port, ca=pki.stranger.cert_der)
    assert said == f'OSError (13, "{UNKNOWN_CA}")'


def test_a_certificate_that_has_expired(mosquitto: StartBroker, pki: Pki) -> None:
    with mosquitto(settings=pki.listener(pki.expired)) as broker:
        said = run("fail", broker.port, ca=pki.ca.cert_der)
    today = datetime.datetime.now(datetime.timezone.utc).date()
    expired = "The certificate validity has expired; this board's clock says "
    assert said in {f'OSError (13, "{expired}{day}")' for day in (today, today - datetime.timedelta(1))}


@pytest.mark.parametrize("clock", [1970, 2000, 2021])
def test_a_clock_that_was_not_set(mosquitto: StartBroker, tmp_path: Path, clock: int) -> None:
    """The unix build has the clock of this machine, so the certificates are as many years ahead of it."""
    years = datetime.datetime.now(datetime.timezone.utc).year - clock
    later = datetime.timedelta(days=365 * years)
    ca = make(tmp_path, "ca", authority=True, later=later)
    server = make(tmp_path, "server", (HOST,), issuer=ca, later=later)
    settings = {"cafile": ca.cert, "certfile": server.cert, "keyfile": server.key}
    with mosquitto(settings=settings) as broker:
        said = run("fail", broker.port, ca=ca.cert_der)
    assert "The certificate validity starts in the future; this board's clock says 20" in said
    assert said.endswith(': set it before TLS")')


def test_a_certificate_that_has_signed_itself_is_its_own_authority(
    mosquitto: StartBroker, pki: Pki, tmp_path: Path
) -> None:
    pinned = make(tmp_path, "pinned", (HOST,))
    with mosquitto(settings=pki.listener(pinned)) as broker:
        assert run("echo", broker.port, ca=pinned.cert_der) == "ok"
        assert "not correctly signed" in run("fail", broker.port, ca=pki.ca.cert_der)


@pytest.mark.parametrize("form", ["", "_der"])
def test_a_client_that_shows_its_certificate(mosquitto: StartBroker, pki: Pki, form: str) -> None:
    with mosquitto(settings=pki.listener(pki.server, clients=True)) as broker:
        cert, key = (getattr(pki.client, what + form) for what in ("cert", "key"))
        assert run("echo", broker.port, ca=pki.ca.cert_der, cert=cert, key=key) == "ok"
        said = run("fail", broker.port, ca=pki.ca.cert_der)
        assert said.endswith("during the handshake: it may require a client certificate; see its log')")
        assert broker.log_text().count("peer did not return a certificate") == 1


def test_connecting_without_waiting(broker: Mosquitto, pki: Pki) -> None:
    assert run("begin", broker.port, ca=pki.ca.cert_der) == "0 None"
    said = run("begin", broker.port, ca=pki.stranger.cert_der)
    assert said == f"{errors.E_CLOSED} [Errno 13] EACCES: {UNKNOWN_CA}"
    with relay(broker.port, 60, then_close=False) as port:
        assert (
            run("begin", port, ca=pki.ca.cert_der, timeout_ms=300)
            == f"{errors.E_CLOSED} [Errno 110] ETIMEDOUT"
        )


@pytest.mark.parametrize(
    "arguments, says",
    [
        ({}, "ValueError ('ca is missing"),
        ({"ca": "none.der"}, "OSError (2,"),
        ({"ca": "empty"}, "ValueError"),
        ({"ca": "noise"}, "ValueError"),
        ({"ca": "key"}, "ValueError ('ca: no PEM block CERTIFICATE found: pass one that has it, or DER',)"),
        ({"ca": "ca", "cert": "cert"}, "ValueError ('pass cert and key together: one of them is missing',)"),
        (
            {"ca": "ca", "cert": "two", "key": "key"},
            "ValueError ('cert: 2, key: 1: need one certificate and one key',)",
        ),
        (
            {"ca": "ca", "cert": "cert", "key": "cert"},
            "ValueError ('key: no PEM block PRIVATE KEY found: pass one that has it, or DER',)",
        ),
        ({"ca": "ca", "cert": "cert", "key": "noise"}, "ValueError"),
        (
            {"ca": "ca", "cert": "cert", "key": "locked"},
            "ValueError ('cert and key (unencrypted): invalid key: pass DER or PEM',)",
        ),
    ],
)
def test_what_is_no_certificate_or_key(
    pki: Pki, tmp_path: Path, arguments: dict[str, str], says: str
) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "two").write_bytes(pki.client.cert.read_bytes() + pki.ca.cert.read_bytes())
    (tmp_path / "noise").write_bytes(b"\x30\x82\x01\x00 and more that is none")
    files: dict[str, object] = {
        "ca": pki.ca.cert,
        "cert": pki.client.cert,
        "key": pki.client.key,
        "locked": pki.locked.key,
        "empty": tmp_path / "empty",
        "noise": tmp_path / "noise",
        "two": tmp_path / "two",
        "none.der": tmp_path / "none.der",
    }
    said = run("wrong", 1, 60, **{name: files[file] for name, file in arguments.items()})
    assert said.startswith(says), said


# ---- handshakes that do not come to their end ------------------------------------------------------------------------


@contextlib.contextmanager
def relay(to: int, stop_after: int, then_close: bool) -> Iterator[int]:
    """A port whose connections end at port ``to``, until the server has said ``stop_after`` bytes; then silence."""
    ended = threading.Event()
    threads: list[threading.Thread] = []

    def pump(source: socket.socket, target: socket.socket, left: int) -> None:
        with contextlib.suppress(OSError):
            while left and (data := source.recv(min(left, 65536))):
                target.sendall(data)
                left -= len(data)
            if then_close:
                # Both ways, or the other pump would keep it open.
                for one in (source, target):
                    one.shutdown(socket.SHUT_RDWR)
            ended.wait()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                near = listener.accept()[0]
                far = socket.create_connection((HOST, to))
                opened.extend([near, far])
                for pair in ((near, far, 1 << 60), (far, near, stop_after)):
                    threads.append(threading.Thread(target=pump, args=pair))
                    threads[-1].start()

    opened: list[socket.socket] = []
    with socket.create_server((HOST, 0)) as listener:
        acceptor = threading.Thread(target=serve)
        acceptor.start()
        try:
            yield listener.getsockname()[1]
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
            for one in opened:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
            for thread in (acceptor, *threads):
                thread.join()


@pytest.mark.parametrize("stop_after", [0, 1, 5, 60, 400])
def test_a_server_that_stops_in_the_middle_of_the_handshake(
    broker: Mosquitto, pki: Pki, stop_after: int
) -> None:
    with relay(broker.port, stop_after, then_close=False) as port:
        assert run("fail", port, ca=pki.ca.cert_der, timeout_ms=300) == "OSError (110,)"


def test_a_handshake_may_take_longer_than_an_answer(pki: Pki) -> None:
    """The timeout of the handshake is the dialer's, whatever the session's is."""
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        # Nobody answers; were the answer's time-out to hold, it would be the first.
        said = run("begin", port, ca=pki.ca.cert_der, timeout_ms=1500, response_ms=100)
        assert said == f"{errors.E_CLOSED} [Errno 110] ETIMEDOUT"


@pytest.mark.parametrize("stop_after", [0, 1, 5, 60, 400])
def test_a_server_that_hangs_up_in_the_middle_of_the_handshake(
    broker: Mosquitto, pki: Pki, stop_after: int
) -> None:
    with relay(broker.port, stop_after, then_close=True) as port:
        assert run("fail", port, ca=pki.ca.cert_der).startswith("OSError (")


def test_a_server_that_does_not_speak_tls(mosquitto: StartBroker, pki: Pki) -> None:
    with mosquitto() as plain:
        assert run("fail", plain.port, ca=pki.ca.cert_der).startswith("OSError (")


# ---- records ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def server(certificate: Certificate, talk: Callable[[ssl.SSLSocket], None]) -> Iterator[int]:
    """A TLS server for one connection, which ``talk`` has."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    failed: list[BaseException] = []

    def serve() -> None:
        try:
            near = listener.accept()[0]
            near.settimeout(50)
            with context.wrap_socket(near, server_side=True) as s:
                talk(s)
        except BaseException as error:
            failed.append(error)

    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join()
    assert failed == []


def receive(s: ssl.SSLSocket, n: int) -> bytes:
    data = b""
    while len(data) < n:
        more = s.recv(n - len(data))
        assert more, "it hung up"
        data += more
    return data


def packet(s: ssl.SSLSocket) -> tuple[int, bytes]:
    """An MQTT packet of the client's: its first byte and its body."""
    head, size = receive(s, 1)[0], 0
    for shift in range(0, 28, 7):
        byte = receive(s, 1)[0]
        size |= (byte & 127) << shift
        if byte < 128:
            break
    return head, receive(s, size)


def test_what_tls_has_decrypted_and_nobody_read_is_not_slept_over(pki: Pki) -> None:
    """One record of more than one ``poll`` reads, and nothing after it."""
    ended = threading.Event()

    def talk(s: ssl.SSLSocket) -> None:
        assert packet(s)[0] == 0x10
        bodies = [b"\x00\x01t" + b"%03d" % n + bytes(94) for n in range(100)]
        s.sendall(b"\x20\x02\x00\x00" + b"".join(b"\x30" + bytes([len(body)]) + body for body in bodies))
        ended.wait(50)

    with server(pki.server, talk) as port:
        try:
            assert run("pending", port, timeout=30, ca=pki.ca.cert_der) == "True"
        finally:
            ended.set()


def test_a_server_that_reads_slower_than_the_board_writes_gets_each_byte_once(pki: Pki) -> None:
    """It reads nothing until the client cannot write any more, in the middle of a record."""
    received = bytearray()

    def talk(s: ssl.SSLSocket) -> None:
        signal.accept()[0].close()
        while data := s.recv(65536):
            received.extend(data)

    with socket.create_server((HOST, 0)) as signal:
        signal.settimeout(50)
        with server(pki.server, talk) as port:
            sent = int(run("flood", port, ca=pki.ca.cert_der, signal=signal.getsockname()[1]))
    assert len(received) == sent > 100_000
    assert received == (bytes(range(251)) * (sent // 251 + 1))[:sent]


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_nothing_is_allocated_once_connected(broker: Mosquitto, pki: Pki) -> None:
    assert run("locked", broker.port, ca=pki.ca.cert_der) == "60"


def test_what_it_takes_from_the_heap(broker: Mosquitto, pki: Pki) -> None:
    taken, more = map(int, run("heap", broker.port, ca=pki.ca.cert_der).split())
    assert more == 0
    assert 0 < taken <= HEAP_BUDGET, taken


@pytest.mark.parametrize("what, least, most", [("ca", 500, 2500), ("connection", 21_500, 25_500)])
def test_what_it_takes_from_the_heap_of_mbedtls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str, least: int, most: int
) -> None:
    """As docs/tls-on-boards.md says; fewer connections than there, so less exactly."""
    monkeypatch.setitem(tls_memory.CASES, what, (100, 2))
    pem, der, private = tls_memory.certificate(tmp_path, "P-256")
    with tls_memory.server(pem, private, 2) as port:
        native, python = tls_memory.measure(what, der, port)
    assert least <= native <= most
    assert 0 < python < 5000
