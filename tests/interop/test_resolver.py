"""The board's resolver, with a name server that is slow, silent, wrong, or knows no such name."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tools import mpy
from tools.broker import Mosquitto
from tools.runtimes import run_unix

pytestmark = [pytest.mark.needs_micropython, pytest.mark.needs_mosquitto]
SCRIPT = Path(__file__).parent / "device" / "resolver.py"
NXDOMAIN = 3
SERVFAIL = 2


def record(kind: int, data: bytes, name: bytes = b"\xc0\x0c") -> bytes:
    return name + struct.pack(">HHIH", kind, 1, 60, len(data)) + data


def a(address: str, name: bytes = b"\xc0\x0c") -> bytes:
    return record(1, socket.inet_aton(address), name)


def answer(query: bytes, *records: bytes, code: int = 0) -> bytes:
    return (
        query[:2]
        + struct.pack(">HHHHH", 0x8180 | code, 1, len(records), 0, 0)
        + query[12:]
        + b"".join(records)
    )


def labels(name: str) -> bytes:
    return b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"


#: By name: what the server sends for a query, in turn.
ANSWERS: dict[str, Callable[[bytes, int], list[bytes]]] = {
    "plain.test": lambda query, n: [answer(query, a("10.0.0.1"))],
    "several.test": lambda query, n: [answer(query, a("10.0.0.1"), a("10.0.0.2"))],
    "alias.test": lambda query, n: [
        answer(query, record(5, labels("other.test")), a("10.0.0.3", labels("other.test")))
    ],
    "late.test": lambda query, n: [] if n == 1 else [answer(query, a("10.0.0.4"))],
    "forged.test": lambda query, n: [
        answer(b"\0\0" + query[2:], a("6.6.6.6")),
        answer(query[:12] + labels("x.test") + query[-4:], a("6.6.6.6")),
        query,
        b"",
        b"\xff",
        answer(query, a("10.0.0.5")),
    ],
    "short.test": lambda query, n: [answer(query, a("10.0.0.6"))[:-2]],
    "six.test": lambda query, n: [answer(query, record(28, bytes(16)))],
    "gone.test": lambda query, n: [answer(query, code=NXDOMAIN)],
    "broken.test": lambda query, n: (
        [answer(query, code=SERVFAIL)] if n < 3 else [answer(query, a("10.0.0.8"))]
    ),
    "silent.test": lambda query, n: [],
    # Nobody listens at the first.
    "broker.test": lambda query, n: [answer(query, a("127.0.0.2" if n == 1 else "127.0.0.1"))],
    "old.test": lambda query, n: [],
}


class NameServer:
    """``asked``: the names of all queries."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.asked: list[str] = []

    def serve(self) -> None:
        while True:
            query, board = self.socket.recvfrom(512)
            if query == b"stop":
                return
            assert query[2:12] == b"\x01\0\0\1\0\0\0\0\0\0"
            assert query.endswith(b"\0\0\1\0\1")
            parts, at = [], 12
            while query[at]:
                parts.append(query[at + 1 : at + 1 + query[at]].decode())
                at += query[at] + 1
            name = ".".join(parts)
            self.asked.append(name)
            for one in ANSWERS[name](query, self.asked.count(name)):
                self.socket.sendto(one, board)


@contextmanager
def name_server() -> Iterator[NameServer]:
    server = NameServer()
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.socket.sendto(b"stop", server.socket.getsockname())
        thread.join(10)
        server.socket.close()


def test_names_are_resolved_without_blocking(mosquitto: Callable[..., Mosquitto]) -> None:
    hosts = ["192.168.4.1", "kept", *(host for host in ANSWERS if host not in ("broker.test", "old.test"))]
    path = [mpy.compiled(mpy.SDK), mpy.compiled(mpy.BOARD_PORT)]
    with name_server() as server:
        port = server.socket.getsockname()[1]
        done = run_unix(SCRIPT, str(port), str(mosquitto().port), *hosts, path=path)
    assert done.stdout.splitlines() == [
        "192.168.4.1 ['192.168.4.1'] at once free",
        "kept ['10.0.0.7'] at once free",
        "plain.test ['10.0.0.1'] at once free",
        "several.test ['10.0.0.1', '10.0.0.2'] at once free",
        "alias.test ['10.0.0.3'] at once free",
        "late.test ['10.0.0.4'] late free",
        "forged.test ['10.0.0.5'] at once free",
        "short.test errno 113",
        "six.test errno 113",
        "gone.test errno 113",
        "broken.test ['10.0.0.8'] late free",
        "silent.test errno 113",
        "errno 111",
        "connected True",
        "connected True",
        "errno 111",
        "errno 111",
        "errno 111",
    ], done.stdout
    assert server.asked.count("silent.test") in (5, 6)
    assert server.asked.count("broker.test") == 2
    assert "kept" not in server.asked
    assert "old.test" in server.asked
