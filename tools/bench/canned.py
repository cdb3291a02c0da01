"""Canned peers: minimal brokers or hubs that are never the bottleneck of a measurement.

    python -m tools.bench.canned KIND

Prints its port, serves one connection after another, and prints the bytes received after each. It ends with its
standard input. It speaks the protocol with which a connection begins, MQTT or FMQ (`dialects`). KIND is

- `sink`: accepts and reads, for publishing at QoS 0.
- `acks`: acknowledges each PUBLISH at QoS 1. All have the length of `Dialect.publish`'s, so ids are at fixed
  distances.
- `flood0`, `flood1`: after SUBSCRIBE, sends PUBLISH at QoS 0 or 1 without end from a prepared block of 8,000
  messages, and reads the answers.
- `handshakes`: after SUBSCRIBE, sends PUBLISH at QoS 2 with the complete handshake, 20 messages at a time.
"""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tools.bench.dialects import DIALECTS, Dialect, read

HOST = "127.0.0.1"
_ROOM = 1 << 20
_FLOOD = 4 << 20
_IDS = 8000
_LOOK_S = 0.0005
_GROUP = 10


def sink(peer: socket.socket, _: Dialect) -> int:
    """Read until the end and return the number of bytes.

    Polls at intervals instead of waiting: waking this process at each write would cost the client more than the
    write.
    """
    room = bytearray(_ROOM)
    total = 0
    peer.setblocking(False)
    while True:
        try:
            n = peer.recv_into(room)
        except BlockingIOError:
            time.sleep(_LOOK_S)
            continue
        total += n
        if not n:
            return total


def acks(peer: socket.socket, dialect: Dialect) -> int:
    """Acknowledge each PUBLISH until the end and return the number of bytes read."""
    size = len(dialect.publish(1, 1))
    head, tail = dialect.ack
    answer_size = len(head) + dialect.id_size + len(tail)
    blank = head + bytes(dialect.id_size) + tail
    room = bytearray(_ROOM)
    view = memoryview(room)
    have = total = 0
    while n := peer.recv_into(view[have:]):
        total += n
        have += n
        whole = have // size * size
        if not whole:
            continue
        answer = bytearray(blank * (whole // size))
        for i in range(dialect.id_size):
            answer[len(head) + i :: answer_size] = room[dialect.id_at + i : whole : size]
        room[: have - whole] = room[whole:have]
        have -= whole
        peer.sendall(answer)
    return total


def flood(peer: socket.socket, qos: int, dialect: Dialect) -> int:
    """Send PUBLISH until the client disconnects and return the number of bytes read."""
    dialect.grant(peer, qos)
    one = dialect.publish(0, 0)
    block = b"".join(dialect.publish(1, i) for i in range(1, _IDS + 1)) if qos else one * (_FLOOD // len(one))
    view = memoryview(block)
    room = bytearray(_ROOM)
    peer.setblocking(False)
    poll = select.poll()
    poll.register(peer, select.POLLIN | select.POLLOUT)
    at = total = 0
    while True:
        for _, events in poll.poll():
            if events & select.POLLIN:
                n = peer.recv_into(room)
                total += n
                if not n:
                    return total
            if events & (select.POLLERR | select.POLLHUP):
                return total
            if events & select.POLLOUT:
                at += peer.send(view[at:])
                if at == len(block):
                    at = 0


def handshakes(peer: socket.socket, dialect: Dialect) -> int:
    """Send QoS 2 in two groups of _GROUP messages until the client disconnects; return the number of bytes read."""
    dialect.grant(peer, 2)
    groups = [range(i, i + _GROUP) for i in range(1, 4 * _GROUP, _GROUP)]
    new = [b"".join(dialect.publish(2, i) for i in group) for group in groups]
    release = [b"".join(map(dialect.release, group)) for group in groups]
    peer.sendall(new[0] + new[1])
    room = bytearray(2 * _GROUP * dialect.answer_size)
    total = k = 0
    # The client answers the first two groups with PUBREC, later ones together with an older PUBCOMP.
    view = memoryview(room)[: _GROUP * dialect.answer_size]
    while True:
        n = peer.recv_into(view, 0, socket.MSG_WAITALL)
        total += n
        if n < len(view):
            return total
        peer.sendall(release[k % 4] + new[(k + 2) % 4])
        k += 1
        if k == 2:
            view = memoryview(room)


KINDS: dict[str, Callable[[socket.socket, Dialect], int]] = {
    "sink": sink,
    "acks": acks,
    "flood0": lambda peer, dialect: flood(peer, 0, dialect),
    "flood1": lambda peer, dialect: flood(peer, 1, dialect),
    "handshakes": handshakes,
}


def serve(kind: str) -> None:
    """Serve until standard input ends."""
    work = KINDS[kind]
    with socket.create_server((HOST, 0)) as server:
        print(server.getsockname()[1], flush=True)
        threading.Thread(target=_serve_all, args=(server, work), daemon=True).start()
        sys.stdin.read()


def _serve_all(server: socket.socket, work: Callable[[socket.socket, Dialect], int]) -> None:
    while True:
        peer, _ = server.accept()
        with peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            total = 0
            with contextlib.suppress(ConnectionError):
                dialect = DIALECTS[read(peer, 1)[0]]
                dialect.accept(peer)
                total = work(peer, dialect)
            print(total, flush=True)


@contextlib.contextmanager
def running(kind: str, root: Path) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Run a peer in a process: its port, and the process, which prints a line for each connection."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tools.bench.canned", kind],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline()), process
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(10)


if __name__ == "__main__":
    serve(sys.argv[1])
