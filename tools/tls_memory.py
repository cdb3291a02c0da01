"""Measure what TLS takes on a board, with MicroPython's unix build (64 bits):

    python -m tools.tls_memory

mbedTLS has a heap of its own there; the growth over many connections is divided by their number.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from tools import mpy
from tools.runtimes import run_unix
from tools.toolchain import ROOT

PROGRAM = ROOT / "tools" / "device" / "tls_memory.py"
HOST = "127.0.0.1"
#: What there is one more of: how many are made, as the process gets 132 KiB at once, and the server's answers to each.
CASES = {"ca": (1000, 0), "handshake": (200, 1), "connection": (200, 2)}
KEYS = {"P-256": ("ec", "ec_paramgen_curve:P-256"), "RSA-2048": ("rsa", "rsa_keygen_bits:2048")}


def certificate(folder: Path, key: str) -> tuple[Path, Path, Path]:
    """Make a certificate that signs itself: as PEM and as DER, and its key."""
    pem, der, private = (folder / f"{key}.{end}" for end in ("pem", "der", "key"))
    kind, option = KEYS[key]
    make = ["openssl", "req", "-x509", "-newkey", kind, "-pkeyopt", option, "-nodes", "-keyout", str(private)]
    make += ["-out", str(pem), "-days", "30", "-subj", "/CN=us", "-addext", f"subjectAltName=IP:{HOST}"]
    convert = ["openssl", "x509", "-in", str(pem), "-outform", "DER", "-out", str(der)]
    for command in (make, convert):
        subprocess.run(command, check=True, capture_output=True)
    return pem, der, private


@contextlib.contextmanager
def server(pem: Path, private: Path, answers: int) -> Iterator[int]:
    """A TLS server on the port that it yields: it answers ``answers`` times on each connection, and is silent then."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, private)

    def talk(near: socket.socket) -> None:
        received, answer = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(received, answer, server_side=True)
        with near, contextlib.suppress(OSError):
            left = answers
            while data := near.recv(65536):
                received.write(data)
                if left:
                    with contextlib.suppress(ssl.SSLWantReadError):
                        tls.do_handshake()
                    left -= answer.pending > 0
                    near.sendall(answer.read())

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                thread = threading.Thread(target=talk, args=(listener.accept()[0],))
                thread.start()
                threads.append(thread)

    threads: list[threading.Thread] = []
    with socket.create_server((HOST, 0), backlog=128) as listener:
        acceptor = threading.Thread(target=serve)
        acceptor.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for thread in (acceptor, *threads):
                thread.join()


def measure(what: str, ca: Path, port: int) -> tuple[int, int]:
    """What one more takes from C's heap and from Python's, in bytes."""
    words = {"what": what, "ca": str(ca), "host": HOST, "port": port, "count": CASES[what][0]}
    path = [mpy.compiled(mpy.SDK), mpy.compiled(mpy.BOARD_PORT)]
    done = run_unix(PROGRAM, json.dumps(words), path=path, heap=64 << 20)
    if done.returncode:
        raise RuntimeError(done.stdout)
    native, python = json.loads(done.stdout)
    return native, python


def main() -> None:
    """Print the figures of docs/tls-on-boards.md."""
    print(f"{'one more':<12} {'key':<9} {'mbedTLS':>8} {'Python':>8}")
    with tempfile.TemporaryDirectory() as name:
        for key in KEYS:
            pem, der, private = certificate(Path(name), key)
            for what, (_, answers) in CASES.items():
                with server(pem, private, answers) as port:
                    native, python = measure(what, der, port)
                print(f"{what:<12} {key:<9} {native:>8,} {python:>8,}", flush=True)


if __name__ == "__main__":
    main()
