"""A name server for boards under test: DNS over UDP, with the answers that a test wants."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: ``answers(name, query, n)``: what the server sends for the nth query for a name.
Answers = Callable[[str, bytes, int], list[bytes]]


class FromStranger(bytes):
    """An answer that another port sends, as one who forges it has to."""


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


def everything_is(address: str) -> Answers:
    """Every name has this address."""
    return lambda name, query, n: [answer(query, a(address))]


@contextmanager
def name_server(answers: Answers) -> Iterator[tuple[int, list[str]]]:
    """A name server: its port, and the names that it was asked for."""
    asked: list[str] = []
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger,
    ):
        server.bind(("127.0.0.1", 0))
        address = server.getsockname()

        def serve() -> None:
            while True:
                query, board = server.recvfrom(512)
                if not query:
                    return
                assert query[2:12] == b"\x01\0\0\1\0\0\0\0\0\0"
                assert query.endswith(b"\0\0\1\0\1")
                parts, at = [], 12
                while query[at]:
                    parts.append(query[at + 1 : at + 1 + query[at]].decode())
                    at += query[at] + 1
                name = ".".join(parts)
                asked.append(name)
                for one in answers(name, query, asked.count(name)):
                    (stranger if isinstance(one, FromStranger) else server).sendto(one, board)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield address[1], asked
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
                end.sendto(b"", address)
            thread.join(10)
