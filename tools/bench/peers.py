"""Whom the measured clients talk to: mosquitto, and the canned peers, on a processor of their own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
from pathlib import Path

from tools.bench import canned
from tools.broker import Mosquitto
from tools.toolchain import ROOT

#: The client under measurement, as ``device/common.py`` names it: messages are kept for it.
_CLIENT_ID = b"bench-device"
_BATCH = 16


def _pin(pid: int, cpu: int) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {cpu})


class Peers:
    """mosquitto and the canned peers, on a processor of their own, while the context lasts."""

    def __init__(self, cpu: int) -> None:
        self._cpu = cpu
        self._ports: dict[str, int] = {}
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Peers:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="headwater-bench-"))
            broker = Mosquitto(Path(folder), settings={"log_type": "error"})
            stack.enter_context(broker)
            _pin(broker.pid, self._cpu)
            self._ports["mosquitto"] = broker.port
            for kind in canned.KINDS:
                port, process = stack.enter_context(canned.running(kind, ROOT))
                _pin(process.pid, self._cpu)
                self._ports[kind] = port
                self._processes[kind] = process
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def port(self, kind: str) -> int:
        """Where a peer listens."""
        return self._ports[kind]

    def bytes_read(self, kind: str) -> int:
        """How many bytes the canned peer read on the connection that has just ended."""
        output = self._processes[kind].stdout
        assert output is not None
        return int(output.readline())

    def queue(self, qos: int, messages: int) -> None:
        """Let mosquitto keep messages for the client, which is away."""
        port = self._ports["mosquitto"]
        _session(port, _CLIENT_ID, clean=True).close()
        with _session(port, _CLIENT_ID, clean=False) as subscriber:
            name = len(canned.TOPIC).to_bytes(2, "big") + canned.TOPIC
            subscriber.sendall(bytes([0x82, len(name) + 3, 0, 1]) + name + bytes([qos]))
            _expect(subscriber, bytes([0x90, 3, 0, 1, qos]))
            subscriber.sendall(b"\xe0\x00")
            while subscriber.recv(16):
                pass
        with _session(port, b"bench-host", clean=True) as publisher:
            for _ in range(-(-messages // _BATCH)):
                publisher.sendall(b"".join(canned.publish_packet(qos, i) for i in range(1, _BATCH + 1)))
                if qos == 1:
                    _expect_kind(publisher, 0x40, _BATCH)
                else:
                    _expect_kind(publisher, 0x50, _BATCH)
                    publisher.sendall(b"".join(bytes([0x62, 2, 0, i]) for i in range(1, _BATCH + 1)))
                    _expect_kind(publisher, 0x70, _BATCH)


def _session(port: int, client_id: bytes, clean: bool) -> socket.socket:
    connection = socket.create_connection((canned.HOST, port), timeout=10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    body = b"\x00\x04MQTT\x04" + bytes([2 * clean, 0, 0, 0, len(client_id)]) + client_id
    connection.sendall(bytes([0x10, len(body)]) + body)
    _expect(connection, b"\x20\x02\x00\x00")
    return connection


def _read(connection: socket.socket, n: int) -> bytes:
    data = b""
    while len(data) < n:
        more = connection.recv(n - len(data))
        if not more:
            raise ConnectionError("the broker closed the connection")
        data += more
    return data


def _expect(connection: socket.socket, answer: bytes) -> None:
    got = _read(connection, len(answer))
    if got != answer:
        raise ConnectionError(f"the broker answered {got.hex()} instead of {answer.hex()}")


def _expect_kind(connection: socket.socket, head: int, count: int) -> None:
    got = _read(connection, 4 * count)
    if set(got[::4]) != {head}:
        raise ConnectionError(f"the broker answered {got.hex()} instead of {count} times {head:x}")
