"""The recipe of docs/tls-on-boards.md as it stands, and what its errors say, on virtual ESP32 and RP2 boards."""

import contextlib
import datetime
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import built
from tests.certificates import Pki, make
from tests.names import everything_is, name_server
from tests.rows import each_row
from tools import deploy
from tools.broker import HOST, Mosquitto
from tools.toolchain import ROOT
from tools.virtual_board import Port, VirtualBoard

pytestmark = [pytest.mark.needs_mosquitto, pytest.mark.needs_micropython, pytest.mark.timeout(300)]
PAGE = (ROOT / "docs" / "tls-on-boards.md").read_text(encoding="utf-8")
StartBroker = Callable[..., Mosquitto]
WAIT_S = 60
PORTS: tuple[Port, ...] = ("esp32", "rp2")


def blocks(heading: str, language: str) -> list[str]:
    """The code blocks of a section."""
    section = re.split(rf"^#+ {re.escape(heading)}$", PAGE, flags=re.MULTILINE)[1]
    section = re.split(r"^#+ (?=[A-Z\d])", section, flags=re.MULTILINE)[0]
    return re.findall(rf"^```{language}\n(.*?)^```", section, re.DOTALL | re.MULTILINE)


def shell(script: str, folder: Path, **variables: str) -> None:
    done = subprocess.run(
        ["sh", "-e", "-c", script],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@contextlib.contextmanager
def time_server() -> Iterator[int]:
    """An SNTP server on a port of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind((HOST, 0))

        def serve() -> None:
            while True:
                query, address = s.recvfrom(512)
                if not query:
                    return
                now = struct.pack(">II", int(time.time()) + 2208988800, 0)
                s.sendto(b"\x24\x01" + bytes(22) + query[40:48] + now + now, address)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield s.getsockname()[1]
        finally:
            s.sendto(b"", s.getsockname())
            thread.join()


@contextlib.contextmanager
def world(port: Port, broker: Mosquitto, **options: Any) -> Iterator[VirtualBoard]:
    """A board whose WiFi leads to the broker and to a time server, by the names of the page."""
    with (
        time_server() as sntp,
        name_server(everything_is("192.168.4.1")) as (names, _),
        VirtualBoard(flash="littlefs", heap="512K", port=port, **options) as board,
    ):
        assert board.air is not None
        for name in ("broker.local", "pool.ntp.org"):
            board.air.name(name, "192.168.4.1")
        for address, here in (
            ("192.168.4.1:8883", broker.port),
            ("192.168.4.1:123", sntp),
            ("192.168.4.1:53", names),
            # Of names in .local.
            ("224.0.0.251:5353", names),
        ):
            board.air.reach(address, here)
        yield board


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the page's certificates and the components were made."""
    folder = tmp_path_factory.mktemp("recipe")
    for script in blocks("1. Create certificates", "sh"):
        shell(script, folder)
    built.components(folder / "out" / "components")
    return folder


def configuration(folder: Path) -> dict[str, object]:
    """The page's mosquitto.conf, as settings of a broker in another folder and on a free port."""
    (text,) = blocks("2. Configure mosquitto", "text")
    lines = dict(line.split(" ", 1) for line in text.splitlines())
    assert lines.pop("listener") == "8883"
    return {name: folder / value if name.endswith("file") else value for name, value in lines.items()}


@pytest.mark.parametrize("port", PORTS)
def test_the_recipe_ends_online(mosquitto: StartBroker, made: Path, tmp_path: Path, port: Port) -> None:
    (found,) = blocks("3. Copy files to the board", "json")
    (program,) = blocks("3. Copy files to the board", "python")
    (commands,) = blocks("3. Copy files to the board", "sh")
    (made / "headwater.json").write_text(found)
    (made / "main.py").write_text(program)
    with mosquitto(settings=configuration(made)) as broker, world(port, broker) as board:
        mpremote = tmp_path / "bin" / "mpremote"
        mpremote.parent.mkdir()
        mpremote.write_text(f'#!/bin/sh\nexec {sys.executable} -m mpremote connect {board.port} "$@"\n')
        mpremote.chmod(0o755)
        shell(commands, made, PATH=f"{mpremote.parent}:{os.environ['PATH']}")
        board.wait_for("online", WAIT_S)
        # The name of its certificate is its user name.
        assert re.search(r"as board-1 \(p\d, c\d, k\d+, u'board-1'\)", broker.log_text())


@pytest.mark.parametrize("port", PORTS)
def test_the_parts_without_settings_end_online(mosquitto: StartBroker, made: Path, port: Port) -> None:
    (program,) = blocks("Without settings", "python")
    files = {f"tls/{name}": made / name for name in ("ca.der", "board-1.der", "board-1.key.der")}
    with (
        mosquitto(settings=configuration(made)) as broker,
        world(port, broker, main=program, files={**deploy.package_files("mpy"), **files}) as board,
    ):
        board.wait_for("online", WAIT_S)


#: What is wrong: the broker's certificate, whether it wants one of the board, what replaces values of the settings, and
#: the text that the board prints.
FAULTS: dict[str, tuple[str, bool, dict[str, str | None], str]] = {
    "expired certificate": ("expired", False, {}, "validity has expired; this board's clock says 20"),
    "wrong name": (
        "server",
        False,
        {"server_name": None},
        "does not match with the expected CN; broker.local is not in it: give a name that is as server_name",
    ),
    "wrong CA": (
        "server",
        False,
        {"ca": "/tls/stranger.der"},
        "not correctly signed by the trusted CA; give the certificate of the server's CA as ca",
    ),
    "no client certificate": (
        "server",
        True,
        {"cert": None, "key": None},
        "the server closed the connection during the handshake: it may require a client certificate; see its log",
    ),
}


@each_row("fault", FAULTS)
def test_an_error_says_what_to_do(mosquitto: StartBroker, pki: Pki, fault: str) -> None:
    which, clients, more, says = FAULTS[fault]
    (text,) = blocks("3. Copy files to the board", "json")
    (program,) = blocks("3. Copy files to the board", "python")
    found = json.loads(text)
    found["broker"]["tls"] |= {"server_name": "localhost", **more}
    files = {
        "headwater.json": json.dumps(found),
        "tls/ca.der": pki.ca.cert_der,
        "tls/stranger.der": pki.stranger.cert_der,
        "tls/board-1.der": pki.client.cert_der,
        "tls/board-1.key.der": pki.client.key_der,
        **deploy.package_files("mpy"),
    }
    with (
        mosquitto(settings=pki.listener(getattr(pki, which), clients)) as broker,
        world("esp32", broker, main=program, files=files) as board,
    ):
        board.wait_for(says, WAIT_S)
        assert "online" not in board.log
    # The page explains it in the same words.
    assert says.partition(";")[0].partition(":")[0] in PAGE


@pytest.mark.parametrize("port, clock", [("esp32", "2000-01-01"), ("rp2", "2021-01-01")])
def test_a_clock_that_was_not_set(mosquitto: StartBroker, tmp_path: Path, port: Port, clock: str) -> None:
    """mbedTLS has this machine's clock, so the certificates are as far ahead of it as they are of the board's."""
    begin = datetime.datetime.fromisoformat(f"{clock}T00:00:00+00:00")
    later = datetime.datetime.now(datetime.timezone.utc) - begin
    ca = make(tmp_path, "ca", authority=True, later=later)
    server = make(tmp_path, "server", ("broker.local",), issuer=ca, later=later)
    (program,) = blocks("Without settings", "python")
    timed = 'TimedNetwork(Wifi([("headwater", "correct horse")]), Sntp(("pool.ntp.org",)))'
    assert timed in program
    program = program.replace(timed, 'Wifi([("headwater", "correct horse")])')
    program = re.sub(r', cert="[^"]*", key="[^"]*"', "", program)
    settings = {"cafile": ca.cert, "certfile": server.cert, "keyfile": server.key}
    files = {"tls/ca.der": ca.cert_der, **deploy.package_files("mpy")}
    with (
        mosquitto(settings=settings) as broker,
        world(port, broker, main=program, files=files) as board,
    ):
        says = "The certificate validity starts in the future; this board's clock says"
        board.wait_for(f"{says} {clock}: set it before TLS", WAIT_S)
    assert f"{says} 2000-01-01: set it before TLS" in PAGE
